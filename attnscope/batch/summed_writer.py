"""Write a file in pieces, with a CRC-32 of all of them."""

import mmap
from typing import Any

import numpy as np

from attnscope.base.system.checksum import crc32
from attnscope.base.system.file_system import FileSystem

BUFFER_BYTES = 1 << 21  # bytes of a write: they stay in cache while they are copied and summed

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class SummedWriter:
    """Memory that gathers bytes until they are worth a system call."""

    def __init__(self, files: FileSystem) -> None:
        self._files = files
        self._buffer: Bytes = np.frombuffer(mmap.mmap(-1, BUFFER_BYTES), dtype=np.uint8)
        self._descriptor = -1
        self._used = 0
        self._crc = 0

    def start(self, descriptor: int) -> None:
        """Begin with an empty file."""
        self._descriptor = descriptor
        self._used = 0
        self._crc = 0

    def put(self, data: Bytes) -> None:
        """Append bytes, (n,)."""
        while len(data):
            end = min(self._used + len(data), BUFFER_BYTES)
            taken = data[: end - self._used]
            data = data[end - self._used :]
            np.copyto(self._buffer[self._used : end], taken)  # numpy and zlib release the GIL
            self._crc = crc32(self._buffer[self._used : end].data, self._crc)
            self._used = end
            if end == BUFFER_BYTES:
                self._flush()

    def _flush(self) -> None:
        self._files.write_all(self._descriptor, self._buffer[: self._used].data)
        self._used = 0

    def finish(self) -> int:
        """Write the remaining bytes, wait until all are safe on disk, and return the CRC-32 of all."""
        self._flush()
        self._files.sync(self._descriptor)
        return self._crc
