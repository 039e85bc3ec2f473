"""Texts of .parquet and Arrow files, and of folders of them, which `datasets`, Spark and others write."""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import msgspec

from attnscope.base.errors import PARQUET, AttnscopeError, UsageError, arg
from attnscope.batch.items import (
    BESIDE,
    Item,
    RecordSize,
    check_header,
    from_row,
    named,
    size_of,
)
from attnscope.findings.codec import decode_json

ENDINGS = {"arrow": "arrow", "feather": "arrow", "parquet": "parquet"}  # of a name, to the format
_HIDDEN = ("_", ".")  # first characters of names that are no part of a table, such as _SUCCESS
_TEXT = ("string", "large_string", "string_view")
# of `datasets`
_STATE = "state.json"
_SPLITS = "dataset_dict.json"
# first bytes of Arrow's file format, which has an index, and of the first Feather
_FILE = b"ARROW1"
_OLD = b"FEA1"
_ROWS = 1024  # of a table that are Python values at a time


class _DataFile(msgspec.Struct):
    filename: str


class _State(msgspec.Struct):
    """The part of a `datasets` folder's state that names its files."""

    files: list[_DataFile] = msgspec.field(name="_data_files")
    indices: list[_DataFile] | None = msgspec.field(name="_indices_data_files", default=None)


def folder_files(folder: str) -> tuple[list[str], str]:
    """Return the files of a folder that holds one table, in order, and their format."""
    path = Path(folder)
    if (path / _SPLITS).is_file():
        splits = sorted(child.name for child in path.iterdir() if (child / _STATE).is_file())
        hint = "save a split of it"
        if splits:
            hint = f"pass one of them, such as {path / splits[0]}"
        raise AttnscopeError(f"holds several splits ({', '.join(splits)})", where=folder, hint=hint)
    if (path / _STATE).is_file():
        return _saved_files(path), "arrow"
    kinds = {
        child: ENDINGS.get(child.suffix[1:])
        for child in path.iterdir()
        if not child.name.startswith(_HIDDEN)
    }
    files = sorted(str(child) for child, file_format in kinds.items() if file_format is not None)
    formats = sorted({file_format for file_format in kinds.values() if file_format is not None})
    if len(formats) == 1:
        return files, formats[0]
    what = "is a folder without .arrow or .parquet files"
    if formats:
        what = "is a folder with .arrow and .parquet files"
    raise AttnscopeError(
        what, where=folder, hint="pass a file of texts, or a folder whose files are one table"
    )


def _saved_files(path: Path) -> list[str]:
    """Return the files of a folder that `Dataset.save_to_disk` wrote, in order."""
    try:
        state = decode_json((path / _STATE).read_bytes(), _State)
    except (OSError, ValueError) as e:  # msgspec.DecodeError is one
        raise AttnscopeError(f"cannot be read ({e})", where=path / _STATE) from e
    if state.indices:
        hint = "save it again after flatten_indices()"
        raise AttnscopeError("holds a selection of the rows of its files", where=path, hint=hint)
    names = [file.filename for file in state.files]
    if any(os.path.basename(name) != name for name in names):
        raise AttnscopeError("names a file that is not in the folder", where=path / _STATE)
    return [str(path / name) for name in names]


def rows_of(file_format: str, files: Sequence[IO[bytes]], name: str, column: str) -> Iterator[Item]:
    """Yield the rows of files of one format, one file after the other."""
    for start, batch in _batches(file_format, files, name, column):
        yield from _items(batch, start, name, column)


def row_sizes(
    file_format: str, files: Sequence[IO[bytes]], name: str, column: str
) -> Iterator[RecordSize]:
    """Yield the size of every row; only rows of unusual columns are made into records for it."""
    for start, batch in _batches(file_format, files, name, column):
        if _is_plain(batch):
            yield from _sizes(batch, start, column)
        else:
            yield from map(size_of, _items(batch, start, name, column))


def _batches(
    file_format: str, files: Sequence[IO[bytes]], name: str, column: str
) -> Iterator[tuple[int, Any]]:
    """Yield the rows of files, some at a time, with the number of the first of these."""
    PARQUET.require(f"reading .{file_format}", where=name)
    import pyarrow

    read = _parquet_batches if file_format == "parquet" else _arrow_batches
    start = 0
    try:
        for file in files:
            for batch in read(file, name, column):
                yield start, batch
                start += batch.num_rows
    # of a size or a name
    except (pyarrow.ArrowException, OSError, EOFError, UnicodeDecodeError, MemoryError) as e:
        lines = str(e).splitlines() or [type(e).__name__]
        raise AttnscopeError(f"damaged .{file_format} file ({lines[0]})", where=name) from e


