"""Read the lines of a finished part of a dump in large chunks, and compare them with their checks.

The check of the last line of a chunk covers all lines before it, so that one checksum compares a whole chunk.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from mmap import mmap
from pathlib import Path
from typing import IO

from attnscope.base.errors import AttnscopeError
from attnscope.base.system.checksum import crc32
from attnscope.base.system.memory import map_memory
from attnscope.batch.direct_writer import BLOCK
from attnscope.batch.file_errors import naming_errors
from attnscope.batch.frames import Packing, damaged_frame, packing_of
from attnscope.batch.header import END, MAGIC
from attnscope.batch.journal import CHECK_BYTES, CHECK_TAIL

RESTORE = "restore it from a backup, or run batch for this part again"
END_LINE = 1 << 64  # in the order of lines, among numbers of records
_HEADER_LINE, _NOTHING = -1, END_LINE + 1
_CHUNK = 1 << 21  # bytes that are read at a time
_PACKED = 1 << 16  # the same of a compressed file
_HEAD = 64  # bytes of a line in which its number is
_INDEX = re.compile(rb'\{"index":(\d{1,19}),')
_CHECK = CHECK_TAIL[: CHECK_TAIL.index(b"%")]


@dataclass(frozen=True)
class Lines:
    """Whole lines."""

    memory: mmap
    start: int
    ends: list[int]


class OutOfOrder(AttnscopeError):
    """Records are not numbered without gaps: of one part, or of the parts together."""


class ChunkMemory:
    """Memory for two chunks, one of which is filled while the other is written.

    Attributes:
        written: Bytes of the new file so far: a chunk begins at the same place in a block of memory as in a block of
            the disk, so that it is written without a copy.
    """

    def __init__(self) -> None:
        self._chunks, self._turn, self.written = [map_memory(_CHUNK + BLOCK), map_memory(_CHUNK + BLOCK)], 0, 0

    def turn(self) -> None:
        """Turn to the other chunk."""
        self._turn = 1 - self._turn

    def take(self, size: int) -> tuple[mmap, int]:
        """Return memory for this many bytes, and their offset in it."""
        start = self.written % BLOCK
        if len(self._chunks[self._turn]) < start + size:
            self._chunks[self._turn] = map_memory(start + size)
        return self._chunks[self._turn], start


class PartLines:
    """The lines of a part, from where the last run of them ended.

    Nothing stays open or buffered between two runs: there may be a thousand parts.

    Args:
        memory: Holds the lines that `runs` yields until two more chunks are read.

    Attributes:
        next_index: Number of the next record; END_LINE before the end line.
    """

    def __init__(self, path: Path, memory: ChunkMemory) -> None:
        self.path, self._memory = path, memory
        self._packing = packing_of(path)
        self._place = self._inside = self._crc = self._number = self.records = 0
        self.next_index = _HEADER_LINE
        self._skip()

    def runs(self, count: int) -> Iterator[Lines]:
        """Yield the next records in chunks, each frame by itself; OutOfOrder if another record than the next comes."""
        first, begun = self.next_index, self._number
        with naming_errors(self.path, reading=True), open(self.path, "rb", buffering=0) as file:
            while (left := begun + count - self._number) > 0:
                chunk, packed = self._chunk(file, left)
                last = (chunk.start, *chunk.ends)[-2]
                self._advance(chunk, packed)
                if first >= 0 and self._index(chunk.memory[last : last + _HEAD]) != first + self._number - begun - 1:
                    message = f"the records from {first} on have gaps or are there twice"
                    raise OutOfOrder(message, where=self.path, hint=RESTORE)
                if len(chunk.ends) == left:
                    self.next_index = self._peek(file)
                yield chunk
        self.records += count

    def compare_rest(self) -> None:
        """Compare all remaining lines with their checks, whatever their numbers."""
        with naming_errors(self.path, reading=True), open(self.path, "rb", buffering=0) as file:
            while self._peek(file) != _NOTHING:
                self._advance(*self._chunk(file, _NOTHING))

    def finish(self) -> None:
        """Read the end line."""
        self._skip()
        if self.next_index != _NOTHING:
            raise self._damaged("the line comes after the end")

    def _skip(self) -> None:
        for _ in self.runs(1):
            pass
        self.records -= 1

    def _chunk(self, file: IO[bytes], most: int) -> tuple[Lines, int]:
        """Read and check at most `most` lines.

        Returns them and the size of their frame in the file; 0 if the frame goes on or the file has none.
        """
        self._memory.turn()
        wanted = _CHUNK
        while True:
            file.seek(self._place)
            packed = 0
            if self._packing is None:
                memory, start = self._memory.take(wanted)
                size: int = file.readinto(memoryview(memory)[start : start + wanted])  # type: ignore[attr-defined]
            else:
                content, packed = self._frame(file, self._packing)
                size = wanted = len(content) - self._inside
                memory, start = self._memory.take(size)
                memory[start : start + size] = bytes(memoryview(content)[self._inside :])
            if ends := _line_ends(memory, start, start + size, most):
                break
            if size < wanted or packed:
                raise self._damaged("the line is cut off")
            wanted *= 2
        chunk = Lines(memory, start, ends)
        self._check(chunk)
        return chunk, packed if ends[-1] == start + size else 0

    def _frame(self, file: IO[bytes], packing: Packing, least: int | None = None) -> tuple[bytearray, int]:
        """Read one frame, or its first bytes, and return its content and its size; nothing at the end of the file."""
        reader, content, size = packing.new_reader(), bytearray(), 0
        try:
            while not reader.eof and (least is None or len(content) < least):
                if not (packed := file.read(_PACKED if least is None else _HEAD)):
                    if not size:
                        return content, 0
                    raise EOFError("it is cut off")
                content += reader.decompress(packed)
                size += len(packed)
        except (packing.damage, EOFError) as e:
            raise damaged_frame(self.path, self._place, e) from e
        return content, size - len(reader.unused_data)

    def _advance(self, lines: Lines, packed: int) -> None:
        used = lines.ends[-1] - lines.start
        if self._packing is None:
            self._place += used
        elif not packed:
            self._inside += used
        else:
            self._place, self._inside = self._place + packed, 0

    def _check(self, lines: Lines) -> None:
        crc = _checked(lines.memory, lines.start, lines.ends[-1], self._crc)
        if crc is not None and _have_checks(lines):
            self._crc, self._number = crc, self._number + len(lines.ends)
            return
        start = lines.start
        for stop in lines.ends:  # which of them is it
            if (after := _checked(lines.memory, start, stop, self._crc)) is None:
                raise self._damaged("the line is damaged")
            self._crc, self._number, start = after, self._number + 1, stop

    def _peek(self, file: IO[bytes]) -> int:
        """Return the number of the next record; see `next_index`."""
        file.seek(self._place)
        if self._packing is None:
            head = file.read(_HEAD)
        else:
            head = bytes(self._frame(file, self._packing, self._inside + _HEAD)[0][self._inside :][:_HEAD])
        return self._index(head)

    def _index(self, head: bytes) -> int:
        if match := _INDEX.match(head):
            return int(match[1])
        if not self._number and head.startswith(MAGIC):
            return _HEADER_LINE
        if head.startswith(END):
            return END_LINE
        if not head:
            return _NOTHING
        raise self._damaged("the line is not a record of a dump")

    def _damaged(self, message: str) -> AttnscopeError:
        return AttnscopeError(message, where=f"{self.path}:{self._number + 1}", hint=RESTORE)


def _line_ends(memory: mmap, start: int, stop: int, most: int) -> list[int]:
    ends, find = list[int](), memory.find
    while most and (start := find(b"\n", start, stop) + 1):
        ends.append(start)
        most -= 1
    return ends


def _checked(memory: mmap, start: int, stop: int, crc: int) -> int | None:
    """Return the CRC-32 of a file, `crc` before some lines, up to their end; None if the last line's check differs."""
    tail = max(start, stop - CHECK_BYTES)
    with memoryview(memory) as view, view[start:tail] as body:
        check = crc32(body, crc)
    sealed = memory[tail:stop]
    return crc32(sealed, check) if sealed == CHECK_TAIL % check else None


def _have_checks(lines: Lines) -> bool:
    """Tell whether each line has room for a check: a file may be whole and yet be written by another program."""
    memory, before, after = lines.memory, CHECK_BYTES, CHECK_BYTES - len(_CHECK)
    return all(memory[stop - before : stop - after] == _CHECK for stop in lines.ends)
