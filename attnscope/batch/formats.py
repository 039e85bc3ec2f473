"""The formats of dumps, and of the tables that are made of them, each declared once.

The options of `attnscope batch` and `attnscope convert`, their help and their refusals, what compresses lines and what
reads a dump follow from here. A new format is an entry in DUMP_FORMATS. Nothing heavy is imported before a file is read
or written.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from attnscope.errors import PARQUET, Extra

if TYPE_CHECKING:
    from attnscope.batch.dump_reader import Dump
    from attnscope.batch.tables import TableRows


@dataclass(frozen=True)
class DumpFormat:
    """One format.

    Attributes:
        ending: Of the name, with its dot; empty for a folder.
        write: Writes a dump (or the rows of a table) under a name, and returns how many records (or rows) it has.
        read: Reads the lines of a dump, each without its checksum (or the rows of a table).
        table: It is a table, which holds a part of a dump.
        resumes: A dump that was interrupted goes on where it stopped.
        packing: How its lines are compressed.
        extra: The library that it needs.
    """

    ending: str
    write: "Callable[[Any, Path], int]"
    read: "Callable[[Path], Any]"
    table: bool = False
    resumes: bool = False
    packing: Literal["gzip", "zstd"] | None = None
    extra: Extra | None = None


def ending_of(path: Path) -> str:
    """Return the ending that says what a dump or table is: one of several parts, or the last suffix."""
    known = [one.ending for one in DUMP_FORMATS if one.ending and path.name.endswith(one.ending)]
    return max(known, key=len, default=path.suffix)


def format_of(path: Path) -> DumpFormat | None:
    """Return the format of what has this name, a folder that exists among them; None where no format has its ending."""
    ending = "" if path.is_dir() else ending_of(path)
    return next((one for one in DUMP_FORMATS if one.ending == ending), None)


def _write_lines(dump: "Dump", target: Path) -> int:
    from attnscope.batch.copying import write_lines

    return write_lines(dump, target)


def _write_shards(dump: "Dump", target: Path) -> int:
    from attnscope.batch.copying import write_shards

    return write_shards(dump, target)


def _write_document(dump: "Dump", target: Path) -> int:
    from attnscope.batch.copying import write_document

    return write_document(dump, target)


def _write_csv(rows: "TableRows", target: Path) -> int:
    from attnscope.batch.tables import write_csv

    return write_csv(rows, target)


def _write_parquet(rows: "TableRows", target: Path) -> int:
    from attnscope.batch.tables import write_parquet

    return write_parquet(rows, target)


def _read_lines(path: Path) -> Iterator[bytes]:
    from attnscope.batch.dump_reader import read_lines

    return read_lines(path)


def _read_document(path: Path) -> Iterator[bytes]:
    from attnscope.batch.dump_reader import read_document

    return read_document(path)


def _read_csv(path: Path) -> "TableRows":
    from attnscope.batch.tables import read_csv

    return read_csv(path)


def _read_parquet(path: Path) -> "TableRows":
    from attnscope.batch.tables import read_parquet

    return read_parquet(path)


DUMP_FORMATS = (
    DumpFormat(".jsonl", _write_lines, _read_lines, resumes=True),
    DumpFormat(".jsonl.gz", _write_lines, _read_lines, resumes=True, packing="gzip"),
    DumpFormat(".jsonl.zst", _write_lines, _read_lines, resumes=True, packing="zstd"),
    DumpFormat(".json", _write_document, _read_document),
    DumpFormat("", _write_shards, _read_lines, resumes=True),
    DumpFormat(".csv", _write_csv, _read_csv, table=True),
    DumpFormat(".parquet", _write_parquet, _read_parquet, table=True, extra=PARQUET),
)
DUMPS = tuple(one.ending for one in DUMP_FORMATS if one.ending and not one.table)
TABLES = tuple(one.ending for one in DUMP_FORMATS if one.table)
