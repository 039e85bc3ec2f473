"""Labels of rows and columns, and the scale of colours below matrices."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

from attnscope.views.axes import Axis
from attnscope.views.figure.canvas import LEAST, MARGIN, RAMPS, SMALL, Canvas, plain, text_width
from attnscope.views.parts import Panel
from attnscope.views.scales import TICKS, WEIGHTS, LogScale, Scale
from attnscope.views.settings import FigureLabels
from attnscope.views.spans import ours

# Largest width of a label; longer ones are shortened.
LONGEST = 90.0
# Units of a scale.
BAR = 110.0


def names_of(axis: Axis, labels: FigureLabels | None) -> list[str]:
    """Write every entry as its position, its name, or both; entries without names keep their numbers."""
    numbers = [axis.number(n) for n in range(len(axis.positions))]
    names = [plain([name]) for name in axis.names]
    if labels == "none":
        return [""] * len(numbers)
    if labels == "positions" or not names:
        return numbers
    if labels is None:
        names = [f"{number} {name}".strip() for number, name in zip(numbers, names, strict=True)]
    return [cut_name(name, LONGEST, SMALL) for name in names]


def cut_name(name: str, longest: float, size: float) -> str:
    """Return a name, shortened if it is wider than `longest`."""
    if text_width(name, size) <= longest:
        return name
    fitting = bisect_right(
        range(len(name)), longest, key=lambda n: text_width(name[:n] + "…", size)
    )
    return name[: max(0, fitting - 1)] + "…"


def rows_width(panel: Panel, labels: FigureLabels | None) -> float:
    """Return the width of the labels of rows, including the gap to the matrix."""
    return max((text_width(name, SMALL) for name in names_of(panel.rows, labels)), default=0.0) + 4


def label_size(step: float) -> tuple[float, int]:
    """Return the size of labels at a distance, and the stride of written ones."""
    size = min(SMALL, step * 0.95)
    if size >= LEAST:
        return size, 1
    return SMALL, int(SMALL / step) + 1


def draw_names(
    canvas: Canvas, x: float, y: float, step: float, names: Sequence[str], *, turned: bool = False
) -> None:
    """Write names at the left of cells, or turned above them, as many as have room; the cells begin at `x` and `y`."""
    size, every = label_size(step)
    for n in range(0, len(names), every):
        middle = (n + 0.5) * step + size * 0.35
        coordinates = (x + middle, y - 3) if turned else (x - 4, y + middle)
        canvas.text(
            *coordinates, ours(names[n]), size=size, turned=turned, anchor="" if turned else "end"
        )


def draw_scale(
    canvas: Canvas,
    x: float,
    y: float,
    scale: Scale | LogScale,
    low: str,
    high: str,
    room: float = 2 * BAR,
) -> float:
    """Draw a ramp between the numbers at its ends, or over numbers that say how it rises; return its height.

    `room` is the width that it has.
    """
    of_weights = isinstance(scale, Scale) and replace(scale, shape=WEIGHTS.shape) == WEIGHTS
    if of_weights or (isinstance(scale, Scale) and scale.shape != "linear" and not scale.signed):
        high = "1" if of_weights else high
        last = text_width(high, SMALL) / 2
        bar = min(BAR, room - last)
        canvas.frame(x, y, bar, 8, f"url(#{RAMPS[0]})")
        # 0 begins where the ramp does, so that nothing is left of it
        canvas.text(x, y + 8 + SMALL, ours("0"), size=SMALL)
        ended = x + text_width("0", SMALL)
        for tick in TICKS:
            text = f"{tick:g}".replace("0.", ".")
            at = x + bar * (scale.place(tick) or 0.0)
            half = text_width(text, SMALL) / 2
            if at - half > ended + 1 and at + half < x + bar - last:
                canvas.text(at, y + 8 + SMALL, ours(text), size=SMALL, anchor="middle")
                ended = at + half
        canvas.text(x + bar, y + 8 + SMALL, ours(high), size=SMALL, anchor="middle")
        return 9 + SMALL
    start = x + text_width(low, SMALL) + 4
    bar = max(12.0, min(BAR, room - (start - x) - text_width(high, SMALL) - 4))
    canvas.text(x, y + 7.5, ours(low), size=SMALL)
    canvas.frame(start, y, bar, 8, f"url(#{RAMPS[scale.signed]})")
    canvas.text(start + bar + 4, y + 7.5, ours(high), size=SMALL)
    return 8


def draw_legend(
    canvas: Canvas, scale: Scale | LogScale, low: str, high: str, description: str
) -> None:
    """Draw a scale with a description below the drawing."""
    canvas.y += 4
    canvas.y += 2 + draw_scale(canvas, MARGIN, canvas.y, scale, low, high)
    canvas.paragraph(ours(description, "dim"), size=SMALL)
