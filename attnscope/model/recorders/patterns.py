"""Record patterns of a head's weights over all rows: on target keys, by offset, and how evenly.

Every recorder here keeps sums over the rows that count, so that its size does not grow with the text.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from attnscope.model.recorders.base import add_to, diagonal_band, exact_zeros
from attnscope.model.tile import Overlap, Recorder, Tile, as_slice
from attnscope.model.workers import Deferred

FURTHEST = 256  # largest offset in tokens; larger ones are counted together, on each side
# smallest weight that is compared with what predicts it; a row has 16 of them at most
LEAST = 1 / 16


class TargetRecorder(Recorder):
    """The weight of rows on keys that are named row by row, summed over rows: `sums`, (B, heads, N).

    `targets` are key positions for every row, (B, rows, N), int64, −1 where a row has none. With `strongest`, the rows
    whose largest weight is on the target, and on no other key, are counted instead.
    """

    def __init__(
        self, heads: Sequence[int], rows: Sequence[int], targets: Tensor, *, strongest: bool = False
    ) -> None:
        super().__init__(heads, rows)
        self._targets = targets
        self._strongest = strongest
        self.sums = exact_zeros(
            len(targets), len(self.heads), targets.shape[2], device=targets.device
        )

    def _record(self, tile: Tile, overlap: Overlap) -> Deferred | None:
        if tile.k0 == tile.k1:
            return None
        weights = overlap.cut(tile.weights)  # (B, h, r, k)
        at = self._targets[:, overlap.rows] - tile.k0  # (B, r, N)
        inside = (at >= 0) & (at < weights.shape[-1])
        index = at.clamp(0, weights.shape[-1] - 1)[:, None].expand(-1, weights.shape[1], -1, -1)
        on_targets = weights.gather(-1, index)  # (B, h, r, N)
        if self._strongest:
            largest = weights.amax(-1, keepdim=True)  # (B, h, r, 1)
            # a uniform row does not attend to any target
            alone = (weights == largest).sum(-1, keepdim=True) == 1
            on_targets = ((on_targets == largest) & alone).float()
        part = (on_targets * inside[:, None]).sum(2)
        return partial(add_to, self.sums, part, (slice(None), overlap.index))


class WordRecorder(Recorder):
    """Weights on words: sums by offset (key minus query), and the residuals that neither offset nor key predicts.

    The prediction is the larger of two means, that of the pair's offset and that of its key. Each is taken over all
    other pairs of a row that counts, (B, Q), and a word, (B, K), and one pair of weight 0; a token and itself are no
    pair of the key. `reach` is None if keys are another text than queries, so that nothing is predicted by an offset.
    The weights of rows among `counted` that are `measured` are compared with predictions, by default of all.

    Attributes:
        reach: Offsets −reach … reach are at 0 … 2·reach of the last axis, everything further away follows at the end.
        sums: Σ α, (B, heads, offsets).
        squares: Σ α², (B, heads).
        cells: Pairs of a row and a key that the mask allows, (B, offsets).
        excess: Σ max(0, α − prediction) over weights on other words that are at least LEAST, (B, heads); known once all
            rows have been seen.
    """

    needs_masked = True  # which keys are allowed

    def __init__(
        self,
        heads: Sequence[int],
        counted: Tensor,
        words: Tensor,
        *,
        reach: int | None = FURTHEST,
        measured: Tensor | None = None,
    ) -> None:
        super().__init__(heads, range(counted.shape[1]))
        self._counted = counted
        self._words = words
        self._measured = counted if measured is None else measured
        if reach is None:
            self.reach = None
        else:
            self.reach = min(reach, max(counted.shape[1], words.shape[1]) - 1)
        width = 1 if self.reach is None else 2 * self.reach + 2
        texts, keys = words.shape
        self.sums = exact_zeros(texts, len(self.heads), width, device=counted.device)
        self.squares = torch.zeros_like(self.sums[..., 0])
        self.excess = torch.zeros_like(self.sums[..., 0])
        self.cells = torch.zeros_like(self.sums[:, 0])
        self._key_sums = exact_zeros(texts, len(self.heads), keys, device=counted.device)
        self._key_cells = torch.zeros_like(self._key_sums[:, 0])
        # Weights of at least LEAST, and their places in (B, heads, Q, K).
        self._kept: list[tuple[Tensor, Tensor]] = []
        self._unseen = len(self.heads) * len(self.rows)

    def _record(self, tile: Tile, overlap: Overlap) -> Deferred | None:
        if tile.k0 == tile.k1:
            return partial(self._add, None, None, None, slice(0), overlap)
        counted = self._counted[:, overlap.rows]
        words = self._words[:, tile.k0 : tile.k1]
        counts = (counted[:, :, None] & words[:, None])[:, None]  # (B, 1, r, k)
        weights = overlap.cut(tile.weights)  # (B, h, r, k)
        buffer = tile.workspace.buffer("recorder", weights.shape, weights.device)
        sums = self._sum(torch.mul(weights, counts, out=buffer), tile)
        largest = self._largest(buffer, overlap, tile)
        cells = None
        if 0 in overlap.here:  # the mask is the same for every head
            allowed = (tile.masked[:, :1] > -torch.inf) & counts
            cells = self._sum(allowed.float(), tile)
        return partial(self._add, sums, cells, largest, slice(tile.k0, tile.k1), overlap)

    def _sum(self, values: Tensor, tile: Tile) -> tuple[Tensor, Tensor, Tensor]:
        """Sum (B, h, r, k) by offset, by key, and squares, (B, h, …) each; tokens on themselves count 0."""
        squares = torch.linalg.vector_norm(values, dim=(2, 3)).square_()
        if self.reach is None:
            by_key = values.sum(2)
            return by_key.sum(-1, keepdim=True), by_key, squares
        before = min(self.reach, max(0, tile.q1 - 1 - tile.k0))
        ahead = min(self.reach, max(0, tile.k1 - 1 - tile.q0))
        band = diagonal_band(
            values, (tile.q0, tile.q1, tile.k0, tile.k1), before, ahead, tile.workspace
        )
        near = band.sum(2)
        on_self = values.diagonal(tile.q0 - tile.k0, 2, 3)
        of_self = on_self.sum(-1)
        on_self.zero_()
        by_key = values.sum(2)
        by_offset = near.new_zeros(*near.shape[:2], 2 * self.reach + 2)
        by_offset[..., self.reach - before : self.reach + 1 + ahead] = near
        if before < tile.q1 - 1 - tile.k0 or ahead < tile.k1 - 1 - tile.q0:
            by_offset[..., -1] = (by_key.sum(-1) + of_self - near.sum(-1)).clamp_min_(0.0)
        return by_offset, by_key, squares

    def _largest(self, values: Tensor, overlap: Overlap, tile: Tile) -> tuple[Tensor, Tensor]:
        """Return weights of at least LEAST, and their places in (B, heads, Q, K), in order."""
        large = values >= LEAST
        if self._measured is not self._counted:
            large &= self._measured[:, None, overlap.rows, None]
        index = large.flatten().nonzero()[:, 0]
        row = index // values.shape[3]
        key = index % values.shape[3] + tile.k0
        head = row // values.shape[2]
        row = row % values.shape[2] + overlap.rows.start
        text = head // values.shape[1]
        head = head % values.shape[1]
        head = head + overlap.here[0]  # the heads of a tile are neighbours among sorted heads
        cell_index = ((text * len(self.heads) + head) * len(self.rows) + row) * self._words.shape[
            1
        ] + key
        return values.flatten()[index], cell_index

    def _add(
        self,
        sums: tuple[Tensor, Tensor, Tensor] | None,
        cells: tuple[Tensor, Tensor, Tensor] | None,
        largest: tuple[Tensor, Tensor] | None,
        keys: slice,
        overlap: Overlap,
    ) -> None:
        if sums is not None and largest is not None:
            by_offset, by_key, squares = sums
            self.sums[:, overlap.index] += by_offset
            self._key_sums[:, overlap.index, keys] += by_key
            self.squares[:, overlap.index] += squares
            self._kept.append(largest)
        if cells is not None:
            self.cells += cells[0][:, 0]
            self._key_cells[:, keys] += cells[1][:, 0]
        self._unseen -= len(overlap.here) * (overlap.rows.stop - overlap.rows.start)
        if not self._unseen:
            self._compare()

    def _compare(self) -> None:
        """Compare the weights that were kept with their predictions, and forget them."""
        if not self._kept:
            return
        kept_weights, cell_index = (torch.cat(parts) for parts in zip(*self._kept, strict=True))
        self._kept.clear()
        weights = kept_weights.to(self.sums.dtype)
        n_keys = self._words.shape[1]
        n_rows = len(self.rows)
        n_heads = len(self.heads)
        # unit: text and head
        key = cell_index % n_keys
        unit = cell_index // (n_keys * n_rows)
        text = unit // n_heads
        above = above_mean(
            weights, self._key_sums.flatten(0, 1)[unit, key], self._key_cells[text, key]
        )
        if self.reach is not None:
            offset = key - cell_index // n_keys % n_rows
            at = torch.where(offset.abs() > self.reach, self.sums.shape[2] - 1, offset + self.reach)
            of_offset = above_mean(weights, self.sums.flatten(0, 1)[unit, at], self.cells[text, at])
            above = torch.minimum(above, of_offset)
        self.excess.view(-1).index_add_(0, unit, above.clamp_min_(0.0))


def above_mean(weights: Tensor, total: Tensor, count: Tensor) -> Tensor:
    """Return α minus the mean of its group's other weights, and that for a weight of 0, by the group's sum and size."""
    return weights - (total - weights) / count


class UniformRecorder(Recorder):
    """Overlap of each row's weights with uniform attention to all visible keys, summed over rows that count, (B, Q).

    Attributes:
        shared: Σ over rows of Σ_j min(α_j, 1/n), n keys being visible, (B, heads).
        rows_seen: Rows that count and are not fully masked, in the same form.
    """

    needs_masked = True  # which keys are allowed

    def __init__(self, heads: Sequence[int], counted: Tensor) -> None:
        super().__init__(heads, range(counted.shape[1]))
        self._counted = counted
        self.shared = exact_zeros(len(counted), len(self.heads), device=counted.device)
        self.rows_seen = torch.zeros_like(self.shared)

    def _record(self, tile: Tile, overlap: Overlap) -> Deferred | None:
        if tile.k0 == tile.k1:
            return None
        weights = overlap.cut(tile.weights)  # (B, h, r, k)
        visible = (tile.masked[:, :1] > -torch.inf).sum(-1)  # (B, 1, r)
        counted = (self._counted[:, None, overlap.rows] & (visible > 0)).float()  # (B, 1, r)
        buffer = tile.workspace.buffer("recorder", weights.shape, weights.device)
        # (B, h, r)
        alike = torch.minimum(weights, (1.0 / visible.clamp_min(1))[..., None], out=buffer).sum(-1)
        rows = counted.sum(-1).expand(-1, weights.shape[1])
        shared = (alike * counted).sum(-1)

        def add() -> None:
            self.shared[:, overlap.index] += shared
            self.rows_seen[:, overlap.index] += rows

        return add


class AlignmentRecorder(Recorder):
    """Weights of the rows of a segment, (B, Q), bool, on the keys of another segment, (B, K), bool.

    Attributes:
        sums: (B, heads, 8). With s the weight of a row on the segment, c the mean place of that weight, i the row's own
            place and e the entropy of the weight within the segment in nats: Σ 1, Σ s, Σ s e, Σ s i, Σ s c, Σ s i²,
            Σ s c², Σ s i c. A fully masked row does not count.
    """

    def __init__(self, heads: Sequence[int], rows: Tensor, keys: Tensor) -> None:
        super().__init__(heads, range(rows.shape[1]))
        self._rows = rows
        self._keys = keys
        self.sums = exact_zeros(len(rows), len(self.heads), 8, device=rows.device)

    def _record(self, tile: Tile, overlap: Overlap) -> Deferred | None:
        if tile.k0 == tile.k1:
            return None
        exact = self.sums.dtype
        rows = self.rows[overlap.rows]
        # (B, h, r)
        counted = self._rows[:, None, as_slice(rows)].expand(-1, len(overlap.heads), -1)
        fully_masked = overlap.fully_masked(tile)
        counted = (counted if fully_masked is None else counted & ~fully_masked).to(exact)
        # (B, h, r, k)
        weights = overlap.cut(tile.weights).to(exact) * self._keys[:, None, None, tile.k0 : tile.k1]
        positions = torch.arange(tile.k0, tile.k1, device=weights.device).to(exact)
        row = torch.arange(rows[0], rows[-1] + 1, device=weights.device).to(exact)
        s = weights.sum(-1)
        moment = weights @ positions
        safe = s.clamp_min(1e-30)
        entropy = torch.special.entr(weights).sum(-1) + s * safe.log()  # s e, in nats
        parts = [
            torch.ones_like(s),
            s,
            entropy,
            s * row,
            moment,
            s * row**2,
            moment**2 / safe,
            moment * row,
        ]
        part = (torch.stack(parts, -1) * counted[..., None]).sum(2)  # (B, h, 8)
        return partial(add_to, self.sums, part, (slice(None), overlap.index))
