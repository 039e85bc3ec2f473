"""Arguments of `attnscope.ablate`."""

from collections.abc import Callable, Sequence
from typing import Any

from attnscope.request.arguments import Each, Replacement
from attnscope.request.run_config import (
    CallArguments,
    HeadArguments,
    NamedModel,
    OpenArguments,
    TokenArguments,
    Tokens,
)


class ModelAblateArguments(CallArguments, TokenArguments, HeadArguments, total=False):
    """Arguments of `ablate`; see TokenArguments and HeadArguments, too.

    Attributes:
        pair: The second segment, for an encoder.
        cut: What to cut: `L5H1`, `L5-8`, `"L5H1: it←animal"`, or several, which are cut together.
        words: Cut edges between whole words.
        each: Cut every `head`, `layer` or `edge` alone instead; layer, head, query and key restrict the choice. With
            `span`, cut the answer (or `query`) off from each span of the text (see `spans` and `messages`).
        answer: With `each="span"`, the answer, which the text is continued by; None for the last turn of a chat, or
            what the model generates.
        generate: Number of tokens of an answer that the model generates; None for 8.
        replacement: Replacement for the output of a cut head: `zero`, its `mean` over the text's tokens, or `resample`:
            its output at the same positions of other texts, averaged over draws. Edges are resampled, too.
        reference: Another text over which to compute that mean.
        patch_from: A text of equally many tokens whose activations replace those of the text: activation patching.
        others: Texts from which `resample` draws; None for built-in ones.
        draws: Number of draws; None for 4.
        seed: Seed of the draws; None for 0.
        target: A token whose logit to compare, such as `" Mary"`, or two for the difference.
        at: Tokens at which predictions and hidden states are compared; None for the last token, or for every mask
            token.
    """

    pair: str | None
    cut: str | Sequence[str] | None
    words: bool
    each: Each | None
    replacement: Replacement
    reference: str | None
    patch_from: str | None
    others: str | Sequence[str] | None
    draws: int | None
    seed: int | None
    target: str | Sequence[str] | None
    answer: str | None
    generate: int | None
    at: Tokens | None
    score_mod: Callable[..., Any] | None


class AblateArguments(OpenArguments, ModelAblateArguments, NamedModel, total=False):
    """All that `attnscope.ablate` takes in addition to the text."""
