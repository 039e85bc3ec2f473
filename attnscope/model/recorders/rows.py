"""Record statistics of every row."""

from collections.abc import Sequence
from functools import cached_property
from math import log
from threading import Lock
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from attnscope.findings.row_statistics import (
    LAYER_STATISTICS,
    ROW_STATISTICS,
    STATISTICS,
    WITHIN,
    RowWeights,
)
from attnscope.model.inputs import AttentionInputs, AttentionSpec
from attnscope.model.matmul import matmul_transposed, sums_of_products
from attnscope.model.recorders.base import KeyTokens, diagonal_band
from attnscope.model.recorders.block import MakeArray, own_array
from attnscope.model.tile import Overlap, Recorder, Tile, as_slice

_LOWEST = -1e9  # finite where not allowed, too: the weight there is 0


class RowRecorder(Recorder):
    """Statistics of every row, as findings.row_statistics declares them.

    Attributes:
        recorded: Statistic to (B, heads, rows), in the order of `names`.
        of_layers: What only some layers have (row_statistics.LAYER_STATISTICS), by name, in the same form.
        fully_masked: Fully masked rows, (B, heads, rows), bool. No weight says so: a sink may take all that a row has.
    """

    def __init__(
        self,
        heads: Sequence[int],
        rows: Sequence[int],
        sources: KeyTokens,
        names: Sequence[str] = STATISTICS,
        make_array: MakeArray = own_array,
    ) -> None:
        super().__init__(heads, rows)
        self.names = tuple(names)
        self.sources = sources
        wanted = [statistic for statistic in ROW_STATISTICS if statistic.name in self.names]
        defined = [
            statistic for statistic in wanted if sources.self_attention or not statistic.aligned
        ]
        self._statistics = sorted(defined, key=lambda statistic: self.names.index(statistic.name))
        self._defined = as_slice(
            [self.names.index(statistic.name) for statistic in self._statistics] or range(0)
        )
        self.kinds = tuple(
            statistic.name for statistic in defined if statistic.key_token is not None
        )
        self._shape = len(sources.special), len(self.heads), len(self.rows)
        self._device = sources.special.device
        self._make_array = make_array
        of_all = make_array(
            "rows", (*self._shape[:2], len(self.names), self._shape[2]), self._device, torch.nan
        )
        self._all = of_all.permute(2, 0, 1, 3)  # (statistics, B, heads, rows)
        self.recorded = dict(zip(self.names, self._all, strict=True))
        self.fully_masked = make_array("fully_masked", self._shape, self._device, dtype=torch.bool)
        self.of_layers: dict[str, Tensor] = {}
        self._making = Lock()
        self.specs: dict[int, AttentionSpec] = {}
        self.widths: dict[int, int] = {}  # numbers in a query and a key of each layer

    def _of_layer(self, name: str) -> Tensor:
        with self._making:
            if name not in self.of_layers:
                fill = LAYER_STATISTICS[name].absent
                self.of_layers[name] = self._make_array(
                    f"rows.{name}", self._shape, self._device, fill
                )
        return self.of_layers[name]

    def take(
        self, rows: RowWeights, sink: Tensor | None, fully_masked: Tensor, inputs: AttentionInputs
    ) -> None:
        """Keep the statistics of a whole layer: `rows` and `sink` give (B, H, Q), `fully_masked` is (B, Q)."""
        self.specs[inputs.layer] = inputs.spec
        self.widths[inputs.layer] = inputs.q.shape[-1]
        self.fully_masked[:] = fully_masked[:, None, as_slice(self.rows)]
        if sink is not None:
            self._of_layer("sink")[:] = self.select(sink)
        if self._statistics:
            computed = [self.select(statistic.compute(rows)) for statistic in self._statistics]
            self._put(torch.stack(computed), slice(None), slice(None))

    def _record(self, tile: Tile, overlap: Overlap) -> None:
        self.specs[tile.inputs.layer] = tile.inputs.spec
        self.widths[tile.inputs.layer] = tile.inputs.q.shape[-1]
        fully_masked = overlap.fully_masked(tile)  # (B, h, r)
        if fully_masked is not None:
            self.fully_masked[:, overlap.index, overlap.rows] = fully_masked
        for name, numbers in (
            ("sink", tile.sink),
            ("unselected", tile.unselected),
            ("gate", tile.gate),
        ):
            if numbers is not None:
                of_rows = overlap.select_rows(overlap.row_span(numbers))
                if fully_masked is not None:
                    of_rows = of_rows.masked_fill(fully_masked, torch.nan)
                self._of_layer(name)[:, overlap.index, overlap.rows] = of_rows
        if tile.k0 == tile.k1 or not self._statistics:
            return
        rows = rows_of_tile(self, tile, overlap)
        computed = torch.stack([statistic.compute(rows) for statistic in self._statistics])
        values = overlap.select_rows(computed)  # (statistics, B, h, r)
        if fully_masked is not None:
            values = values.masked_fill(fully_masked, torch.nan)
        self._put(values, overlap.index, overlap.rows)

    def _put(self, values: Tensor, heads: list[int] | slice, rows: list[int] | slice) -> None:
        """Keep the statistics of some heads and rows, (statistics, B, h, r)."""
        if isinstance(self._defined, slice):
            self._all[self._defined, :, heads, rows] = values
        else:
            for index, of_statistic in zip(self._defined, values, strict=True):
                self._all[index, :, heads, rows] = of_statistic


