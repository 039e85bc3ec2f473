"""Texts of .parquet and Arrow files, and of folders that `datasets` saved."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import msgspec

from attnscope.base.errors import PARQUET, AttnscopeError
from attnscope.batch.items import Item, check_header, from_row
from attnscope.findings.codec import decode_json

ENDINGS = {"arrow": "arrow", "feather": "arrow"}  # of a name, to the format
_STATE, _SPLITS = "state.json", "dataset_dict.json"  # of `datasets`
_FILE, _OLD = b"ARROW1", b"FEA1"  # first bytes of Arrow's file format, which has an index, and of the first Feather
_ROWS = 1024  # of a table that are Python values at a time


class _DataFile(msgspec.Struct):
    filename: str


class _State(msgspec.Struct):
    """The part of a `datasets` folder's state that names its files."""

    files: list[_DataFile] = msgspec.field(name="_data_files")
    indices: list[_DataFile] | None = msgspec.field(name="_indices_data_files", default=None)


def dataset_files(folder: str) -> list[str]:
    """Return the files of a folder that `Dataset.save_to_disk` wrote, in order."""
    path = Path(folder)
    if (path / _SPLITS).is_file():
        splits = sorted(child.name for child in path.iterdir() if (child / _STATE).is_file())
        hint = f"pass one of them, such as {path / splits[0]}" if splits else "save a split of it"
        raise AttnscopeError(f"holds several splits ({', '.join(splits)})", where=folder, hint=hint)
    if not (path / _STATE).is_file():
        hint = "pass a file of texts, or a folder that datasets saved (save_to_disk)"
        raise AttnscopeError("is a folder", where=folder, hint=hint)
    try:
        state = decode_json((path / _STATE).read_bytes(), _State)
    except (OSError, ValueError) as e:  # msgspec.DecodeError is one
        raise AttnscopeError(f"cannot be read ({e})", where=path / _STATE) from e
    if state.indices:
        hint = "save it again after flatten_indices()"
        raise AttnscopeError("holds a selection of the rows of its files", where=folder, hint=hint)
    names = [file.filename for file in state.files]
    if any(os.path.basename(name) != name for name in names):
        raise AttnscopeError("names a file that is not in the folder", where=path / _STATE)
    return [str(path / name) for name in names]


def from_parquet(file: IO[bytes], name: str, column: str) -> Iterator[Item]:
    """Yield the rows of a .parquet file."""
    PARQUET.require("reading .parquet", where=name)
    from pyarrow import parquet

    def batches() -> Iterator[Any]:
        table = parquet.ParquetFile(file)
        check_header(table.schema_arrow.names, column, name)
        yield from table.iter_batches(batch_size=_ROWS)

    yield from _items(batches(), name, column, ".parquet")


def from_arrow(files: Sequence[IO[bytes]], name: str, column: str) -> Iterator[Item]:
    """Yield the rows of Arrow files, one file after the other.

    Args:
        files: In Arrow's format for streams, which `datasets` writes, or for files (.feather).
    """
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
            check_header(reader.schema.names, column, name)
            for batch in map(reader.get_batch, range(reader.num_record_batches)) if indexed else reader:
                batch.validate(full=True)  # else a damaged offset reads memory that is not the file's
                yield from (batch.slice(first, _ROWS) for first in range(0, batch.num_rows, _ROWS))

    yield from _items(batches(), name, column, ".arrow")


def _items(batches: Iterator[Any], name: str, column: str, kind: str) -> Iterator[Item]:
    """Yield the rows of record batches."""
    import pyarrow

    index = 0
    try:
        for part in batches:
            for row in _rows(part, name):
                yield from_row(index, index + 1, name, row, column)
                index += 1
    except (pyarrow.ArrowException, OSError, EOFError, UnicodeDecodeError, MemoryError) as e:  # of a size or a name
        lines = str(e).splitlines() or [type(e).__name__]
        raise AttnscopeError(f"damaged {kind} file ({lines[0]})", where=name) from e


def _rows(part: Any, name: str) -> list[dict[str, Any]]:
    """Return the rows of a record batch."""
    try:
        return part.to_pylist()  # type: ignore[no-any-return]
    except (ValueError, OverflowError) as e:
        hint = "remove the column, or convert it to text"
        raise AttnscopeError(f"a value cannot be read ({str(e).splitlines()[0]})", where=name, hint=hint) from e
