"""Compressed files as frames one after the other: members of a .gz file, frames of a .zst file.

Python has zstd since 3.14; before that, the extra `zst` provides it.
"""

import io
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, BinaryIO

from attnscope.base.errors import AttnscopeError, arg
from attnscope.base.system.machine import available_memory
from attnscope.batch.formats import format_of

# compressed bytes read at a time: four bytes may decompress to 128 KiB, so at most 32 MiB result
_STEP = 1024
_BUFFER_BYTES = 1 << 16
# the default of both programs
_GZIP_LEVEL = 6
_ZSTD_LEVEL = 3
_GZIP_MEMBERS = 16 + zlib.MAX_WBITS  # as zlib says it
_ZSTD_MAGIC = b"(\xb5/\xfd"
_LARGEST_HEADER = 1 << 16  # bytes, compressed or not; a header has a few thousand
_COPIES = 8  # of a line that is read, checked and decoded
_DECOMPRESS = "decompress it"


class TruncatedFrame(EOFError):
    """The file ends within a frame."""


class FrameReader(io.RawIOBase):
    """The content of frames, as `gzip -d` and `zstd -d` read them, of the first `end` packed bytes or of all.

    `complete` counts the packed bytes up to the end of the last whole frame.
    """

    def __init__(
        self,
        file: BinaryIO,
        new: Callable[[], Any],
        damage: type[Exception],
        end: int | None = None,
    ) -> None:
        self._file = file
        self._new = new
        self._damage = damage
        self._end = end
        self._frame: Any = None
        self._ready = memoryview(b"")
        self._packed = self.complete = 0

    def readable(self) -> bool:
        """Return True, as `io.BufferedReader` asks."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill some of a buffer, 0 at the end; TruncatedFrame or another EOFError for a damaged frame."""
        while not self._ready:
            packed = self._file.read(
                _STEP if self._end is None else min(_STEP, self._end - self._packed)
            )
            if not packed:
                if self._frame is not None:
                    raise TruncatedFrame("a frame is truncated")
                return 0
            self._packed += len(packed)
            self._ready = memoryview(self._unpack(packed))
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def _unpack(self, packed: bytes) -> bytes:
        contents = []
        try:
            while packed:
                frame = self._frame = self._frame or self._new()
                contents.append(frame.decompress(packed))
                packed = frame.unused_data if frame.eof else b""
                if frame.eof:
                    self._frame = None
                    self.complete = self._packed - len(packed)
        except self._damage as e:
            raise EOFError(str(e)) from e
        return b"".join(contents)


def open_zstandard(file: BinaryIO, name: str) -> io.BufferedReader:
    """Return a .zst file's content."""
    packing = _zstandard(name, _DECOMPRESS)
    return io.BufferedReader(FrameReader(file, packing.new_reader, packing.damage), _BUFFER_BYTES)


@dataclass(frozen=True)
class Packing:
    """How frames of one format are made and read."""

    new_frame: Callable[[], Any]  # makes what packs one frame, with `compress` and `flush`
    new_reader: Callable[[], Any]
    damage: type[Exception]
    magic: bytes  # first bytes of a frame


_GZIP = Packing(
    partial(zlib.compressobj, _GZIP_LEVEL, zlib.DEFLATED, _GZIP_MEMBERS),  # with a time stamp of 0
    partial(zlib.decompressobj, _GZIP_MEMBERS),
    zlib.error,
    b"\x1f\x8b\x08",
)


def packing_of(path: Path, instead: str = "use .jsonl.gz") -> Packing | None:
    """Return how a name says that lines are compressed, None for not; `instead` is advice if a library is missing."""
    dump_format = format_of(path)
    if dump_format is None or dump_format.packing is None:
        return None
    return _GZIP if dump_format.packing == "gzip" else _zstandard(str(path), instead)


@contextmanager
def open_lines(path: Path, end: int | None = None) -> Iterator[io.BufferedReader]:
    """Open the lines of a dump, decompressed if the name says so, up to `end` packed bytes; see TruncatedFrame."""
    packing = packing_of(path, _DECOMPRESS)
    with open(path, "rb") as file:
        if packing is None:
            yield file
            return
        reader = FrameReader(file, packing.new_reader, packing.damage, end)
        try:
            yield io.BufferedReader(reader, _BUFFER_BYTES)
        except TruncatedFrame:
            raise
        except EOFError as e:
            raise damaged_frame(path, reader.complete, e) from e


