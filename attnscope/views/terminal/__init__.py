"""Draw a Report on the terminal: header, then per text, layer and head the matrices and the top contributors.

This package is the only view that knows rich. Nothing is ever cut in silence: tables go in column blocks, shortened
labels are spelled out below, and untrusted text reaches the terminal only with its control characters escaped.
"""

from typing import Literal

from rich.console import Console

from attnscope.report import Explanation, HeadReport, Report, TextReport
from attnscope.report.compare import Comparison
from attnscope.report.heads import HeadSurvey, MeasuredHeads
from attnscope.views.terminal.compare import render_comparison
from attnscope.views.terminal.contact_sheet import is_contact_sheet, put_contact_sheet
from attnscope.views.terminal.contributors import put_contributors
from attnscope.views.terminal.explain import render_explanation
from attnscope.views.terminal.header import (
    put_head_header,
    put_more,
    put_notes,
    put_report_header,
    put_text_header,
    put_unknown_words,
)
from attnscope.views.terminal.heads import Listing, render_measured, render_survey
from attnscope.views.terminal.heat import put_heat
from attnscope.views.terminal.overview import put_overview
from attnscope.views.terminal.screen import Screen
from attnscope.views.terminal.stages import stage_views
from attnscope.views.terminal.tables import put_stage

Findings = Report | Comparison | Explanation | HeadSurvey | MeasuredHeads
Format = Literal["table", "heat", "verdict"]


def draw(
    findings: Findings,
    console: Console,
    *,
    format: Format = "table",
    precision: int = 2,
    options: bool = True,
    listing: Listing | None = None,
) -> None:
    """Print findings of any kind; see render, render_comparison, render_explanation, render_survey, render_measured."""
    if isinstance(findings, HeadSurvey):
        render_survey(findings, console, options=options, listing=listing)
        return
    if isinstance(findings, MeasuredHeads):
        render_measured(findings, console, precision=precision, options=options, listing=listing)
        return
    if isinstance(findings, Explanation):
        render_explanation(findings, console, precision=precision, options=options)
        return
    show = render if isinstance(findings, Report) else render_comparison
    show(findings, console, format=format, precision=precision, options=options)  # type: ignore[arg-type]


def render(
    report: Report,
    console: Console,
    *,
    format: Literal["table", "heat"] = "table",
    precision: int = 2,
    options: bool = True,
) -> None:
    """Print a report.

    Args:
        report: What to show.
        console: Where to. Its width, colours and encoding are taken as they are; for no escapes at all, give it
            `color_system=None`.
        format: `table` has every number; `heat` is a picture of the same.
        precision: Digits after the point in matrices; weights of contributors have one more.
        options: Name the options of the command line that show more.
    """
    screen = Screen(console, precision, options)
    put_unknown_words(screen, report.texts)
    put_report_header(screen, report)
    for text in report.texts:
        put_text_header(screen, text, len(report.texts))
        if format == "heat" and is_contact_sheet(text):
            screen.say("")
            put_contact_sheet(screen, text)
        for head in text.heads if format != "heat" or not is_contact_sheet(text) else ():
            screen.say("")
            _put_head(screen, report, text, head, format)
        screen.say("")
        put_notes(screen, text.notes)
    put_more(screen, report)


def _put_head(screen: Screen, report: Report, text: TextReport, head: HeadReport, format: str) -> None:
    put_head_header(screen, report, text, head)
    if head.pooled is not None:
        screen.say("")
        put_overview(screen, text, head)
    if not text.queries:
        return
    stages = stage_views(screen, text, head)
    if format == "table":
        for stage in stages:
            screen.say("")
            put_stage(screen, stage)
    elif stages:
        screen.say("")
        put_heat(screen, stages)
    if head.top.keys.shape[1]:
        screen.say("")
        put_contributors(screen, text, head, compact=format == "heat")
