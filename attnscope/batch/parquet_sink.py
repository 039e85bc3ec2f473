"""Write the tables of a dump as folders of .parquet part files, with a manifest beside them that can be resumed.

`dump.parquet/` has nothing but part files, so that every reader opens it as one table, and `_SUCCESS.parquet`, a table
without rows, once it is complete. `dump.parquet.manifest.jsonl` is a journal whose records name their part files and
checksums. A part is whole and safe on disk before the first line that names it, under a name of its own until the
manifest has its name.
"""

import io
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from attnscope.base.errors import PARQUET, AttnscopeError, arg
from attnscope.base.system.checksum import crc32
from attnscope.base.system.file_system import FileSystem
from attnscope.batch import tables
from attnscope.batch.file_errors import naming_errors
from attnscope.batch.header import Settings
from attnscope.batch.journal import Journal, RecordSink
from attnscope.batch.parquet_footer import join
from attnscope.batch.records import Record, encode
from attnscope.findings.axes import arrays_in, take
from attnscope.findings.record_parts import TABLES

MANIFEST = ".manifest.jsonl"
COMPLETE = "_SUCCESS.parquet"
_ROWS = 1 << 20  # of a group of rows, as in files of pyarrow
_PIECE = 1 << 20
# `map`, or that of threads
_Map = Callable[[Callable[[list[Record]], Any], Iterable[list[Record]]], Iterable[Any]]
_WRITER = re.compile(r"parquet-cpp-arrow version \d[\w.-]*")


@dataclass(frozen=True)
class _TableFiles:
    name: str | None  # name of its part files; None if no text has findings
    check: str | None
    files: list[bytes]
    lines: list[bytes]


