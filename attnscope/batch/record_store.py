"""Random access to the records of a dump: read up to the wanted record, then located by place."""

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from threading import RLock

import msgspec

from attnscope.base.errors import AttnscopeError
from attnscope.batch.dump_reader import Dump
from attnscope.batch.formats import format_of
from attnscope.batch.journal import CHECK_BYTES
from attnscope.batch.parts import lines_path, read_end

_MOST_BYTES = 128 << 20  # JSON of records that is kept
_EVERY = 64  # records between two reports of progress

# records read, and how many there are; 0 if that is not known
Progress = Callable[[int, int], None]


class RecordBrief(msgspec.Struct):
    """The members that identify a record and tell whether it has findings."""

    index: int
    status: str
    id: int | str
    text: str | None = None


class RecordStore:
    """The records with findings of a dump; `total` is None until their number is known."""

    def __init__(self, path: Path) -> None:
        self.dump = Dump(path)
        self.path = path
        self._bodies = self.dump.record_bodies()
        self._kept: OrderedDict[int, bytes] = OrderedDict()
        # A screen draws a record while a thread reads on.
        self._bytes = 0
        self._lock = RLock()
        # of each record: bytes before its line, or records before it if it is compressed
        self._places = array("Q")
        file_format = format_of(path)
        self._plain = file_format is not None and file_format.resumes
        self._lines = lines_path(path)
        self._at = 0
        end = None
        if self._plain:
            with open(self._lines, "rb") as file:
                self._at = len(file.readline())
            end = read_end(self._lines)
        self.total = None if end is None else end.ok

    def __len__(self) -> int:
        """Count the records that have been read."""
        return len(self._places)

    def reach(self, index: int | None, progress: Progress = lambda _done, _total: None) -> bool:
        """Read up to a record, or all of them for None; return whether there is such a record."""
        while index is None or len(self._places) <= index:
            if self._next() is None:
                return index is None
            if len(self._places) % _EVERY == 0:
                progress(len(self._places), self.total or 0)
        return True

    def _next(self) -> bytes | None:
        """Read up to the next record with findings; None for the end."""
        for body in self._bodies:
            position = self._at
            self._at += len(body) - 1 + CHECK_BYTES if self._plain else 1
            if msgspec.json.decode(body, type=RecordBrief).status == "ok":
                self._places.append(position)
                self._keep(len(self._places) - 1, body)
                return body
        self.total = len(self._places)
        return None

    def _keep(self, index: int, body: bytes) -> None:
        with self._lock:
            self._bytes += len(body) - len(self._kept.pop(index, b""))
            self._kept[index] = body
            while self._bytes > _MOST_BYTES and len(self._kept) > 1:
                self._bytes -= len(self._kept.popitem(last=False)[1])

    def body(self, index: int) -> bytes:
        """Return the JSON of a record that has been read."""
        with self._lock:
            body = self._kept.get(index)
            if body is None:
                body = self._again(self._places[index])
                self._keep(index, body)
            return body

    def _again(self, position: int) -> bytes:
        if not self._plain:
            return next(islice(Dump(self.path).record_bodies(), position, None))
        with open(self._lines, "rb") as file:
            file.seek(position)
            line = file.readline()
        body = line[:-CHECK_BYTES] + b"}"
        try:
            msgspec.json.decode(body, type=RecordBrief)
        except msgspec.DecodeError as e:
            raise AttnscopeError(
                "has changed while it was read", where=self.path, hint="open it again"
            ) from e
        return body

    def brief(self, index: int) -> RecordBrief:
        """Return which record it is."""
        return msgspec.json.decode(self.body(index), type=RecordBrief)

    def find(self, needle: str, start: int, progress: Progress) -> int | None:
        """Return the record with an id or number from 1, or the next after `start` that has the words; else None."""
        numbered = needle.isdigit() and int(needle) > 0
        words = needle.casefold()
        first_match = None
        for index, brief in self._briefs(progress):
            if str(brief.id) == needle:
                return index
            if not numbered and words in (brief.text or "").casefold():
                if index > start:
                    return index
                first_match = index if first_match is None else first_match
        if numbered:
            if int(needle) <= len(self):
                return int(needle) - 1
            return None
        return first_match

    def _briefs(self, progress: Progress) -> Iterator[tuple[int, RecordBrief]]:
        index = 0
        while self.reach(index):
            if index % _EVERY == 0:
                progress(index, self.total or 0)
            yield index, self.brief(index)
            index += 1
