"""Final hidden states to the most probable tokens."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from attnscope.findings.predictions import PREDICTED, PredictedToken, Prediction
from attnscope.model.precision import to_float64
from attnscope.run.prediction_plan import AT_ONCE, PredictedPlaces

Spell = Callable[[int], tuple[str, str]]


def predict(
    logits: Callable[[Tensor], Tensor], hidden: Tensor, places: PredictedPlaces, spell: Spell
) -> list[Prediction]:
    """Return the model's predictions at some places of one text.

    Args:
        logits: The output head: final hidden states, (N, D), to logits, (N, V).
    """
    predictions: list[Prediction] = []
    for first in range(0, len(places.positions), AT_ONCE):
        positions = places.positions[first : first + AT_ONCE]
        # All rows are read at once, since each read of a GPU waits for it.
        rows = logits(hidden[positions]).cpu()
        for position, row in zip(positions, rows, strict=True):
            predictions.append(Prediction(places.kind, position, most_probable(row, spell)))
    return predictions


def most_probable(logits: Tensor, spell: Spell) -> list[PredictedToken]:
    """Return the most probable tokens of one place by the logits of the whole vocabulary, (V,)."""
    share = torch.softmax(to_float64(logits), dim=-1)
    ids: Sequence[int] = torch.topk(logits, min(PREDICTED, len(logits))).indices.tolist()
    return [PredictedToken(i, *spell(i), float(logits[i]), float(share[i])) for i in ids]
