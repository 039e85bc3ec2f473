"""Record whole matrices of selected rows and columns."""

from bisect import bisect_left
from collections.abc import Sequence
from functools import partial
from threading import Lock

import torch
from torch import Tensor

from attnscope.model.recorders.packed import PackedMatrices
from attnscope.model.tile import Overlap, Recorder, Tile, as_slice
from attnscope.model.workers import Deferred

# Value for a key out of reach; in other stages it is 0, since such a key has no weight.
_EMPTY = {"scores": torch.nan, "scaled": torch.nan, "masked": -torch.inf, "allowed": 0.0}
_WIDE = {"output", "gated"}  # stages without keys


class MatrixRecorder(Recorder):
    """Whole matrices of stages, contributions (`value`, `projected`) or `allowed`, for rows and columns (sorted).

    `output`, and `gated`, the same behind a gate, are kept in their whole width. With `mean`, all are summed over heads
    (and over every layer that it is shown) instead of kept apart. `into` is memory that other recorders fill, too, and
    the place of the first head in it.
    """

    def __init__(
        self,
        stages: Sequence[str],
        heads: Sequence[int],
        rows: Sequence[int],
        columns: Sequence[int],
        *,
        mean: bool = False,
        into: tuple[PackedMatrices, int] | None = None,
    ) -> None:
        super().__init__(heads, rows)
        self.stages = list(stages)
        self.columns = list(columns)
        self.mean = mean
        self.needs_scores = bool({"scores", "scaled"} & set(self.stages))
        self.needs_masked = bool({"masked", "allowed"} & set(self.stages))
        self._packed = into
        self._making = Lock()
        self._averaged = False
        self.recorded: dict[str, Tensor] = {}
        self.layers: set[int] = set()

    def finish(self) -> None:
        if self.mean and self._packed is not None:
            packed, first_unit = self._packed
            for stage, mean in self.compute().items():
                packed.put(stage, mean, slice(first_unit, first_unit + 1), 0)
            self.recorded = {}

    def score_range(self) -> tuple[int, int] | None:
        """Ask for the raw scores of all shown keys, allowed or not, if scores are recorded."""
        if self.columns and self.needs_scores:
            return self.columns[0], self.columns[-1] + 1
        return None

    def _record(self, tile: Tile, overlap: Overlap) -> Deferred | None:
        self.layers.add(tile.inputs.layer)
        fully_masked = overlap.fully_masked(tile)
        sums = dict[str, Tensor]()
        for stage in self.stages:
            part = overlap.cut(tile.stage(stage))  # (B, h, r, k)
            if stage not in _WIDE:
                part = self._spread(stage, part, tile)  # (B, h, r, columns)
            if stage not in _EMPTY and fully_masked is not None:
                part = part.masked_fill(fully_masked[..., None], torch.nan)
            if self.mean:
                sums[stage] = part.sum(1)
            else:
                self._store(stage, part, overlap)
        if self.mean:
            return partial(self._add, sums, overlap.rows)
        return None

    def _add(self, sums: dict[str, Tensor], rows: slice) -> None:
        """Add some rows of several heads or layers, (B, r, columns) of every stage."""
        for stage, part in sums.items():
            if stage not in self.recorded:
                self.recorded[stage] = part.new_zeros(
                    (len(part), 1, len(self.rows), part.shape[-1])
                )
            self.recorded[stage][:, 0, rows] += part

    def _spread(self, stage: str, part: Tensor, tile: Tile) -> Tensor:
        """Return the recorded columns of a stage, filled for keys outside the tile."""
        columns = slice(bisect_left(self.columns, tile.k0), bisect_left(self.columns, tile.k1))
        inside = [column - tile.k0 for column in self.columns[columns]]
        if inside != list(range(part.shape[-1])):
            part = part[..., as_slice(inside) if inside else []]
        if len(inside) == len(self.columns):
            return part
        spread = part.new_full((*part.shape[:-1], len(self.columns)), _EMPTY.get(stage, 0.0))
        spread[..., columns] = part
        return spread

    def _store(self, stage: str, part: Tensor, overlap: Overlap) -> None:
        if self._packed is not None:
            packed, first_unit = self._packed
            packed.put(
                stage,
                part,
                as_slice([first_unit + index for index in overlap.here]),
                overlap.rows.start,
            )
            return
        with self._making:
            if stage not in self.recorded:
                self.recorded[stage] = part.new_empty(
                    (part.shape[0], len(self.heads), len(self.rows), part.shape[-1])
                )
        self.recorded[stage][:, overlap.index, overlap.rows] = part

    def compute(self) -> dict[str, Tensor]:
        """Return stage to (B, heads, rows, columns); one head, the mean, if `mean`."""
        if self.mean and not self._averaged:
            self._averaged = True
            # what tiles of a model are summed in may be changed only in there
            with torch.inference_mode():
                # in place, since every text requests it and keeps a view
                for total in self.recorded.values():
                    total /= len(self.heads) * max(1, len(self.layers))
        return self.recorded
