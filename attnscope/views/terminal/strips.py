"""Draw lines of cells of colour, as many cells as fit."""

from rich.text import Text

from attnscope.views.parts import Strips
from attnscope.views.scales import strip_scale
from attnscope.views.terminal.colours import cell_shade
from attnscope.views.terminal.screen import INDENTS, Screen


def draw_strips(screen: Screen, strips: Strips) -> None:
    """Print a line for every strip; without colours, a cell is a sign and a shade."""
    name = max(len(strip.name) for strip in strips.strips) + 2
    ends = [screen.text(strip.end) for strip in strips.strips]
    wide = 1 if screen.colours else 2
    indent = INDENTS[strips.indent]
    room = screen.width - indent - name - 2 - max(end.cell_len for end in ends)
    count = len(strips.cells)
    shown = count if wide * count <= room else max(1, (room - len(f" … {count} more")) // wide)
    for strip, end in zip(strips.strips, ends, strict=True):
        line = Text(" " * indent + strip.name.ljust(name))
        scale = strip_scale(strip.values)
        for value in strip.values[:shown]:
            place = scale.place(value) or 0.0
            if screen.colours:
                line.append(" ", screen.ramp(place, signed=True))
            else:
                line.append(cell_shade(place, True))
        if shown < count:
            line.append(f" … {count - shown} more", "dim")
        screen.put(line.append("  ").append_text(end), width=screen.width)
