"""An append-only file of checksummed lines that another process can resume.

A journal is a header line, one line per record, and an end line. Each is a JSON object whose last member, `check`, is
the CRC-32 of all bytes of the file before it, so that damaged, missing, repeated and moved lines are detected. Only the
last line may be torn (without its newline): it is dropped, and written again.
"""

import os
import sys
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

import msgspec

from attnscope.base.errors import AttnscopeError, arg
from attnscope.base.files.atomic import check_target
from attnscope.base.system.checksum import crc32
from attnscope.base.system.file_system import FileSystem, copy_permissions
from attnscope.base.system.signals import defer_signals
from attnscope.batch.compressed import bounded_lines, not_a_dump
from attnscope.batch.file_errors import naming_errors
from attnscope.batch.header import END, MAGIC
from attnscope.batch.records import End, Record, encode
from attnscope.findings.codec import decode_json

CHECK_TAIL = b',"check":"%08x"}\n'  # how every line ends
CHECK_BYTES = len(CHECK_TAIL % 0)


class _RecordLine(msgspec.Struct):
    """The fields of a record that resuming needs."""

    index: Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
    hash: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")]
    status: Literal["ok", "skipped", "failed"]
    needs: Annotated[int, msgspec.Meta(ge=0)] | None = None
    shard: Annotated[str, msgspec.Meta(pattern=r"^[0-9]+\.(safetensors|parquet)$")] | None = None
    shard_check: str | None = None


@dataclass
class JournalState:
    """State of an existing file."""

    # the header line's JSON, without its check; None if the file has none yet
    header: bytes | None = None
    indices: "array[int]" = field(default_factory=lambda: array("Q"))
    hashes: "array[int]" = field(default_factory=lambda: array("Q"))
    counts: "Counter[str]" = field(default_factory=Counter)
    # index of every record that failed for lack of memory, to the numbers that it needs
    too_large: dict[int, int] = field(default_factory=dict)
    # checksums of shards with records, in order
    shards: dict[str, str | None] = field(default_factory=dict)
    ended: bool = False
    size: int = 0  # bytes of whole lines
    crc: int = 0  # CRC-32 of these

    def fitting(self, holds: int) -> set[int]:
        """Return the numbers of the records that failed for lack of memory, and that now fit."""
        return {index for index, needs in self.too_large.items() if needs <= holds}


def seal(body: bytes | memoryview, crc: int) -> tuple[bytes, int]:
    """Return a JSON object as a whole line with its check, and the CRC-32 of the file that ends in it."""
    # The line of a long text has hundreds of megabytes: avoid a second copy.
    start = memoryview(body)[:-1]
    tail, crc = sealing(start, crc)
    return b"".join((start, tail)), crc


def sealing(start: memoryview, crc: int) -> tuple[bytes, int]:
    """Return the end of the line that begins with a JSON object but for its brace, and the CRC-32 of the file."""
    check = crc32(start, crc)
    tail = CHECK_TAIL % check
    return tail, crc32(tail, check)


def unseal(line: bytes, crc: int) -> tuple[bytes, int] | None:
    """Return a line's JSON without its check, and the CRC-32 of the file up to its end; None if the check fails."""
    # a line may be long: it is copied only once
    body = memoryview(line)[:-CHECK_BYTES]
    tail = line[-CHECK_BYTES:]
    check = crc32(body, crc)
    if len(line) <= CHECK_BYTES or tail != CHECK_TAIL % check:
        return None
    return b"".join((body, b"}")), crc32(tail, check)


def scan(file: BinaryIO, path: Path) -> JournalState:
    """Read a journal, and check every whole line of it."""
    state = JournalState()
    for line_number, line in enumerate(bounded_lines(file, path), 1):
        if line_number == 1 and not line.startswith(MAGIC[: len(line)]):
            raise not_a_dump(path)
        if not line.endswith(b"\n"):
            break  # torn
        unsealed = unseal(line, state.crc)
        if unsealed is None or state.ended:
            hint = f"restore it from a backup, or pass {arg('force', True)} to start over"
            raise AttnscopeError("the line is damaged", where=f"{path}:{line_number}", hint=hint)
        body, state.crc = unsealed
        state.size += len(line)
        if line_number == 1:
            state.header = body
        else:
            try:
                _note(state, body)
            except ValueError as e:  # msgspec.DecodeError is one
                hint = f"another program wrote it: restore it from a backup, or pass {arg('force', True)} to start over"
                raise AttnscopeError(
                    f"the line is not a record of a dump ({e})",
                    where=f"{path}:{line_number}",
                    hint=hint,
                ) from e
    return state


