"""The formats of dumps, and of the tables that are made of them, each declared once.

The options of `attnscope batch` and `attnscope convert`, their help and their refusals, and what reads a dump, follow
from here. A new format is an entry in DUMP_FORMATS; where its layout is new, too, what reads and
writes it is in `dump_reader.py` and `convert.py`, or in `tables.py`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from attnscope.base.errors import PARQUET, Extra


@dataclass(frozen=True)
class DumpFormat:
    """One format."""

    ending: str  # ending of the name, with its dot; empty for a folder
    # one record a line, a folder of shards, compressed lines, one document, or the rows of a table
    layout: Literal["lines", "shards", "compressed", "document", "csv", "parquet"]
    extra: Extra | None = None

    @property
    def table(self) -> bool:
        """Whether it is a table, which holds a part of a dump."""
        return self.layout in ("csv", "parquet")

    @property
    def batch(self) -> bool:
        """Whether `attnscope batch` writes it; `attnscope convert` writes all."""
        return self.resumes or self.layout == "document"

    @property
    def resumes(self) -> bool:
        """Whether an interrupted dump can be resumed."""
        return self.layout in ("lines", "shards")


def ending_of(path: Path) -> str:
    """Return the ending that names the format: a known one such as `.jsonl.gz`, else the last suffix."""
    endings = [
        dump_format.ending
        for dump_format in DUMP_FORMATS
        if dump_format.ending and path.name.endswith(dump_format.ending)
    ]
    return max(endings, key=len, default=path.suffix)


def format_of(path: Path) -> DumpFormat | None:
    """Return the format of a path, which may be an existing folder; None for an unknown ending."""
    ending = "" if path.is_dir() else ending_of(path)
    return next((dump_format for dump_format in DUMP_FORMATS if dump_format.ending == ending), None)


DUMP_FORMATS = (
    DumpFormat(".jsonl", "lines"),
    DumpFormat(".jsonl.gz", "compressed"),
    DumpFormat(".jsonl.zst", "compressed"),
    DumpFormat(".json", "document"),
    DumpFormat("", "shards"),
    DumpFormat(".csv", "csv"),
    DumpFormat(".parquet", "parquet", extra=PARQUET),
)
DUMPS = tuple(
    dump_format.ending
    for dump_format in DUMP_FORMATS
    if dump_format.ending and not dump_format.table
)
TABLES = tuple(dump_format.ending for dump_format in DUMP_FORMATS if dump_format.table)
