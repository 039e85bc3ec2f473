"""`attnscope ablate`: what changes if heads or edges are cut."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnscope.studies.study import (
    DRAWN,
    TABLES,
    Call,
    FindingsKind,
    Request,
    Sides,
    Study,
    StudyCommand,
)
from attnscope.views.settings import Listing

_EXAMPLES = """
attnscope ablate "She sat by the [MASK] of the river" --cut L2H0
attnscope ablate "She sat by the [MASK] of the river" --cut "*: [MASK]←river"
attnscope ablate "She sat by the [MASK] of the river" --each head
attnscope ablate "The bank by the river" --each edge --layer 2 --at bank
attnscope ablate "She sat by the [MASK] of the river" --cut "L0-1: river<-" --cut L3H1
attnscope ablate "The bank by the river" --each head --at bank --replacement mean --output effects.csv
attnscope ablate "She sat by the [MASK] of the river" --each head --target river --target sea --replacement resample
attnscope ablate "A [MASK] in the house" --patch-from "A [MASK] in the river" --each head --target house --target river
"""


def _call(values: Mapping[str, Any], _sides: Sides | None) -> Call:
    if values.get("each") is None:
        return Call("ablate")
    return Call("effects", listing=Listing(values.get("top")))


def _answer(request: Request) -> Any:
    from attnscope.studies.ablate.plan import AblationOptions
    from attnscope.studies.ablate.run import ablate, survey_effects

    field_names = AblationOptions.__dataclass_fields__
    arguments = {
        name: value
        for name, value in request.values.items()
        if name in field_names and value is not None
    }
    if isinstance(others := arguments.get("others"), Path):
        assert request.read_lines is not None
        arguments["others"] = tuple(text.text for text in request.read_lines(others))
    options = AblationOptions(**arguments)
    if "each" not in arguments:
        return ablate(request.run, options, request.session)
    survey = survey_effects(request.run, options, request.session)
    if request.shows_every_head:
        from attnscope.studies.ablate.page import run_with_heads

        request.every_head.append(run_with_heads(request, survey))
    return survey


STUDY = Study(
    (
        FindingsKind("ablate", "ablation:Ablation", "ablate.screen:present_ablation"),
        FindingsKind(
            "effects",
            "ablation:EffectSurvey",
            "ablate.screen:present_effects",
            (*DRAWN, *TABLES),
            "ablate --each",
            "ablate.page:present_effects_page",
        ),
    ),
    StudyCommand(
        """Cut heads or edges out of attention and show what changes.

        A large weight does not always matter. --cut runs the model again without the named heads or edges, and
        compares predictions and final hidden states. --each does so for every head, layer or edge, and ranks them.

        --each also shows how well weights predict the effect. A cut edge is shown in two ways: with its score at −inf,
        so that softmax redistributes its weight over the other keys (renormalised), and with its weight set to 0
        (unnormalised). --patch-from patches what a second text gives instead, and --replacement resample what other
        texts give.
        """,
        _EXAMPLES,
        _answer,
        own=("top", "generate", "cuts", "target"),
        call=_call,
    ),
)
