"""Flatten records into a table with one row per text, layer, head, query and rank (.csv, .parquet).

There are five tables: `contributors` has one row per text, layer, head, query and rank, `rows` one per text, layer,
head and query, `columns` one per text, layer, head and source, `matrices` one per cell of a stage, and `effects` one
per text, layer and head. Row statistics have a separate table, because in a table with several rows per query, averages
would count queries with more contributors more often.
"""

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from attnscope.base.errors import PARQUET, AttnscopeError, arg
from attnscope.base.system.csv_lines import CsvLines
from attnscope.batch.file_errors import naming_errors
from attnscope.batch.header import MEASURES, Settings
from attnscope.batch.records import Record
from attnscope.findings.record_parts import PARTS, TABLES, Axis, RecordPart
from attnscope.findings.row_statistics import STATISTICS
from attnscope.findings.tokens import Token

Table = dict[str, Any]  # column name to a list or array, all of one length
INTEGERS = ("index", "layer", "head", "query", "rank", "key", "dimension")
_HINT = "create one with attnscope convert"
_WORDS = ("id", "query_token", "key_token", "stage")
_HEADS = ("index", "id", "layer", "head")
_LONGEST = 131_072  # characters of a cell of a .csv file
_PART = 1 << 16  # rows that are written or read at once
_Array = np.ndarray[Any, np.dtype[Any]]


@dataclass
class TableRows:
    """The rows of a table, in parts that fit into memory.

    Attributes:
        columns: Names of the columns.
        parts: The parts.
        count: Rows of the parts that were taken so far.
    """

    columns: list[str]
    parts: Iterator[Table]
    count: int = 0

    def __iter__(self) -> Iterator[Table]:
        """Yield every part."""
        for part in self.parts:
            self.count += len(part["index"])
            yield part


def kinds_of(settings: Settings) -> list[str]:
    """Return the tables that a dump holds."""
    return [kind for kind, part in TABLES.items() if part in settings.keep]


def kind_of(settings: Settings, asked: str | None) -> str:
    """Choose the table to make of a dump: the one that was asked for, else the first that the dump has.

    Raises:
        AttnscopeError: The dump does not hold what the table is made of.
    """
    there = kinds_of(settings)
    if asked is None and there:
        return there[0]
    if asked is None:
        found = f"a dump of {', '.join(settings.keep)} cannot become a table"
        raise AttnscopeError(found, hint=f"run batch with {arg('keep')} top,rows, or convert to .jsonl")
    if asked not in there:
        option = arg("stages", "weights") if asked == "matrices" else arg("keep", TABLES[asked])
        hint = f"run batch with {option}; this dump has {', '.join(there)}"
        raise AttnscopeError(f"the dump has no {asked}", hint=hint)
    return asked


def columns(kind: str, settings: Settings) -> list[str]:
    """Return names of the columns of a table."""
    if kind in _KINDS:
        return [*_HEADS, *_KINDS[kind][0](settings)]
    part = PARTS[TABLES[kind]]
    assert part.table is not None
    return [*_HEADS, *(name for axis in part.axes for name in _PLACES[axis]), *part.table.values]


def tables(kind: str, record: Record) -> Iterator[Table]:
    """Return the table of one text, in parts that fit into memory."""
    part = PARTS[TABLES[kind]]
    assert part.table is not None
    return _KINDS[kind][1](record) if kind in _KINDS else _places(record, part, part.table.values)


def _places(record: Record, part: RecordPart, names: Sequence[str]) -> Iterator[Table]:
    """Yield one row for every place of a part's arrays; NaN for what the model does not have, or was not kept."""
    found = getattr(record, part.name)
    if found is None:  # a short text in a report whose long texts have maps
        return
    arrays = {name: found if isinstance(found, np.ndarray) else getattr(found, name) for name in names}
    sizes = {"query": len(record.queries), "source": len(_sources(record))}
    unit, *places = (at.ravel() for at in np.indices((len(record.units), *(sizes[axis] for axis in part.axes))))
    table = _heads(record, unit)
    for axis, place in zip(part.axes, places, strict=True):
        table |= _queries(record, place) if axis == "query" else _keys(record, place)
    none = np.full(len(unit), np.nan, dtype=np.float32)
    yield table | {name: none if array is None else array.ravel() for name, array in arrays.items()}


