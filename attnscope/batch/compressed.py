"""Compressed texts and dumps: `.gz` and `.zst` files, read line by line, and what `convert` writes.

Python has zstd since 3.14; before that, the extra `zst` provides it.
"""

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, BinaryIO

from attnscope.base.errors import AttnscopeError, arg
from attnscope.base.system.machine import available_memory

# compressed bytes read at a time: four bytes may decompress to 128 KiB, so at most 32 MiB result
_STEP = 1024
_BUFFER_BYTES = 1 << 16
# the default of both programs
_GZIP_LEVEL = 6
_ZSTD_LEVEL = 3
_GZIP_MEMBERS = 16 + zlib.MAX_WBITS  # as zlib says it
_LARGEST_HEADER = 1 << 16  # bytes; a header has a few thousand
_COPIES = 8  # of a line that is read, checked and decoded
COMPRESSED = (".gz", ".zst")


class ZstdReader(io.RawIOBase):
    """The content of zstd frames one after the other, as `zstd -d` reads them."""

    def __init__(self, file: BinaryIO, new_frame: Callable[[], Any]) -> None:
        self._file = file
        self._new_frame = new_frame
        self._frame: Any = None
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        """Return True, as `io.BufferedReader` asks."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill some of a buffer, 0 at the end; EOFError if that is within a frame."""
        while not self._ready:
            packed = self._file.read(_STEP)
            if not packed:
                if self._frame is not None:
                    raise EOFError("a frame is truncated")
                return 0
            self._ready = memoryview(self._unpack(packed))
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def _unpack(self, packed: bytes) -> bytes:
        contents = []
        while packed:
            frame = self._frame = self._frame or self._new_frame()
            contents.append(frame.decompress(packed))
            packed = frame.unused_data if frame.eof else b""
            if frame.eof:
                self._frame = None
        return b"".join(contents)


@contextmanager
def open_decompressed(file: BinaryIO, ending: str, name: str) -> Iterator[IO[bytes]]:
    """Read a file's content, decompressed if the ending is `.gz` or `.zst`."""
    damage: tuple[type[Exception], ...] = (EOFError, gzip.BadGzipFile, zlib.error)
    content: Any = file
    if ending == ".gz":
        content = gzip.GzipFile(fileobj=file)
    elif ending == ".zst":
        _, new_reader, zstd_error = _zstandard(name, "decompress it")
        damage = (EOFError, zstd_error)
        content = io.BufferedReader(ZstdReader(file, new_reader), _BUFFER_BYTES)
    try:
        yield content
    except damage as e:
        raise AttnscopeError(
            f"damaged {ending} file ({e})", where=name, hint="compress it again"
        ) from e
    except OSError as e:
        raise AttnscopeError(f"cannot be read ({e.strerror or e})", where=name) from e


@contextmanager
def open_lines(path: Path) -> Iterator[IO[bytes]]:
    """Open the lines of a dump, decompressed if the name says so."""
    with open(path, "rb") as file, open_decompressed(file, path.suffix, str(path)) as lines:
        yield lines


def new_packer(path: Path) -> Any:
    """Return what compresses a file of this name, with `compress` and `flush`."""
    if path.suffix == ".gz":
        # with a time stamp of 0
        return zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_MEMBERS)
    new_packer, _, _ = _zstandard(str(path), "use .jsonl.gz")
    return new_packer()


def bounded_lines(file: IO[bytes], path: Path) -> Iterator[bytes]:
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


def not_a_dump(path: Path) -> AttnscopeError:
    """Return the error about a file that must not be overwritten."""
    return AttnscopeError(
        "exists and is not a dump", where=path, hint=f"pass {arg('force', True)} to overwrite it"
    )


def _zstandard(
    name: str, instead: str
) -> tuple[Callable[[], Any], Callable[[], Any], type[Exception]]:
    """Return what makes a compressor and a decompressor of zstd, and the error of the latter."""
    try:
        from compression import zstd  # type: ignore[import-not-found,unused-ignore]  # Python 3.14

        options = {
            zstd.CompressionParameter.compression_level: _ZSTD_LEVEL,
            zstd.CompressionParameter.checksum_flag: 1,
        }
        return partial(zstd.ZstdCompressor, options=options), zstd.ZstdDecompressor, zstd.ZstdError
    except ImportError:
        pass
    try:
        import zstandard

        packer = zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True)
        new_reader = zstandard.ZstdDecompressor().decompressobj
        return packer.compressobj, new_reader, zstandard.ZstdError
    except ImportError as e:
        hint = f"install attnscope[zst], use Python 3.14, or {instead}"
        raise AttnscopeError("the format .zst needs zstandard", where=name, hint=hint) from e
