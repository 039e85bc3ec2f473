"""Say which reductions of attention are recorded. Never imports torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RecordSpec:
    """What is recorded of every layer and head.

    Attributes:
        stages: Stages whose matrices are recorded.
        rows: Query positions of matrices and contributors, sorted: all that any text of the batch shows.
        counted: Query positions of row statistics and sums, sorted: `rows`, or all where a text is pooled.
        columns: Key positions of matrices, sorted.
        top: Contributors per row.
        by: Measure that ranks contributors.
        parts: What is recorded, of record_parts.RECORD_PARTS; matrices are where `stages` names any.
        measures: Numbers recorded of each contributor; None for weight and value, and projected where that ranks.
        pool: Rows and columns of a pooled map.
        packed: How many of the first rows and columns each text's matrices have; None for as many as the batch.
    """

    stages: tuple[str, ...]
    rows: list[int]
    counted: list[int]
    columns: list[int]
    top: int
    by: str
    parts: tuple[str, ...] = ("top", "rows")
    measures: tuple[str, ...] | None = None
    pool: int = 0
    packed: tuple[tuple[int, int], ...] | None = None
