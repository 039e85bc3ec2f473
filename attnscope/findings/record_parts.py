"""Declare what recorders keep of every layer and head, each part once. Imports nothing heavy: options are made of it.

The values of `attnscope batch --keep` with their help and completion, the limits on a group of texts, and the estimates
of memory and cost are derived from these declarations. Each text's share of a group's arrays, the shapes that are
checked when a dump is read, and tables follow from the axes of the part's field in `batch.records.Record`. To add a
part, add its declaration, its field, and the function that creates its recorder in `SUM_RECORDERS` of
model/recorders/sums.py.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from attnscope.findings.head_averages import AVERAGES

# Number of values kept of a row in addition to its statistics.
ROW_FACTS = 6
# Number of float32s of the largest blocks of keys and spans, in all threads.
_SPAN_KEYS = 1 << 22


@dataclass(frozen=True)
class Quantities:
    """Numbers of what is kept."""

    texts: int
    units: int  # number of layers and heads, or means over them, of one text
    sources: int  # number of tokens of the longest text
    # number of rows whose matrices and contributors are kept, over all texts and units
    rows: int = 0
    counted: int = 0  # number of rows whose statistics are kept, over all texts and units
    cells: int = 0  # number of matrix cells, over all texts, units and stages
    top: int = 0  # number of contributors per row
    measures: int = 0  # number of measures of a contributor
    statistics: int = 0  # number of statistics of a row
    pool: int = 0  # number of runs of a pooled map; 0 for no map
    place: int = 2  # float32s per position: two in memory (int64), one in a file
    spans: int = 0  # number of spans of a text; 0 for none


@dataclass(frozen=True)
class RecordTable:
    """The table that a part becomes."""

    name: str  # name in `--table`
    rows: str  # description of a row in the help of `--table`
    # columns with the numbers of the part's arrays, named as the arrays (if there is only one, its column may have any
    # name). The other columns follow from the axes of the arrays. Empty if `batch/tables.py` has a function for the
    # table, because its rows are not the cells of the arrays, or its columns depend on the settings
    values: tuple[str, ...] = ()


@dataclass(frozen=True)
class RecordPart:
    """A part of a record, kept for every layer and head."""

    name: str  # name in `--keep`, in settings and in records
    phrase: str  # description in the help of `--keep`; empty if another option selects the part
    # float32s that findings take, over all texts, layers and heads
    numbers: Callable[[Quantities], int]
    # number of additional float32 values in its recorders
    beside: Callable[[Quantities], int] = lambda _: 0
    table: RecordTable | None = None  # table of `attnscope convert`; None for none
    # its table of means over texts, of `attnscope convert` alone; None for none
    means: RecordTable | None = None
    # whether reports hold it: always, only for texts with a map, or never
    reported: Literal["always", "map", "never"] = "never"
    # whether the model runs again for it, once for every cut; then it is not part of `--keep all`
    runs_again: bool = False
    # whether it averages over rows, so that a mean over heads has none; not part of `all`, too
    averaged: bool = False
    # whether it needs texts divided into spans; then it is not part of `--keep all`
    of_spans: bool = False


RECORD_PARTS = (
    RecordPart(
        "top",
        "contributors",
        numbers=lambda quantities: (
            quantities.rows * quantities.top * (quantities.place + quantities.measures)
        ),
        # the norms of the values of every source, by which a contribution is more than its weight
        beside=lambda quantities: (
            (quantities.measures - 1) * quantities.units * quantities.texts * quantities.sources
            if quantities.rows
            else 0
        ),
        table=RecordTable("contributors", "one row per query and rank"),
        reported="always",
    ),
    RecordPart(
        "rows",
        "statistics of every row: {row_statistics}",
        numbers=lambda quantities: quantities.counted * quantities.statistics,
        beside=lambda quantities: quantities.counted * ROW_FACTS,
        table=RecordTable("rows", "statistics, one row per query"),
        reported="always",
    ),
    RecordPart(
        "columns",
        "weight that every token receives",
        numbers=lambda quantities: quantities.texts * quantities.units * quantities.sources,
        table=RecordTable("columns", "one row per source", ("mass",)),
        reported="map",
    ),
    RecordPart(
        "heads",
        f"a few numbers of every head, over all rows: {', '.join(AVERAGES)}",
        numbers=lambda quantities: quantities.texts * quantities.units * len(AVERAGES),
        # sums and counts in float64, and largest values
        beside=lambda quantities: 5 * quantities.texts * quantities.units * len(AVERAGES),
        table=RecordTable("heads", "averages over rows, one row per head", AVERAGES),
        averaged=True,
    ),
    RecordPart(
        "received",
        "",
        numbers=lambda quantities: quantities.texts * quantities.units * quantities.sources,
        beside=lambda quantities: quantities.texts * quantities.units * quantities.sources,
    ),
    RecordPart(
        "pooled",
        "a map of fixed size",
        numbers=lambda quantities: quantities.texts * quantities.units * quantities.pool**2,
        # which run each query and each key belongs to
        beside=lambda quantities: quantities.texts * quantities.pool * 2 * quantities.sources,
        reported="map",
    ),
    RecordPart(
        "spans",
        "weight between spans of {spans}, or of a member `spans` of each text",
        numbers=lambda quantities: (
            quantities.texts * quantities.units * quantities.spans * (quantities.spans + 1)
        ),
        # sums in float64, which span each token belongs to, and a block of keys for every span
        beside=lambda quantities: (
            quantities.texts
            * (
                2 * quantities.units * quantities.spans * (quantities.spans + 1)
                + 4 * quantities.sources
            )
            + min(quantities.texts * quantities.spans * quantities.sources, _SPAN_KEYS)
        ),
        table=RecordTable("spans", "one row per pair of spans", ("weight",)),
        of_spans=True,
    ),
    RecordPart(
        "effects",
        "what changes where each head is cut, as by ablate --each head: the model runs once more for every head",
        numbers=lambda quantities: 4 * quantities.texts * quantities.units,
        table=RecordTable("effects", "one row per head", ("kl", "hidden", "weight", "target")),
        means=RecordTable(
            "mean_effects", "one row per head: mean over texts, and its standard error"
        ),
        runs_again=True,
    ),
    RecordPart(
        "span_effects",
        "what changes where the answer is cut off from each span, as by ablate --each span: one run for every span",
        numbers=lambda quantities: 4 * quantities.texts * quantities.spans,
        table=RecordTable(
            "span_effects", "one row per span that is cut off", ("loss", "kl", "hidden", "weight")
        ),
        runs_again=True,
        of_spans=True,
    ),
    RecordPart(
        "stages",
        "",
        numbers=lambda quantities: quantities.cells,
        table=RecordTable("matrices", "one row per cell of a stage"),
    ),
)
PARTS = {part.name: part for part in RECORD_PARTS}
# Part that each table shows.
TABLES = {part.table.name: part.name for part in RECORD_PARTS if part.table}
# Part whose means over texts each table shows.
MEANS = {part.means.name: part.name for part in RECORD_PARTS if part.means}
# Words of --keep.
EXACT_PARTS = tuple(part.name for part in RECORD_PARTS if part.phrase)


def reported_parts(with_map: object) -> tuple[str, ...]:
    """Return the names of the parts that a Report holds of a text beside matrices; a map has parts of its own."""
    return tuple(
        p.name for p in RECORD_PARTS if p.reported == "always" or (p.reported == "map" and with_map)
    )


def numbers_of_head(
    names: Iterable[str], *, rows: int, sources: int, cells: int, **sizes: int
) -> int:
    """Count the float32s that parts take for one head of one text, of which `rows` are shown; see Quantities."""
    quantities = Quantities(
        texts=1, units=1, rows=rows, counted=rows, sources=sources, cells=cells, **sizes
    )
    return sum(PARTS[name].numbers(quantities) for name in names)
