"""Write records as journal lines, with arrays inside the lines or in .safetensors shards."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from attnscope.base.errors import AttnscopeError, arg
from attnscope.base.system.file_system import FileSystem
from attnscope.batch.encoders import Line, Lines, encoder_processes, lines_here
from attnscope.batch.file_errors import naming_errors
from attnscope.batch.header import Header, Settings
from attnscope.batch.journal import Journal, RecordSink, Stream, scan
from attnscope.batch.parquet_sink import check_folder, files_checksum, open_tables
from attnscope.batch.records import Record, encode
from attnscope.batch.shards import NAMES, ShardArray, pack
from attnscope.batch.summed_writer import SummedWriter
from attnscope.findings.codec import decode_json
from attnscope.findings.heads import HeadRef
from attnscope.findings.record_parts import PARTS

INDEX = "index.jsonl"
STANDARD_OUTPUT = "-"
_TEMPORARY = ".shard.tmp"
_SHARD = "[0-9]" * 9 + ".safetensors"
_NEW = ".new"
_PAGE = 4096  # bytes


class JsonlSink(RecordSink):
    """Everything of a record in its line: `dump.jsonl`.

    Attributes:
        lines: Yields the line of each record; see encoders.encoder_processes.
    """

    needs_all_records = whole_windows = False

    def __init__(self, journal: Journal) -> None:
        super().__init__(journal)
        self.lines: Lines = lines_here

    @contextmanager
    def helped(self, count: int) -> Iterator[None]:
        with encoder_processes(count, self._journal.release) as self.lines:
            yield

    def encode(self, records: Sequence[Record], new: int) -> Iterable[Line]:
        return self.lines(records[len(records) - new :])

    def first(self, encoded: Iterable[Line], count: int) -> Iterable[Line]:
        return islice(encoded, count)

    def write_encoded(self, encoded: Iterable[Line], new: int) -> None:
        self._append(encoded, new)


class SafetensorsSink(RecordSink):
    """Arrays in .safetensors files, one a window, everything else in `index.jsonl` beside them.

    A shard is whole and safe on disk before the first line that names it. While the index is written beside an old one,
    shards are written beside old ones, too: they get their names once the index has its own, also in a process that
    resumes.
    """

    def __init__(self, journal: Journal, files: FileSystem) -> None:
        super().__init__(journal)
        self._files = files
        self._folder = journal.path.parent
        self._blocks = SummedWriter(files)

    def encode(self, records: Sequence[Record], new: int) -> Sequence[Record]:
        """Return a window as it is: writing its arrays takes the time."""
        return records

    def write_encoded(self, encoded: Sequence[Record], new: int) -> None:
        records = encoded
        computed = [record for record in records if record.status == "ok"]
        name = check = None
        units: list[HeadRef] = []
        if computed:
            units = computed[0].units
            name = f"{computed[0].index:09d}.safetensors"
            # the widest numbers first, so that each array lies where its numbers may be mapped
            arrays = sorted(
                pack(computed, self._digits), key=lambda array: -np.dtype(array.dtype).itemsize
            )
            path = self._folder / (name + _NEW if self._journal.beside else name)
            check = self.written.shards[name] = f"{self._write(path, arrays):08x}"
        self._append(
            [
                encode(without_arrays(record, units, name, check))
                for record in records[len(records) - new :]
            ],
            new,
        )

    def _place(self) -> None:
        with naming_errors(self._folder):
            _name_shards(self._folder, self.written.shards, self._files)

    @property
    def _digits(self) -> int | None:
        header = self.written.header
        return None if header is None else decode_json(header, Header).settings.digits

    def _write(self, path: Path, arrays: Sequence[ShardArray]) -> int:
        """Write a whole file or none, and return its CRC-32; the index lock keeps others from the temporary name."""
        temporary = path.parent / _TEMPORARY
        with naming_errors(path):
            descriptor = self._files.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            try:
                try:
                    self._blocks.start(descriptor)
                    self._blocks.put(np.frombuffer(_header(arrays), dtype=np.uint8))
                    for array in arrays:
                        for piece in array.pieces:
                            self._blocks.put(piece, np.dtype(array.dtype))
                    crc = self._blocks.finish()
                finally:
                    self._blocks.abandon()
                    self._files.close(descriptor)
                self._files.replace(temporary, path)
                self._files.sync_folder(path.parent)
            except BaseException:
                with suppress(OSError):
                    self._files.remove(temporary)
                raise
        return crc


def without_arrays(
    record: Record, units: list[HeadRef], shard: str | None, check: str | None
) -> Record:
    """Return a record whose arrays, if it has any, are in a shard, which has these units."""
    if record.status != "ok":
        return record
    bare: dict[str, Any] = {
        part: {} if isinstance(getattr(record, part), dict) else None for part in PARTS
    }
    bare["units"] = [] if record.units == units else record.units
    return msgspec.structs.replace(record, shard=shard, shard_check=check, **bare)


def _header(arrays: Sequence[ShardArray]) -> bytes:
    """Build the header of a .safetensors file, padded so that its arrays start at a page, as a reader may map them."""
    header: dict[str, Any] = {}
    end = 0
    for array in arrays:
        start = end
        end = end + array.nbytes
        header[array.name] = {
            "dtype": NAMES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % _PAGE)
    return len(text).to_bytes(8, "little") + text


@contextmanager
def open_dump(
    target: Path, *, force: bool, files: FileSystem, settings: Settings | None = None
) -> "Iterator[tuple[Journal, RecordSink]]":
    """Open and lock a dump for writing: a .jsonl file, or a folder if the name has no ending.

    Args:
        force: Start over; an existing dump is kept until the first records of the new one are safe.
        settings: What the dump keeps; needed for a .parquet folder of tables.
    """
    if str(target) == STANDARD_OUTPUT:
        stream = Stream()
        yield stream, JsonlSink(stream)
        return
    if target.suffix == ".parquet" and settings is not None:
        with open_tables(target, settings, force=force, files=files) as (journal, sink):
            yield journal, sink
        return
    folder = target.is_dir() or not target.suffix
    is_new = folder and not target.exists()
    if folder:
        check_folder(target, target / INDEX, "choose a new folder")
        with naming_errors(target):
            files.make_folder(target)
    try:
        with Journal(target / INDEX if folder else target, force=force, files=files) as journal:
            if folder:
                _remove_stale(journal, files)
            yield journal, SafetensorsSink(journal, files) if folder else JsonlSink(journal)
    finally:
        if is_new:
            with suppress(OSError):
                target.rmdir()  # fails if it is not empty


def _remove_stale(journal: Journal, files: FileSystem) -> None:
    """Finish or remove files of a killed process; refuse to resume if a named shard is missing."""
    folder = journal.path.parent
    shards: dict[str, str | None] | None = journal.written.shards
    if journal.beside:
        # The folder's index is the old one, which has not been read yet.
        shards = None
        if any(folder.glob(_SHARD + _NEW)):
            with suppress(AttnscopeError), open(journal.path, "rb") as file:
                shards = scan(file, journal.path).shards
    with naming_errors(folder):
        if (folder / _TEMPORARY).exists():
            files.remove(folder / _TEMPORARY)
        if shards is not None:
            _name_shards(folder, shards, files)
    for name in journal.written.shards:
        if not (folder / name).is_file():
            hint = f"restore it from a backup, or pass {arg('force', True)} to start over"
            raise AttnscopeError(f"the shard {name} is missing", where=journal.path, hint=hint)


def _name_shards(folder: Path, shards: "Mapping[str, str | None]", files: FileSystem) -> None:
    """Rename new shards to the names in the index, which are mapped to their checks, and remove all others."""
    placed = sorted(folder.glob(_SHARD + _NEW))
    for path in placed:
        name = path.name.removesuffix(_NEW)
        if files_checksum([path]) == shards.get(name):
            files.replace(path, folder / name)
        else:
            files.remove(path)
    for path in sorted(folder.glob(_SHARD)):
        if path.name not in shards:
            files.remove(path)
    if placed:
        files.sync_folder(folder)
