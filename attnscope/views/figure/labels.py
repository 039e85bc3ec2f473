"""Labels of rows and columns, and the scale of colours below matrices."""

from bisect import bisect_right

from attnscope.views.axes import Axis
from attnscope.views.figure.canvas import MARGIN, SMALL, Canvas, plain, text_width
from attnscope.views.parts import Panel
from attnscope.views.spans import ours

# Largest width of a label; longer ones are shortened.
LONGEST = 90.0
# Units of a scale.
BAR = 70.0


def names_of(axis: Axis) -> list[str]:
    """Write every entry as its position and name."""
    names = [plain([name]) for name in axis.names] or [""] * len(axis.positions)
    written = [f"{axis.number(i)} {name}".strip() for i, name in enumerate(names)]
    return [cut_name(name, LONGEST, SMALL) for name in written]


def cut_name(name: str, longest: float, size: float) -> str:
    """Return a name, shortened if it is wider than `longest`."""
    if text_width(name, size) <= longest:
        return name
    fitting = bisect_right(range(len(name)), longest, key=lambda n: text_width(name[:n] + "…", size))
    return name[: max(0, fitting - 1)] + "…"


def rows_width(panel: Panel) -> float:
    """Return the width of the labels of rows, including the gap to the matrix."""
    return max((text_width(name, SMALL) for name in names_of(panel.rows)), default=0.0) + 4


def draw_bar(canvas: Canvas, x: float, y: float, low: str, high: str, *, signed: bool) -> None:
    """Draw the scale of a ramp between the numbers at its ends."""
    start = x + text_width(low, SMALL) + 4
    canvas.text(x, y + 7.5, ours(low), size=SMALL)
    canvas.bar(start, y, BAR, signed=signed)
    canvas.text(start + BAR + 4, y + 7.5, ours(high), size=SMALL)


def draw_legend(canvas: Canvas, low: str, high: str, description: str) -> None:
    """Draw a scale from 0 on, with a description, below the drawing."""
    canvas.y += 4
    draw_bar(canvas, MARGIN, canvas.y, low, high, signed=False)
    canvas.y += 10
    canvas.paragraph(ours(description, "dim"), size=SMALL)
