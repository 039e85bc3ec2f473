"""Join the parts of a dump: byte for byte the file that one process writes, in flat memory.

The records of a part are runs of neighbours (a block of the input), so lines are taken in large chunks. A line keeps
its bytes except for its check, which covers the file so far: each check is compared with its part and replaced by that
of the new file, in place.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from heapq import heapify, heappop, heappush
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec

from attnscope.base.errors import AttnscopeError
from attnscope.base.system.checksum import crc32
from attnscope.batch.file_errors import naming_errors
from attnscope.batch.frames import Packing, damaged_frame, packing_of
from attnscope.batch.header import END, MAGIC
from attnscope.batch.journal import CHECK_BYTES, CHECK_TAIL, seal
from attnscope.batch.parts import PartSet, ShardPart
from attnscope.batch.records import End, encode
from attnscope.batch.sinks import INDEX
from attnscope.findings.codec import decode_json

_CHUNK = 1 << 20  # bytes that are read at a time
_PACKED = 1 << 16  # the same of a compressed file
_HEAD = 64  # bytes of a line in which its number is
_INDEX = re.compile(rb'\{"index":(\d{1,19}),')
_RESTORE = "restore it from a backup, or run batch for this part again"
_HEADER_LINE, _END_LINE, _NOTHING = -1, 1 << 64, (1 << 64) + 1  # in the order of lines, among numbers of records
Progress = Callable[[int], None]


class _Shard(msgspec.Struct, frozen=True):
    """What an index of shards says about a record's arrays."""

    shard: Annotated[str, msgspec.Meta(pattern=r"^[0-9]+\.safetensors$")] | None = None
    shard_check: str | None = None


class _PartLines:
    """The lines of a part, from where the last run of them ended.

    Nothing stays open or buffered between two runs: there may be a thousand parts.

    Args:
        part: The part, which is finished.

    Attributes:
        next_index: Number of the next record; _END_LINE before the end line, _NOTHING after it.
        records: Records so far.
    """

    def __init__(self, part: ShardPart) -> None:
        self.path = part.lines
        self._packing = packing_of(self.path)
        self._place = self._inside = self._crc = self._number = self.records = 0
        self.next_index = _HEADER_LINE
        for _ in self.runs(0):
            pass

    def runs(self, limit: int) -> Iterator[tuple[bytearray, list[int]]]:
        """Yield the lines up to a record: chunks of whole lines, and the end of each line in its chunk.

        Their checks are compared with the part. A frame is a chunk of its own.

        Args:
            limit: Number of the first record that is not wanted.

        Raises:
            AttnscopeError: A line is damaged.
        """
        with naming_errors(self.path, reading=True), open(self.path, "rb") as file:
            while self.next_index < limit:
                chunk, packed = self._chunk(file)
                ends = self._check(chunk, limit)
                used = ends[-1]
                more = self._packing is not None and used < len(chunk)
                self._inside = self._inside + used if more else 0
                self._place += 0 if more else used if self._packing is None else packed
                if used == len(chunk) or self._packing is None:
                    self._peek(file)
                yield chunk, ends

    def _chunk(self, file: BinaryIO) -> tuple[bytearray, int]:
        """Read a chunk of lines, and return it with its compressed size.

        Raises:
            AttnscopeError: The last line is cut off.
        """
        file.seek(self._place)
        if self._packing is not None:
            content, packed = self._frame(file, self._packing)
            return content[self._inside :], packed
        size = _CHUNK
        while True:
            chunk = bytearray(size)
            file.seek(self._place)
            del chunk[file.readinto(chunk) :]  # type: ignore[attr-defined]
            if b"\n" in chunk:
                return chunk, 0
            if len(chunk) < size:
                raise self._damaged("the line is cut off")
            size *= 2

    def _frame(self, file: BinaryIO, packing: Packing) -> tuple[bytearray, int]:
        """Read one frame, and return its content and its size; nothing at the end of the file."""
        reader, content, size = packing.new_reader(), bytearray(), 0
        try:
            while not reader.eof:
                if not (packed := file.read(_PACKED)):
                    if not size:
                        return content, 0
                    raise EOFError("it is cut off")
                content += reader.decompress(packed)
                size += len(packed)
        except (packing.damage, EOFError) as e:
            raise damaged_frame(self.path, self._place, e) from e
        return content, size - len(reader.unused_data)

    def _check(self, chunk: bytearray, limit: int) -> list[int]:
        """Check the lines of a chunk that come before a record, and return the end of each."""
        start, crc, ends = 0, self._crc, list[int]()
        with memoryview(chunk) as view:
            while (stop := chunk.find(b"\n", start) + 1) > 0:
                self.next_index = self._index(bytes(view[start : start + _HEAD]))
                if self.next_index >= limit:
                    break
                tail = max(start, stop - CHECK_BYTES)
                check = crc32(view[start:tail], crc)
                if view[tail:stop] != CHECK_TAIL % check:
                    raise self._damaged("the line is damaged")
                crc = crc32(view[tail:stop], check)
                ends.append(stop)
                self._number += 1
                self.records += _HEADER_LINE < self.next_index < _END_LINE
                start = stop
        if not ends:
            raise self._damaged("the line is damaged")
        self._crc = crc
        return ends

    def _peek(self, file: BinaryIO) -> None:
        """Find out which line is next."""
        file.seek(self._place)
        head = file.read(_HEAD) if self._packing is None else bytes(self._frame(file, self._packing)[0][:_HEAD])
        self.next_index = self._index(head)

    def _index(self, head: bytes) -> int:
        """Return the number of the record that a line begins."""
        if found := _INDEX.match(head):
            return int(found[1])
        if not self._number and head.startswith(MAGIC):
            return _HEADER_LINE
        if head.startswith(END):
            return _END_LINE
        if not head:
            return _NOTHING
        raise self._damaged("the line is not a record of a dump")

    def _damaged(self, message: str) -> AttnscopeError:
        return AttnscopeError(message, where=f"{self.path}:{self._number + 1}", hint=_RESTORE)


