"""Draw parts on the terminal, at the width and in the colours of a console.

This package is the only view that uses rich. Nothing is truncated silently: wide tables are split into blocks of
columns, shortened labels are spelled out below, and control characters of untrusted text are escaped.
"""

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from io import StringIO
from itertools import chain, zip_longest
from typing import Any

from rich.console import Console
from rich.segment import Segment

from attnscope.views import parts
from attnscope.views.numbers import Digits
from attnscope.views.palette import Surface
from attnscope.views.scales import LogScale, Scale
from attnscope.views.terminal.bars import draw_bars
from attnscope.views.terminal.colours import COLOUR_SYSTEMS
from attnscope.views.terminal.heat import draw_heat
from attnscope.views.terminal.map import draw_map
from attnscope.views.terminal.matrices import draw_matrices
from attnscope.views.terminal.packing import GUTTER
from attnscope.views.terminal.pictures import draw_pictures
from attnscope.views.terminal.screen import Screen
from attnscope.views.terminal.sound import draw_sound
from attnscope.views.terminal.strips import draw_strips
from attnscope.views.terminal.table import draw_table
from attnscope.views.terminal.text import draw_facts, draw_text

# Lines that stand around a picture, and those of a picture on a terminal of 50 lines or fewer, or in a file.
_AROUND = 12
# Columns that a block keeps if another one stands beside it.
_BESIDE = 76
SCREENFUL = 43


def draw(parts: Iterable[parts.ViewPart], console: Console) -> None:
    """Print parts on a console, at its width, colours and encoding; `color_system=None` prints no escapes."""
    _draw(Screen(console), parts)


def as_text(
    parts: Iterable[parts.ViewPart],
    width: int,
    *,
    colours: int = 0,
    surface: Surface | None = None,
) -> str:
    """Draw parts, `width` columns wide; with colours, as a terminal with so many of them and this surface does."""
    file = StringIO()
    console = Console(
        file=file,
        width=width,
        color_system=COLOUR_SYSTEMS[colours],
        force_terminal=bool(colours),
        legacy_windows=False,
        force_jupyter=False,
    )
    _draw(Screen(console, surface), parts)
    return file.getvalue()


def _draw(screen: Screen, view_parts: Iterable[parts.ViewPart]) -> None:
    before: list[parts.ViewPart] = []  # a block that the next one may stand beside
    block: list[parts.ViewPart] = []
    columns: _Columns | None = None
    for part in chain(view_parts, [parts.GAP]):
        if part != parts.GAP:
            block.append(part)
            continue
        beside = any(getattr(one, "beside", False) for one in block)
        if columns is not None and columns.takes(screen, block):
            block = []
            continue
        if columns is not None:
            columns.draw(screen)
            before, columns = [parts.GAP], None
        elif beside and len(before) > 1:
            columns = _columns(screen, before[:-1], block)
        if columns is None:
            _draw_block(screen, before)
            before = [*block, parts.GAP]
        block = []
    if columns is None:
        _draw_block(screen, before[:-1])
    else:
        columns.draw(screen)


def _draw_block(screen: Screen, block: Iterable[parts.ViewPart]) -> None:
    for part in block:
        DRAWN[type(part)](screen, part)


@dataclass(frozen=True)
class _Columns:
    """Blocks below each other, and one beside them."""

    left: list[list[Segment]]
    right: list[list[Segment]]
    room: int  # columns of the left ones

    def takes(self, screen: Screen, block: Iterable[parts.ViewPart]) -> bool:
        """Take one more block on the left, as it is drawn alone, if it ends above the end of the right one."""
        page = _Page(screen, len(self.right) - len(self.left) - 1)
        try:
            _draw_block(page, block)
        except _FullError:
            return False
        fits = _widest(page.lines_drawn) <= self.room
        if fits and page.lines_drawn:
            self.left.extend([[], *page.lines_drawn])
        return fits

    def draw(self, screen: Screen) -> None:
        """Draw the block on the right next to the widest line of the left ones."""
        start = _widest(self.left) + GUTTER
        nothing: list[Segment] = []
        screen.draw_lines(
            [*line, Segment(" " * (start - _cells(line))), *end] if end else line
            for line, end in zip_longest(self.left, self.right, fillvalue=nothing)
        )


def _columns(
    screen: Screen, left: Iterable[parts.ViewPart], right: Iterable[parts.ViewPart]
) -> _Columns | None:
    """Return a block beside the one before if that has the columns of a small screen; None if it has not."""
    of_right = _Page(screen, sys.maxsize)
    _draw_block(of_right, right)
    room = screen.width - GUTTER - _widest(of_right.lines_drawn)
    if room < _BESIDE:
        return None
    of_left = _Page(screen, sys.maxsize, room)
    _draw_block(of_left, left)
    return _Columns(of_left.lines_drawn, of_right.lines_drawn, room)


def _cells(line: Iterable[Segment]) -> int:
    return sum(segment.cell_length for segment in line)


def _widest(lines: Iterable[Iterable[Segment]]) -> int:
    return max([0, *(_cells(line) for line in lines)])


class _Page(Screen):
    """A screen that keeps its lines, as long as they are not too many; narrower if it has a width."""

    def __init__(self, screen: Screen, max_lines: int, width: int | None = None) -> None:
        super().__init__(screen.console, screen.ground)
        self.width = min(self.width, width or screen.width)
        self.line = min(self.line, self.width)
        self.max_lines = max_lines
        self.lines_drawn: list[list[Segment]] = []

    def say_colours(self, scales: Iterable[tuple[str, Scale | LogScale, Digits]]) -> None:
        """Record the key of colours, which does not count: colours do not decide which form fits."""
        count = len(self.lines_drawn)
        max_lines = self.max_lines
        self.max_lines = sys.maxsize
        super().say_colours(scales)
        self.max_lines = max_lines + len(self.lines_drawn) - count

    def draw_lines(self, lines: Iterable[list[Segment]]) -> None:
        """Record lines instead of printing them.

        Raises:
            _FullError: There are too many lines.
        """
        self.lines_drawn.extend(lines)
        if len(self.lines_drawn) > self.max_lines:
            raise _FullError


class _FullError(Exception):
    """More lines than a screen has."""


def _draw_first_fitting(screen: Screen, findings: parts.FirstFitting) -> None:
    screenful = SCREENFUL
    if screen.console.file.isatty():
        screenful = max(screenful, screen.console.height - _AROUND)
    limits = [(form, screenful) for form in findings.forms[:-1]]
    last = findings.picture or findings.forms[-1]
    if findings.picture is not None:
        limits.append((findings.forms[-1], findings.lines))
    for form, limit in limits:
        page = _Page(screen, limit)
        try:
            _draw(page, form)
        except _FullError:
            continue
        screen.draw_lines(page.lines_drawn)
        return
    _draw(screen, last)


DRAWN: dict[type, Callable[[Screen, Any], None]] = {
    parts.Text: draw_text,
    parts.Facts: draw_facts,
    parts.Table: draw_table,
    parts.Matrices: lambda screen, matrices: (draw_heat if matrices.heat else draw_matrices)(
        screen, matrices
    ),
    parts.WeightMap: draw_map,
    parts.SoundMap: draw_sound,
    parts.Bars: draw_bars,
    parts.Strips: draw_strips,
    parts.Pictures: draw_pictures,
    parts.FirstFitting: _draw_first_fitting,
}
