"""Elements of a page as plain lists, which the script creates one by one: text becomes text nodes, and nothing else.

An element is `[tag, properties, *children]`; a child is another element or a text.
"""

import re
from collections.abc import Iterable
from typing import Any

from attnscope.base.system.escape import escape_control
from attnscope.views.figure.colours import ink_on
from attnscope.views.spans import TOKEN_MARKS, Span, Spans, spell, without_hints

Element = list[Any] | str
_POWER = re.compile(r"(\d[\d.]*e[-+]\d+)")
# Where a command runs that names files without their folders.
ELSEWHERE = "(in the folder of the model)"


def element(tag: str, *children: Element, look: str = "", **properties: Any) -> Element:
    """Return an element.

    Args:
        **properties: Its attributes; `_` in a name stands for `-`. Those that are None are left out.
    """
    attributes = {
        name.replace("_", "-"): value for name, value in properties.items() if value is not None
    }
    return [tag, attributes | ({"class": look} if look else {}), *children]


def text_of(span: Span) -> str:
    """Return a span as it is read."""
    return spell(span, ascii=False)


def spans_of(spans: Spans) -> list[Element]:
    """Return spans as text or elements; tokens are isolated from the writing direction of their line."""
    return [
        child
        for span in without_hints(spans)
        if span.text or span.origin in TOKEN_MARKS
        for child in _children(span)
    ]


def _children(span: Span) -> list[Element]:
    foreign = span.origin in TOKEN_MARKS or span.origin == "untrusted"
    style = None
    if span.colour:
        style = {"background": span.colour, "color": ink_on(span.colour)}
    elif span.shade is not None:
        style = {"background": f"color-mix(in srgb,var(--bar) {span.shade * 70:.0f}%,transparent)"}
    text: list[Element] = [text_of(span)]
    if span.origin not in TOKEN_MARKS:
        text = _unbroken(text_of(span))
    if not (foreign or span.look or style):
        return text
    name = "dim" if span.look == "caption" else span.look
    look = " ".join([*([f"look-{name}"] if name else []), *(["role"] if style else [])])
    return [element("bdi" if foreign else "span", *text, look=look, style=style)]


def _unbroken(text: str) -> list[Element]:
    """Return a text whose powers of ten, such as `2.6e-07`, are elements: browsers break lines behind their sign."""
    pieces = _POWER.split(text)
    return [
        element("span", piece, look="whole") if n % 2 else piece
        for n, piece in enumerate(pieces)
        if piece
    ]


def plain(children: Iterable[Element]) -> str:
    """Return the text of elements."""
    return "".join(child if isinstance(child, str) else plain(child[2:]) for child in children)


def meter(share: float) -> Element:
    """Return a bar of a length from −1 to 1; one below 0 has another colour."""
    width = {"width": f"{min(1.0, abs(share)) * 100:.4g}%"}
    return element(
        "span",
        element("span", style=width),
        look="meter below" if share < 0 else "meter",
        aria_hidden="true",
    )


def scrolling(label: str, *children: Element) -> Element:
    """Return an element that scrolls if it is wider than the page, also by keyboard."""
    return element("div", *children, look="scrolling", role="group", tabIndex=0, aria_label=label)


def hidden_heading(text: str) -> Element:
    """Return the head of a column whose name only a screen reader says."""
    return element("td", element("span", text, look="hidden"))


def pasted(command: str) -> str:
    """Return a command; empty if it has control characters, which would not be pasted into a terminal."""
    words = command.replace("\n", "").replace("\\", "")
    if escape_control(words) == words:
        return command
    return ""
