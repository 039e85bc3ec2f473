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

RAW = 2  # tensors of a tile's size: the stages more where raw scores are kept, …
MEASURE = 1  # … a contribution of every source, where means are ranked by it, …
MANY = 1  # … and rows in which ties are broken, where more contributors are ranked than one by one
FEW = 8  # number of contributors that are found one by one
RANKED = 44  # bytes per contributor while a tile is ranked: positions and values, copied, and with gaps filled
ROW_FACTS = 6  # number of values kept of a row in addition to its statistics
_FLOAT = 4  # bytes of a float32
_SPAN_KEYS = 1 << 22  # float32s of the largest blocks of keys and spans, in all threads


@dataclass(frozen=True)
class Quantities:
    """How much there is to keep.

    Attributes:
        texts: Texts.
        units: Layers and heads, or means over them, of one text.
        sources: Tokens of the longest text.
        rows: Rows whose matrices and contributors are kept, over all texts and units.
        counted: Rows whose statistics are kept, in the same form.
        cells: Cells of matrices, over all texts, units and stages.
        top: Contributors a row.
        measures: Measures of a contributor.
        statistics: Statistics of a row.
        pool: Runs of a pooled map; 0 for no map.
        place: Float32s that a position takes: two in memory, where it is an int64, and one in a file.
        spans: Spans of a text; 0 for none.
    """

    texts: int
    units: int
    sources: int
    rows: int
    counted: int
    cells: int
    top: int
    measures: int
    statistics: int
    pool: int
    place: int = 2
    spans: int = 0


@dataclass(frozen=True)
class TileSize:
    """The largest tile of a run, as its recorders see it.

    Attributes:
        scores: Scores in it.
        rows: Rows in it, of every text and head.
        heads: Heads in it.
        raw: Raw scores are kept.
        within: Tokens to both sides of a row whose weights are summed at once.
        kept: What is kept of all tiles.
    """

    scores: int
    rows: int
    heads: int
    raw: bool
    within: int
    kept: Quantities


@dataclass(frozen=True)
class RecordTable:
    """The table that a part becomes.

    Attributes:
        name: Name in `--table`.
        rows: Description of a row in the help of `--table`.
        values: Columns with the numbers of the part's arrays, named as the arrays (if there is only one, its column may
            have any name). The other columns follow from the axes of the arrays. Empty if `batch/tables.py` has a
            function for the table, because its rows are not the cells of the arrays, or its columns depend on the
            settings.
    """

    name: str
    rows: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True)
class RecordPart:
    """One thing that is kept of every layer and head.

    Attributes:
        name: Name in `--keep`, in settings and in records.
        phrase: Description in the help of `--keep`; empty if another option selects the part.
        numbers: Float32s that findings take, over all texts, layers and heads.
        beside: Number of additional float32 values in its recorders.
        tile: Bytes that its recorders need of the largest tile, while they reduce it.
        table: Table of `attnscope convert`; None for none.
        reported: Reports hold it: always, only of texts with a map, or never.
        runs_again: The model runs again for it, once for every cut: it is not among `--keep all`.
        of_spans: Texts have to be divided into spans for it: it is not among `--keep all`.
    """

    name: str
    phrase: str
    numbers: Callable[[Quantities], int]
    beside: Callable[[Quantities], int] = lambda _: 0
    tile: Callable[[TileSize], int] = lambda _: 0
    table: RecordTable | None = None
    reported: Literal["always", "map", "never"] = "never"
    runs_again: bool = False
    of_spans: bool = False


def _top_tile(tile: TileSize) -> int:
    """Count what ranking takes: rows that are ranked at once, and what was found of them."""
    kept = tile.kept
    stages = MEASURE + MANY * (kept.top > FEW)
    cells = RANKED * min(kept.top, kept.sources) * tile.scores // kept.sources if kept.rows else 0
    return _FLOAT * stages * tile.scores + cells


def _pooled_tile(tile: TileSize) -> int:
    """Count which run a query or key of the tile belongs to, and the sums of its runs."""
    kept = tile.kept
    return _FLOAT * kept.texts * tile.heads * kept.pool * (tile.rows + 2 * kept.sources + 3 * kept.pool)


