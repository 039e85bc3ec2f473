"""What a model predicts, as plain data. No torch in here."""

from typing import Literal

import msgspec

PREDICTED = 5  # tokens that are kept of each place
PredictionKind = Literal["next", "masked"]


class PredictedToken(msgspec.Struct, frozen=True):
    """A token that a model may put at one place.

    Attributes:
        id: Its vocabulary id.
        piece: The tokenizer's own spelling.
        text: What it spells, with the blank that it may start with.
        logit: What the output head gives for it.
        probability: The softmax of the logits over the whole vocabulary.
    """

    id: int
    piece: str
    text: str
    logit: float
    probability: float


class Prediction(msgspec.Struct, frozen=True):
    """What a model predicts at one place.

    Attributes:
        kind: `next` for the token after this position, `masked` for the one that stands there.
        position: Position of the token whose final state the head read.
        tokens: The most probable tokens, first.
    """

    kind: PredictionKind
    position: int
    tokens: list[PredictedToken]
