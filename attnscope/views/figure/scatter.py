"""Draw a point for every head by two numbers."""

from attnscope.views.figure.canvas import MARGIN, SMALL, Canvas, text_width
from attnscope.views.figure.colours import BAR
from attnscope.views.numbers import MINUS, number_text
from attnscope.views.parts import Scatter
from attnscope.views.spans import ours

# Largest width of the field of points, and its height relative to that.
_WIDEST = 380.0
_HIGH = 0.7
_RADIUS = 2.5
_AXIS = "#666666"


def draw_scatter(canvas: Canvas, scatter: Scatter) -> None:
    """Draw the points between titled axes, the strongest of them named."""
    canvas.paragraph(ours(scatter.title, "bold"))
    x_ticks, y_ticks = scatter.ticks()
    y_texts = [_number(y) for y in y_ticks]
    left = MARGIN + SMALL * 1.5 + max(text_width(text, SMALL) for text in y_texts) + 6
    width = min(_WIDEST, canvas.limit - MARGIN - left - _RADIUS)
    top = canvas.y + SMALL
    height = width * _HIGH
    base = top + height

    def position(x: float, y: float) -> tuple[float, float]:
        right, down = scatter.place(x, y)
        return left + right * width, top + down * height

    canvas.fill(left, top, 0.5, height, _AXIS)
    canvas.fill(left, position(0.0, 0.0)[1], width, 0.5, _AXIS)
    for x in x_ticks:
        edge = position(x, 0.0)[0]
        anchor = "end" if x else "middle"
        canvas.text(edge, base + 4 + SMALL, ours(_number(x)), size=SMALL, anchor=anchor)
    for y, text in zip(y_ticks, y_texts, strict=True):
        if y == 0 or abs(position(0.0, y)[1] - position(0.0, 0.0)[1]) >= SMALL:
            middle = position(0.0, y)[1] + SMALL * 0.35
            canvas.text(left - 4, middle, ours(text), size=SMALL, anchor="end")
    middle = left + width / 2
    below = base + 2 * SMALL + 2
    canvas.text(middle, below, ours(f"{scatter.across.title} →"), size=SMALL, anchor="middle")
    upward = ours(f"{scatter.upward.title} →")
    canvas.text(MARGIN + SMALL, top + height / 2, upward, size=SMALL, turned=True, anchor="middle")
    values = zip(scatter.across.values.tolist(), scatter.upward.values.tolist(), strict=True)
    points = [position(x, y) for x, y in values]
    for x, y in points:
        canvas.put(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{_RADIUS}" fill="{BAR}" fill-opacity="0.7"/>'
        )
    names = [(points[n], scatter.names[n]) for n in scatter.named()]
    _draw_names(canvas, names, left + width)
    canvas.y = below + 4


def _number(value: float) -> str:
    return number_text(value, 2).replace("-", MINUS) if value else "0"


def _draw_names(canvas: Canvas, names: list[tuple[tuple[float, float], str]], right: float) -> None:
    """Write names beside their points, left of those at the right edge, and below each other if they are close."""
    written: list[tuple[float, float, float]] = []
    for (x, y), name in sorted(names, key=lambda named: named[0][1]):
        width = text_width(name, SMALL)
        start = x + 2 * _RADIUS
        if start + width > right:
            start = x - 2 * _RADIUS - width
        base = y + SMALL * 0.35
        for first, last, other in written:
            if start < last and first < start + width and base < other + SMALL:
                base = other + SMALL
        written.append((start, start + width, base))
        canvas.text(start, base, ours(name), size=SMALL)
