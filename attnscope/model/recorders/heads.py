"""Record one number per text and head: averages over rows, whose size does not grow with the text."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attnscope.findings.head_averages import HEAD_AVERAGES, TARGETS, HeadRows
from attnscope.model.recorders.base import KeyTokens, SumRecorder, exact_zeros
from attnscope.model.recorders.rows import TileRows, rows_of_tile
from attnscope.model.tile import Overlap, Tile, as_slice
from attnscope.model.workers import Deferred


@dataclass(frozen=True)
class AveragedRows:
    """The rows that numbers of heads count, and the keys that these numbers name."""

    hidden: Tensor  # those that do not count at all, (B, Q), bool
    left_out: Tensor  # those that do not count for averages, (B, Q), bool
    # key position for each of TARGETS, (B, Q, targets), int64; −1 where a row has none
    targets: Tensor

    @classmethod
    def of(cls, ids: Tensor, special: Tensor, shown_rows: Tensor) -> "AveragedRows":
        """Average words among the shown rows, or all shown rows without a word; ids and both others are (B, Q)."""
        hidden = ~shown_rows
        no_words = hidden | special
        left_out = torch.where(no_words.all(1, keepdim=True), hidden, no_words)
        position = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        targets = torch.stack([position, position - 1, _after_last(ids)], -1)
        return cls(hidden, left_out, targets)


def _after_last(ids: Tensor) -> Tensor:
    """Return the position after the last place of each token that is at least two before it; −1 for none."""
    # equal tokens side by side, in the order of the text
    order = torch.sort(ids, dim=1, stable=True).indices
    of_order = ids.gather(1, order)
    after = torch.full_like(order, -1)
    for step in (2, 1):  # the nearer place, unless it is the neighbour's
        places = order[:, step:]
        earlier = order[:, :-step]
        repeats = (of_order[:, step:] == of_order[:, :-step]) & (places - earlier >= 2)
        after[:, step:] = torch.where(repeats, earlier + 1, after[:, step:])
    return torch.empty_like(order).scatter_(1, order, after)


class HeadRecorder(SumRecorder):
    """The numbers of HEAD_AVERAGES, of every text and head."""

    path = "heads"
    n_strongest = 1  # of which the largest weight is taken

    def __init__(
        self, heads: Sequence[int], rows: Sequence[int], averaged: AveragedRows, sources: KeyTokens
    ) -> None:
        super().__init__(heads, rows, mean=False)
        self.sources = sources
        self.kinds: tuple[str, ...] = ("special",)
        self._averages = [
            average for average in HEAD_AVERAGES if sources.self_attention or not average.aligned
        ]
        self._averaged = averaged
        device = averaged.hidden.device
        shape = len(self._averages), len(averaged.hidden), len(self.heads)
        self._sums = exact_zeros(*shape, device=device)
        self._counts = exact_zeros(*shape, device=device)
        self._largest = torch.full(shape, -torch.inf, device=device)

    def _record(self, tile: Tile, overlap: Overlap) -> Deferred | None:
        if tile.k0 == tile.k1:
            return None
        rows = self.rows[overlap.rows]
        targets = self._averaged.targets[:, None, rows[0] : rows[-1] + 1]  # (B, 1, r, targets)
        values = overlap.select_rows(
            self._values(_TargetedRows(rows_of_tile(self, tile, overlap), targets, tile.k0))
        )
        fully_masked = overlap.fully_masked(tile)
        if fully_masked is not None:
            values = values.masked_fill(fully_masked, torch.nan)
        return partial(self._add, *self._reduced(values, rows), overlap.index)

    @property
    def targets(self) -> Tensor:
        """The keys that averages name; see AveragedRows."""
        return self._averaged.targets

    def take(self, rows: HeadRows) -> None:
        """Keep the averages of a whole layer, of whose rows `rows` gives (B, H, Q)."""
        values = self._values(rows)[:, :, as_slice(self.heads)][..., as_slice(self.rows)]
        self._sums, self._counts, self._largest = self._reduced(values, self.rows)

    def _values(self, rows: HeadRows) -> Tensor:
        return torch.stack([average.compute(rows) for average in self._averages])

    def _reduced(self, values: Tensor, rows: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Return sums, counts and largest values of rows that count, (averages, B, h) each."""
        left_out = self._averaged.left_out[:, None, as_slice(rows)]
        hidden = self._averaged.hidden[:, None, as_slice(rows)]
        averaged = values.masked_fill(left_out, torch.nan)  # (averages, B, h, r)
        largest = values.masked_fill(hidden, -torch.inf)
        largest = largest.nan_to_num(-torch.inf, torch.inf, -torch.inf).amax(-1)
        return averaged.nansum(-1), averaged.eq(averaged).sum(-1), largest

    def _add(self, sums: Tensor, counts: Tensor, largest: Tensor, index: list[int] | slice) -> None:
        self._sums[:, :, index] += sums
        self._counts[:, :, index] += counts
        self._largest[:, :, index] = self._largest[:, :, index].maximum(largest)

    def compute(self) -> Tensor:
        """Return each of AVERAGES, (B, heads, averages); NaN where no row counts."""
        means = (self._sums / self._counts).float()
        largest = self._largest.masked_fill(self._largest == -torch.inf, torch.nan)
        none = means.new_full(means.shape[1:], torch.nan)
        return torch.stack(
            [
                (largest if average.largest else means)[self._averages.index(average)]
                if average in self._averages
                else none
                for average in HEAD_AVERAGES
            ],
            -1,
        )


class _TargetedRows:
    """The rows of a tile with the weight on the keys that averages name; see HeadRows."""

    def __init__(self, rows: TileRows, targets: Tensor, k0: int) -> None:
        self._rows = rows
        self._k0 = k0
        self._there = targets >= 0
        at = targets - k0
        inside = (at >= 0) & (at < rows.weights.shape[-1])
        index = at.clamp(0, rows.weights.shape[-1] - 1).expand(-1, rows.weights.shape[1], -1, -1)
        self._weights = rows.weights.gather(-1, index) * inside  # (B, h, r, targets)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rows, name)

    def on_target(self, name: str) -> Tensor:
        index = TARGETS.index(name)
        return self._weights[..., index].masked_fill(~self._there[..., index], torch.nan)
