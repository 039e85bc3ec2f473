"""Tiles in; whole matrices of selected rows and columns out."""

from bisect import bisect_left
from collections.abc import Sequence
from functools import partial
from threading import Lock

import torch
from torch import Tensor

from attnscope.model.recorders.base import Base, Share
from attnscope.model.recorders.sheets import Sheets
from attnscope.model.tile import Tile, run
from attnscope.model.workers import Deferred

# What stands for a key out of reach; elsewhere 0, for it has no weight.
_EMPTY = {"scores": torch.nan, "scaled": torch.nan, "masked": -torch.inf, "allowed": 0.0}


class Matrices(Base):
    """Whole matrices of the wanted stages, for the selected rows and columns.

    Args:
        stages: Stages, contributions (`value`, `projected`), or `allowed`.
        heads: Query heads.
        rows: Query positions, sorted.
        columns: Key positions, sorted; `output` is kept in its whole width.
        mean: Sum over heads (and over every layer that it is shown) instead of keeping each apart.
        into: Memory that other recorders fill, too, and the place of the first head in it; None for its own.
    """

    def __init__(
        self,
        stages: Sequence[str],
        heads: Sequence[int],
        rows: Sequence[int],
        columns: Sequence[int],
        *,
        mean: bool = False,
        into: tuple[Sheets, int] | None = None,
    ) -> None:
        super().__init__(heads, rows)
        self.stages, self.columns, self.mean = list(stages), list(columns), mean
        self.raw = bool({"scores", "scaled"} & set(self.stages))
        self._into, self._making = into, Lock()
        self._averaged = False
        self.kept: dict[str, Tensor] = {}
        self.layers: set[int] = set()

    def reach(self) -> tuple[int, int] | None:
        """Raw scores are shown for keys that are not allowed, too."""
        if self.columns and self.raw:
            return self.columns[0], self.columns[-1] + 1
        return None

    def see(self, tile: Tile) -> Deferred | None:
        """Copy the selected cells."""
        self.layers.add(tile.call.layer)
        share = self.share(tile)
        if share is None:
            return None
        dead, sums = share.dead(tile), dict[str, Tensor]()
        for stage in self.stages:
            part = share.cut(tile.stage(stage))  # (B, h, r, k)
            if stage != "output":
                part = self._spread(stage, part, tile)  # (B, h, r, columns)
            if stage not in _EMPTY and dead is not None and dead.any():
                part = part.masked_fill(dead[..., None], torch.nan)
            if self.mean:
                sums[stage] = part.sum(1)
            else:
                self._keep(stage, part, share)
        return partial(self._add, sums, share.rows) if self.mean else None

    def _add(self, sums: dict[str, Tensor], rows: slice) -> None:
        """Add what several heads or layers have in some rows, (B, r, columns) of every stage."""
        for stage, part in sums.items():
            if stage not in self.kept:
                self.kept[stage] = part.new_zeros((len(part), 1, len(self.rows), part.shape[-1]))
            self.kept[stage][:, 0, rows] += part

    def _spread(self, stage: str, part: Tensor, tile: Tile) -> Tensor:
        """The wanted columns of a part, with what stands for keys that are out of the tile's reach."""
        columns = slice(bisect_left(self.columns, tile.k0), bisect_left(self.columns, tile.k1))
        inside = [column - tile.k0 for column in self.columns[columns]]
        if inside != list(range(part.shape[-1])):
            part = part[..., inside]
        if len(inside) == len(self.columns):
            return part
        spread = part.new_full((*part.shape[:-1], len(self.columns)), _EMPTY.get(stage, 0.0))
        spread[..., columns] = part
        return spread

    def _keep(self, stage: str, part: Tensor, share: Share) -> None:
        if self._into is not None:
            sheets, first = self._into
            sheets.put(stage, part, run([first + place for place in share.here]), share.rows.start)
            return
        with self._making:
            if stage not in self.kept:
                self.kept[stage] = part.new_empty((part.shape[0], len(self.heads), len(self.rows), part.shape[-1]))
        self.kept[stage][:, share.index, share.rows] = part

    def result(self) -> dict[str, Tensor]:
        """Stage to (B, heads, rows, columns); one head, the mean, where `mean` was asked for."""
        if self.mean and not self._averaged:
            self._averaged = True
            with torch.inference_mode():  # what tiles of a model are summed in may be changed only in there
                for total in self.kept.values():  # in place: every text asks, and keeps a view of what it gets
                    total /= len(self.heads) * max(1, len(self.layers))
        return self.kept
