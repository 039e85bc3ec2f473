"""The page of an Explanation: its answer, and its steps, which are folded."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from attnscope.findings.explain import Explanation
from attnscope.studies.explain.screen import answer_parts, end_parts, steps
from attnscope.views.parts import Text, ViewPart
from attnscope.views.settings import DisplaySettings

if TYPE_CHECKING:
    from attnscope.views.page.fold import Fold


def present_page(e: Explanation, settings: DisplaySettings) -> "Iterator[ViewPart | Fold]":
    """Turn an explanation into the parts of a page; a step that warns is open."""
    from attnscope.views.page.fold import Fold

    yield from answer_parts(e, settings)
    for step in steps(e, settings):
        yield Fold(step.title, step.caption, step.parts, _warns(step.parts))
    yield from end_parts(e, settings)


def _warns(parts: Iterable[ViewPart]) -> bool:
    spans = (
        span for part in parts if isinstance(part, Text) for item in part.items for span in item
    )
    return any(span.look in ("bad", "warning") for span in spans)
