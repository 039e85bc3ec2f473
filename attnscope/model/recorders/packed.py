"""Memory for the matrices of several texts, one text after the other, without padding.

Data for a file is copied only once, from the tile, and does not have to be cut, stacked or moved afterwards.
"""

import mmap
from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby
from math import prod
from threading import Lock, RLock
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


_ARENA = Arena()


def new_window() -> None:
    """Start a new window: the next matrices begin at a page of memory, and later ones follow them."""
    _ARENA.reset()


class PackedMatrices:
    """Matrices of a batch, for every text (units, rows, columns) of these sizes, shared by recorders of all layers."""

    def __init__(self, units: int, sizes: Sequence[tuple[int, int]]) -> None:
        self.units, self._runs = units, list[tuple[slice, int, int]]()  # texts of one size, and the size
        for (rows, columns), run in groupby(enumerate(sizes), key=lambda numbered: numbered[1]):
            places = [place for place, _ in run]
            self._runs.append((slice(places[0], places[-1] + 1), rows, columns))
        self._kept: dict[str, list[Tensor]] = {}
        self._making = Lock()

    def put(self, stage: str, part: Tensor, units: slice | list[int], first: int) -> None:
        """Copy some rows of a text's matrices out of (B, units, rows, columns), padding included."""
        with self._making:
            if stage not in self._kept:
                self._kept[stage] = list(self._made(stage, part))
        for (texts, rows, _), kept in zip(self._runs, self._kept[stage], strict=True):
            here = min(part.shape[2], rows - first)
            if here > 0:
                kept[:, units, first : first + here] = part[texts, :, :here, : kept.shape[-1]]

    def _made(self, stage: str, like: Tensor) -> Iterator[Tensor]:
        """Yield (texts, units, rows, columns) of neighbours of one size each, in one piece of memory."""
        shapes = [
            (texts.stop - texts.start, self.units, rows, like.shape[-1] if stage == "output" else columns)
            for texts, rows, columns in self._runs
        ]
        ends = list(accumulate(prod(shape) for shape in shapes))
        memory = _ARENA.allocate(ends[-1]) if like.device.type == "cpu" else like.new_empty(ends[-1])
        for start, end, shape in zip([0, *ends], ends, shapes, strict=False):
            yield memory[start:end].view(shape)

    def texts(self, stage: str) -> list[Tensor]:
        """Return each text's matrices, (units, rows, columns), on the CPU."""
        return [text for run in self._kept[stage] for text in run.cpu()]
