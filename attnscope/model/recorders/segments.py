"""Record how the rows of one segment of a text align with another segment, as sums over rows."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from attnscope.model.precision import has_float64
from attnscope.model.recorders.base import BaseRecorder, Overlap
from attnscope.model.tile import Tile, as_slice
from attnscope.model.workers import Deferred


class AlignmentRecorder(BaseRecorder):
    """Weights of the rows of a segment on the keys of another segment.

    Args:
        rows: Rows of the segment that reads, (B, Q), bool.
        keys: Keys of the segment that is read, (B, K), bool.

    Attributes:
        sums: (B, heads, 8). With s the weight of a row on the segment, c the mean place of that weight, i the row's own
            place and e the entropy of the weight within the segment in nats: Σ 1, Σ s, Σ s e, Σ s i, Σ s c, Σ s i²,
            Σ s c², Σ s i c. A fully masked row does not count.
    """

    def __init__(self, heads: Sequence[int], rows: Tensor, keys: Tensor) -> None:
        super().__init__(heads, range(rows.shape[1]))
        self._rows, self._keys = rows, keys
        exact = torch.float64 if has_float64(rows.device) else torch.float32
        self.sums = torch.zeros(len(rows), len(self.heads), 8, dtype=exact, device=rows.device)

    def _record(self, tile: Tile, overlap: Overlap) -> Deferred | None:
        if tile.k0 == tile.k1:
            return None
        exact, rows = self.sums.dtype, self.rows[overlap.rows]
        counted = self._rows[:, None, as_slice(rows)].expand(-1, len(overlap.heads), -1)  # (B, h, r)
        fully_masked = overlap.fully_masked(tile)
        counted = (counted if fully_masked is None else counted & ~fully_masked).to(exact)
        weights = overlap.cut(tile.weights).to(exact) * self._keys[:, None, None, tile.k0 : tile.k1]  # (B, h, r, k)
        place = torch.arange(tile.k0, tile.k1, device=weights.device).to(exact)
        row = torch.arange(rows[0], rows[-1] + 1, device=weights.device).to(exact)
        s, moment = weights.sum(-1), weights @ place
        safe = s.clamp_min(1e-30)
        entropy = torch.special.entr(weights).sum(-1) + s * safe.log()  # s e, in nats
        parts = [torch.ones_like(s), s, entropy, s * row, moment, s * row**2, moment**2 / safe, moment * row]
        part = (torch.stack(parts, -1) * counted[..., None]).sum(2)  # (B, h, 8)
        return partial(_add, self.sums, part, overlap)


def _add(total: Tensor, part: Tensor, overlap: Overlap) -> None:
    total[:, overlap.index] += part
