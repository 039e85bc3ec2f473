"""A CPU memory arena that reuses pages as soon as nothing refers to them.

Fresh pages cost as much as the data written to them, since the system clears each, 4 KiB at a time. A dump allocates
and frees a gigabyte every few seconds, so it keeps its pages.
"""

import mmap
from typing import Any
from weakref import finalize

import numpy as np
import torch
from torch import Tensor

from attnscope.system.memory import map_memory

CHUNK = 1 << 23  # float32s, 32 MiB
_PAGE = 1 << 10  # float32s


class Arena:
    """Memory in chunks, each of them filled from start to end.

    Where a chunk ends within a page, the next one starts at the same offset in a page: written to a file one after
    the other, chunks can then be cut into page-aligned blocks.
    """

    def __init__(self) -> None:
        self._free: list[mmap.mmap] = []
        self._chunk, self._used = torch.empty(0), 0

    def reset(self) -> None:
        """Align what is taken next to a page."""
        self._chunk, self._used = torch.empty(0), 0  # if nothing else refers to the chunk, it is free now

    def allocate(self, count: int) -> Tensor:
        """Allocate so many float32s, uninitialized; they are not reused while a view of them exists."""
        if self._used + count > len(self._chunk):
            start = self._used % _PAGE
            self.reset()
            self._chunk, self._used = self._another(start + count), start
        start, self._used = self._used, self._used + count
        return self._chunk[start : start + count]

    def _another(self, least: int) -> Tensor:
        usual = least <= CHUNK
        pages = self._free.pop() if usual and self._free else map_memory(4 * max(least, CHUNK))
        whole: np.ndarray[Any, np.dtype[np.float32]] = np.frombuffer(pages, dtype=np.float32)
        if usual:
            finalize(whole, self._free.append, pages).atexit = False  # tensors made of it, and their views, hold it
        with torch.inference_mode(False):  # what is made in there could be written to only in there
            return torch.from_numpy(whole)
