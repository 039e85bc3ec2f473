"""Say which reductions of attention are recorded. Never imports torch."""

from dataclasses import dataclass

from attnscope.findings.row_statistics import STATISTICS


@dataclass(frozen=True)
class RecordSpec:
    """The contents to record of every layer and head."""

    stages: tuple[str, ...]
    # query positions of matrices and contributors, sorted: all that any text of the batch shows
    rows: list[int]
    # query positions of row statistics and sums, sorted: `rows`, or all where a text is pooled
    counted: list[int]
    columns: list[int]  # key positions of matrices, sorted
    top: int
    by: str
    # names in record_parts.RECORD_PARTS; matrices are recorded if `stages` is not empty
    parts: tuple[str, ...] = ("top", "rows")
    # numbers recorded of each contributor; None for weight and value, and for projected if that ranks
    measures: tuple[str, ...] | None = None
    statistics: tuple[str, ...] = STATISTICS  # of rows
    pool: int = 0
    # number of leading rows and columns that each text's matrices have; None for the batch's
    packed: tuple[tuple[int, int], ...] | None = None
    # whether a GPU puts the units of a row side by side, as shards of a dump have them, before its arrays leave it
    rows_first: bool = False
    # decimal places to which numbers other than stages are rounded; None for exact numbers
    digits: int | None = None
