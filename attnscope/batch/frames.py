"""Compressed files: members of a .gz file or frames of a .zst file, one after the other.

Python has zstd since 3.14; before that, the extra `zst` provides it.
"""

import io
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from attnscope.base.errors import AttnscopeError, arg
from attnscope.base.system.memory import available_memory
from attnscope.batch.formats import format_of

_STEP = 1024  # compressed bytes read at a time: four bytes may decompress to 128 KiB, so at most 32 MiB result
_BUFFER_BYTES = 1 << 16
# the default of both programs
_GZIP_LEVEL = 6
_ZSTD_LEVEL = 3
_GZIP_MEMBERS = 16 + zlib.MAX_WBITS  # as zlib says it
_LARGEST_HEADER = 1 << 16  # bytes, compressed or not; a header has a few thousand
_COPIES = 8  # of a line that is read, checked and decoded
_DECOMPRESS = "decompress it"


class FrameReader(io.RawIOBase):
    """The content of frames one after the other, as `gzip -d` and `zstd -d` read them."""

    def __init__(self, file: BinaryIO, new: Callable[[], Any], damage: type[Exception]) -> None:
        self._file = file
        self._new = new
        self._damage = damage
        self._frame: Any = None
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        """Return True, as `io.BufferedReader` asks."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill some of a buffer, 0 at the end; EOFError for a frame that is damaged or cut off."""
        while not self._ready:
            packed = self._file.read(_STEP)
            if not packed:
                if self._frame is not None:
                    raise EOFError("it is cut off")
                return 0
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


_GZIP = Packing(
    partial(zlib.compressobj, _GZIP_LEVEL, zlib.DEFLATED, _GZIP_MEMBERS),  # with a time stamp of 0
    partial(zlib.decompressobj, _GZIP_MEMBERS),
    zlib.error,
)


def packing_of(path: Path, instead: str = "use .jsonl.gz") -> Packing | None:
    """Return how a name says that lines are compressed, None for not; `instead` is advice if a library is missing."""
    dump_format = format_of(path)
    if dump_format is None or dump_format.packing is None:
        return None
    return _GZIP if dump_format.packing == "gzip" else _zstandard(str(path), instead)


@contextmanager
def open_lines(path: Path) -> Iterator[io.BufferedReader]:
    """Open the lines of a dump, decompressed if the name says so."""
    packing = packing_of(path, _DECOMPRESS)
    with open(path, "rb") as file:
        if packing is None:
            yield file
            return
        try:
            yield io.BufferedReader(FrameReader(file, packing.new_reader, packing.damage), _BUFFER_BYTES)
        except EOFError as e:
            hint = "restore it from a backup, or convert the dump that it was made of again"
            raise AttnscopeError(f"the compressed file is damaged ({e})", where=path, hint=hint) from e


def compressed(pieces: Iterable[bytes], path: Path) -> Iterator[bytes]:
    """Yield the content of a file whose name says how it is compressed, as one frame."""
    packing = packing_of(path)
    assert packing is not None
    packer = packing.new_frame()
    for piece in pieces:
        yield packer.compress(piece)
    yield packer.flush()


def bounded_lines(file: BinaryIO, path: Path) -> Iterator[bytes]:
    """Yield the lines of a dump, none long enough to fill the memory: a few packed bytes may hold a very long one."""
    limit = _LARGEST_HEADER
    number = 1
    while line := file.readline(limit + 1):
        if len(line) > limit:
            if number == 1:
                hint = "create one with attnscope batch, under a name that is free"
                raise AttnscopeError("is not a dump", where=path, hint=hint)
            message = f"the line is longer than {limit:,} bytes, a part of the memory that is free"
            raise AttnscopeError(message, where=f"{path}:{number}", hint="free memory")
        yield line
        limit = limit if number > 1 else available_memory() // _COPIES
        number = number + 1


def not_a_dump(path: Path) -> AttnscopeError:
    """Return the error about a file that must not be overwritten."""
    return AttnscopeError("exists and is not a dump", where=path, hint=f"pass {arg('force', True)} to overwrite it")


def _zstandard(name: str, instead: str) -> Packing:
    try:
        from compression import zstd  # type: ignore[import-not-found,unused-ignore]  # Python 3.14

        options = {zstd.CompressionParameter.compression_level: _ZSTD_LEVEL, zstd.CompressionParameter.checksum_flag: 1}
        new_frame = partial(zstd.ZstdCompressor, options=options)
        return Packing(new_frame, zstd.ZstdDecompressor, zstd.ZstdError)
    except ImportError:
        pass
    try:
        import zstandard

        packer = zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True)
        return Packing(packer.compressobj, zstandard.ZstdDecompressor().decompressobj, zstandard.ZstdError)
    except ImportError as e:
        hint = f"install attnscope[zst], use Python 3.14, or {instead}"
        raise AttnscopeError("the format .zst needs zstandard", where=name, hint=hint) from e
