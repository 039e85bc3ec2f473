"""Decompress .zst with Python 3.14's own module or the `zst` extra."""

import io
from collections.abc import Callable
from typing import Any, BinaryIO

from attnscope.errors import AttnscopeError

_STEP = 1024  # packed bytes at a time: a block of four may unpack to 128 KiB, so this is never more than 32 MiB


class _ZstandardReader(io.RawIOBase):
    """Frames one after the other, as `zstd -d` reads them.

    Args:
        file: The packed bytes.
        new: Makes what unpacks one frame.
        damage: What that raises where the bytes are none.
    """

    def __init__(self, file: BinaryIO, new: Callable[[], Any], damage: type[Exception]) -> None:
        self._file, self._new, self._damage = file, new, damage
        self._frame: Any = None
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill some of a buffer; 0 at the end.

        Raises:
            EOFError: A frame is damaged or cut off.
        """
        while not self._ready:
            packed = self._file.read(_STEP)
            if not packed:
                if self._frame is not None:
                    raise EOFError("a frame is truncated")
                return 0
            self._ready = memoryview(self._unpack(packed))
        count = min(len(buffer), len(self._ready))
        buffer[:count], self._ready = self._ready[:count], self._ready[count:]
        return count

    def _unpack(self, packed: bytes) -> bytes:
        found = []
        try:
            while packed:
                frame = self._frame = self._frame or self._new()
                found.append(frame.decompress(packed))
                packed = frame.unused_data if frame.eof else b""
                self._frame = None if frame.eof else frame
        except self._damage as e:
            raise EOFError(str(e)) from e
        return b"".join(found)


def open_zstandard(file: BinaryIO, name: str) -> io.BufferedReader:
    """Return a .zst file's content.

    Args:
        file: Opened at its start.
        name: The file, for errors.

    Raises:
        AttnscopeError: Nothing here reads the format.
    """
    new, damage = _decompressor(name)
    return io.BufferedReader(_ZstandardReader(file, new, damage), 1 << 16)


def _decompressor(name: str) -> tuple[Callable[[], Any], type[Exception]]:
    try:
        from compression import zstd  # type: ignore[import-not-found,unused-ignore]  # Python 3.14

        return zstd.ZstdDecompressor, zstd.ZstdError
    except ImportError:
        pass
    try:
        import zstandard

        return zstandard.ZstdDecompressor().decompressobj, zstandard.ZstdError
    except ImportError as e:
        hint = "install attnscope[zst], use Python 3.14, or decompress it"
        raise AttnscopeError("reading .zst needs zstandard", where=name, hint=hint) from e
