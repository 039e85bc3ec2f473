"""`attnscope compare`: what differs between texts, models, masks or settings."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from attnscope.studies.study import Display, FindingsKind, Study

if TYPE_CHECKING:
    from attnscope.views.parts import ViewPart
    from attnscope.views.settings import DisplaySettings


def _show(comparison: Any, settings: "DisplaySettings", display: Display) -> "Iterator[ViewPart]":
    if display.format == "page":
        from attnscope.studies.compare.page import present_page

        return present_page(comparison, display.every_head, settings)

    from attnscope.studies.compare.screen import present_comparison

    return present_comparison(comparison, settings, heat=display.format == "heat", verdict=display.format == "verdict")


STUDY = Study((FindingsKind("compare", "attnscope.findings.compare:Comparison", _show),))