def _note(state: JournalState, body: bytes) -> None:
    if body.startswith(END):
        decode_json(body, End)
        state.ended = True
        return
    line = decode_json(body, _RecordLine)
    state.indices.append(line.index)
    state.hashes.append(int(line.hash, 16))
    state.counts[line.status] += 1
    if line.shard is not None:
        state.shards[line.shard] = line.shard_check
    if line.needs is not None:
        state.too_large[line.index] = line.needs


class Journal:
    """A journal that is open for writing, and locked.

    With `force`, or to try records again, it is rewritten in a file beside the old one, which it replaces as soon as
    enough records are safe: whenever the process is killed, one of the two is there, whole, under the journal's name.

    Attributes:
        saved: Records in its whole lines; while it is written beside an old journal, only the new ones.
    """

    def __init__(self, path: Path, *, force: bool, files: FileSystem) -> None:
        check_target(path, force=True)
        self.path = path
        self._files = files
        self.written = JournalState()
        self._new = path.with_name(f".{path.name}.new")
        self._is_new = not path.exists()
        self._old: int | None = None
        self.saved = 0
        # Number of records to write before the new file replaces the old one.
        self._owed = 0
        self._old_lines: Iterator[bytes] = iter(())
        with naming_errors(path):
            self._descriptor = files.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        try:
            with naming_errors(path):
                files.lock(self._descriptor)
                # Another process may have replaced the file since it was opened.
                if not path.exists() or not os.path.samestat(
                    os.fstat(self._descriptor), path.stat()
                ):
                    raise BlockingIOError
                if self._new.exists():
                    # Left behind by a process that ended before the file was complete.
                    files.remove(self._new)
            if force and os.fstat(self._descriptor).st_size:
                self._begin_anew(1)
            else:
                self._go_on()
        except BaseException:
            self._close()
            raise

    @property
    def beside(self) -> bool:
        """Whether it is written beside an old file that still exists."""
        return self._old is not None

    def release(self) -> None:
        """Close the files in a forked process, so that only the parent holds the lock."""
        for descriptor in (self._old, self._descriptor):
            if descriptor is not None:
                os.close(descriptor)

    def _go_on(self) -> None:
        """Read the existing journal, and drop a torn last line."""
        with naming_errors(self.path, reading=True), open(self.path, "rb") as file:
            self.written = scan(file, self.path)
        self.saved = len(self.written.indices)
        with naming_errors(self.path):
            if os.fstat(self._descriptor).st_size > self.written.size:
                self._files.truncate(self._descriptor, self.written.size)

    def _begin_anew(self, owed: int) -> None:
        """Continue in a new file, which replaces this one after `owed` records."""
        with naming_errors(self._new):
            descriptor = self._files.open(
                self._new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
            )
            self._old = self._descriptor
            self._descriptor = descriptor
            copy_permissions(descriptor, self.path)
            self._files.lock(descriptor)
        self.written = JournalState()
        self._owed = owed
        self.saved = 0

    def rewrite(self, header: bytes) -> None:
        """Begin a new file beside this one; with `skip` and `copy`, the writer goes through the old records."""
        self._begin_anew(len(self.written.indices))
        self._old_lines = _old_lines(self.path)
        self.start(header)

    def copy(self, count: int) -> "Counter[str]":
        """Append the next records of the old journal, and count them by status."""
        statuses = Counter[str]()
        for body in islice(self._old_lines, count):
            line = decode_json(body, _RecordLine)  # as `scan` did before
            statuses[line.status] += 1
            if line.shard is not None:
                self.written.shards[line.shard] = line.shard_check
            self.append(body)
        self.settle(count)
        return statuses

    def skip(self, count: int) -> None:
        """Leave out the next records of the old journal."""
        next(islice(self._old_lines, count, count), None)

    def start(self, header: bytes) -> None:
        """Write the header line, and make the file's name safe."""
        self.append(header)
        self.sync()
        with naming_errors(self.path):
            self._files.sync_folder(self.path.parent)
        self.written.header = header

    def append(self, body: bytes | memoryview) -> None:
        """Write one JSON object as a line."""
        start = memoryview(body)[:-1]
        tail, crc = sealing(start, self.written.crc)
        with naming_errors(self.path), defer_signals():
            self._files.write_all(self._descriptor, start)
            self._files.write_all(self._descriptor, tail)
            self.saved += not bytes(start[: len(MAGIC)]).startswith((MAGIC, END))
        self.written.size += len(start) + len(tail)
        self.written.crc = crc

    def settle(self, count: int) -> None:
        """Replace the old file, if there is one and enough records are safe."""
        self._owed -= count
        if self._old is None or self._owed > 0:
            return
        self.sync()
        with naming_errors(self.path):
            self._files.replace(self._new, self.path)
            self._files.sync_folder(self.path.parent)
            old = self._old
            self._old = None
            self._files.close(old)

    def finish(self, counts: "Counter[str]") -> None:
        """Write the end line."""
        end = End(True, sum(counts.values()), counts["ok"], counts["skipped"], counts["failed"])
        self.append(encode(end))
        self.sync()
        self.settle(self._owed)

    def sync(self) -> None:
        """Wait until every line is safe on disk."""
        with naming_errors(self.path):
            self._files.sync(self._descriptor)

    def _close(self) -> None:
        if self.beside:
            unused = self._new
        elif self._is_new and not self.written.size:
            unused = self.path
        else:
            unused = None
        with naming_errors(self.path), ExitStack() as last:
            for descriptor in (self._old, self._descriptor):
                if descriptor is not None:
                    last.callback(self._files.close, descriptor)
            if unused is not None and unused.exists():
                self._files.remove(unused)

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        self._close()


