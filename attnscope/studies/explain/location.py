"""Which query of which head of which text is explained."""

from dataclasses import dataclass

from attnscope.run.text_plan import TextPlan


@dataclass(frozen=True)
class QueryLocation:
    """Which query of which head.

    Attributes:
        text_plan: The text.
        query: Position of the query.
        layer: Number of the layer.
        head: Number of the query head.
        chosen: How they came to be chosen; None where the user named them.
    """

    text_plan: TextPlan
    query: int
    layer: int
    head: int
    chosen: str | None