class ParquetSink(RecordSink):
    """Tables in part files, one for each window and table, and everything else in the manifest."""

    def __init__(
        self, journal: Journal, folder: Path, settings: Settings, files: FileSystem
    ) -> None:
        super().__init__(journal)
        self._folder = folder
        self._settings = settings
        self._files = files
        self._map: _Map = map
        self._kinds = _kinds(settings)
        for table_kind in self._kinds:
            tables.kind_of(settings, table_kind)
        with naming_errors(folder):
            for target in (folder, *self._folders):
                files.make_folder(target)
        if not journal.beside:
            self._place()

    @contextmanager
    def helped(self, count: int) -> Iterator[None]:
        with ThreadPoolExecutor(count, "attnscope-parquet") as threads:
            self._map = threads.map
            yield

    @property
    def _folders(self) -> list[Path]:
        if len(self._kinds) == 1:
            return [self._folder]
        return [self._folder / table_kind for table_kind in self._kinds]

    def encode(self, records: Sequence[Record], new: int) -> _TableFiles:
        there = [record for record in records if record.status == "ok"]
        name = check = None
        files: list[bytes] = []
        if there:
            files = [
                _table(table_kind, self._settings, there, self._map) for table_kind in self._kinds
            ]
            name = f"{there[0].index:09d}.parquet"
            crc = 0
            for data in files:
                crc = crc32(data, crc)
            check = f"{crc:08x}"
        lines = [encode(_line(record, name, check)) for record in records[len(records) - new :]]
        return _TableFiles(name, check, files, lines)

    def write_encoded(self, encoded: _TableFiles, new: int) -> None:
        replacing = self._journal.beside
        if encoded.name is not None:
            self.written.shards[encoded.name] = encoded.check
            for folder, data in zip(self._folders, encoded.files, strict=True):
                self._write(folder, encoded.name, data)
                if not replacing:
                    self._give_name(folder, encoded.name)
        self._append(encoded.lines, new)

    def finish(self) -> None:
        """Mark the tables as complete: with a table without rows, since readers take every file for a part."""
        self._write(self._folder, COMPLETE, _table(self._kinds[0], self._settings, []))
        self._give_name(self._folder, COMPLETE)

    def _new(self, folder: Path, name: str) -> Path:
        """Return the name of a part that the manifest may not name yet, outside of what readers see."""
        prefix = "" if folder == self._folder else f"{folder.name}."
        return self._folder.with_name(f".{self._folder.name}.{prefix}{name}.new")

    def _write(self, folder: Path, name: str, data: bytes) -> None:
        with naming_errors(folder / name):
            descriptor = self._files.open(
                self._new(folder, name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            )
            try:
                self._files.write_all(descriptor, data)
                self._files.sync(descriptor)
            finally:
                self._files.close(descriptor)

    def _give_name(self, folder: Path, name: str) -> None:
        with naming_errors(folder):
            self._files.replace(self._new(folder, name), folder / name)
            self._files.sync_folder(folder)

    def _place(self) -> None:
        """Rename parts as the manifest names them, and remove others."""
        shards = self.written.shards
        for name, check in shards.items():
            new = [self._new(folder, name) for folder in self._folders]
            if all(path.exists() for path in new) and files_checksum(new) == check:
                for folder in self._folders:
                    self._give_name(folder, name)
        with naming_errors(self._folder):
            if not self.written.ended:
                (self._folder / COMPLETE).unlink(missing_ok=True)
            for path in self._folder.parent.glob(f".{self._folder.name}.*.parquet.new"):
                self._files.remove(path)
            for path in [path for folder in self._folders for path in folder.glob("*.parquet")]:
                if path.name not in shards and path.name != COMPLETE:
                    self._files.remove(path)
        for path in [folder / name for name in shards for folder in self._folders]:
            if not path.is_file():
                hint = f"restore it from a backup, or pass {arg('force', True)} to start over"
                message = f"the part {path.parent.name}/{path.name} is missing"
                raise AttnscopeError(message, where=self._journal.path, hint=hint)


def _kinds(settings: Settings) -> tuple[str, ...]:
    return settings.tables or (tables.kind_of(settings, None),)


def _table(
    table_kind: str, settings: Settings, records: Sequence[Record], map_groups: _Map = map
) -> bytes:
    names = tables.columns(table_kind, settings)
    groups = _row_groups(TABLES[table_kind], records)
    return join(list(map_groups(partial(_row_group, table_kind, names), groups)))


def _row_groups(part: str, records: Sequence[Record]) -> list[list[Record]]:
    """Divide records by the groups of rows that hold them: short texts share one, a long one is cut between heads.

    That depends on nothing else than the records, so that any number of threads writes the same file.
    """
    groups: list[list[Record]] = [[]]
    filled = 0
    for record in records:
        pieces = [record]
        if part == "stages":
            pieces = [replace(record, stages={name: a}) for name, a in record.stages.items()]
        for piece in pieces:
            sizes = [
                array.size
                for path, along, array in arrays_in(piece)
                if path.partition(".")[0] == part and along.axes[0] == "unit"
            ]
            cells = max(sizes, default=0)
            heads = max(1, len(piece.units))
            step = max(1, heads * _ROWS // max(cells, _ROWS))
            for start in range(0, heads, step):
                if groups[-1] and filled + cells * step // heads > _ROWS:
                    groups.append([])
                    filled = 0
                whole = step == heads
                groups[-1].append(
                    piece if whole else take(piece, "unit", slice(start, start + step))
                )
                filled += cells * step // heads
    return groups


def _row_group(table_kind: str, names: Sequence[str], records: Sequence[Record]) -> Any:
    """Return a file that has the rows of some records as one group."""
    import pyarrow as pa
    from pyarrow import parquet

    schema = tables.arrow_schema(names)
    rows = [
        tables.arrow_table(table, schema)
        for record in records
        for table in tables.tables(table_kind, record)
    ]
    table = pa.concat_tables([schema.empty_table(), *rows]).unify_dictionaries()
    repeated = [name for name in names if name in (*tables.INTEGERS, *tables.WORDS)]
    file = pa.BufferOutputStream()
    # Without the schema of Arrow, words are strings to readers.
    options = {"compression": "zstd", "use_dictionary": repeated, "store_schema": False}
    with parquet.ParquetWriter(file, schema, **options) as writer:
        if table.num_rows:  # else there is no group of rows, which datasets could not read
            writer.write_table(table, row_group_size=table.num_rows)
    return file.getvalue()


def verify_folder(folder: Path, settings: Settings, part_names: Collection[str]) -> None:
    """Refuse a folder without the file that marks it as complete, or with other files that readers take for parts."""
    PARQUET.require("a .parquet folder", where=folder)
    from pyarrow import ArrowException, parquet

    marker = folder / COMPLETE
    hint = "run the command that wrote it again"
    if not marker.exists():
        raise AttnscopeError(f"has no {COMPLETE}", where=folder, hint=hint)
    expected = _table(_kinds(settings)[0], settings, [])
    if marker.read_bytes() != expected:
        try:
            there, here = (parquet.ParquetFile(source) for source in (marker, io.BytesIO(expected)))
            writers = {file.metadata.created_by for file in (there, here)}
            # Another version of pyarrow writes other bytes.
            intact = len(writers) == 2 and all(_WRITER.fullmatch(name) for name in writers)
            intact = (
                intact and there.schema_arrow == here.schema_arrow and not there.metadata.num_rows
            )
        except (ArrowException, OSError, ValueError):
            intact = False
        if not intact:
            raise AttnscopeError(f"{COMPLETE} is damaged", where=folder, hint=hint)
    for path in sorted(folder.rglob("*.parquet")):
        if path.name not in part_names and path != marker:
            raise AttnscopeError("is no part of the dump", where=path, hint="move it elsewhere")


def part_files(folder: Path, name: str) -> list[Path]:
    """Return the files of a part, in the order of the tables."""
    if (folder / name).is_file():
        return [folder / name]
    return [path / name for path in map(folder.joinpath, TABLES) if (path / name).is_file()]


def files_checksum(paths: Sequence[Path]) -> str:
    """Return the checksum of the content of some files together."""
    crc = 0
    for path in paths:
        with open(path, "rb") as file:
            while piece := file.read(_PIECE):
                crc = crc32(piece, crc)
    return f"{crc:08x}"


def _line(record: Record, part: str | None, check: str | None) -> Record:
    ok = record.status == "ok"
    return Record(
        record.index,
        record.id,
        record.line,
        record.hash,
        record.status,
        record.error,
        record.needs,
        notes=record.notes,
        shard=part if ok else None,
        shard_check=check if ok else None,
    )


def manifest_path(folder: Path) -> Path:
    """Return the manifest of a folder of tables."""
    return folder.with_name(folder.name + MANIFEST)


def check_folder(folder: Path, journal: Path, hint: str) -> None:
    """Refuse to write a dump into anything but a new folder, or one that has its journal."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise AttnscopeError(
            "exists and is not a folder", where=folder, hint="choose another output"
        )
    if folder.is_dir() and any(folder.iterdir()) and not journal.is_file():
        raise AttnscopeError("is a folder with other files", where=folder, hint=hint)


@contextmanager
def open_tables(
    folder: Path, settings: Settings, *, force: bool, files: FileSystem
) -> Iterator[tuple[Journal, ParquetSink]]:
    """Open a folder of tables for writing, and lock its manifest."""
    PARQUET.require("a .parquet folder", where=folder)
    manifest = manifest_path(folder)
    check_folder(folder, manifest, f"choose a new folder, or restore {manifest.name}")
    with Journal(manifest, force=force, files=files) as journal:
        yield journal, ParquetSink(journal, folder, settings, files)
