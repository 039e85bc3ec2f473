"""Which query of which head of which text is explained."""

from dataclasses import dataclass

from attnscope.request import Page


@dataclass(frozen=True)
class Place:
    """Which query of which head.

    Attributes:
        page: The text.
        query: Position of the query.
        layer: Number of the layer.
        head: Number of the query head.
        chosen: How they came to be chosen; None where the user named them.
    """

    page: Page
    query: int
    layer: int
    head: int
    chosen: str | None
