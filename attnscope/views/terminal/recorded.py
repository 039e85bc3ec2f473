"""Parts as the text of a file, plain or SVG."""

import re
from collections.abc import Iterable
from io import StringIO

from rich.console import Console

from attnscope.views.parts import ViewPart
from attnscope.views.terminal import draw

_WEB_FONT = re.compile(r"@font-face\s*\{.*?\}\s*", re.DOTALL)


def as_text(parts: Iterable[ViewPart], width: int) -> str:
    """Draw parts without colour, `width` columns wide."""
    file = StringIO()
    draw(parts, Console(file=file, width=width, color_system=None, legacy_windows=False, force_jupyter=False))
    return file.getvalue()


def as_svg(parts: Iterable[ViewPart], width: int) -> str:
    """Draw parts in colour, as a picture of a terminal that loads nothing from anywhere."""
    console = _recording(width)
    draw(parts, console)
    return _WEB_FONT.sub("", console.export_svg(title="attnscope"))


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
