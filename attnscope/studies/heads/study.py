"""`attnscope heads`: the roles of all heads, or one number for each."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnscope.studies.study import DRAWN, TABLES, Display, FindingsKind, Study

if TYPE_CHECKING:
    from attnscope.views.parts import ViewPart
    from attnscope.views.settings import DisplaySettings


def _show_roles(survey: Any, settings: "DisplaySettings", display: Display) -> "Iterator[ViewPart]":
    from attnscope.studies.heads.screen import Listing, present_survey

    # Values of roles have standard errors, so that they are shown with two digits whatever was asked.
    return present_survey(survey, replace(settings, precision=2), display.listing or Listing())


def _show_measured(measured: Any, settings: "DisplaySettings", display: Display) -> "Iterator[ViewPart]":
    from attnscope.studies.heads.screen import Listing, present_measured

    return present_measured(measured, settings, display.listing or Listing())


def _show_needle(survey: Any, settings: "DisplaySettings", _display: Display) -> "Iterator[ViewPart]":
    from attnscope.studies.heads.needle_screen import present_needle

    return present_needle(survey, settings)


def _show_changes(comparison: Any, settings: "DisplaySettings", display: Display) -> "Iterator[ViewPart]":
    from attnscope.studies.heads.changes_screen import present_changes
    from attnscope.studies.heads.screen import Listing

    return present_changes(comparison, settings, display.listing or Listing())


STUDY = Study(
    (
        FindingsKind("heads", "attnscope.findings.heads:HeadRoles", _show_roles, (*DRAWN, *TABLES)),
        FindingsKind(
            "measured-heads", "attnscope.findings.heads:HeadScores", _show_measured, (*DRAWN, *TABLES), "heads"
        ),
        FindingsKind(
            "compared-heads",
            "attnscope.findings.head_changes:HeadComparison",
            _show_changes,
            (*DRAWN, *TABLES),
            "heads",
        ),
        FindingsKind("needle", "attnscope.findings.needle:NeedleSurvey", _show_needle, (*DRAWN, *TABLES), "heads"),
    )
)
