"""Memory for the matrices of several texts, one text after the other, without padding.

Data for a file is copied only once, from the tile, and does not have to be cut, stacked or moved afterwards.
"""

from collections.abc import Sequence
from itertools import groupby
from threading import Lock

import numpy as np
import torch
from torch import Tensor


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
                self._kept[stage] = [
                    _empty((len(part[texts]), self.units, rows, part.shape[-1] if stage == "output" else columns), part)
                    for texts, rows, columns in self._runs
                ]
        for (texts, rows, _), kept in zip(self._runs, self._kept[stage], strict=True):
            here = min(part.shape[2], rows - first)
            if here > 0:
                kept[:, units, first : first + here] = part[texts, :, :here, : kept.shape[-1]]

    def texts(self, stage: str) -> list[Tensor]:
        """Return each text's matrices, (units, rows, columns), on the CPU."""
        return [text for run in self._kept[stage] for text in run.cpu()]


def _empty(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Return an uninitialised tensor on the device of another one."""
    if like.device.type != "cpu":
        return like.new_empty(shape)
    # NumPy asks for huge pages: the system clears pages, which takes a tenth of a dump where they are small.
    return torch.from_numpy(np.empty(shape, dtype=np.float32))
