"""What every part of a model adds to the logit of a token, as plain data. No torch in here."""

from typing import Annotated

import msgspec

from attnscope.findings.arrays import Floats, OfHeads, along
from attnscope.findings.predictions import VocabularyToken


class TargetToken(VocabularyToken, frozen=True):
    """A token whose logit is broken down.

    Attributes:
        logit: Output of the output head for this token, before a soft-cap.
    """

    logit: float


class LogitEdge(msgspec.Struct, frozen=True):
    """Contribution of one token to a logit through one head.

    Attributes:
        layer: The layer.
        head: The head.
        source: Position of the token.
        value: The contribution.
    """

    layer: Annotated[int, along(positions="layer")]
    head: Annotated[int, along(positions="head")]
    source: Annotated[int, along(positions="token")]
    value: float


class Attribution(msgspec.Struct, frozen=True):
    """Direct logit attribution: a logit, or the difference of two, as a sum over the parts of the residual stream.

    The scale of the final norm (and of norms after attention and MLP) is frozen at its actual value, so that the
    contributions are additive.

    Attributes:
        position: Position of the token whose final state gives the logit.
        target: The token.
        against: The token whose logit is subtracted; None if there is none.
        total: The sum of all parts: the logit, or the difference.
        embedding: Contribution of the embedding.
        heads: Contribution of every head, (layers, heads).
        attention_biases: Contribution of the bias of every layer's output projection.
        mlps: Contribution of the rest of every layer: its MLP, and in hybrid models what mixes tokens without softmax.
        constant: Contribution of the biases of the final norm and of the output head.
        sources: Contribution of every token of the text, through all heads together.
        edges: The largest contributions, by magnitude, of single tokens through single heads.
        softcap: c of c·tanh(x/c) that the model applies to the logit afterwards; None for none.
    """

    position: Annotated[int, along(positions="token")]
    target: TargetToken
    against: TargetToken | None
    total: float
    embedding: float
    heads: OfHeads
    attention_biases: Annotated[Floats, along("layer")]
    mlps: Annotated[Floats, along("layer")]
    constant: float
    sources: Annotated[Floats, along("token")]
    edges: list[LogitEdge]
    softcap: float | None = None