def _parquet_batches(file: IO[bytes], name: str, column: str) -> Iterator[Any]:
    from pyarrow import parquet

    table = parquet.ParquetFile(file)
    _check_column(table.schema_arrow, column, name)
    return table.iter_batches(batch_size=_ROWS)  # type: ignore[no-any-return]


def _arrow_batches(file: IO[bytes], name: str, column: str) -> Iterator[Any]:
    """Yield batches of Arrow's format for streams, which `datasets` writes, or for files (.feather)."""
    from pyarrow import ipc

    start = file.read(len(_FILE))
    file.seek(0)
    if start.startswith(_OLD):
        hint = "write it again with pyarrow.feather.write_feather"
        raise AttnscopeError("is of the first version of Feather", where=name, hint=hint)
    indexed = start == _FILE
    reader = ipc.open_file(file) if indexed else ipc.open_stream(file)
    _check_column(reader.schema, column, name)
    for batch in map(reader.get_batch, range(reader.num_record_batches)) if indexed else reader:
        # else a damaged offset reads memory that is not the file's
        batch.validate(full=True)
        yield from (batch.slice(begin, _ROWS) for begin in range(0, batch.num_rows, _ROWS))


def _check_column(schema: Any, column: str, name: str) -> None:
    """Refuse a table whose column of texts is missing, or holds something else."""
    check_header(schema.names, column, name)
    if column not in (texts := [field.name for field in schema if _is_text(field.type)]):
        hint = "convert it to text"
        if texts:
            hint = f"use one that holds text: {', '.join(texts)}"
        message = (
            f"the column '{column}' of {name} holds {str(schema.field(column).type)[:80]}, not text"
        )
        raise UsageError(message, where=arg("column"), hint=hint)


def _is_text(arrow_type: Any) -> bool:
    from pyarrow import types

    return str(arrow_type.value_type if types.is_dictionary(arrow_type) else arrow_type) in _TEXT


def _items(batch: Any, start: int, name: str, column: str) -> Iterator[Item]:
    try:
        columns = [values.to_pylist() for values in batch.columns]
    except (ValueError, OverflowError, NotImplementedError) as e:
        hint = "remove the column, or convert it to text"
        raise AttnscopeError(
            f"a value cannot be read ({str(e).splitlines()[0]})", where=name, hint=hint
        ) from e
    names = batch.schema.names
    for index, cells in enumerate(zip(*columns, strict=True), start):
        row = dict(zip(names, cells, strict=True))
        yield from_row(index, index + 1, name, row, column)


def _is_plain(batch: Any) -> bool:
    """Return whether every value of the columns can be read, and texts and ids are what they should be."""
    from pyarrow import ArrowInvalid, types

    readable = (_is_text, types.is_integer, types.is_floating, types.is_boolean, types.is_null)
    kinds = {field.name: field.type for field in batch.schema}
    allowed: dict[str, tuple[Callable[[Any], bool], ...]] = {
        "id": (_is_text, types.is_integer, types.is_null),
        "pair": (_is_text, types.is_null),
        "context": (_is_text, types.is_null),
    }
    if len(kinds) < batch.num_columns or not all(
        any(test(kind) for test in allowed.get(key, readable)) for key, kind in kinds.items()
    ):
        return False
    try:
        batch.validate(full=True)  # strings of .parquet may not be UTF-8
    except ArrowInvalid:
        return False
    return True


def _sizes(batch: Any, start: int, column: str) -> Iterator[RecordSize]:
    """Yield the sizes of rows without a Python object for each text."""
    import pyarrow
    from pyarrow import compute

    def lengths(key: str) -> Any:
        return compute.utf8_length(batch.column(key).cast(pyarrow.large_string()))

    characters = lengths(column)
    for key in {"pair", "context"} & set(batch.schema.names):
        characters = compute.add(characters, compute.fill_null(lengths(key), 0))
    # a row without a text has no length, whatever else it has
    costs = compute.add(compute.fill_null(characters, 0), BESIDE).to_pylist()
    ids = batch.column("id").to_pylist() if "id" in batch.schema.names else [None] * len(costs)
    for line, (characters, own_id) in enumerate(zip(costs, ids, strict=True), start + 1):
        yield characters, hash(named(own_id, line))
