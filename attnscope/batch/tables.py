"""Flatten records into a table with one row per text, layer, head, query and rank (.csv, .parquet).

There are eight tables: `contributors` has one row per text, layer, head, query and rank, `rows` one per text, layer,
head and query, `columns` one per text, layer, head and source, `matrices` one per cell of a stage, `effects` one
per text, layer and head, `spans` one per text, layer, head and pair of spans, and `span_effects` one per text and span,
whose layer and head are empty: all that are kept are cut together. `mean_effects` has one row per layer and head, with
means over texts. Row statistics have a separate table,
because in a table with several rows per query, averages would count queries with more contributors more often.
"""

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from attnscope.base.errors import PARQUET, AttnscopeError, arg
from attnscope.base.system.csv_lines import CsvLines
from attnscope.batch.file_errors import naming_errors
from attnscope.batch.header import MEASURES, Settings
from attnscope.batch.records import EffectArrays, Record, arrays_of
from attnscope.findings.axes import declared_at, declared_paths
from attnscope.findings.heads import HeadRef
from attnscope.findings.record_parts import MEANS, PARTS, TABLES
from attnscope.findings.row_statistics import LAYER_STATISTICS, STATISTICS
from attnscope.findings.tokens import Token

Table = dict[str, Any]  # column name to a list or array, all of one length
INTEGERS = ("texts", "index", "layer", "head", "query", "rank", "key", "dimension")
WORDS = ("id", "query_token", "key_token", "stage", "query_span", "key_span")
_HEADS = ("index", "id", "layer", "head")
_LONGEST = 131_072  # characters of a cell of a .csv file
_PART = 1 << 16  # rows that are written at once
_Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Words:
    """The cells of a column of words, of which many are the same: no row has an object of its own."""

    words: Sequence[str]
    index: _Array  # which of the words each row has, (rows,), int

    def __len__(self) -> int:
        return len(self.index)

    def __iter__(self) -> Iterator[str]:
        """Yield the word of every row."""
        return map(self.words.__getitem__, self.index.tolist())

    def to_arrow(self) -> Any:
        """Return the words of all rows as an array of Arrow, a dictionary of different words."""
        import pyarrow as pa

        different = pa.array(self.words, pa.string()).dictionary_encode()
        return different.take(pa.array(self.index))


def _same(word: str, count: int) -> Words:
    """Return a column that has one word in every row."""
    return Words([word], np.zeros(count, dtype=np.int64))


@dataclass
class TableRows:
    """The rows of a table, in parts that fit into memory."""

    columns: list[str]
    parts: Iterator[Table]
    count: int = 0

    def __iter__(self) -> Iterator[Table]:
        """Yield every part."""
        for part in self.parts:
            self.count += len(part[self.columns[0]])
            yield part


def kinds_of(settings: Settings) -> list[str]:
    """Return the tables that a dump holds."""
    return [table_kind for table_kind, part in {**TABLES, **MEANS}.items() if part in settings.keep]


def kind_of(settings: Settings, table: str | None) -> str:
    """Choose the table to make of a dump: the one that was asked for, else the first that the dump has."""
    there = kinds_of(settings)
    if table is None and there:
        return there[0]
    if table is None:
        message = f"a dump of {', '.join(settings.keep)} cannot become a table"
        raise AttnscopeError(
            message, hint=f"run batch with {arg('keep')} top,rows, or convert to .jsonl"
        )
    if table not in there:
        if table == "matrices":
            option = arg("stages", "weights")
        else:
            option = arg("keep", {**TABLES, **MEANS}[table])
        hint = f"run batch with {option}; this dump has {', '.join(there)}"
        raise AttnscopeError(f"the dump has no {table}", hint=hint)
    return table


def columns(table_kind: str, settings: Settings) -> list[str]:
    """Return names of the columns of a table."""
    if table_kind in MEANS:
        (of_texts,) = [table for table, part in TABLES.items() if part == MEANS[table_kind]]
        means = [(name, f"{name}_error") for name in columns(of_texts, settings)[len(_HEADS) :]]
        return ["layer", "head", "texts", *(name for pair in means for name in pair)]
    if table_kind == "matrices":
        return [*_HEADS, *_QUERY, *_KEY, "dimension", "stage", "value"]
    table = PARTS[TABLES[table_kind]].table
    names = [name for axis in _axes(TABLES[table_kind]) for name in _COLUMNS[axis]]
    assert table is not None
    return [
        *_HEADS,
        *names,
        *(_VALUES[table_kind](settings) if table_kind in _VALUES else table.values),
    ]


