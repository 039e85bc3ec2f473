"""Which query of which head of which text is explained."""

from dataclasses import dataclass

from attnscope.run.text_plan import TextPlan


@dataclass(frozen=True)
class QueryLocation:
    """The text, layer, head and query of an explanation."""

    text_plan: TextPlan
    query: int
    layer: int
    head: int
    chosen: str | None  # how layer, head and query were chosen; None if the user named them
