"""A picture of pairs of numbers: one point for every head, which leads to its matrix."""

from typing import Any

from attnscope.views.numbers import number_text
from attnscope.views.page.container import Container
from attnscope.views.page.elements import Element, element
from attnscope.views.parts import Scatter

_SIDE = 300.0  # width and height of the field of points, in pixels
_LEFT = 52.0
_TOP = 14.0
_RIGHT = 46.0
_BELOW = 38.0


def lowered_scatter(scatter: Scatter, _container: Container) -> list[Any]:
    """Return the picture as elements."""
    across, upward = scatter.across, scatter.upward
    named = scatter.named()
    x_ticks, y_ticks = scatter.ticks()

    def position(x: float, y: float) -> tuple[float, float]:
        right, down = scatter.place(x, y)
        return _LEFT + right * _SIDE, _TOP + down * _SIDE

    left, base = position(0.0, y_ticks[0])
    right, zero = position(x_ticks[-1], 0.0)
    elements: list[Element] = [
        element("line", x1=left, x2=right, y1=zero, y2=zero, look="axis"),
        element("line", x1=left, x2=left, y1=_TOP, y2=base, look="axis"),
        _label(f"{across.title} →", (left + right) / 2, base + 32, "middle"),
        element(
            "text",
            f"{upward.title} →",
            x=-(_TOP + base) / 2,
            y=12,
            text_anchor="middle",
            transform="rotate(-90)",
        ),
    ]
    elements += [
        _label(number_text(x, 2), position(x, 0.0)[0], base + 16, "middle") for x in x_ticks
    ]
    elements += [
        _label(number_text(y, 2), left - 6, position(0.0, y)[1] + 4, "end") for y in y_ticks
    ]
    points = zip(scatter.names, across.values.tolist(), upward.values.tolist(), strict=True)
    for n, (name, weight, effect) in enumerate(points):
        x, y = position(weight, effect)
        said = f"{name}: {across.title} {number_text(weight, 4)}, {upward.title} {number_text(effect, 4)}"
        point = element("circle", element("title", said), cx=round(x, 1), cy=round(y, 1), r=4)
        address = f"#head={name}&show={scatter.display.replace(' ', '+')}"
        elements.append(element("a", point, href=address, tabIndex=-1, aria_label=said))
        if n in named:
            elements.append(_label(name, x + 7, y + 4, "start"))
    size = f"0 0 {_LEFT + _SIDE + _RIGHT:g} {_TOP + _SIDE + _BELOW:g}"
    picture = element("svg", *elements, viewBox=size, role="group", aria_label=scatter.title)
    return [element("figure", element("figcaption", scatter.title), picture, look="scatter")]


def _label(text: str, x: float, y: float, anchor: str) -> Element:
    return element("text", text, x=round(x, 1), y=round(y, 1), text_anchor=anchor)
