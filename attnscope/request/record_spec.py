"""Say which reductions of attention are recorded. Never imports torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RecordSpec:
    """The contents to record of every layer and head.

    Attributes:
        rows: Query positions of matrices and contributors, sorted: all that any text of the batch shows.
        counted: Query positions of row statistics and sums, sorted: `rows`, or all where a text is pooled.
        columns: Key positions of matrices, sorted.
        parts: Names in record_parts.RECORD_PARTS; matrices are recorded if `stages` is not empty.
        measures: Numbers recorded of each contributor; None for weight and value, and for projected if that ranks.
        packed: Number of leading rows and columns that each text's matrices have; None for the batch's.
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
