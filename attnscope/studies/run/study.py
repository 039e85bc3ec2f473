"""`attnscope run`: the attention of a text."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from attnscope.studies.study import DRAWN, TABLES, Display, FindingsKind, Study

if TYPE_CHECKING:
    from attnscope.views.parts import ViewPart
    from attnscope.views.settings import DisplaySettings


def _show(report: Any, settings: "DisplaySettings", display: Display) -> "Iterator[ViewPart]":
    if display.format == "page":
        from attnscope.studies.run.page import present_page

        return present_page(report, display.every_head, settings)  # type: ignore[return-value]  # a page draws walks

    from attnscope.studies.run.screen import present_report

    return present_report(report, settings, heat=display.format == "heat")


STUDY = Study(
    (FindingsKind("run", "attnscope.findings.run:Report", _show, (*DRAWN, ".safetensors", ".npz", *TABLES)),),
)
