"""`attnscope ablate`: what changes if heads or edges are cut."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from attnscope.studies.study import DRAWN, TABLES, Display, FindingsKind, Study

if TYPE_CHECKING:
    from attnscope.views.parts import ViewPart
    from attnscope.views.settings import DisplaySettings


def _show(ablation: Any, settings: "DisplaySettings", _display: Display) -> "Iterator[ViewPart]":
    from attnscope.studies.ablate.screen import present_ablation

    return present_ablation(ablation, settings)


def _show_effects(effects: Any, settings: "DisplaySettings", display: Display) -> "Iterator[ViewPart]":
    from attnscope.studies.ablate.screen import present_effects
    from attnscope.studies.heads.screen import Listing

    return present_effects(effects, settings, display.listing or Listing())


STUDY = Study(
    (
        FindingsKind("ablate", "attnscope.findings.ablation:Ablation", _show),
        FindingsKind(
            "effects", "attnscope.findings.ablation:EffectSurvey", _show_effects, (*DRAWN, *TABLES), "ablate --each"
        ),
    )
)
