"""`attnscope ablate`: what changes if heads or edges are cut."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attnscope.base.errors import UsageError, arg
from attnscope.request.arguments import Each, Replacement
from attnscope.request.run_config import (
    CallArguments,
    HeadArguments,
    NamedModel,
    OpenArguments,
    TokenArguments,
    Tokens,
)
from attnscope.studies.study import DRAWN, TABLES, Call, FindingsKind, Listing, Request, Sides, Study, StudyCommand

_OPTIONS = ("cuts", "each", "replacement", "reference", "at", "answer", "generate", "target", "patch_from")

_EXAMPLES = """
attnscope ablate "She sat by the [MASK] of the river" --cut L2H0
attnscope ablate "She sat by the [MASK] of the river" --cut "*: [MASK]→river"
attnscope ablate "She sat by the [MASK] of the river" --cut "L0-1: river->" --cut L3H1
attnscope ablate "She sat by the [MASK] of the river" --each head
attnscope ablate "She sat by the [MASK] of the river" --each edge --layer 2 --head 0
attnscope ablate "The bank by the river" --each head --at bank --with mean --output effects.csv
attnscope ablate "She sat by the [MASK] of the river" --each head --target river --target sea --with resample
attnscope ablate "A [MASK] in the house" --from "A [MASK] in the river" --each head --target house --target river
"""


def _call(values: Mapping[str, Any], _sides: Sides | None) -> Call:
    top = values.get("top")
    if values.get("each") is not None:
        return Call("effects", listing=Listing(top))
    if top is not None:
        hint = f"remove it: {arg('cut')} shows all that it changes"
        raise UsageError(f"applies only to {arg('each')}", where=arg("top"), hint=hint)
    return Call("ablate")


def _answer(request: Request) -> Any:
    from attnscope.studies.ablate.plan import AblationOptions
    from attnscope.studies.ablate.run import ablate, survey_effects

    values = {name: request.values[name] for name in (*_OPTIONS, "draws", "seed")}
    others = request.values["others"]
    if isinstance(others, Path):
        assert request.read_lines is not None
        others = tuple(text.text for text in request.read_lines(others))
    given = {name: value for name, value in {**values, "others": others}.items() if value is not None}
    study = ablate if values["each"] is None else survey_effects
    return study(request.run, AblationOptions(**given), request.progress, request.session)


STUDY = Study(
    (
        FindingsKind(
            "ablate", "attnscope.findings.ablation:Ablation", "attnscope.studies.ablate.screen:present_ablation"
        ),
        FindingsKind(
            "effects",
            "attnscope.findings.ablation:EffectSurvey",
            "attnscope.studies.ablate.screen:present_effects",
            (*DRAWN, *TABLES),
            "ablate --each",
        ),
    ),
    StudyCommand(
        """Cut heads or edges out of attention and show what changes.

        A large weight does not always matter. --cut runs the model again without the named heads or edges, and
        compares predictions and final hidden states. --each does so for every head, layer or edge, ranks them by
        effect, and shows how well weights predict the effect. A cut edge is shown in two ways: with its score at
        −inf, so that softmax redistributes its weight over the other keys (renormalised), and with its weight set to
        0 (unnormalised). --from patches what a second text gives instead, and --with resample what other texts give.
        """,
        _EXAMPLES,
        _answer,
        own=("top", "generate", "cuts", "target"),
        call=_call,
    ),
)


class ModelAblateArguments(CallArguments, TokenArguments, HeadArguments, total=False):
    """Arguments of `ablate`; see TokenArguments and HeadArguments, too.

    Attributes:
        pair: The second segment, for an encoder.
        cut: What to cut: `L5H1`, `L5-8`, `"L5H1: it→animal"`, or several, which are cut together.
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