def _old_lines(path: Path) -> Iterator[bytes]:
    """Yield the records of a journal that `scan` accepted, as JSON without their checks."""
    with open(path, "rb") as file:
        _, crc = unseal(file.readline(), 0) or (b"", 0)
        for line in file:
            body, crc = unseal(line, crc) or (b"", 0)
            yield body


class Stream(Journal):
    """Write lines to standard output: no lock, no earlier records, nothing to resume."""

    def __init__(self) -> None:
        self.path = Path("standard output")
        self.written = JournalState()
        self._old = None
        self._owed = 0
        self.saved = 0

    def append(self, body: bytes | memoryview) -> None:
        line, self.written.crc = seal(body, self.written.crc)
        self.written.size += len(line)
        sys.stdout.buffer.write(line)

    def start(self, header: bytes) -> None:
        self.append(header)
        self.written.header = header

    def settle(self, count: int) -> None:
        """Do nothing: there is no old file to replace."""

    def sync(self) -> None:
        sys.stdout.buffer.flush()

    def release(self) -> None:
        """Do nothing: there is no lock."""

    def _close(self) -> None:
        pass


class RecordSink:
    """Destination of records, whose lines are in a journal.

    Attributes:
        needs_all_records: Whether it needs every record of a window, including those written before.
        whole_windows: Whether it writes each window as one piece (a shard), which a later run cannot extend.
    """

    needs_all_records = whole_windows = True

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    @property
    def written(self) -> JournalState:
        """State of the records that were written before."""
        return self._journal.written

    def copy(self, count: int) -> "Counter[str]":
        """Copy the next records of the old dump to the new one and count them by status."""
        replacing = self._journal.beside
        statuses = self._journal.copy(count)
        self._settle(replacing)
        return statuses

    def skip(self, count: int) -> None:
        """Skip the next records, which are written already."""
        self._journal.skip(count)

    def helped(self, count: int) -> AbstractContextManager[None]:
        """Let so many processes or threads, at least one, encode records for some time."""
        return nullcontext()

    def encode(self, records: Sequence[Record], new: int) -> Any:
        """Encode a window, of which the last `new` records are not written yet; may run in another process."""
        raise NotImplementedError

    def first(self, encoded: Any, count: int) -> Any:
        """Return the first new records of an encoded window, unless windows are written as a whole."""
        raise NotImplementedError

    def write_encoded(self, encoded: Any, new: int) -> None:
        """Write what `encode` returned of a window, and make it safe."""
        raise NotImplementedError

    def write(self, records: Sequence[Record], new: int) -> None:
        """Write a window and make it safe; see `encode`."""
        self.write_encoded(self.encode(records, new), new)

    def finish(self) -> None:
        """Mark the dump as complete, once its journal is."""

    def _append(self, lines: Iterable[bytes | memoryview], new: int) -> None:
        replacing = self._journal.beside
        for line in lines:
            self._journal.append(line)
        self._journal.sync()
        self._journal.settle(new)
        self._settle(replacing)

    def _settle(self, replacing: bool) -> None:
        """Name files finally once the journal, written beside an old one until now, has its own name."""
        if replacing and not self._journal.beside:
            self._place()

    def _place(self) -> None:
        """Rename files to the names in the journal."""
