"""Record what a head's weights have in common over all rows: on which keys of each row, at which offsets, how evenly.

Every recorder here keeps sums over the rows that count, so that its size does not grow with the text.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from attnscope.model.precision import has_float64
from attnscope.model.recorders.base import BaseRecorder, Overlap
from attnscope.model.recorders.diagonal import diagonal_band
from attnscope.model.tile import Tile
from attnscope.model.workers import Deferred

FURTHEST = 256  # largest offset in tokens; larger ones are counted together, on each side


class TargetRecorder(BaseRecorder):
    """The weight of rows on keys that are named row by row, summed over rows.

    Args:
        heads: Query heads.
        rows: Query positions, sorted.
        targets: Key positions for every row, (B, rows, N), int64; −1 where a row has none.
        strongest: Count the rows whose largest weight is on the target, and on no other key, instead of summing
            weights.

    Attributes:
        sums: (B, heads, N).
    """

    def __init__(self, heads: Sequence[int], rows: Sequence[int], targets: Tensor, *, strongest: bool = False) -> None:
        super().__init__(heads, rows)
        self._targets, self._strongest = targets, strongest
        shape = (len(targets), len(self.heads), targets.shape[2])
        self.sums = _zeros(shape, targets.device)

    def update(self, tile: Tile) -> Deferred | None:
        """Add the weights on the targets up."""
        overlap = self.overlap(tile)
        if overlap is None or tile.k0 == tile.k1:
            return None
        weights = overlap.cut(tile.weights)  # (B, h, r, k)
        at = self._targets[:, overlap.rows] - tile.k0  # (B, r, N)
        inside = (at >= 0) & (at < weights.shape[-1])
        index = at.clamp(0, weights.shape[-1] - 1)[:, None].expand(-1, weights.shape[1], -1, -1)
        found = weights.gather(-1, index)  # (B, h, r, N)
        if self._strongest:
            largest = weights.amax(-1, keepdim=True)  # (B, h, r, 1)
            alone = (weights == largest).sum(-1, keepdim=True) == 1  # a uniform row does not attend to any target
            found = ((found == largest) & alone).float()
        part = (found * inside[:, None]).sum(2)
        return partial(_add, self.sums, part, overlap)


class OffsetRecorder(BaseRecorder):
    """Weights on words by offset, key minus query: sums, sums of squares and how many there are.

    Args:
        heads: Query heads.
        counted: Rows that count, (B, Q), bool.
        words: Keys that count, (B, K), bool.
        reach: Offsets that are kept apart, at most so far each way; None to keep none apart.

    Attributes:
        reach: Offsets −reach … reach are at 0 … 2·reach of the last axis, everything further away follows at the end.
        sums: Σ α, (B, heads, offsets).
        squares: Σ α², likewise.
        cells: Pairs of a row and a key that the mask allows, (B, offsets).
    """

    needs_masked = True  # which keys are allowed

    def __init__(self, heads: Sequence[int], counted: Tensor, words: Tensor, *, reach: int | None = FURTHEST) -> None:
        super().__init__(heads, range(counted.shape[1]))
        self._counted, self._words = counted, words
        self.reach = None if reach is None else min(reach, max(counted.shape[1], words.shape[1]) - 1)
        width = 1 if self.reach is None else 2 * self.reach + 2
        shape = (len(counted), len(self.heads), width)
        self.sums = _zeros(shape, counted.device)
        self.squares = torch.zeros_like(self.sums)
        self.cells = torch.zeros_like(self.sums[:, 0])

    def update(self, tile: Tile) -> Deferred | None:
        """Add every offset up."""
        overlap = self.overlap(tile)
        if overlap is None or tile.k0 == tile.k1:
            return None
        counted, words = self._counted[:, overlap.rows], self._words[:, tile.k0 : tile.k1]
        counts = (counted[:, :, None] & words[:, None])[:, None]  # (B, 1, r, k)
        weights = overlap.cut(tile.weights)  # (B, h, r, k)
        buffer = tile.workspace.buffer("recorder", weights.shape, weights.device)
        sums, squares = self._by_offset(torch.mul(weights, counts, out=buffer), tile)
        cells = None
        if 0 in overlap.here:  # the mask is the same for every head
            allowed = (tile.masked[:, :1] > -torch.inf) & counts
            cells = self._by_offset(allowed.float(), tile)[0][:, 0]
        return partial(self._add, sums, squares, cells, overlap)

    def _by_offset(self, values: Tensor, tile: Tile) -> tuple[Tensor, Tensor]:
        """Sum values (B, h, r, k), and their squares, by offset: (B, h, offsets) each."""
        total = values.sum((2, 3)), torch.linalg.vector_norm(values, dim=(2, 3)).square_()  # (B, h) each
        if self.reach is None:
            return total[0][..., None], total[1][..., None]
        before = min(self.reach, max(0, tile.q1 - 1 - tile.k0))
        ahead = min(self.reach, max(0, tile.k1 - 1 - tile.q0))
        band = diagonal_band(values, (tile.q0, tile.q1, tile.k0, tile.k1), before, ahead, tile.workspace)
        everything = before == tile.q1 - 1 - tile.k0 and ahead == tile.k1 - 1 - tile.q0
        found = []
        for whole, near in zip(total, (band.sum(2), torch.linalg.vector_norm(band, dim=2).square_()), strict=True):
            part = whole.new_zeros(*whole.shape, 2 * self.reach + 2)
            part[..., self.reach - before : self.reach + 1 + ahead] = near
            if not everything:
                part[..., -1] = (whole - near.sum(-1)).clamp_min_(0.0)
            found.append(part)
        return found[0], found[1]

    def _add(self, sums: Tensor, squares: Tensor, cells: Tensor | None, overlap: Overlap) -> None:
        _add(self.sums, sums, overlap)
        _add(self.squares, squares, overlap)
        if cells is not None:
            self.cells += cells


class UniformRecorder(BaseRecorder):
    """How much of each row's weight lies where attention to all visible keys alike would put it, summed over rows.

    Args:
        heads: Query heads.
        counted: Rows that count, (B, Q), bool.

    Attributes:
        shared: Σ over rows of Σ_j min(α_j, 1/n), n keys being visible, (B, heads).
        rows_seen: Rows that count and are not fully masked, likewise.
    """

    needs_masked = True  # which keys are allowed

    def __init__(self, heads: Sequence[int], counted: Tensor) -> None:
        super().__init__(heads, range(counted.shape[1]))
        self._counted = counted
        self.shared = _zeros((len(counted), len(self.heads)), counted.device)
        self.rows_seen = torch.zeros_like(self.shared)

    def update(self, tile: Tile) -> Deferred | None:
        """Add the rows up."""
        overlap = self.overlap(tile)
        if overlap is None or tile.k0 == tile.k1:
            return None
        weights = overlap.cut(tile.weights)  # (B, h, r, k)
        visible = (tile.masked[:, :1] > -torch.inf).sum(-1)  # (B, 1, r)
        counted = (self._counted[:, None, overlap.rows] & (visible > 0)).float()  # (B, 1, r)
        buffer = tile.workspace.buffer("recorder", weights.shape, weights.device)
        alike = torch.minimum(weights, (1.0 / visible.clamp_min(1))[..., None], out=buffer).sum(-1)  # (B, h, r)
        rows = counted.sum(-1).expand(-1, weights.shape[1])
        return partial(self._add, (alike * counted).sum(-1), rows, overlap)

    def _add(self, shared: Tensor, rows: Tensor, overlap: Overlap) -> None:
        _add(self.shared, shared, overlap)
        _add(self.rows_seen, rows, overlap)


def _zeros(shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Allocate sums over many tiles, in float64 where the device has it."""
    return torch.zeros(shape, dtype=torch.float64 if has_float64(device) else torch.float32, device=device)


def _add(total: Tensor, part: Tensor, overlap: Overlap) -> None:
    total[:, overlap.index] += part
