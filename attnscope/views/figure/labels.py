"""Labels of rows and columns, and the scale of colours below matrices."""

from bisect import bisect_right
from collections.abc import Sequence

from attnscope.views.axes import Axis
from attnscope.views.figure.canvas import MARGIN, RAMPS, SMALL, Canvas, plain, text_width
from attnscope.views.parts import Panel
from attnscope.views.scales import TICKS, WEIGHTS, LogScale, Scale
from attnscope.views.spans import ours

# Largest width of a label; longer ones are shortened.
LONGEST = 90.0
# Units of a scale.
BAR = 110.0


def names_of(axis: Axis) -> list[str]:
    """Write every entry as its position and name."""
    names = [plain([name]) for name in axis.names] or [""] * len(axis.positions)
    labels = [f"{axis.number(i)} {name}".strip() for i, name in enumerate(names)]
    return [cut_name(name, LONGEST, SMALL) for name in labels]


def cut_name(name: str, longest: float, size: float) -> str:
    """Return a name, shortened if it is wider than `longest`."""
    if text_width(name, size) <= longest:
        return name
    fitting = bisect_right(range(len(name)), longest, key=lambda n: text_width(name[:n] + "…", size))
    return name[: max(0, fitting - 1)] + "…"


def rows_width(panel: Panel) -> float:
    """Return the width of the labels of rows, including the gap to the matrix."""
    return max((text_width(name, SMALL) for name in names_of(panel.rows)), default=0.0) + 4


def label_size(step: float) -> tuple[float, int]:
    """Return the size of labels at a distance, and the stride of written ones."""
    size = min(SMALL, step * 0.95)
    return (size, 1) if size >= 5.5 else (SMALL, int(SMALL / step) + 1)


def draw_names(canvas: Canvas, x: float, y: float, step: float, names: Sequence[str], *, turned: bool = False) -> None:
    """Write names at the left of cells, or turned above them, as many as have room; the cells begin at `x` and `y`."""
    size, every = label_size(step)
    for n in range(0, len(names), every):
        middle = (n + 0.5) * step + size * 0.35
        coordinates = (x + middle, y - 3) if turned else (x - 4, y + middle)
        canvas.text(*coordinates, ours(names[n]), size=size, turned=turned, anchor="" if turned else "end")


def draw_scale(canvas: Canvas, x: float, y: float, scale: Scale | LogScale, low: str, high: str) -> float:
    """Draw a ramp between the numbers at its ends, or over the weights that every scale names; return its height."""
    if scale == WEIGHTS:
        canvas.frame(x, y, BAR, 8, f"url(#{RAMPS[0]})")
        for tick in TICKS:
            at = x + BAR * (WEIGHTS.place(tick) or 0.0)
            canvas.text(at, y + 8 + SMALL, ours(f"{tick:g}".replace("0.", ".")), size=SMALL, anchor="middle")
        return 9 + SMALL
    start = x + text_width(low, SMALL) + 4
    canvas.text(x, y + 7.5, ours(low), size=SMALL)
    canvas.frame(start, y, BAR, 8, f"url(#{RAMPS[scale.signed]})")
    canvas.text(start + BAR + 4, y + 7.5, ours(high), size=SMALL)
    return 8


def draw_legend(canvas: Canvas, scale: Scale | LogScale, low: str, high: str, description: str) -> None:
    """Draw a scale with a description below the drawing."""
    canvas.y += 4
    canvas.y += 2 + draw_scale(canvas, MARGIN, canvas.y, scale, low, high)
    canvas.paragraph(ours(description, "dim"), size=SMALL)
