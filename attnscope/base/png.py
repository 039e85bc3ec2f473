"""Pictures as PNG files of one kind: 8-bit RGB, every row with the filter `up`. No library is needed for these."""

import struct
import zlib
from functools import lru_cache
from typing import Any

import numpy as np

from attnscope.base.errors import AttnscopeError

Array = np.ndarray[Any, np.dtype[Any]]

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_ROWS_ABOVE = 2  # the filter "up": each byte is stored less the one above it


def encode_png(pixels: Array) -> bytes:
    """Return pixels, (height, width, 3), uint8, as a PNG."""
    height, width, _ = pixels.shape
    rows = np.full((height, 1 + width * 3), _ROWS_ABOVE, dtype=np.uint8)
    rows[:, 1:] = np.diff(
        pixels.reshape(height, -1), axis=0, prepend=np.zeros((1, width * 3), dtype=np.uint8)
    )
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows.tobytes(), 6)),
        (b"IEND", b""),
    ]
    return _SIGNATURE + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    )


@lru_cache(maxsize=8)
def decode_png(png: bytes) -> Array:
    """Return the pixels of a PNG that `encode_png` wrote; refuse any other."""
    try:
        width, height = struct.unpack(">II", png[16:24])
        length = int.from_bytes(png[33:37], "big")
        size = height * (1 + width * 3)
        inflated = zlib.decompressobj().decompress(png[41 : 41 + length], size + 1)
        rows = np.frombuffer(inflated, dtype=np.uint8).reshape(height, 1 + width * 3)
    except (ValueError, struct.error, zlib.error) as e:
        raise _not_ours() from e
    if png[:8] != _SIGNATURE or (rows[:, 0] != _ROWS_ABOVE).any() or not rows.size:
        raise _not_ours()
    pixels: Array = np.cumsum(rows[:, 1:], axis=0, dtype=np.uint8).reshape(height, width, 3)
    pixels.flags.writeable = False
    return pixels


def _not_ours() -> AttnscopeError:
    return AttnscopeError(
        "the png of a picture is not one that attnscope wrote", hint="save the report again"
    )
