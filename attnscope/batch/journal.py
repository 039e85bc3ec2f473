"""Lines in; a file that only ever grows by whole, checked lines out, and that another process can go on with.

A journal is a header line, one line a record, and an end line. Each is a JSON object whose last member, `check`, is the
CRC-32 of every byte of the file before it, so that a damaged, missing, repeated or moved line shows. Only a last line
without its newline may be torn: it is dropped, and written again.
"""

import os
from array import array
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import BinaryIO
from zlib import crc32

import msgspec

from attnscope.batch.files import Files, naming
from attnscope.batch.header import MAGIC
from attnscope.batch.records import End, encode
from attnscope.errors import AttnscopeError
from attnscope.output import check_target
from attnscope.shutdown import unbroken

_CHECK = b',"check":"'
_TAIL = len(_CHECK) + 8 + len(b'"}\n')


class Line(msgspec.Struct):
    """As much of a line as it takes to go on after it."""

    index: int = -1
    hash: str = ""
    status: str = ""
    shard: str | None = None
    end: bool = False


@dataclass
class Written:
    """What a file holds already.

    Attributes:
        header: The header line's JSON, without its check; None where the file has none yet.
        indices: Number of every record.
        hashes: Hash of every record's content.
        counts: Records by status.
        shards: Names of the shards that records lie in, in order.
        ended: It has its end line.
        size: Bytes of whole lines.
        crc: CRC-32 of these.
    """

    header: bytes | None = None
    indices: "array[int]" = field(default_factory=lambda: array("Q"))
    hashes: "array[int]" = field(default_factory=lambda: array("Q"))
    counts: "Counter[str]" = field(default_factory=Counter)
    shards: list[str] = field(default_factory=list)
    ended: bool = False
    size: int = 0
    crc: int = 0


def seal(body: bytes, crc: int) -> tuple[bytes, int]:
    """A JSON object as a whole line with its check, and the CRC-32 of the file that ends in it."""
    start = memoryview(body)[:-1]  # a long text's line has hundreds of megabytes: one copy is enough
    check = crc32(start, crc)
    tail = _CHECK + b'%08x"}\n' % check
    return b"".join((start, tail)), crc32(tail, check)


def opened(line: bytes, crc: int) -> tuple[bytes, int] | None:
    """A line's JSON without its check, and the CRC-32 of the file up to its end; None where the check fails."""
    body, tail = line[:-_TAIL], line[-_TAIL:]
    check = crc32(body, crc)
    if len(line) <= _TAIL or tail != _CHECK + b'%08x"}\n' % check:
        return None
    return body + b"}", crc32(tail, check)


def scan(file: BinaryIO, path: Path) -> Written:
    """Read a journal from its start, and check every whole line of it.

    Raises:
        AttnscopeError: It is something else, or a line is damaged.
    """
    found = Written()
    for number, line in enumerate(file, 1):
        if number == 1 and not line.startswith(MAGIC[: len(line)]):
            raise AttnscopeError("exists, and is not a dump", where=path, hint="give --force to replace it")
        if not line.endswith(b"\n"):
            break  # torn
        whole = opened(line, found.crc)
        if whole is None or found.ended:
            hint = "restore it from a copy, or give --force to start anew"
            raise AttnscopeError("the line is damaged", where=f"{path}:{number}", hint=hint)
        body, found.crc = whole
        found.size += len(line)
        if number == 1:
            found.header = body
        else:
            _note(found, msgspec.json.decode(body, type=Line))
    return found


def _note(found: Written, line: Line) -> None:
    if line.end:
        found.ended = True
        return
    found.indices.append(line.index)
    found.hashes.append(int(line.hash, 16))
    found.counts[line.status] += 1
    if line.shard is not None and (not found.shards or found.shards[-1] != line.shard):
        found.shards.append(line.shard)


class Journal:
    """A journal that is open for writing, and locked.

    Args:
        path: The file.
        force: Start anew, whatever is there.
        files: The system.

    Raises:
        AttnscopeError: It cannot be written, another process writes to it, it is something else, or is damaged.
    """

    def __init__(self, path: Path, *, force: bool, files: Files) -> None:
        check_target(path, force=True)
        self.path, self._files = path, files
        with naming(path):
            self._descriptor = files.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        try:
            with naming(path):
                files.lock(self._descriptor)
            self.written = Written() if force else self._scan()
            with naming(path):
                if os.fstat(self._descriptor).st_size > self.written.size:
                    files.truncate(self._descriptor, self.written.size)
        except BaseException:
            files.close(self._descriptor)
            raise

    def _scan(self) -> Written:
        with open(self.path, "rb") as file:
            return scan(file, self.path)

    def start(self, header: bytes) -> None:
        """Write the header line, and make the file's name safe."""
        self.append(header)
        with naming(self.path):
            self._files.sync(self._descriptor)
            self._files.sync_folder(self.path.parent)
        self.written.header = header

    def append(self, body: bytes) -> None:
        """Write one JSON object as a line.

        Raises:
            AttnscopeError: The disk is full or fails.
        """
        line, crc = seal(body, self.written.crc)
        with naming(self.path), unbroken():
            self._files.write_all(self._descriptor, line)
        self.written.crc = crc
        self.written.size += len(line)

    def finish(self, counts: "Counter[str]") -> None:
        """Write the end line.

        Args:
            counts: Records by status.
        """
        end = End(True, sum(counts.values()), counts["ok"], counts["skipped"], counts["failed"])
        self.append(encode(end))
        self.sync()

    def sync(self) -> None:
        """Wait until every line is safe on disk."""
        with naming(self.path):
            self._files.sync(self._descriptor)

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with naming(self.path):
            self._files.close(self._descriptor)
