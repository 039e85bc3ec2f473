"""`attnscope check`: whether the numbers shown for a model are right."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from attnscope.studies.study import Display, FindingsKind, Study

if TYPE_CHECKING:
    from attnscope.views.parts import ViewPart
    from attnscope.views.settings import DisplaySettings


def _show(report: Any, settings: "DisplaySettings", _display: Display) -> "Iterator[ViewPart]":
    from attnscope.studies.check.screen import present_check

    return present_check(report, settings)


STUDY = Study((FindingsKind("check", "attnscope.findings.check:CheckReport", _show, (".json", ".txt")),))
