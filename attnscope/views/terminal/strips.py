"""Draw lines of cells of colour, as many cells as fit, and what their colours stand for."""

import numpy as np
from rich.text import Text

from attnscope.views.numbers import MINUS
from attnscope.views.parts import Strips
from attnscope.views.scales import Scale, strip_scale
from attnscope.views.terminal.colours import SHADES, cell_shade
from attnscope.views.terminal.screen import INDENTS, Screen

_LEGEND = "scale"
# What all strips are drawn on: each has its own largest number at the end.
_SIGNED = Scale(-1.0, 1.0, signed=True)
# Cells on each side of zero in the legend: with colours, and with a sign and a shade.
_COLOURED = 8
_SHADED = len(SHADES) - 1


def draw_strips(screen: Screen, strips: Strips) -> None:
    """Print a line for every strip, then the colours from the most negative to the largest number of a line.

    Without colours, a cell is a sign and a shade, or blank if it is exactly zero.
    """
    name = max(len(_LEGEND), *(len(strip.name) for strip in strips.strips)) + 2
    ends = [screen.text(strip.end) for strip in strips.strips]
    wide = 1 if screen.colours else 2
    indent = INDENTS[strips.indent]
    room = screen.width - indent - name - 2 - max(end.cell_len for end in ends)
    count = len(strips.cells)
    if wide * count <= room:
        cell_count = count
    else:
        cell_count = max(1, (room - len(f" … {count} more")) // wide)
    for strip, end in zip(strips.strips, ends, strict=True):
        line = Text(" " * indent + strip.name.ljust(name))
        scale = strip_scale(strip.values)
        for value in strip.values[:cell_count]:
            line.append_text(_cell(screen, scale.place(value) or 0.0))
        if cell_count < count:
            line.append(f" … {count - cell_count} more", "dim")
        screen.put(line.append("  ").append_text(end), width=screen.width)
    size = _COLOURED if screen.colours else _SHADED
    less, more = (
        Text().join(
            _cell(screen, fraction)
            for fraction in np.linspace(start, start + 0.5, 2 * size + 1)[1::2]
        )
        for start in (0.0, 0.5)
    )
    signs = (f"{MINUS} ", " +") if screen.colours else ("", "")
    line = Text(" " * indent + _LEGEND.ljust(name))
    screen.put(Text.assemble(line, signs[0], less, " 0 ", more, signs[1]), width=screen.width)


def _cell(screen: Screen, fraction: float) -> Text:
    """Draw a place from 0 to 1 of a signed scale."""
    if screen.colours:
        return Text(" ", screen.ramp(fraction, _SIGNED))
    return Text(cell_shade(fraction, True))
