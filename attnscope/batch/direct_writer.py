"""Write arrays to disk past the page cache, with a CRC-32.

The page cache would cost a CPU copy of every byte while the model needs all CPUs, and would save nothing, since a dump
waits for the disk anyway.
"""

import errno
from typing import Any

import numpy as np

from attnscope.base.system.checksum import crc32
from attnscope.base.system.file_system import FileSystem
from attnscope.base.system.memory import map_memory

BLOCK = 4096  # bytes: direct writes start at and span multiples of the disk's blocks, of 512 or 4096 bytes
BUFFER_BYTES = (
    1 << 21
)  # bytes per write, a multiple of BLOCK: a huge page, which stays in cache while it is copied and summed
_MIN_DIRECT_BYTES = 1 << 16  # smallest number of bytes that is written without copying

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class DirectWriter:
    """Page-aligned memory that gathers bytes until they are worth a system call."""

    def __init__(self, files: FileSystem) -> None:
        self._files = files
        self._buffer: Bytes = np.frombuffer(map_memory(BUFFER_BYTES), dtype=np.uint8)
        self._descriptor, self._used, self._direct, self._crc = -1, 0, False, 0

    def start(self, descriptor: int) -> None:
        """Begin with an empty file."""
        self._descriptor, self._used, self._crc = descriptor, 0, 0
        self._direct = self._files.direct(descriptor)

    def put(self, data: Bytes) -> None:
        """Append bytes, (n,): directly if memory and file are aligned to the same blocks, else from a copy."""
        while len(data):
            off = (data.ctypes.data - self._used) % BLOCK
            if self._direct and not off and not self._used % BLOCK and len(data) >= _MIN_DIRECT_BYTES:
                data = self._write_direct(data)
                continue
            end = min(self._used + len(data), BUFFER_BYTES)
            if self._direct and not off and len(data) >= _MIN_DIRECT_BYTES + BLOCK:
                end = min(end, self._used + -self._used % BLOCK)  # the rest may go straight
            taken, data = data[: end - self._used], data[end - self._used :]
            np.copyto(self._buffer[self._used : end], taken)  # numpy and zlib release the GIL
            self._crc, self._used = crc32(self._buffer[self._used : end].data, self._crc), end
            if end == BUFFER_BYTES:
                self._flush()

    def _write_direct(self, data: Bytes) -> Bytes:
        """Write whole blocks without copying them; return the rest."""
        self._flush()
        aligned = len(data) - len(data) % BLOCK
        self._crc = crc32(data[:aligned].data, self._crc)
        self._write(data[:aligned].data)
        return data[aligned:]

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
