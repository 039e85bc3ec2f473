"""Texts of .parquet and Arrow files, and of folders of them, which `datasets`, Spark and others write."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import msgspec

from attnscope.base.errors import PARQUET, AttnscopeError, UsageError, arg
from attnscope.batch.items import Item, check_header, from_row
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


def from_parquet(files: Sequence[IO[bytes]], name: str, column: str) -> Iterator[Item]:
    """Yield the rows of .parquet files, one file after the other."""
    PARQUET.require("reading .parquet", where=name)
    from pyarrow import parquet

    def batches() -> Iterator[Any]:
        for file in files:
            table = parquet.ParquetFile(file)
            _check_column(table.schema_arrow, column, name)
            yield from table.iter_batches(batch_size=_ROWS)

    yield from _items(batches(), name, column, ".parquet")


def from_arrow(files: Sequence[IO[bytes]], name: str, column: str) -> Iterator[Item]:
    """Yield the rows of Arrow files, in its format for streams, which `datasets` writes, or for files (.feather)."""
    PARQUET.require("reading .arrow", where=name)
    from pyarrow import ipc

    def batches() -> Iterator[Any]:
        for file in files:
            start = file.read(len(_FILE))
            file.seek(0)
            if start.startswith(_OLD):
                hint = "write it again with pyarrow.feather.write_feather"
                raise AttnscopeError("is of the first version of Feather", where=name, hint=hint)
            indexed = start == _FILE
            reader = ipc.open_file(file) if indexed else ipc.open_stream(file)
            _check_column(reader.schema, column, name)
            for batch in (
                map(reader.get_batch, range(reader.num_record_batches)) if indexed else reader
            ):
                # else a damaged offset reads memory that is not the file's
                batch.validate(full=True)
                yield from (batch.slice(begin, _ROWS) for begin in range(0, batch.num_rows, _ROWS))

    yield from _items(batches(), name, column, ".arrow")


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


def _items(batches: Iterator[Any], name: str, column: str, file_format: str) -> Iterator[Item]:
    import pyarrow

    index = 0
    try:
        for part in batches:
            for row in _rows(part, name):
                yield from_row(index, index + 1, name, row, column)
                index += 1
    # of a size or a name
    except (pyarrow.ArrowException, OSError, EOFError, UnicodeDecodeError, MemoryError) as e:
        lines = str(e).splitlines() or [type(e).__name__]
        raise AttnscopeError(f"damaged {file_format} file ({lines[0]})", where=name) from e


def _rows(part: Any, name: str) -> list[dict[str, Any]]:
    try:
        return part.to_pylist()  # type: ignore[no-any-return]
    except (ValueError, OverflowError) as e:
        hint = "remove the column, or convert it to text"
        raise AttnscopeError(
            f"a value cannot be read ({str(e).splitlines()[0]})", where=name, hint=hint
        ) from e