def finite_scores(scores: Tensor) -> Tensor:
    """Return scores with NaN in place of −inf."""
    return scores.nan_to_num(torch.nan, torch.inf, torch.nan)


class ReadsRows(Protocol):
    """A recorder of what rows of a tile hold."""

    rows: Sequence[int]
    sources: KeyTokens
    # kinds of keys, of row_statistics.KEY_TOKENS, on which weights are summed
    kinds: tuple[str, ...]


def rows_of_tile(recorder: ReadsRows, tile: Tile, overlap: Overlap) -> "TileRows":
    """Return the rows that a recorder and a tile share, and those between them."""
    return (TileRows if tile.summary is None else _SummedRows)(recorder, tile, overlap)


class TileRows:
    """The rows of a tile, (B, h, r, k), for the statistics of row_statistics; see RowWeights there."""

    def __init__(self, recorder: ReadsRows, tile: Tile, overlap: Overlap) -> None:
        rows = recorder.rows[overlap.rows]
        # their first row, end of the rows, first key and end of the keys
        self._box = self._first, self._last, self._k0, self._k1 = (
            rows[0],
            rows[-1] + 1,
            tile.k0,
            tile.k1,
        )
        self.weights = overlap.row_span(tile.weights)
        self._masked = overlap.row_span(tile.masked)
        self._sink = None if tile.sink is None else overlap.row_span(tile.sink)  # (B, h, r)
        self._overlap = overlap
        self._tile = tile
        self._aligned = recorder.sources.self_attention
        # which keys are content, and of which other kinds, (B, kinds, K)
        self._kinds = ["content", *recorder.kinds]
        self._members = recorder.sources.members(recorder.kinds)

    def max_score(self) -> Tensor:
        """Return the largest masked score of every row; NaN where no key is allowed, or no score is known."""
        largest = finite_scores(self._peaks[0][..., 0])
        if self._tile.scored:
            return largest
        return torch.full_like(largest, torch.nan)

    def largest(self) -> Tensor:
        """Return the largest weight of every row."""
        return self._peaks[1][..., 0]

    @cached_property
    def _peaks(self) -> tuple[Tensor, Tensor]:
        """The masked score and the weight of the key with the largest score, (B, h, r, 1) each."""
        peaks = self._overlap.row_span(self._tile.peaks)[..., None]
        return self._masked.gather(-1, peaks), self.weights.gather(-1, peaks)

    def entropy(self) -> Tensor:
        """Return the entropy of every row, in bits.

        −Σ w log w with log w = (s − s_max) + log w_max: two numbers a row instead of a logarithm a cell. Σ w is 1, less
        what a sink takes.
        """
        top_score, top_weight = self._peaks
        buffer = self._tile.workspace.buffer("recorder", self._masked.shape, self._masked.device)
        lower = torch.sub(self._masked, top_score, out=buffer)
        begin, end = (key - self._k0 for key in self._tile.all_visible_range)
        for side in (slice(0, begin), slice(end, lower.shape[-1])):
            if side.start < side.stop:
                lower[..., side].clamp_(min=_LOWEST)
        # 0 · log 0 is 0 where the sink leaves nothing that float32 can hold
        if self._sink is None:
            log_top = top_weight.log()
        else:
            log_top = torch.special.xlogy(1 - self._sink[..., None], top_weight)
        bits = log_top[..., 0].add_(sums_of_products(self.weights, lower)).div_(-log(2))
        return bits.clamp_min_(0.0).add_(0.0)  # −0 + 0 is 0

    def on_first(self) -> Tensor:
        if self._k0 == 0:
            return self.weights[..., 0]
        return torch.zeros_like(self.weights[..., 0])

    def on_keys(self, name: str) -> Tensor:
        return self._sums[name]

    def on_self(self) -> Tensor:
        band, before = self._near
        return band[..., before]

    def on_others(self) -> Tensor:
        if not self._aligned:
            return self._sums["content"]
        # (B, 1, r), or fewer behind the last key
        own_content = self._members[:, :1, self._first : self._last]
        missing = self._last - self._first - own_content.shape[-1]
        own_content = F.pad(own_content, (0, missing)) if missing else own_content
        return (self._sums["content"] - self.on_self() * own_content).clamp_min_(0.0)

    def within(self, n: int) -> Tensor:
        if n >= self._furthest:
            return self._total
        band, before = self._near
        return band[..., max(0, before - n) : before + 1 + n].sum(-1)

    def distance(self) -> Tensor:
        """Return mean |query − key|: that of keys beside the run of rows follows from sums over them."""
        rows = torch.arange(
            self._first, self._last, dtype=torch.float32, device=self.weights.device
        )
        k0 = min(max(self._first, self._k0), self._k1)
        k1 = max(min(self._last, self._k1), self._k0)
        outside = self._sums["outside"] - self._sums["left"] * (rows - self._first)
        outside = outside + self._sums["right"] * (self._last - 1 - rows)
        if k0 >= k1:
            return outside
        # (r, k)
        apart = (
            rows[:, None] - torch.arange(k0, k1, dtype=torch.float32, device=rows.device)
        ).abs_()
        return outside + (self.weights[..., k0 - self._k0 : k1 - self._k0] * apart).sum(-1)

    @cached_property
    def _total(self) -> Tensor:
        return self.weights.sum(-1)

    @cached_property
    def _furthest(self) -> int:
        """Largest distance between a row and a key."""
        return max(self._last - 1 - self._k0, self._k1 - 1 - self._first)

    @cached_property
    def _near(self) -> tuple[Tensor, int]:
        """The weights near the diagonal (see diagonal_band), and the column of the rows' own positions."""
        # all weight is nearer than the others
        reach = max((n for n in WITHIN if n < self._furthest), default=0)
        before = min(reach, max(0, self._last - 1 - self._k0))
        ahead = min(reach, max(0, self._k1 - 1 - self._first))
        return diagonal_band(self.weights, self._box, before, ahead, self._tile.workspace), before

    @cached_property
    def _sums(self) -> dict[str, Tensor]:
        """Weight on keys of every kind, and the sums for `distance`, (B, h, r) each, in one product."""
        # (B, columns, k)
        names = list(self._kinds)
        columns = self._members[..., self._k0 : self._k1]
        if self._aligned:
            names += ["outside", "left", "right"]
            outside = _outside_rows(self._box, self.weights.device).expand(len(columns), -1, -1)
            columns = torch.cat((columns, outside), 1)
        sums = matmul_transposed(self.weights.flatten(1, 2), columns.contiguous())
        sums = sums.view(*self.weights.shape[:3], -1).movedim(-1, 0)  # (columns, B, h, r)
        return dict(zip(names, sums, strict=True))


