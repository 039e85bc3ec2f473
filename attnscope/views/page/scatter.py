"""A picture of pairs of numbers: one point for every head, which leads to its matrix."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from attnscope.findings.arrays import Floats
from attnscope.views.numbers import number_text
from attnscope.views.page.container import Container
from attnscope.views.page.elements import Element, element

_SIDE = 300.0  # width and height of the field of points, in pixels
_LEFT = 52.0
_TOP = 14.0
_RIGHT = 46.0
_BELOW = 38.0
_NAMED = 3  # points with the largest sizes on the vertical axis that have their names beside them


@dataclass(frozen=True)
class Scatter:
    """Points of named heads: a part that only a page draws."""

    title: str
    names: Sequence[str]  # such as `L2H1`
    across: tuple[str, Floats]  # name and numbers of the horizontal axis, which begins at 0
    upward: tuple[str, Floats]  # the same of the vertical axis, which has 0 within
    display: str  # what the walk of the page shows of every head once a point is clicked


def lowered_scatter(scatter: Scatter, _container: Container) -> list[Any]:
    """Return the picture as elements."""
    across, xs = scatter.across
    upward, ys = scatter.upward
    widest = float(xs.max(initial=0.0)) or 1.0
    low = float(min(0.0, ys.min(initial=0.0)))
    high = float(max(0.0, ys.max(initial=0.0)))
    span = (high - low) or 1.0
    labelled = sorted(range(len(ys)), key=lambda n: -abs(float(ys[n])))[:_NAMED]

    def position(x: float, y: float) -> tuple[float, float]:
        return _LEFT + x / widest * _SIDE, _TOP + (high - y) / span * _SIDE

    left, base = position(0.0, low)
    right, zero = position(widest, 0.0)
    elements: list[Element] = [
        element("line", x1=left, x2=right, y1=zero, y2=zero, look="axis"),
        element("line", x1=left, x2=left, y1=_TOP, y2=base, look="axis"),
        _label(f"{across} →", (left + right) / 2, base + 32, "middle"),
        element(
            "text",
            f"{upward} →",
            x=-(_TOP + base) / 2,
            y=12,
            text_anchor="middle",
            transform="rotate(-90)",
        ),
    ]
    elements += [
        _label(number_text(x, 2), position(x, low)[0], base + 16, "middle") for x in (0.0, widest)
    ]
    elements += [
        _label(number_text(y, 2), left - 6, position(0.0, y)[1] + 4, "end")
        for y in {low, 0.0, high}
    ]
    for n, name in enumerate(scatter.names):
        x, y = position(float(xs[n]), float(ys[n]))
        said = f"{name}: {across} {number_text(xs[n], 4)}, {upward} {number_text(ys[n], 4)}"
        point = element("circle", element("title", said), cx=round(x, 1), cy=round(y, 1), r=4)
        address = f"#head={name}&show={scatter.display.replace(' ', '+')}"
        elements.append(element("a", point, href=address, tabIndex=-1, aria_label=said))
        if n in labelled:
            elements.append(_label(name, x + 7, y + 4, "start"))
    size = f"0 0 {_LEFT + _SIDE + _RIGHT:g} {_TOP + _SIDE + _BELOW:g}"
    picture = element("svg", *elements, viewBox=size, role="group", aria_label=scatter.title)
    return [element("figure", element("figcaption", scatter.title), picture, look="scatter")]


def _label(text: str, x: float, y: float, anchor: str) -> Element:
    return element("text", text, x=round(x, 1), y=round(y, 1), text_anchor=anchor)
