"""Draw parts on the terminal, at the width and in the colours of a console.

This package is the only view that uses rich. Nothing is truncated silently: wide tables are split into blocks of
columns, shortened labels are spelled out below, and control characters of untrusted text are escaped.
"""

from collections.abc import Iterable

from rich.console import Console

from attnscope.views.parts import ViewPart
from attnscope.views.terminal.lowering import put_part
from attnscope.views.terminal.screen import Screen


def draw(parts: Iterable[ViewPart], console: Console) -> None:
    """Print parts on a console, at its width, colours and encoding; `color_system=None` prints no escapes."""
    screen = Screen(console)
    for part in parts:
        put_part(screen, part)
