"""Which reductions of attention are recorded besides whole matrices."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RecordOptions:
    """What is kept of every unit besides stages.

    Attributes:
        top: The strongest sources.
        measures: What is kept of them; None for weight and value, and projected where that ranks.
        rows: Row statistics.
        columns: Weight that every source gets.
        pool: Rows and columns of a pooled map; None for no map.
        packed: How many of the first rows and columns each text's matrices have; None for as many as the batch.
    """

    top: bool = True
    measures: tuple[str, ...] | None = None
    rows: bool = True
    columns: bool = False
    pool: int | None = None
    packed: tuple[tuple[int, int], ...] | None = None