RECORD_PARTS = (
    RecordPart(
        "top",
        "contributors",
        numbers=lambda kept: kept.rows * kept.top * (kept.place + kept.measures),
        # the norms of the values of every source, by which a contribution is more than its weight
        beside=lambda kept: (kept.measures - 1) * kept.units * kept.texts * kept.sources if kept.rows else 0,
        tile=_top_tile,
        table=RecordTable("contributors", "one row per query and rank"),
        reported="always",
    ),
    RecordPart(
        "rows",
        "statistics of every row: {row_statistics}",
        numbers=lambda kept: kept.counted * kept.statistics,
        beside=lambda kept: kept.counted * ROW_FACTS,
        # the weights near the diagonal, from which those within n tokens are summed
        tile=lambda tile: _FLOAT * (tile.scores * (tile.rows + 2 * tile.within) // tile.kept.sources),
        table=RecordTable("rows", "statistics, one row per query"),
        reported="always",
    ),
    RecordPart(
        "columns",
        "weight that every token receives",
        numbers=lambda kept: kept.texts * kept.units * kept.sources,
        table=RecordTable("columns", "one row per source", ("mass",)),
        reported="map",
    ),
    RecordPart(
        "received",
        "",
        numbers=lambda kept: kept.texts * kept.units * kept.sources,
        beside=lambda kept: kept.texts * kept.units * kept.sources,
        tile=lambda tile: 3 * _FLOAT * tile.scores,  # which keys are allowed, even shares, and what is counted
    ),
    RecordPart(
        "pooled",
        "a map of fixed size",
        numbers=lambda kept: kept.texts * kept.units * kept.pool**2,
        # which run each query and each key belongs to
        beside=lambda kept: kept.texts * kept.pool * 2 * kept.sources,
        tile=_pooled_tile,
        reported="map",
    ),
    RecordPart(
        "spans",
        "weight between spans of {spans}, or of a member `spans` of each text",
        numbers=lambda kept: kept.texts * kept.units * kept.spans * (kept.spans + 1),
        # sums in float64, which span each token belongs to, and a block of keys for every span
        beside=lambda kept: (
            kept.texts * (2 * kept.units * kept.spans * (kept.spans + 1) + 4 * kept.sources)
            + min(kept.texts * kept.spans * kept.sources, _SPAN_KEYS)
        ),
        table=RecordTable("spans", "one row per pair of spans", ("weight",)),
        of_spans=True,
    ),
    RecordPart(
        "effects",
        "what changes where each head is cut, as by ablate --each head: the model runs once more for every head",
        numbers=lambda kept: 3 * kept.texts * kept.units,
        table=RecordTable("effects", "one row per head", ("kl", "hidden", "weight")),
        runs_again=True,
    ),
    RecordPart(
        "span_effects",
        "what changes where the answer is cut off from each span, as by ablate --each span: one run for every span",
        numbers=lambda kept: 4 * kept.texts * kept.spans,
        table=RecordTable("span_effects", "one row per span that is cut off", ("loss", "kl", "hidden", "weight")),
        runs_again=True,
        of_spans=True,
    ),
    RecordPart(
        "stages",
        "",
        numbers=lambda kept: kept.cells,
        tile=lambda tile: _FLOAT * RAW * tile.raw * tile.scores,
        table=RecordTable("matrices", "one row per cell of a stage"),
    ),
)
PARTS = {part.name: part for part in RECORD_PARTS}
TABLES = {part.table.name: part.name for part in RECORD_PARTS if part.table}  # table to the part that it shows
EXACT_PARTS = tuple(part.name for part in RECORD_PARTS if part.phrase)  # the words of --keep


def reported_parts(with_map: object) -> tuple[str, ...]:
    """Return the names of the parts that a Report has for each text in addition to its matrices.

    Args:
        with_map: Whether the text is shown as a map of runs of tokens, which has parts of its own.
    """
    return tuple(p.name for p in RECORD_PARTS if p.reported == "always" or (p.reported == "map" and with_map))


def numbers_of_head(names: Iterable[str], *, rows: int, sources: int, cells: int, **sizes: int) -> int:
    """Count the float32s that some parts take of one head of one text.

    Args:
        names: The parts.
        rows: Rows that are shown; those whose statistics are kept, too.
        sources: See Quantities.
        cells: See Quantities.
        sizes: Other fields of Quantities: `top`, `measures`, `statistics`, `pool`, `place`.
    """
    kept = Quantities(texts=1, units=1, rows=rows, counted=rows, sources=sources, cells=cells, **sizes)
    return sum(PARTS[name].numbers(kept) for name in names)
