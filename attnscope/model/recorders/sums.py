"""Record column sums, pooled maps, means of outputs, and values, whose size does not grow with the rows.

A fully masked row has no weights, so it is left out of sums and means.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from attnscope.model.inputs import AttentionInputs
from attnscope.model.recorders.base import KeyTokens, SumRecorder, add_to
from attnscope.model.recorders.heads import AveragedRows, HeadRecorder
from attnscope.model.recorders.spans import SpanRecorder, SpanTokens
from attnscope.model.tile import Overlap, Recorder, Tile, as_slice
from attnscope.model.workers import Deferred
from attnscope.request.record_spec import RecordSpec


class ColumnRecorder(SumRecorder):
    """The weight that every source gets, summed over shown queries, (B, Q), bool: the mass of a column.

    `by` is `weight`, or a contribution: `value` or `projected`.
    """

    path = "columns"

    def __init__(
        self,
        heads: Sequence[int],
        rows: Sequence[int],
        shown_rows: Tensor,
        sources: KeyTokens,
        *,
        mean: bool = False,
        by: str = "weight",
    ) -> None:
        super().__init__(heads, rows, mean=mean)
        self._shown = shown_rows
        self._layers = set[int]()
        self._by = by
        self._sum = torch.zeros(
            len(shown_rows), self.n_kept, sources.real.shape[1], device=shown_rows.device
        )

    def _record(self, tile: Tile, overlap: Overlap) -> Deferred | None:
        self._layers.add(tile.inputs.layer)
        # (B, 1, 1, r)
        shown_rows = self._shown[:, as_slice(self.rows[overlap.rows])].float()[:, None, None]
        given = overlap.cut(
            tile.weights
            if self._by == "weight" or tile.inputs.gate is None
            else tile.stage(self._by)
        )
        part = (shown_rows @ given).squeeze(2)  # (B, h, k)
        if self._by != "weight" and tile.inputs.gate is None:
            part = part * tile.norms(self._by)[:, overlap.heads, 0]
        index = slice(None), self.place(overlap), slice(tile.k0, tile.k1)
        return partial(add_to, self._sum, self.over_heads(part), index)

    @property
    def counted(self) -> Tensor:
        """The shown queries among this recorder's rows, (B, Q), bool."""
        if len(self.rows) == self._shown.shape[1]:
            return self._shown
        counted = torch.zeros_like(self._shown)
        rows = as_slice(self.rows)
        counted[:, rows] = self._shown[:, rows]
        return counted

    def take(self, received: Tensor, inputs: AttentionInputs) -> None:
        """Add what the keys of a whole layer receive from the queries that are counted, (B, H, K)."""
        self._layers.add(inputs.layer)
        if self._by != "weight":
            received = received * inputs.norms(self._by)
        self._sum += self.over_heads(received[:, as_slice(self.heads)])

    def compute(self) -> Tensor:
        """Return (B, heads, K)."""
        if self.mean:
            return self._sum / (len(self.heads) * max(1, len(self._layers)))
        return self._sum


