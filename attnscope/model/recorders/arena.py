"""Sizes in; memory on the CPU out, which is used again as soon as nobody holds any of it.

Fresh pages cost as much as what is written to them: the system clears each, and hands it out by fours of KiB. A dump
takes and gives back a gigabyte every few seconds, so it keeps the pages that it has.
"""

import mmap
from typing import Any
from weakref import finalize

import numpy as np
import torch
from torch import Tensor

CHUNK = 1 << 23  # float32s, 32 MiB


class Arena:
    """Memory in chunks, each of them filled from start to end."""

    def __init__(self) -> None:
        self._free: list[mmap.mmap] = []
        self._chunk, self._used = torch.empty(0), 0

    def take(self, count: int) -> Tensor:
        """So many float32s with whatever stands there; as long as any view of them lives, nobody else has them."""
        if count > CHUNK:
            return torch.empty(count)
        if self._used + count > len(self._chunk):
            self._chunk, self._used = self._another(), 0
        start, self._used = self._used, self._used + count
        return self._chunk[start : start + count]

    def _another(self) -> Tensor:
        self._chunk = torch.empty(0)  # where nobody else holds it, it is free from here on
        pages = self._free.pop() if self._free else _pages()
        whole: np.ndarray[Any, np.dtype[np.float32]] = np.frombuffer(pages, dtype=np.float32)
        finalize(whole, self._free.append, pages).atexit = False  # tensors made of it, and their views, hold it
        with torch.inference_mode(False):  # what is made in there could be written to only in there
            return torch.from_numpy(whole)


def _pages() -> mmap.mmap:
    pages = mmap.mmap(-1, 4 * CHUNK)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return pages
