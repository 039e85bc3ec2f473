"""Write arrays to disk past the page cache, with a CRC-32.

The page cache would cost a CPU copy of every byte while the model needs all CPUs, and would save nothing, since a dump
waits for the disk anyway.
"""

import errno
import mmap
from typing import Any

import numpy as np

from attnscope.base.system.checksum import crc32
from attnscope.base.system.file_system import FileSystem

BLOCK = 4096  # bytes: direct writes start at and span multiples of the disk's blocks, of 512 or 4096 bytes
# Bytes per write, a multiple of BLOCK: they stay in cache while they are copied and summed.
BUFFER_BYTES = 1 << 21

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class DirectWriter:
    """Page-aligned memory that gathers bytes until they are worth a system call."""

    def __init__(self, files: FileSystem) -> None:
        self._files = files
        self._buffer: Bytes = np.frombuffer(mmap.mmap(-1, BUFFER_BYTES), dtype=np.uint8)
        self._descriptor = -1
        self._used = 0
        self._direct = False
        self._crc = 0

    def start(self, descriptor: int) -> None:
        """Begin with an empty file."""
        self._descriptor = descriptor
        self._used = 0
        self._crc = 0
        self._direct = self._files.direct(descriptor)

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
        self._write(self._buffer[: self._used].data)
        self._used = 0

    def finish(self) -> int:
        """Write the remaining bytes, wait until all are safe on disk, and return the CRC-32 of all."""
        aligned = self._used - self._used % BLOCK
        self._write(self._buffer[:aligned].data)
        if self._direct and aligned < self._used:
            self._through_cache()
        self._write(self._buffer[aligned : self._used].data)
        self._files.sync(self._descriptor)
        return self._crc

    def _write(self, remaining: memoryview) -> None:
        while len(remaining):
            try:
                done = self._files.write(self._descriptor, remaining)
            except OSError as e:
                if not self._direct or e.errno != errno.EINVAL:
                    raise
                # The file system accepts the flag, but not our blocks.
                done = 0
                self._through_cache()
            remaining = remaining[done:]
            if self._direct and done % BLOCK:  # from here on, nothing is aligned to blocks
                self._through_cache()

    def _through_cache(self) -> None:
        self._files.cached(self._descriptor)
        self._direct = False