def _contributors(record: Record) -> Iterator[Table]:
    """Yield one row for every unit, query and rank that has a source."""
    assert record.top is not None
    unit, row, rank = np.nonzero(record.top.keys >= 0)
    source = record.top.keys[unit, row, rank]
    found = _heads(record, unit) | _queries(record, row) | {"rank": rank} | _keys(record, source)
    for name in MEASURES["projected"]:
        if getattr(record.top, name) is not None:
            found[name] = getattr(record.top, name)[unit, row, rank]
    yield found


def _matrices(record: Record) -> Iterator[Table]:
    """Yield one row for every stage, unit, query and key, or dimension of the value for `output`."""
    for stage, array in record.stages.items():
        units, queries, width = array.shape
        step = max(1, _PART // max(width, 1))
        for start in range(0, units * queries, step):
            whole = np.arange(start, min(start + step, units * queries))
            unit, row = np.divmod(np.repeat(whole, width), queries)
            column = np.tile(np.arange(width), len(whole))
            none = [None] * len(unit)
            if stage == "output":
                place: Table = {"key": none, "key_token": none, "dimension": column}
            else:
                place = _keys(record, np.array(record.keys)[column]) | {"dimension": none}
            value = array.reshape(units * queries, width)[whole].ravel()
            value = np.where(np.isfinite(value), value, np.float32("nan"))  # not allowed, or nothing to attend to
            yield _heads(record, unit) | _queries(record, row) | place | {"stage": [stage] * len(unit), "value": value}


_QUERY, _KEY = ("query", "query_token"), ("key", "key_token")
_PLACES: dict[Axis, tuple[str, str]] = {"query": _QUERY, "source": _KEY}
_KINDS: dict[str, tuple[Callable[[Settings], Sequence[str]], Callable[[Record], Iterator[Table]]]] = {
    "contributors": (lambda settings: (*_QUERY, "rank", *_KEY, *MEASURES[settings.by]), _contributors),
    "rows": (
        lambda settings: (*_QUERY, *settings.kept_statistics, "sink"),
        lambda record: _places(record, PARTS["rows"], (*STATISTICS, "sink")),
    ),
    "matrices": (lambda _: (*_QUERY, *_KEY, "dimension", "stage", "value"), _matrices),
}  # columns and rows of the tables whose declaration names no values


def _heads(record: Record, unit: _Array) -> Table:
    """Return text, layer and head of every row; a mean has no number."""
    found: Table = {"index": np.full(len(unit), record.index), "id": [str(record.id)] * len(unit)}
    for n, name in enumerate(("layer", "head")):
        numbers = [pair[n] for pair in record.units]
        if "mean" in numbers:
            found[name] = [None if numbers[at] == "mean" else numbers[at] for at in unit]
        else:
            found[name] = np.array(numbers, dtype=np.int64)[unit]
    return found


def _queries(record: Record, row: _Array) -> Table:
    query = np.array(record.queries, dtype=np.int64)[row]
    return {"query": query, "query_token": _texts(record.tokens)[query]}


def _keys(record: Record, key: _Array) -> Table:
    return {"key": key, "key_token": _texts(_sources(record))[key]}


def _sources(record: Record) -> list[Token]:
    return record.tokens if record.sources is None else record.sources


def _texts(tokens: Sequence[Token]) -> _Array:
    return np.array([token.text for token in tokens], dtype=object)


def write_csv(rows: TableRows, path: Path) -> int:
    """Write a CSV file, and return how many rows it has; see _csv_bytes."""
    with naming_errors(path), open(path, "wb") as file:
        file.writelines(_csv_bytes(rows))
    return rows.count


def _csv_bytes(rows: TableRows) -> Iterator[bytes]:
    """Yield a CSV file, part by part; numbers in shortest exact digits, an empty cell for none."""
    buffer = CsvLines()
    writer = csv.writer(buffer)
    writer.writerow(rows.columns)
    for one in rows:
        _check_cells(one)
        writer.writerows(zip(*(_cells(one[name]) for name in rows.columns), strict=True))
        yield buffer.getvalue().encode()
        buffer.seek(0)
        buffer.truncate()
    yield buffer.getvalue().encode()


def _check_cells(table: Table) -> None:
    """Refuse what readers of CSV refuse, Python's among them.

    Raises:
        AttnscopeError: A cell is too long.
    """
    for name in set(_WORDS) & set(table):
        longest = max((cell for cell in table[name] if cell is not None), key=len, default="")
        if len(longest) > _LONGEST:
            row = list(table[name]).index(longest)
            found = f"the {name} of record {table['index'][row]} has {len(longest):,} characters"
            raise AttnscopeError(found, hint=f"a .csv cell holds at most {_LONGEST:,}; convert to .parquet")


def _cells(values: Any) -> Any:
    if isinstance(values, np.ndarray) and values.dtype == np.float32:
        text = values.astype(str)
        return np.where(np.isnan(values), "", text).tolist()
    return values.tolist() if isinstance(values, np.ndarray) else values


def write_parquet(rows: TableRows, path: Path) -> int:
    """Write a Parquet file, and return how many rows it has; null for none.

    Short texts share a row group, since thousands of tiny row groups are slow to read.

    Raises:
        AttnscopeError: The extra is missing.
    """
    PARQUET.require(".parquet")
    import pyarrow as pa
    from pyarrow import parquet

    names = rows.columns
    schema = pa.schema([(name, _arrow_type(pa, name)) for name in names])
    with (
        naming_errors(path),
        open(path, "wb") as file,
        parquet.ParquetWriter(file, schema, compression="zstd") as writer,
    ):
        waiting: list[Any] = []
        for one in rows:
            cells = {name: pa.array(one[name], schema.field(name).type, from_pandas=True) for name in names}
            waiting.append(pa.table(cells, schema=schema))
            if sum(len(part) for part in waiting) >= _PART:
                writer.write_table(pa.concat_tables(waiting))
                waiting = []
        if waiting:
            writer.write_table(pa.concat_tables(waiting))
    return rows.count


def _arrow_type(pa: Any, name: str) -> Any:
    return pa.int64() if name in INTEGERS else pa.string() if name in _WORDS else pa.float32()


def read_csv(path: Path) -> TableRows:
    """Return the rows of a .csv table that we wrote.

    Raises:
        AttnscopeError: It is something else, damaged, or holds a value that its column cannot.
    """
    rows = _csv_rows(path)
    _, names = next(rows, (0, []))
    return TableRows(_known(names, path), _from_csv(names, rows, path))


def read_parquet(path: Path) -> TableRows:
    """Return the rows of a .parquet table that we wrote.

    Raises:
        AttnscopeError: It is something else, damaged, or holds a value that its column cannot, or the extra is missing.
    """
    parts = _parquet_parts(path)
    return TableRows(next(parts), parts)


def _known(names: list[str], path: Path) -> list[str]:
    kept = tuple(name for name in names if name in STATISTICS)  # a dump may keep some statistics only
    known = [columns(kind, Settings(by=by, statistics=kept)) for kind in TABLES for by in MEASURES]  # type: ignore[arg-type]
    if names not in known or len(set(names)) < len(names):
        hint = "create one with attnscope convert; if an older version made it, convert the dump again"
        raise AttnscopeError("is not a table of a dump", where=path, hint=hint)
    return names


def _may_be_empty(name: str, names: Sequence[str]) -> bool:
    """Tell whether a cell may be empty.

    A float may, the layer or head of a mean, and in a table of matrices the key of an output or the dimension of
    anything else.
    """
    of_matrices = ("key", "key_token", "dimension") if "dimension" in names else ()
    return name not in (*INTEGERS, *_WORDS) or name in ("layer", "head", *of_matrices)


def _parquet_parts(path: Path) -> Iterator[Any]:
    """Yield the names of the columns, then part after part."""
    PARQUET.require(".parquet")
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with open(path, "rb") as opened:  # pyarrow reads every file name as UTF-8
            file = parquet.ParquetFile(opened)
            yield _known(file.schema_arrow.names, path)
            for part in file.iter_batches(_PART):
                yield {name: _from_arrow(part, pa, name, path) for name in part.schema.names}
    except (pa.ArrowException, OSError, UnicodeDecodeError) as e:
        found = f"cannot be read ({' '.join(str(e).split())[:200]})"
        raise AttnscopeError(found, where=path, hint="create it again") from e


def _from_arrow(part: Any, pa: Any, name: str, path: Path) -> Any:
    """Return a column as an array; one of another type is converted where that loses nothing."""
    column, kind = part.column(name), _arrow_type(pa, name)
    try:
        found = column.cast(kind)
    except pa.ArrowException as e:
        raise AttnscopeError(f"has type {column.type}, expected {kind}", where=f"{path}: {name}", hint=_HINT) from e
    if found.null_count and not _may_be_empty(name, part.schema.names):
        raise AttnscopeError("contains null", where=f"{path}: {name}", hint=_HINT)
    if name in _WORDS or (name in INTEGERS and found.null_count):
        return found.to_pylist()
    array = found.to_numpy(zero_copy_only=False)
    if name not in INTEGERS and not np.isfinite(found.drop_null().to_numpy(zero_copy_only=False)).all():
        raise AttnscopeError("contains a number that is not finite", where=f"{path}: {name}", hint=_HINT)
    return array


def _csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield every row that is not blank, with the number of the line that it ends in."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            reader = csv.reader(file, strict=True)
            yield from ((reader.line_num, row) for row in reader if row)
    except (OSError, UnicodeDecodeError, csv.Error) as e:
        raise AttnscopeError(f"cannot be read ({e})", where=path) from e


def _from_csv(names: list[str], rows: Iterator[tuple[int, list[str]]], path: Path) -> Iterator[Table]:
    while part := list(islice(rows, _PART)):
        for line, row in part:
            if len(row) != len(names):
                found = f"{len(row)} cells, but the header has {len(names)}"
                raise AttnscopeError(found, where=f"{path}:{line}", hint=_HINT)
        cells = zip(names, zip(*(row for _, row in part), strict=True), strict=True)
        lines = [line for line, _ in part]
        empty = {name: _may_be_empty(name, names) for name in names}
        yield {name: _parsed(name, column, lines, path, empty=empty[name]) for name, column in cells}


def _parsed(name: str, cells: Sequence[str], lines: Sequence[int], path: Path, *, empty: bool) -> Any:
    """Parse a column of text into an array of values."""
    if name in _WORDS:
        return list(cells)
    try:
        return _numbers(name, cells, empty=empty)
    except (ValueError, OverflowError):
        for line, cell in zip(lines, cells, strict=True):
            try:
                _numbers(name, [cell], empty=empty)
            except (ValueError, OverflowError) as e:
                what = "a whole number" if name in INTEGERS else "a number or empty"
                where = f"{path}:{line}: {name}"
                raise AttnscopeError(f"{cell[:80]!r} is not {what}", where=where, hint=_HINT) from e
        raise


def _numbers(name: str, cells: Sequence[str], *, empty: bool) -> Any:
    """Return numbers of a column; an empty cell is none where there may be none.

    Raises:
        ValueError: A cell is no number, or beyond float32.
        OverflowError: A cell is beyond int64.
    """
    if name in INTEGERS:
        whole = np.array([cell or "0" for cell in cells] if empty else cells, dtype=np.int64)
        return whole if "" not in cells else [int(n) if cell else None for n, cell in zip(whole, cells, strict=True)]
    found = np.array([cell or "nan" for cell in cells], dtype=np.float64)
    there = np.array([bool(cell) for cell in cells])
    if not (np.abs(found[there]) <= np.finfo(np.float32).max).all():
        raise ValueError
    return found.astype(np.float32)


READERS = {"csv": read_csv, "parquet": read_parquet}  # by layout of a format
WRITERS = {"csv": write_csv, "parquet": write_parquet}