def bounded_lines(file: BinaryIO, path: Path) -> Iterator[bytes]:
    """Yield the lines of a dump, none long enough to fill the memory: a few packed bytes may hold a very long one."""
    limit = _LARGEST_HEADER
    line_number = 1
    while line := file.readline(limit + 1):
        if len(line) > limit:
            if line_number == 1:
                hint = "create one with attnscope batch, under a name that is free"
                raise AttnscopeError("is not a dump", where=path, hint=hint)
            message = f"the line is longer than {limit:,} bytes, a part of the memory that is free"
            raise AttnscopeError(message, where=f"{path}:{line_number}", hint="free memory")
        yield line
        limit = limit if line_number > 1 else available_memory() // _COPIES
        line_number = line_number + 1


def whole_frames(path: Path, packing: Packing, start: bytes) -> int:
    """Return the bytes of the whole frames of a compressed dump, which begins with `start`."""
    with open(path, "rb") as file:
        if not packing.magic.startswith(file.read(len(packing.magic))):
            raise not_a_dump(path)
        file.seek(0)
        reader = FrameReader(file, packing.new_reader, packing.damage)
        beginning = b""
        try:
            while part := reader.read(_BUFFER_BYTES):
                if not reader.complete and len(beginning) < _LARGEST_HEADER:
                    beginning += part
        except TruncatedFrame as e:
            if not reader.complete:
                _check_header_frame(path, beginning, start)
            if _has_frame(file, packing, reader.complete + 1):
                raise damaged_frame(path, reader.complete, e) from e
        except EOFError as e:
            raise damaged_frame(path, reader.complete, e) from e
    return reader.complete


def _check_header_frame(path: Path, content: bytes, start: bytes) -> None:
    """Refuse a file cut off in its first frame, unless that is a header: nothing else may be dropped."""
    small = path.stat().st_size < _LARGEST_HEADER and len(content) < _LARGEST_HEADER
    if (
        not small
        or b"\n" in content[:-1]
        or not (content.startswith(start) or start.startswith(content))
    ):
        raise not_a_dump(path)


def _has_frame(file: BinaryIO, packing: Packing, offset: int) -> bool:
    """Tell whether a whole frame starts at or after a place: bytes before it are then damaged, not truncated."""
    with mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        while (offset := content.find(packing.magic, offset)) >= 0:
            file.seek(offset)
            reader = FrameReader(file, packing.new_reader, packing.damage)
            with suppress(EOFError):
                while not reader.complete and reader.read(_BUFFER_BYTES):
                    pass
            if reader.complete:
                return True
            offset += 1
    return False


def not_a_dump(path: Path) -> AttnscopeError:
    """Return the error about a file that must not be overwritten."""
    return AttnscopeError(
        "exists and is not a dump", where=path, hint=f"pass {arg('force', True)} to overwrite it"
    )


def damaged_frame(path: Path, offset: int, why: Exception) -> AttnscopeError:
    """Return the error about a frame that starts at a place."""
    message = f"the frame at byte {offset:,} is damaged ({why})"
    return AttnscopeError(
        message,
        where=path,
        hint=f"restore it from a backup, or start over with {arg('force', True)}",
    )


def _zstandard(name: str, instead: str) -> Packing:
    try:
        from compression import zstd  # type: ignore[import-not-found,unused-ignore]  # Python 3.14

        options = {
            zstd.CompressionParameter.compression_level: _ZSTD_LEVEL,
            zstd.CompressionParameter.checksum_flag: 1,
        }
        new_frame = partial(zstd.ZstdCompressor, options=options)
        return Packing(new_frame, zstd.ZstdDecompressor, zstd.ZstdError, _ZSTD_MAGIC)
    except ImportError:
        pass
    try:
        import zstandard

        packer = zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True)
        return Packing(
            packer.compressobj,
            zstandard.ZstdDecompressor().decompressobj,
            zstandard.ZstdError,
            _ZSTD_MAGIC,
        )
    except ImportError as e:
        hint = f"install attnscope[zst], use Python 3.14, or {instead}"
        raise AttnscopeError("the format .zst needs zstandard", where=name, hint=hint) from e
