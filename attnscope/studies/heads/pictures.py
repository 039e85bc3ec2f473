"""Measure what heads do within pictures: whether a patch reads its row, its column, or the patches near it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from attnscope.findings.head_roles import NEAR_PATCHES
from attnscope.findings.images import ImageGrid
from attnscope.model.batch import Batch
from attnscope.model.recorders import TargetRecorder

if TYPE_CHECKING:
    from attnscope.engines.protocol import Engine
    from attnscope.model.tile import Recorder
    from attnscope.studies.heads.measure import Sums

# Names of the sums that roles of pictures are computed from; the last is the number of patches.
ON_GRIDS = "grid row", "grid column", "near", "patches"


class PicturePass:
    """The recorders of one batch of texts that have pictures."""

    def __init__(
        self,
        batch: Batch,
        numbers: Sequence[int],
        grids: Sequence[Sequence[ImageGrid]],
        engine: "Engine",
    ) -> None:
        self._numbers = numbers
        length = batch.tokens.real.shape[1]
        targets = [_targets([grid.tokens for grid in grids[number]], length) for number in numbers]
        self._patches = torch.tensor([[_count(grids[number])] for number in numbers])
        self._recorders: dict[int, list[TargetRecorder]] = {}
        of_kinds = []
        for kind in range(3):
            widest = max(of_text[kind].shape[1] for of_text in targets)
            padded = [
                np.pad(t[kind], ((0, 0), (0, widest - t[kind].shape[1])), constant_values=-1)
                for t in targets
            ]
            of_kinds.append(torch.from_numpy(np.stack(padded)).to(batch.tokens.real.device))
        heads = range(engine.sizes[1])
        for layer in engine.layers:
            self._recorders[layer] = [
                TargetRecorder(heads, range(length), of_kind) for of_kind in of_kinds
            ]

    @property
    def recorders(self) -> "dict[int, list[Recorder]]":
        """The recorders of every layer."""
        return {layer: list(of_layer) for layer, of_layer in self._recorders.items()}

    def add_to(self, sums: "Sums") -> None:
        """Add the recorded sums."""
        for layer, recorders in self._recorders.items():
            for name, recorder in zip(ON_GRIDS[:3], recorders, strict=True):
                sums.add(name, layer, self._numbers, recorder.sums.sum(-1))
            n_heads = recorders[0].sums.shape[1]
            sums.add(ON_GRIDS[3], layer, self._numbers, self._patches.expand(-1, n_heads))


def _count(grids: Sequence[ImageGrid]) -> int:
    return sum(int((grid.tokens >= 0).sum()) for grid in grids)


def _targets(grids: Sequence[np.ndarray], length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the other patches in the row and column of every patch, and those near it: (tokens, N) each, −1 for none.

    Args:
        grids: The token of every patch of each picture, (rows, columns).
    """
    tables: tuple[dict[int, list[int]], ...] = ({}, {}, {})
    for grid in grids:
        for row, column in np.argwhere(grid >= 0):
            token = int(grid[row, column])
            top = max(0, row - NEAR_PATCHES)
            left = max(0, column - NEAR_PATCHES)
            near = grid[top : row + NEAR_PATCHES + 1, left : column + NEAR_PATCHES + 1]
            for table, keys in zip(tables, (grid[row], grid[:, column], near), strict=True):
                table[token] = [int(key) for key in keys.ravel() if key not in (-1, token)]
    arrays = []
    for table in tables:
        array = np.full(
            (length, max((len(keys) for keys in table.values()), default=0)), -1, dtype=np.int64
        )
        for token, keys in table.items():
            array[token, : len(keys)] = keys
        arrays.append(array)
    row_keys, column_keys, near_keys = arrays
    return row_keys, column_keys, near_keys