class ReceivedRecorder(SumRecorder):
    """Weight that sources receive from other tokens among the shown queries, (B, Q); see UnitArrays.received."""

    path = "received"
    needs_masked = True

    def __init__(
        self,
        heads: Sequence[int],
        rows: Sequence[int],
        shown_rows: Tensor,
        sources: KeyTokens,
        *,
        mean: bool,
    ) -> None:
        super().__init__(heads, rows, mean=mean)
        self._shown = shown_rows
        self._same = sources.self_attention
        # of weights, and of even shares
        self._sums = torch.zeros(
            2, len(shown_rows), self.n_kept, sources.real.shape[1], device=shown_rows.device
        )

    def _record(self, tile: Tile, overlap: Overlap) -> Deferred | None:
        rows = as_slice(self.rows[overlap.rows])
        counted = self._shown[:, rows].float()[:, None, :, None]  # (B, 1, r, 1)
        allowed = overlap.cut(tile.stage("allowed"))  # (B, h, r, k)
        even = allowed / allowed.sum(-1, keepdim=True).clamp_min(1)
        if self._same:
            queries = torch.tensor(list(self.rows[overlap.rows]), device=allowed.device)[:, None]
            counted = counted * (queries != torch.arange(tile.k0, tile.k1, device=allowed.device))
        # (2, B, h, k)
        part = torch.stack(
            [(matrix * counted).sum(2) for matrix in (overlap.cut(tile.weights), even)]
        )
        index = slice(None), slice(None), self.place(overlap), slice(tile.k0, tile.k1)
        return partial(add_to, self._sums, self.over_heads(part, axis=2), index)

    def compute(self) -> Tensor:
        """Return (B, heads, K); NaN where no shown query may attend to a source."""
        received, even = self._sums
        return torch.where(even > 0, received / even, torch.nan)


class PooledRecorder(SumRecorder):
    """A map of fixed size: weights summed over runs of keys, and averaged over runs of queries.

    A row of the map sums to 1, as a row of weights does. Token i of n is in run i·size // n; a text with fewer tokens
    than `size` has a run for every token. The queries of each text that count are `shown`, (B, Q), bool; `real` are
    those that are not padding, None if these are the tokens of the key side.
    """

    path = "pooled.weights"

    def __init__(
        self,
        heads: Sequence[int],
        size: int,
        shown_rows: Tensor,
        sources: KeyTokens,
        *,
        real: Tensor | None = None,
        mean: bool = False,
    ) -> None:
        super().__init__(heads, range(shown_rows.shape[1]), mean=mean)
        # Runs of queries refer to the whole text, whatever rows are shown.
        lengths = (sources.real if real is None else real).sum(1)
        # (B, n, Q)
        self._queries = (
            _run_membership(lengths, shown_rows.shape[1], size) * shown_rows.float()[:, None]
        )
        # (B, K, n)
        self._keys = _run_membership(sources.real.sum(1), sources.real.shape[1], size).mT
        shape = (len(shown_rows), self.n_kept, self._queries.shape[1], self._keys.shape[2])
        self._sum = torch.zeros(shape, device=shown_rows.device)
        self._count = torch.zeros(*shape[:3], 1, device=shown_rows.device)
        self._averaged = False

    def _record(self, tile: Tile, overlap: Overlap) -> Deferred | None:
        weights = overlap.cut(tile.weights)  # (B, h, r, k)
        queries = self._queries[:, None, :, as_slice(self.rows[overlap.rows])]  # (B, 1, n, r)
        # (B, h, n, n)
        part = self.over_heads(queries @ weights @ self._keys[:, None, tile.k0 : tile.k1])
        # The mask determines whether a row counts, not its weights: a sink may take all of them.
        fully_masked = overlap.fully_masked(tile)  # (B, h, r)
        # (B, 1 or h, r)
        if fully_masked is None:
            live = torch.ones_like(queries[:, :, 0])
        else:
            live = (~fully_masked).float()
        # (B, h, n, 1)
        count = self.over_heads((queries @ live[..., None]).expand(-1, weights.shape[1], -1, -1))
        index = slice(None), self.place(overlap)

        def add() -> None:
            self._sum[index] += part
            self._count[index] += count

        return add

    def compute(self) -> Tensor:
        """Return (B, heads, n, n); NaN where a run has no query that may see anything."""
        if not self._averaged:
            self._averaged = True
            # what tiles of a model are summed in may be changed only in there
            with torch.inference_mode():
                # in place, since every text and head requests it and keeps a view
                self._sum /= self._count
        return self._sum