class _SummedRows(TileRows):
    """The same for a tile with a summary: compiled loops sum its weights up."""

    def __init__(self, recorder: ReadsRows, tile: Tile, overlap: Overlap) -> None:
        super().__init__(recorder, tile, overlap)
        assert tile.summary is not None
        self._summary = tile.summary

    def entropy(self) -> Tensor:
        return self._overlap.row_span(self._summary.entropy)

    def max_score(self) -> Tensor:
        return finite_scores(self._overlap.row_span(self._summary.largest))

    def largest(self) -> Tensor:
        return self._overlap.row_span(self._summary.strongest[..., 0])

    def on_self(self) -> Tensor:
        return self.within(0)

    def within(self, n: int) -> Tensor:
        return self._sums[f"within {n}"]

    def distance(self) -> Tensor:
        return self._sums["distance"]

    @cached_property
    def _sums(self) -> dict[str, Tensor]:
        kinds = self._members[..., self._k0 : self._k1].bool()
        reaches = (0, *WITHIN)
        names = ["distance", *(f"within {n}" for n in reaches), *self._kinds]
        sums = self._summary.sums(self.weights, kinds, reaches, self._first - self._k0)
        return dict(zip(names, sums, strict=True))


def _outside_rows(box: tuple[int, int, int, int], device: torch.device) -> Tensor:
    """Return the distance of keys from the run of rows, −1 for a key left of it, and 1 for one right of it: (3, k)."""
    first_row, end_row, k0, k1 = box
    places = torch.arange(k0, k1, dtype=torch.float32, device=device)
    apart = places - places.clamp(first_row, end_row - 1)
    return torch.stack((apart.abs(), apart.clamp(-1, 0), apart.clamp(0, 1)))