class _Target:
    """The lines of the new dump.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._packing = packing_of(path)
        self._crc = 0
        self._file = open(path, "wb", buffering=0)  # noqa: SIM115

    def put(self, chunk: bytearray, ends: list[int]) -> None:
        """Write whole lines, each with the check of this file; compressed, they are one frame."""
        view, start, crc = memoryview(chunk), 0, self._crc
        for stop in ends:
            tail = stop - CHECK_BYTES
            check = crc32(view[start:tail], crc)
            view[tail:stop] = CHECK_TAIL % check
            crc = crc32(view[tail:stop], check)
            start = stop
        self._crc = crc
        self._write(view[:start])

    def append(self, body: bytes) -> None:
        """Write one JSON object as a line."""
        line, self._crc = seal(body, self._crc)
        self._write(memoryview(line))

    def _write(self, lines: memoryview) -> None:
        data: bytes | memoryview = lines
        if self._packing is not None:
            packer = self._packing.new_frame()
            data = packer.compress(lines) + packer.flush()
        rest = memoryview(data)
        while len(rest):
            rest = rest[self._file.write(rest) :]

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def write_merged(found: PartSet, target: Path, on_progress: Progress = lambda records: None) -> End:
    """Join the parts of a dump.

    Args:
        found: All parts, finished; see parts.require_complete.
        target: A new file of lines, compressed as its name says, or a new folder if the parts are folders.
        on_progress: Called with the number of records written so far.

    Returns:
        The end line.

    Raises:
        AttnscopeError: A part is damaged, or the target cannot be written.
    """
    folders = found.parts[0].path.is_dir()
    if folders:
        target.mkdir()
    with naming_errors(target), closing(_Target(target / INDEX if folders else target)) as lines:
        lines.append(encode(found.header))
        parts = [_PartLines(part) for part in found.parts]
        for number, chunk, ends in _in_input_order(parts):
            if folders:
                _copy_shards(found.parts[number].path, target, chunk, ends)
            lines.put(chunk, ends)
            on_progress(sum(part.records for part in parts))
        end = _joined_end(found, parts)
        lines.append(encode(end))
    return end


def _in_input_order(parts: list[_PartLines]) -> Iterator[tuple[int, bytearray, list[int]]]:
    """Yield chunks of lines, and the number of the part of each."""
    order = [(part.next_index, number) for number, part in enumerate(parts)]
    heapify(order)
    last = -1
    while order[0][0] < _END_LINE:
        index, number = heappop(order)
        limit = min(order[0][0], _END_LINE) if order else _END_LINE
        if index <= last:
            raise AttnscopeError(f"record {index} is there twice", where=parts[number].path, hint=_RESTORE)
        last = index
        for chunk, ends in parts[number].runs(max(limit, index + 1)):
            yield number, chunk, ends
        heappush(order, (parts[number].next_index, number))


def _joined_end(found: PartSet, parts: list[_PartLines]) -> End:
    """Check the end of every part, and return that of all.

    Raises:
        AttnscopeError: A part has another number of records than it says, or all have another than the input.
    """
    counts = dict.fromkeys(("records", "ok", "skipped", "failed"), 0)
    for part, lines in zip(found.parts, parts, strict=True):
        for _ in lines.runs(_NOTHING):
            pass
        assert part.end is not None
        if part.end.records != lines.records:
            message = f"has {lines.records:,} records, but its end says {part.end.records:,}"
            raise AttnscopeError(message, where=part.path, hint=_RESTORE)
        counts = {name: count + getattr(part.end, name) for name, count in counts.items()}
    if counts["records"] != found.total:
        message = f"the parts have {counts['records']:,} records, but the input has {found.total:,} texts"
        raise AttnscopeError(message, where=found.parts[0].path, hint=_RESTORE)
    return End(True, **counts)


def _copy_shards(source: Path, target: Path, chunk: bytearray, ends: list[int]) -> None:
    """Copy the shards that lines name, and check them.

    Raises:
        AttnscopeError: A shard is missing or damaged.
    """
    lines = (chunk[start:stop] for start, stop in zip([0, *ends], ends, strict=False))
    for shard in dict.fromkeys(decode_json(bytes(line), _Shard) for line in lines):
        if shard.shard is None or (target / shard.shard).exists():
            continue
        path, crc = source / shard.shard, 0
        with naming_errors(path, reading=True), open(path, "rb") as file, open(target / shard.shard, "wb") as copy:
            while piece := file.read(_CHUNK):
                crc = crc32(piece, crc)
                copy.write(piece)
        if f"{crc:08x}" != shard.shard_check:
            raise AttnscopeError("the shard is damaged", where=path, hint=_RESTORE)