def rows_of(kind: str, records: Iterable[Record]) -> Iterator[Table]:
    """Return a table of several texts, in parts."""
    complete = (record for record in records if record.status == "ok")
    if kind in MEANS:
        yield from mean_effects(complete)
        return
    for record in complete:
        yield from tables(kind, record)


def mean_effects(records: Iterable[Record]) -> Iterator[Table]:
    """Return the mean of each effect over the texts that have it, and its standard error, of each head; NaN for none.

    The sums are of differences from the first text, so that they cancel little.
    """
    units: list[HeadRef] = []
    sums: dict[str, _Sums] = {}
    texts = 0
    for record in records:
        effects = record.effects
        if effects is None:
            continue
        units = record.units
        texts += 1
        for name in EffectArrays.__struct_fields__:
            values = getattr(effects, name)
            if values is not None:
                sums.setdefault(name, _Sums(values.astype(np.float64))).add(values)
    if not texts:
        return
    none = np.full(len(units), np.nan, dtype=np.float32)
    table: Table = {
        name: np.array([getattr(unit, name) for unit in units]) for name in ("layer", "head")
    }
    table["texts"] = np.full(len(units), texts)
    for name in EffectArrays.__struct_fields__:
        mean, error = sums[name].means() if name in sums else (none, none)
        table |= {name: mean, f"{name}_error": error}
    yield table


class _Sums:
    """Sums over texts of the differences of an array from a first one, and of their squares."""

    def __init__(self, first: _Array) -> None:
        self._first = first
        self._texts = np.zeros_like(first)
        self._sum = np.zeros_like(first)
        self._squares = np.zeros_like(first)

    def add(self, values: _Array) -> None:
        """Add an array; NaN is left out."""
        difference = np.nan_to_num(values - self._first)
        self._texts += ~np.isnan(values)
        self._sum += difference
        self._squares += difference**2

    def means(self) -> tuple[_Array, _Array]:
        """Return the means and their standard errors, float32; NaN for too few texts."""
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = self._sum / self._texts
            variance = (self._squares - self._texts * mean**2).clip(min=0) / (self._texts - 1)
            error = np.where(self._texts > 1, np.sqrt(variance / self._texts), np.nan)
        return (self._first + mean).astype(np.float32), error.astype(np.float32)


def tables(table_kind: str, record: Record) -> Iterator[Table]:
    """Return the table of one text, in parts that fit into memory; NaN for what a text does not have."""
    part = TABLES[table_kind]
    if part == "stages":
        for stage, array in record.stages.items():
            for table in _flattened(
                record, declared_at(Record, f"stages.{stage}").axes, {"value": array}
            ):
                # not allowed, or none
                value = np.where(np.isfinite(table["value"]), table["value"], np.float32("nan"))
                missing = dict.fromkeys((*_KEY, "dimension"), [None] * len(value))
                yield missing | table | {"stage": _same(stage, len(value)), "value": value}
        return
    if part in _OF_SPANS:
        yield from _OF_SPANS[part](record)
        return
    arrays = {
        path.rpartition(".")[2]: array
        for path, array in arrays_of(record).items()
        if path.partition(".")[0] == part
    }
    if not arrays:
        # A short text in a report whose long texts have maps.
        return
    declared = PARTS[part].table
    assert declared is not None
    if len(declared.values) == 1:
        arrays = dict(zip(declared.values, arrays.values(), strict=True))
    names = (*STATISTICS, *LAYER_STATISTICS) if part == "rows" else declared.values
    for table in _flattened(record, ("unit", *_axes(part)), arrays):
        none = np.full(len(table["index"]), np.nan, dtype=np.float32)
        yield table | {name: none for name in names if name not in table}


