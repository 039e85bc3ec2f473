"""Records in; a flat table with one row per text, layer, head, query and rank, as .csv or .parquet, out."""

import csv
import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from attnscope.batch.header import Settings
from attnscope.batch.records import STATISTICS, Record
from attnscope.errors import AttnscopeError

Table = dict[str, Any]  # column name to a list or array, all of one length
_MEASURES = {"weight": ("weight",), "value": ("weight", "value"), "projected": ("weight", "value", "projected")}
_NUMBERS = ("index", "query", "rank", "key")


def columns(settings: Settings) -> list[str]:
    """Names of the columns.

    Raises:
        AttnscopeError: The dump holds no contributors.
    """
    if "top" not in settings.keep:
        found = "a dump without top contributors is no table"
        raise AttnscopeError(found, hint="dump it with --keep top,rows, or read it as .jsonl")
    stats = STATISTICS if "rows" in settings.keep else ()
    first = ["index", "id", "layer", "head", "query", "query_token", "rank", "key", "key_token"]
    return [*first, *_MEASURES[settings.by], *stats]


def table(record: Record) -> Table:
    """The rows of one text, without those ranks that have no source."""
    assert record.top is not None
    keys = record.top.keys
    unit, row, rank = np.nonzero(keys >= 0)
    source = keys[unit, row, rank]
    layers, heads = ([str(pair[i]) for pair in record.units] for i in (0, 1))
    queries = np.array(record.queries)[row]
    tokens = np.array([token.text for token in record.tokens], dtype=object)
    sources = tokens if record.sources is None else np.array([token.text for token in record.sources], dtype=object)
    found: Table = {
        "index": np.full(len(unit), record.index),
        "id": [str(record.id)] * len(unit),
        "layer": np.array(layers, dtype=object)[unit],
        "head": np.array(heads, dtype=object)[unit],
        "query": queries,
        "query_token": tokens[queries],
        "rank": rank,
        "key": source,
        "key_token": sources[source],
    }
    for name in _MEASURES["projected"]:
        if getattr(record.top, name) is not None:
            found[name] = getattr(record.top, name)[unit, row, rank]
    for name in STATISTICS if record.rows is not None else ():
        found[name] = getattr(record.rows, name)[unit, row]
    return found


def csv_bytes(names: list[str], tables: Iterable[Table]) -> Iterator[bytes]:
    """A CSV file, part by part; numbers in shortest exact digits, an empty cell for none."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(names)
    for one in tables:
        writer.writerows(zip(*(_cells(one[name]) for name in names), strict=True))
        yield buffer.getvalue().encode()
        buffer.seek(0)
        buffer.truncate()
    yield buffer.getvalue().encode()


def _cells(values: Any) -> Any:
    if isinstance(values, np.ndarray) and values.dtype == np.float32:
        text = values.astype(str)
        return np.where(np.isnan(values), "", text).tolist()
    return values.tolist() if isinstance(values, np.ndarray) else values


def arrow() -> tuple[Any, Any]:
    """Pyarrow and its Parquet module.

    Raises:
        AttnscopeError: The extra is missing.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as e:
        raise AttnscopeError(".parquet needs pyarrow", hint="install attnscope[parquet]") from e
    return pyarrow, parquet


def write_parquet(path: Path, names: list[str], tables: Iterable[Table]) -> None:
    """Write a Parquet file, one row group a part; null for none.

    Raises:
        AttnscopeError: The extra is missing.
    """
    pa, parquet = arrow()
    kinds = {name: pa.int64() for name in _NUMBERS}
    kinds |= dict.fromkeys(("id", "layer", "head", "query_token", "key_token"), pa.string())
    schema = pa.schema([(name, kinds.get(name, pa.float32())) for name in names])
    with parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        for one in tables:
            writer.write_table(
                pa.table({name: pa.array(one[name], schema.field(name).type, from_pandas=True) for name in names})
            )


def read_table(path: Path) -> tuple[list[str], Iterator[Table]]:
    """Columns and parts of a table that we wrote.

    Raises:
        AttnscopeError: It is something else, or the extra is missing.
    """
    if path.suffix == ".parquet":
        _, parquet = arrow()
        try:
            file = parquet.ParquetFile(path)
        except (OSError, ValueError) as e:
            raise AttnscopeError(f"cannot be read ({str(e).splitlines()[0]})", where=path) from e
        names = _known(file.schema_arrow.names, path)
        return names, (_from_arrow(part) for part in file.iter_batches())
    rows = _csv_rows(path)
    return _known(next(rows, []), path), _from_csv(rows, path)


def _known(names: list[str], path: Path) -> list[str]:
    if names[:2] != ["index", "id"] or "key" not in names:
        raise AttnscopeError("is not a table of a dump", where=path, hint="attnscope convert writes one")
    return names


def _from_arrow(part: Any) -> Table:
    return {
        name: column.to_numpy(zero_copy_only=False) if name not in ("id",) else column.to_pylist()
        for name, column in zip(part.schema.names, part.columns, strict=True)
    }


def _csv_rows(path: Path) -> Iterator[list[str]]:
    try:
        with open(path, newline="", encoding="utf-8") as file:
            yield from csv.reader(file, strict=True)
    except (OSError, UnicodeDecodeError, csv.Error) as e:
        raise AttnscopeError(f"cannot be read ({e})", where=path) from e


def _from_csv(rows: Iterator[list[str]], path: Path) -> Iterator[Table]:
    names = next(_csv_rows(path))
    words = ("id", "layer", "head", "query_token", "key_token")
    while part := [row for row, _ in zip(rows, range(1 << 16), strict=False)]:
        found: Table = {}
        for name, cells in zip(names, zip(*part, strict=True), strict=True):
            if name in words:
                found[name] = list(cells)
            elif name in _NUMBERS:
                found[name] = np.array(cells, dtype=np.int64)
            else:
                found[name] = np.array([cell or "nan" for cell in cells], dtype=np.float32)
        yield found
