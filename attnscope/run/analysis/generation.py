"""Continue a text greedily."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import torch

from attnscope.findings.predictions import Prediction
from attnscope.findings.tokens import Token
from attnscope.model.batch import TokenTensors, pad_texts
from attnscope.run.analysis.predictions import Spell, most_probable


@dataclass(frozen=True)
class Continued:
    """A text with the tokens that a model continued it by.

    Attributes:
        tokens: All of them.
        generated: See report.TextReport.
    """

    tokens: list[Token]
    generated: list[Prediction] = field(default_factory=list)


def continue_text(
    logits: Callable[[TokenTensors], torch.Tensor],
    tokens: Sequence[Token],
    count: int,
    ends: Collection[int],
    spelling: tuple[Spell, Callable[[int], Token]],
    device: torch.device,
) -> Continued:
    """Return a text continued by the most probable token, again and again.

    Args:
        logits: The model: a text that starts as the one before to the logits, (V,), of what follows.
        tokens: The text.
        count: New tokens, at most.
        ends: Ids after which nothing follows.
        spelling: Function that turns an id into a piece and a token.
        device: Where the model runs.
    """
    spell, make = spelling
    text = Continued(list(tokens))
    while len(text.generated) < count:
        found = most_probable(logits(pad_texts([text.tokens], device)), spell)
        text.generated.append(Prediction("next", len(text.tokens) - 1, found))
        text.tokens.append(make(found[0].id))
        if found[0].id in ends:
            break
    return text
