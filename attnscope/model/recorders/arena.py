"""A CPU memory arena that reuses pages as soon as nothing refers to them.

Fresh pages cost as much as the data written to them, since the system clears each, 4 KiB at a time. A dump allocates
and frees a gigabyte every few seconds, so it keeps its pages.
"""

import mmap
from threading import RLock
from typing import Any
from weakref import finalize

import numpy as np
import torch
from torch import Tensor

from attnscope.base.system.memory import map_memory

CHUNK = 1 << 23  # float32s, 32 MiB; larger ones are multiples of it
_KEPT = 4 * 4 * CHUNK  # bytes up to which a chunk is kept for others
_PAGE = 1 << 10  # float32s


class Arena:
    """Memory in chunks, each of them filled from start to end.

    Threads may share it. Where a chunk ends within a page, the next one starts at the same offset in a page: written to
    a file one after the other, chunks can then be cut into page-aligned blocks.
    """

    def __init__(self) -> None:
        self._free: list[mmap.mmap] = []
        self._lock = RLock()
        self._chunk, self._used = torch.empty(0), 0

    def reset(self) -> None:
        """Align the next allocation to a page."""
        with self._lock:
            # If nothing else refers to the chunk, it is free now.
            self._chunk, self._used = torch.empty(0), 0

    def allocate(self, count: int) -> Tensor:
        """Allocate `count` float32s, uninitialized; they are not reused while a view of them exists."""
        with self._lock:
            if self._used + count > len(self._chunk):
                start = self._used % _PAGE
                self.reset()
                self._chunk, self._used = self._another(start + count), start
            start, self._used = self._used, self._used + count
            return self._chunk[start : start + count]

    def _another(self, least: int) -> Tensor:
        """Return a chunk of at least this many float32s: a used one of up to twice the size, else a new one.

        A new one that will be kept takes the place of those that are free, so that sizes that are no longer needed do
        not stay.
        """
        size = -(-least // CHUNK) * 4 * CHUNK
        if fitting := [pages for pages in self._free if size <= len(pages) <= 2 * size]:
            pages = min(fitting, key=len)
            self._free.remove(pages)
        else:
            if size <= _KEPT:
                self._free.clear()
            pages = map_memory(size)
        chunk: np.ndarray[Any, np.dtype[np.float32]] = np.frombuffer(pages, dtype=np.float32)
        if size <= _KEPT:
            finalize(chunk, self._free.append, pages).atexit = False  # tensors made of it, and their views, hold it
        with torch.inference_mode(False):  # what is made in there could be written to only in there
            return torch.from_numpy(chunk)
