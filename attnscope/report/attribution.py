"""What every part of a model adds to the logit of a token, as plain data. No torch in here."""

import msgspec

from attnscope.report.arrays import Floats, Matrix


class TargetToken(msgspec.Struct, frozen=True):
    """A token whose logit is taken apart.

    Attributes:
        id: Its vocabulary id.
        piece: The tokenizer's own spelling.
        text: What it spells, with the blank that it may start with.
        logit: What the output head gives for it, before a soft-cap.
    """

    id: int
    piece: str
    text: str
    logit: float


class LogitEdge(msgspec.Struct, frozen=True):
    """What one token adds to a logit through one head.

    Attributes:
        layer: The layer.
        head: The head.
        source: Position of the token.
        value: What it adds.
    """

    layer: int
    head: int
    source: int
    value: float


class Attribution(msgspec.Struct, frozen=True):
    """Direct logit attribution: a logit, or the difference of two, as a sum over the parts of the residual stream.

    The scale of the final norm (and of norms behind attention and MLP) is frozen at what it was, so that each part adds
    by itself.

    Attributes:
        position: Position of the token whose final state gives the logit.
        target: The token.
        against: Whose logit is subtracted; None for none.
        total: The sum of all parts: the logit, or the difference.
        embedding: What the embedding adds.
        heads: What every head adds, (layers, heads).
        attention_biases: What the bias of every layer's output projection adds.
        mlps: What every layer's MLP adds.
        constant: What the bias of the final norm, and that of the head, add.
        sources: What every token of the text adds through all heads together.
        edges: The tokens through single heads that add most, or take most away, first.
        softcap: c of c·tanh(x/c) that the model applies to the logit afterwards; None for none.
    """

    position: int
    target: TargetToken
    against: TargetToken | None
    total: float
    embedding: float
    heads: Matrix
    attention_biases: Floats
    mlps: Floats
    constant: float
    sources: Floats
    edges: list[LogitEdge]
    softcap: float | None = None