def _span_tables(record: Record) -> Iterator[Table]:
    """Return one row for every pair of spans, and for every span and the sink of a head that has one."""
    if record.spans is None:
        return
    weights = record.spans.weights
    if record.spans.sink is not None:
        weights = np.concatenate((weights, record.spans.sink[..., None]), -1)
    yield from _flattened(record, declared_at(Record, "spans.weights").axes, {"weight": weights})


def _span_effect_tables(record: Record) -> Iterator[Table]:
    """Return one row for every span that is cut off."""
    span_effects = record.span_effects
    if span_effects is None:
        return
    arrays = {name: getattr(span_effects, name) for name in ("loss", "kl", "hidden", "weight")}
    none = np.full(len(span_effects.hidden), np.nan, dtype=np.float32)
    arrays = {name: none if array is None else array for name, array in arrays.items()}
    cut = np.flatnonzero(~np.isnan(list(arrays.values())).all(0))
    heads = {"index": np.full(len(cut), record.index), "id": _same(str(record.id), len(cut))}
    heads |= {name: [None] * len(cut) for name in ("layer", "head")}
    yield (
        heads
        | {"key_span": Words(_span_names(record), cut)}
        | {name: array[cut] for name, array in arrays.items()}
    )


_OF_SPANS = {"spans": _span_tables, "span_effects": _span_effect_tables}


def _axes(part: str) -> tuple[str, ...]:
    axes = declared_at(
        Record, next(path for path in declared_paths(Record) if path.partition(".")[0] == part)
    ).axes
    return tuple(axis for axis in axes if axis != "unit")


def _flattened(
    record: Record, axes: Sequence[str], arrays: "Mapping[str, _Array]"
) -> Iterator[Table]:
    """Yield one row for every cell of arrays of one shape; `keys` are positions of sources, -1 for none."""
    shape = next(iter(arrays.values())).shape
    for start in range(0, prod(shape), _PART):
        cells = np.arange(start, min(start + _PART, prod(shape)))
        values = {name: array.reshape(-1)[start : start + _PART] for name, array in arrays.items()}
        if "keys" in arrays:
            ranked = values["keys"] >= 0
            cells = cells[ranked]
            values = {name: numbers[ranked] for name, numbers in values.items()}
        places = dict(zip(axes, np.unravel_index(cells, shape), strict=True))
        table = _heads(record, places["unit"])
        for axis, index in places.items():
            table |= _PLACES[axis](record, index) if axis in _PLACES else {}
        yield table | (_keys(record, values.pop("keys")) if "keys" in values else {}) | values


_QUERY = ("query", "query_token")
_KEY = ("key", "key_token")
# Columns of an axis.
_COLUMNS = {
    "query": _QUERY,
    "rank": ("rank",),
    "source": _KEY,
    "span": ("query_span",),
    "key span": ("key_span",),
}
# Values of these columns at places along the axis.
_PLACES: "dict[str, Callable[[Record, _Array], Table]]" = {
    "query": lambda record, index: _queries(record, index),
    "rank": lambda _, index: {"rank": index},
    "source": lambda record, index: _keys(record, index),
    "key": lambda record, index: _keys(record, np.array(record.keys)[index]),
    "width": lambda _, index: {"dimension": index},
    "span": lambda record, index: {"query_span": Words(_span_names(record), index)},
    "key span": lambda record, index: {"key_span": Words(_span_names(record), index)},
}
# Further columns, if they depend on the settings.
_VALUES: dict[str, Callable[[Settings], Sequence[str]]] = {
    "contributors": lambda settings: (*_KEY, *MEASURES[settings.by]),
    "rows": lambda settings: (*settings.kept_statistics, *LAYER_STATISTICS),
    "effects": lambda settings: (
        "kl",
        "hidden",
        "weight",
        *(["target"] if settings.target else []),
    ),
}


def _heads(record: Record, unit: _Array) -> Table:
    """Return text, layer and head of every row; a mean has no number."""
    columns: Table = {
        "index": np.full(len(unit), record.index),
        "id": _same(str(record.id), len(unit)),
    }
    for n, name in enumerate(("layer", "head")):
        numbers = [pair[n] for pair in record.units]
        if "mean" in numbers:
            columns[name] = [None if numbers[at] == "mean" else numbers[at] for at in unit]
        else:
            columns[name] = np.array(numbers, dtype=np.int64)[unit]
    return columns


