"""Findings as the text of a file, plain or SVG."""

from io import StringIO
from typing import TYPE_CHECKING

from rich.console import Console
from rich.terminal_theme import SVG_EXPORT_THEME

from attnscope.studies.present import Findings
from attnscope.views.terminal import draw
from attnscope.views.terminal.smaller_svg import smaller

if TYPE_CHECKING:
    from attnscope.studies.heads.screen import Listing

_PRE = (
    "<pre style=\"font-family:Menlo,Consolas,'DejaVu Sans Mono',monospace;line-height:1.25;white-space:pre;"
    'overflow-x:auto;padding:0.5em;color:{foreground};background-color:{background}">{code}</pre>'
)


def as_text(
    findings: Findings,
    *,
    width: int,
    precision: int,
    options: bool = True,
    listing: "Listing | None" = None,
    data_only: bool = False,
) -> str:
    """Draw the table view without colour.

    Args:
        findings: What to show.
        width: Columns.
        precision: Digits after the point.
        options: See present.
        listing: Of a survey of heads: which of them are listed.
        data_only: See present.
    """
    file = StringIO()
    console = Console(file=file, width=width, color_system=None, legacy_windows=False, force_jupyter=False)
    draw(findings, console, precision=precision, options=options, listing=listing, data_only=data_only)
    return file.getvalue()


def as_html(findings: Findings, *, width: int, precision: int) -> str:
    """Draw the table view in colour, as one HTML element that loads nothing from anywhere; see as_text."""
    console = _recording(width)
    draw(findings, console, precision=precision, options=False)
    return console.export_html(theme=SVG_EXPORT_THEME, code_format=_PRE, inline_styles=True)


def as_svg(
    findings: Findings, *, width: int, precision: int, listing: "Listing | None" = None, data_only: bool = False
) -> str:
    """Draw the table view in colour, as a picture that loads nothing from anywhere.

    Args:
        findings: What to show.
        width: Columns.
        precision: Digits after the point.
        listing: See as_text.
        data_only: See present.
    """
    console = _recording(width)
    draw(findings, console, precision=precision, listing=listing, data_only=data_only)
    return smaller(console.export_svg(title="attnscope"))


def _recording(width: int) -> Console:
    """Return a console in full colour that keeps what is drawn."""
    return Console(
        file=StringIO(),
        width=width,
        color_system="truecolor",
        force_terminal=True,
        record=True,
        legacy_windows=False,
        force_jupyter=False,
    )
