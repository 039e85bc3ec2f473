"""Read the lines of a finished part of a dump, run by run, and compare each with its check."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from attnscope.base.errors import AttnscopeError
from attnscope.batch.file_errors import naming_errors
from attnscope.batch.header import END, MAGIC
from attnscope.batch.journal import unseal

RESTORE = "restore it from a backup, or run batch for this part again"
END_LINE = 1 << 64  # in the order of lines, among numbers of records
_HEADER_LINE = -1
_NOTHING = END_LINE + 1
_CHUNK = 1 << 21  # bytes that are read at a time
_HEAD = 64  # bytes of a line in which its number is
_INDEX = re.compile(rb'\{"index":(\d{1,19}),')


class OutOfOrder(AttnscopeError):
    """Records are not numbered without gaps: of one part, or of the parts together."""


class PartLines:
    """The lines of a part, from where the last run of them ended.

    Nothing stays open or buffered between two runs: there may be a thousand parts.

    Attributes:
        next_index: Number of the next record; END_LINE before the end line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._place = self._crc = self._number = self.records = 0
        self.next_index = _HEADER_LINE
        self._skip()

    def runs(self, count: int) -> Iterator[list[bytes]]:
        """Yield the JSON of the next records in chunks; OutOfOrder if another record comes."""
        first_index = self.next_index
        begun = self._number
        with naming_errors(self.path, reading=True), open(self.path, "rb") as file:
            while (left := begun + count - self._number) > 0:
                bodies = self._chunk(file, left)
                if (
                    first_index >= 0
                    and self._index(bodies[-1]) != first_index + self._number - begun - 1
                ):
                    message = f"the records from {first_index} on have gaps or are there twice"
                    raise OutOfOrder(message, where=self.path, hint=RESTORE)
                if len(bodies) == left:
                    self.next_index = self._peek(file)
                yield bodies
        self.records += count

    def compare_rest(self) -> None:
        """Compare all remaining lines with their checks, whatever their numbers."""
        with naming_errors(self.path, reading=True), open(self.path, "rb") as file:
            while self._peek(file) != _NOTHING:
                self._chunk(file, _NOTHING)

    def finish(self) -> None:
        """Read the end line."""
        self._skip()
        if self.next_index != _NOTHING:
            raise self._damaged("the line comes after the end")

    def _skip(self) -> None:
        for _ in self.runs(1):
            pass
        self.records -= 1

    def _chunk(self, file: BinaryIO, max_lines: int) -> list[bytes]:
        """Read and check at most `max_lines` lines, and return their JSON."""
        file.seek(self._place)
        lines = file.readlines(_CHUNK)[:max_lines]
        self._place += sum(map(len, lines))
        if not lines:
            raise self._damaged("the line is cut off")
        return [self._unsealed(line) for line in lines]

    def _unsealed(self, line: bytes) -> bytes:
        unsealed = unseal(line, self._crc)
        if unsealed is None:
            raise self._damaged(
                "the line is damaged" if line.endswith(b"\n") else "the line is cut off"
            )
        body, self._crc = unsealed
        self._number += 1
        return body

    def _peek(self, file: BinaryIO) -> int:
        """Return the number of the next record; see `next_index`."""
        file.seek(self._place)
        return self._index(file.read(_HEAD))

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
