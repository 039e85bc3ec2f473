"""Write a file in pieces, with a CRC-32 of all of them."""

import mmap
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np

from attnscope.base.system.checksum import crc32
from attnscope.base.system.file_system import FileSystem

BUFFER_BYTES = 1 << 21  # bytes of a write: they stay in cache while they are copied and summed

_Array = np.ndarray[Any, np.dtype[Any]]


class SummedWriter:
    """Gathers numbers in memory until they are worth a system call, which a thread makes while more are gathered."""

    def __init__(self, files: FileSystem) -> None:
        self._files = files
        # one is filled while the other is written
        self._buffer, self._other = (
            np.frombuffer(mmap.mmap(-1, BUFFER_BYTES), dtype=np.uint8) for _ in range(2)
        )
        self._thread = ThreadPoolExecutor(1, "attnscope-disk")
        self._pending: list[Future[None]] = []  # one at most
        self._descriptor = -1
        self._used = 0
        self._crc = 0

    def start(self, descriptor: int) -> None:
        """Begin with an empty file."""
        self._descriptor = descriptor
        self._used = 0
        self._crc = 0

    def put(self, array: _Array, dtype: np.dtype[Any] | None = None) -> None:
        """Append the numbers of an array, (n, …), in C order: rows that lie apart in memory are copied only here.

        Args:
            dtype: The type that they are stored in, which has to hold them; None for their own.
        """
        stored = array.dtype if dtype is None else dtype
        row_bytes = stored.itemsize * int(np.prod(array.shape[1:]))
        if row_bytes > len(self._buffer):
            for row in array:
                self.put(row, stored)
            return
        start = 0
        while row_bytes and start < len(array):
            rows = array[start : start + (len(self._buffer) - self._used) // row_bytes]
            if not len(rows):
                self._flush()
                continue
            end = self._used + row_bytes * len(rows)
            target = self._buffer[self._used : end].view(stored).reshape(rows.shape)
            np.copyto(target, rows, casting="unsafe")  # NumPy and zlib release the GIL
            self._used = end
            start += len(rows)

    def _flush(self) -> None:
        """Hand the buffer to the thread, once it is done with the other one."""
        self._wait()
        data = self._buffer[: self._used].data
        self._pending.append(self._thread.submit(self._write, data))
        self._buffer, self._other = self._other, self._buffer
        self._used = 0

    def _write(self, data: memoryview) -> None:
        self._crc = crc32(data, self._crc)
        self._files.write_all(self._descriptor, data)

    def _wait(self) -> None:
        while self._pending:
            self._pending.pop().result()

    def finish(self) -> int:
        """Write the remaining bytes, wait until all are safe on disk, and return the CRC-32 of all."""
        self._flush()
        self._wait()
        self._files.sync(self._descriptor)
        return self._crc

    def abandon(self) -> None:
        """Wait until nothing is being written, whatever became of it, so that the file may be closed."""
        wait(self._pending)
        self._pending.clear()
