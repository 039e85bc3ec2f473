"""Parts that a page shows below their title once that is clicked."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from attnscope.views.page.container import Container
from attnscope.views.page.elements import element, spans_of
from attnscope.views.page.rendering import render
from attnscope.views.parts import ViewPart
from attnscope.views.spans import Spans


@dataclass(frozen=True)
class Fold:
    """Text, facts, tables and strips below a title: a part that only a page draws."""

    title: Spans
    caption: Spans
    parts: Sequence[ViewPart]
    is_open: bool = False


def lowered_fold(fold: Fold, container: Container) -> list[Any]:
    """Return the title and what it opens as elements."""
    caption = element("span", *spans_of(fold.caption), look="dim")
    summary = element("summary", *spans_of(fold.title), " ", caption)
    opened: list[Any] = render(fold.parts, container)
    return [element("details", summary, *opened, look="fold", open=fold.is_open or None)]
