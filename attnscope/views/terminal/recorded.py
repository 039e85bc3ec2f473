"""Findings as the text of a file, plain or SVG."""

import re
from io import StringIO

from rich.console import Console

from attnscope.views.terminal import Findings, draw


def as_text(findings: Findings, *, width: int, precision: int) -> str:
    """The table view without colour.

    Args:
        findings: What to show.
        width: Columns.
        precision: Digits after the point.
    """
    file = StringIO()
    draw(findings, Console(file=file, width=width, color_system=None, legacy_windows=False), precision=precision)
    return file.getvalue()


def as_svg(findings: Findings, *, width: int, precision: int) -> str:
    """The table view in colour, as a picture that loads nothing from anywhere.

    Args:
        findings: What to show.
        width: Columns.
        precision: Digits after the point.
    """
    console = Console(
        file=StringIO(), width=width, color_system="truecolor", force_terminal=True, record=True, legacy_windows=False
    )
    draw(findings, console, precision=precision)
    # Rich names a web font; the picture must need no network, and falls back to the viewer's monospace font.
    return re.sub(r"@font-face\s*\{.*?\}\s*", "", console.export_svg(title="attnscope"), flags=re.DOTALL)
