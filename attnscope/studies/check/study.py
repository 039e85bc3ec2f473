"""`attnscope check`: whether the numbers shown for a model are right."""

from typing import Any

from attnscope.studies.study import FindingsKind, Study


def _text(report: Any, width: int, data_only: bool) -> str:
    from attnscope.studies.check.screen import as_text
    from attnscope.views.plain import Page

    return as_text(report, Page(width), data_only=data_only)


STUDY = Study((FindingsKind("check", "attnscope.findings.check:CheckReport", None, (".json", ".txt"), text=_text),))