def _span_names(record: Record) -> list[str]:
    assert record.divided is not None
    return [*record.divided.names, "(sink)"]


def _queries(record: Record, row: _Array) -> Table:
    query = np.array(record.queries, dtype=np.int64)[row]
    return {"query": query, "query_token": Words(_texts(record.tokens), query)}


def _keys(record: Record, key: _Array) -> Table:
    return {"key": key, "key_token": Words(_texts(record.key_tokens), key)}


def _texts(tokens: Sequence[Token]) -> list[str]:
    return [token.text for token in tokens]


def write(rows: TableRows, layout: str, path: Path) -> int:
    """Write a CSV or Parquet file, and return how many rows it has."""
    with naming_errors(path), open(path, "wb") as file:
        if layout == "csv":
            file.writelines(csv_bytes(rows))
        else:
            _write_parquet(rows, file)
    return rows.count


def csv_bytes(rows: TableRows) -> Iterator[bytes]:
    """Yield a CSV file, part by part; numbers in shortest exact digits, an empty cell for none."""
    buffer = CsvLines()
    writer = csv.writer(buffer)
    writer.writerow(rows.columns)
    for table in rows:
        _check_cells(table)
        writer.writerows(zip(*(_cells(table[name]) for name in rows.columns), strict=True))
        yield buffer.getvalue().encode()
        buffer.seek(0)
        buffer.truncate()
    yield buffer.getvalue().encode()


def _check_cells(table: Table) -> None:
    for name in set(WORDS) & set(table):
        longest = max((cell for cell in table[name] if cell is not None), key=len, default="")
        if len(longest) > _LONGEST:
            row = list(table[name]).index(longest)
            message = f"the {name} of record {table['index'][row]} has {len(longest):,} characters"
            raise AttnscopeError(
                message, hint=f"a .csv cell holds at most {_LONGEST:,}; convert to .parquet"
            )


def _cells(values: Any) -> Any:
    if isinstance(values, np.ndarray) and values.dtype == np.float32:
        text = values.astype(str)
        return np.where(np.isnan(values), "", text).tolist()
    if isinstance(values, np.ndarray):
        return values.tolist()
    return values


def parquet_bytes(rows: TableRows) -> Iterator[bytes]:
    """Yield a Parquet file; null for none."""
    file = BytesIO()
    _write_parquet(rows, file)
    yield file.getvalue()


def _write_parquet(rows: TableRows, file: BinaryIO) -> None:
    """Write a Parquet file; short texts share a row group, since thousands of tiny row groups are slow to read."""
    PARQUET.require(".parquet")
    import pyarrow as pa
    from pyarrow import parquet

    schema = arrow_schema(rows.columns)
    with parquet.ParquetWriter(file, schema, compression="zstd", store_schema=False) as writer:
        waiting: list[Any] = []
        for table in rows:
            waiting.append(arrow_table(table, schema))
            if sum(len(part) for part in waiting) >= _PART:
                writer.write_table(pa.concat_tables(waiting).unify_dictionaries())
                waiting = []
        if waiting:
            writer.write_table(pa.concat_tables(waiting).unify_dictionaries())


def arrow_schema(names: Sequence[str]) -> Any:
    """Return the names and types of columns in Arrow."""
    import pyarrow as pa

    return pa.schema([(name, _arrow_type(pa, name)) for name in names])


def arrow_table(table: Table, schema: Any) -> Any:
    """Return a part of a table in Arrow; NaN is null."""
    import pyarrow as pa

    cells = {}
    for field in schema:
        column = table[field.name]
        in_arrow = column.to_arrow() if isinstance(column, Words) else None
        if in_arrow is None:
            cells[field.name] = pa.array(column, field.type, from_pandas=True)
        else:
            cells[field.name] = in_arrow
    return pa.table(cells, schema=schema)


def _arrow_type(pa: Any, name: str) -> Any:
    if name in INTEGERS:
        return pa.int64()
    if name in WORDS:
        return pa.dictionary(pa.int32(), pa.string())
    return pa.float32()