def _run_membership(lengths: Tensor, width: int, size: int) -> Tensor:
    """Return 1 where a token is in a run, (B, size, width), float32; 0 for padding."""
    n = torch.clamp(lengths, max=size)[:, None]  # (B, 1)
    at = torch.arange(width, device=lengths.device)[None]  # (1, width)
    run = at * n // lengths[:, None].clamp_min(1)  # (B, width)
    inside = (at < lengths[:, None])[:, None]  # (B, 1, width)
    return (
        (run[:, None] == torch.arange(min(size, width), device=lengths.device)[:, None]) & inside
    ).float()


class MeanOutputRecorder(Recorder):
    """The output of heads behind their gate, averaged over the queries of all texts that are `real`, (B, Q)."""

    def __init__(self, heads: Sequence[int], width: int, real: Tensor) -> None:
        super().__init__(heads, range(real.shape[1]))
        self._real = real
        self._sum = torch.zeros(len(self.heads), width, device=real.device)

    def _record(self, tile: Tile, overlap: Overlap) -> Deferred | None:
        # (B, 1, r, 1)
        real = self._real[:, as_slice(self.rows[overlap.rows])].float()[:, None, :, None]
        part = (overlap.cut(tile.gated) * real).sum((0, 2))  # (h, Ev)
        return partial(add_to, self._sum, part, (overlap.index,))

    def compute(self) -> Tensor:
        """Return the mean, (heads, Ev)."""
        return self._sum / self._real.sum()


class ValueRecorder(Recorder):
    """The values of heads, for every key of the first text; of any row, since a recorder sees the tiles of its rows."""

    def __init__(self, heads: Sequence[int], rows: Sequence[int]) -> None:
        super().__init__(heads, rows)
        self.recorded: Tensor | None = None

    def update(self, tile: Tile) -> None:
        inputs = tile.inputs
        if self.recorded is None:
            groups = inputs.group(torch.tensor(self.heads))
            self.recorded = inputs.v[0, groups].float()

    def compute(self) -> Tensor:
        """Return the values, (heads, K, Ev)."""
        assert self.recorded is not None
        return self.recorded


@dataclass(frozen=True)
class RecordedTokens:
    """Which tokens of a batch are recorded."""

    sources: KeyTokens
    eligible: Tensor  # keys that take part in the ranking of contributors, (B, K), bool
    shown: Tensor  # rows that each text's sums count, (B, Q), bool
    real: Tensor  # queries that are not padding, (B, Q), bool
    spans: SpanTokens | None = None  # spans of the tokens; None if these are not recorded
    # rows that averages of heads count; None if these are not recorded
    averaged: AveragedRows | None = None
    # every key that the mask allows takes part in the ranking; None if only the device knows
    ranks_all: bool | None = None


def _span_recorder(
    heads: Sequence[int], spec: RecordSpec, tokens: RecordedTokens, mean: bool
) -> SpanRecorder:
    assert tokens.spans is not None
    return SpanRecorder(heads, tokens.spans, mean=mean)


def _head_recorder(
    heads: Sequence[int], spec: RecordSpec, tokens: RecordedTokens, _mean: bool
) -> HeadRecorder:
    assert tokens.averaged is not None
    return HeadRecorder(heads, spec.counted, tokens.averaged, tokens.sources)


# Functions that create the recorder of a part of record_parts: for some heads, or for the mean over them
SUM_RECORDERS: dict[
    str, Callable[[Sequence[int], RecordSpec, RecordedTokens, bool], SumRecorder]
] = {
    "columns": lambda heads, spec, t, mean: ColumnRecorder(
        heads, spec.counted, t.shown, t.sources, mean=mean
    ),
    "received": lambda heads, spec, t, mean: ReceivedRecorder(
        heads, spec.counted, t.shown, t.sources, mean=mean
    ),
    "pooled": lambda heads, spec, t, mean: PooledRecorder(
        heads, spec.pool, t.shown, t.sources, real=t.real, mean=mean
    ),
    "spans": _span_recorder,
    "heads": _head_recorder,
}
