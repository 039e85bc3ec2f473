"""Record statistics of mean rows that do not follow from those of their heads, such as the entropy."""

from collections.abc import Sequence
from functools import partial
from math import log
from typing import cast

import torch
from torch import Tensor

from attnscope.findings.row_statistics import ROW_STATISTICS, RowWeights
from attnscope.model.recorders.base import KeyTokens
from attnscope.model.recorders.rows import finite_scores
from attnscope.model.tile import Overlap, Recorder, Tile
from attnscope.model.workers import Deferred


class MeanRowRecorder(Recorder):
    """The statistics of rows of weights and scores, each averaged over heads and layers.

    `recorded` maps each to (B, 1, rows), NaN where any head's row is fully masked. The mean over one layer is made
    block by block, so that a block's rows are all that is kept. Blocks differ between layers, so that a mean over
    several keeps all of its rows until the last layer.
    """

    needs_masked = True

    def __init__(
        self, heads: Sequence[int], rows: Sequence[int], sources: KeyTokens, n_layers: int
    ) -> None:
        super().__init__(heads, rows)
        shape = (sources.real.shape[0], 1, len(self.rows))
        device = sources.real.device
        self._statistics = [statistic for statistic in ROW_STATISTICS if not statistic.linear]
        self.recorded = {
            statistic.name: torch.full(shape, torch.nan, device=device)
            for statistic in self._statistics
        }
        self._n = len(self.heads) * n_layers
        self._whole = n_layers > 1
        self._n_keys = sources.real.shape[1]
        self._blocks: dict[int, _MeanRows] = {}
        self._scored = True

    def _record(self, tile: Tile, overlap: Overlap) -> Deferred | None:
        self._scored = tile.scored
        stages = overlap.cut(tile.weights), overlap.cut(tile.masked)
        sums = [stage.sum(1, keepdim=True) for stage in stages]  # (B, 1, r, k)
        fully_masked = overlap.fully_masked(tile)
        nothing = None if fully_masked is None else fully_masked.any(1, keepdim=True)  # (B, 1, r)
        return partial(
            self._add, sums, nothing, len(overlap.heads), overlap.rows, slice(tile.k0, tile.k1)
        )

    def _add(
        self, sums: list[Tensor], nothing: Tensor | None, count: int, rows: slice, keys: slice
    ) -> None:
        of_block = slice(0, len(self.rows)) if self._whole else rows
        if of_block.start not in self._blocks:
            size = (
                of_block.stop - of_block.start,
                self._n_keys if self._whole else keys.stop - keys.start,
            )
            self._blocks[of_block.start] = _MeanRows(sums[0], *size, scored=self._scored)
        block = self._blocks[of_block.start]
        if self._whole:
            block.add(sums, nothing, rows, keys)
        else:
            block.add(sums, nothing, slice(None), slice(None))
        block.seen += count * (rows.stop - rows.start)
        if block.seen == self._n * block.n_rows:
            block.divide(self._n)
            for statistic in self._statistics if block.weights.shape[-1] else ():
                self.recorded[statistic.name][:, :, of_block] = statistic.compute(
                    cast(RowWeights, block)
                )
            del self._blocks[of_block.start]


class _MeanRows:
    """Rows of a mean while they are added up; then rows for the statistics, see RowWeights there."""

    def __init__(self, like: Tensor, n_rows: int, n_keys: int, *, scored: bool) -> None:
        self._scored = scored
        shape = (len(like), 1, n_rows, n_keys)
        self.weights = like.new_zeros(shape)
        self._masked = like.new_zeros(shape)
        self.n_rows = n_rows
        self.seen = 0

    def add(self, sums: list[Tensor], nothing: Tensor | None, rows: slice, keys: slice) -> None:
        """Add some heads' rows, NaN where any sees nothing; keys that their tile does not reach are not allowed."""
        self.weights[:, :, rows, keys] += sums[0]
        self._masked[:, :, rows, keys] += sums[1]
        if nothing is not None:
            self.weights[:, :, rows] = self.weights[:, :, rows].masked_fill(
                nothing[..., None], torch.nan
            )
        if keys.start is not None:
            for outside in (slice(0, keys.start), slice(keys.stop, None)):
                self._masked[:, :, rows, outside] = -torch.inf

    def divide(self, n: int) -> None:
        self.weights = self.weights / n
        self._masked = self._masked / n

    def entropy(self) -> Tensor:
        bits: Tensor = (
            torch.special.xlogy(self.weights, self.weights).sum(-1).div_(-log(2)).add_(0.0)
        )
        return bits

    def max_score(self) -> Tensor:
        """Return the largest mean score of keys that every head sees; NaN without any."""
        largest = finite_scores(self._masked.amax(-1))
        if self._scored:
            return largest
        return torch.full_like(largest, torch.nan)
