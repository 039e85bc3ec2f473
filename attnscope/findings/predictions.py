"""What a model predicts, as plain data. No torch in here."""

from typing import Annotated, Literal

import msgspec

from attnscope.findings.arrays import along
from attnscope.findings.provenance import Findings

# Number of tokens kept per prediction.
PREDICTED = 5
PredictionKind = Literal["next", "masked"]


class VocabularyToken(Findings, frozen=True):
    """A token of the vocabulary.

    Attributes:
        id: Its vocabulary id.
        piece: The tokenizer's own spelling.
        text: The text that the token stands for, including a leading space.
    """

    id: int
    piece: str
    text: str


class PredictedToken(VocabularyToken, frozen=True):
    """A token that the model may predict at one position.

    Attributes:
        logit: Output of the output head for this token.
        probability: The softmax of the logits over the whole vocabulary.
    """

    logit: float
    probability: float


class Prediction(msgspec.Struct, frozen=True):
    """The model's prediction at one position.

    Attributes:
        kind: `next` for the token after this position, `masked` for the token at this position.
        position: Position of the token whose final hidden state the output head reads.
        tokens: The most probable tokens, in descending order.
    """

    kind: PredictionKind
    position: Annotated[int, along(positions="word")]
    tokens: Annotated[list[PredictedToken], along(filled=True)]
