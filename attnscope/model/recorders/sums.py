"""Record column sums, pooled maps, means of outputs, and values, whose size does not grow with the rows.

A fully masked row has no weights, so it is left out of sums and means.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from attnscope.model.recorders.base import BaseRecorder, KeyTokens, Overlap, RecordedTokens
from attnscope.model.recorders.spans import SpanRecorder
from attnscope.model.tile import Recorder, Tile, as_slice
from attnscope.model.workers import Deferred
from attnscope.request.record_spec import RecordSpec


class ColumnRecorder(BaseRecorder):
    """The weight that every source gets, summed over queries: the mass of a column.

    Args:
        shown: Queries that each text shows, (B, Q), bool.
        mean: Mean over heads (and over every layer that it is shown) instead of each apart.
        by: `weight`, or a contribution: `value` or `projected`.
    """

    def __init__(
        self,
        heads: Sequence[int],
        rows: Sequence[int],
        shown: Tensor,
        sources: KeyTokens,
        *,
        mean: bool = False,
        by: str = "weight",
    ) -> None:
        super().__init__(heads, rows)
        self.mean, self._shown, self._layers, self._by = mean, shown, set[int](), by
        shape = (shown.shape[0], 1 if mean else len(self.heads), sources.real.shape[1])
        self._sum = torch.zeros(shape, device=shown.device)

    def _record(self, tile: Tile, overlap: Overlap) -> Deferred | None:
        self._layers.add(tile.inputs.layer)
        shown = self._shown[:, as_slice(self.rows[overlap.rows])].float()[:, None, None]  # (B, 1, 1, r)
        part = (shown @ overlap.cut(tile.weights)).squeeze(2)  # (B, h, k)
        if self._by != "weight":
            part = part * tile.norms(self._by)[:, overlap.heads]
        part, here = (part.sum(1, keepdim=True), [0]) if self.mean else (part, overlap.here)
        return partial(_add, self._sum, part, (slice(None), as_slice(here), slice(tile.k0, tile.k1)))

    def compute(self) -> Tensor:
        """Return (B, heads, K); one head, the mean, if `mean`."""
        return self._sum / (len(self.heads) * max(1, len(self._layers))) if self.mean else self._sum


class ReceivedRecorder(BaseRecorder):
    """Weight that sources receive from other tokens among the shown queries, (B, Q); see HeadReport.received."""

    needs_masked = True

    def __init__(
        self, heads: Sequence[int], rows: Sequence[int], shown: Tensor, sources: KeyTokens, *, mean: bool = False
    ) -> None:
        super().__init__(heads, rows)
        self.mean, self._shown, self._same = mean, shown, sources.self_attention
        shape = (2, shown.shape[0], 1 if mean else len(self.heads), sources.real.shape[1])
        self._sums = torch.zeros(shape, device=shown.device)  # of weights, and of even shares

    def _record(self, tile: Tile, overlap: Overlap) -> Deferred | None:
        rows = as_slice(self.rows[overlap.rows])
        counted = self._shown[:, rows].float()[:, None, :, None]  # (B, 1, r, 1)
        allowed = overlap.cut(tile.stage("allowed"))  # (B, h, r, k)
        even = allowed / allowed.sum(-1, keepdim=True).clamp_min(1)
        if self._same:
            queries = torch.tensor(list(self.rows[overlap.rows]), device=allowed.device)[:, None]
            counted = counted * (queries != torch.arange(tile.k0, tile.k1, device=allowed.device))
        part = torch.stack([(matrix * counted).sum(2) for matrix in (overlap.cut(tile.weights), even)])  # (2, B, h, k)
        part, here = (part.sum(2, keepdim=True), [0]) if self.mean else (part, overlap.here)
        return partial(_add, self._sums, part, (slice(None), slice(None), as_slice(here), slice(tile.k0, tile.k1)))

    def compute(self) -> Tensor:
        """Return (B, heads, K); NaN where no shown query may attend to a source."""
        received, even = self._sums
        return torch.where(even > 0, received / even, torch.nan)


class PooledRecorder(BaseRecorder):
    """A map of fixed size: weights summed over runs of keys, and averaged over runs of queries.

    A row of the map sums to 1, as a row of weights does. Token i of n is in run i·size // n; a text with fewer tokens
    than `size` has a run for every token.

    Args:
        size: Runs, at most.
        shown: Queries of each text that count, (B, Q), bool.
        real: Queries that are not padding, (B, Q), bool; None if these are the tokens of the key side.
    """

    def __init__(
        self,
        heads: Sequence[int],
        size: int,
        shown: Tensor,
        sources: KeyTokens,
        *,
        real: Tensor | None = None,
        mean: bool = False,
    ) -> None:
        super().__init__(heads, range(shown.shape[1]))
        self.mean = mean
        # Runs of queries refer to the whole text, whatever rows are shown.
        lengths = (sources.real if real is None else real).sum(1)
        self._queries = _run_membership(lengths, shown.shape[1], size) * shown.float()[:, None]  # (B, n, Q)
        self._keys = _run_membership(sources.real.sum(1), sources.real.shape[1], size).mT  # (B, K, n)
        heads_kept = 1 if mean else len(self.heads)
        shape = (shown.shape[0], heads_kept, self._queries.shape[1], self._keys.shape[2])
        self._sum = torch.zeros(shape, device=shown.device)
        self._count = torch.zeros(*shape[:3], 1, device=shown.device)
        self._averaged = False

    def _record(self, tile: Tile, overlap: Overlap) -> Deferred | None:
        here, weights = overlap.here, overlap.cut(tile.weights)  # (B, h, r, k)
        queries = self._queries[:, None, :, as_slice(self.rows[overlap.rows])]  # (B, 1, n, r)
        part = queries @ weights @ self._keys[:, None, tile.k0 : tile.k1]  # (B, h, n, n)
        # The mask determines whether a row counts, not its weights: a sink may take all of them.
        fully_masked = overlap.fully_masked(tile)  # (B, h, r)
        live = torch.ones_like(queries[:, :, 0]) if fully_masked is None else (~fully_masked).float()  # (B, 1 or h, r)
        count = (queries @ live[..., None]).expand(-1, weights.shape[1], -1, -1)  # (B, h, n, 1)
        if self.mean:
            part, count, here = part.sum(1, keepdim=True), count.sum(1, keepdim=True), [0]
        place = slice(None), as_slice(here)

        def add() -> None:
            _add(self._sum, part, place)
            _add(self._count, count, place)

        return add

    def compute(self) -> Tensor:
        """Return (B, heads, n, n); NaN where a run has no query that may see anything."""
        if not self._averaged:
            self._averaged = True
            with torch.inference_mode():  # what tiles of a model are summed in may be changed only in there
                self._sum /= self._count  # in place, since every text and head requests it and keeps a view
        return self._sum


def _add(total: Tensor, part: Tensor, place: tuple[slice | list[int], ...]) -> None:
    total[place] += part


def _run_membership(lengths: Tensor, width: int, size: int) -> Tensor:
    """Return 1 where a token is in a run, (B, size, width), float32; 0 for padding."""
    n = torch.clamp(lengths, max=size)[:, None]  # (B, 1)
    at = torch.arange(width, device=lengths.device)[None]  # (1, width)
    run = at * n // lengths[:, None].clamp_min(1)  # (B, width)
    inside = (at < lengths[:, None])[:, None]  # (B, 1, width)
    return ((run[:, None] == torch.arange(min(size, width), device=lengths.device)[:, None]) & inside).float()


class MeanOutputRecorder(BaseRecorder):
    """The output of heads, averaged over the queries of all texts that are `real`, (B, Q), not padding."""

    def __init__(self, heads: Sequence[int], width: int, real: Tensor) -> None:
        super().__init__(heads, range(real.shape[1]))
        self._real = real
        self._sum = torch.zeros(len(self.heads), width, device=real.device)

    def _record(self, tile: Tile, overlap: Overlap) -> Deferred | None:
        real = self._real[:, as_slice(self.rows[overlap.rows])].float()[:, None, :, None]  # (B, 1, r, 1)
        part = (overlap.cut(tile.output) * real).sum((0, 2))  # (h, Ev)
        return partial(_add, self._sum, part, (as_slice(overlap.here),))

    def compute(self) -> Tensor:
        """Return the mean, (heads, Ev)."""
        return self._sum / self._real.sum()


class ValueRecorder(BaseRecorder):
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


class FindingsRecorder(Recorder, Protocol):
    """A recorder whose numbers become findings."""

    def to_cpu(self) -> None:
        """Move recorded values to the CPU, after the model has run."""


class SumRecorder(FindingsRecorder, Protocol):
    """A recorder of sums over rows, of several heads or of a mean over them."""

    def compute(self) -> Tensor:
        """Return (B, heads, …), the axes that record_parts declares; one head over a mean."""


# Functions that create the recorder of a part of record_parts: for some heads, or for the mean over them
def _span_recorder(heads: Sequence[int], spec: RecordSpec, tokens: RecordedTokens, mean: bool) -> SpanRecorder:
    assert tokens.spans is not None
    return SpanRecorder(heads, tokens.spans, mean=mean)


SUM_RECORDERS: dict[str, Callable[[Sequence[int], RecordSpec, RecordedTokens, bool], SumRecorder]] = {
    "columns": lambda heads, spec, tokens, mean: ColumnRecorder(
        heads, spec.counted, tokens.shown, tokens.sources, mean=mean
    ),
    "received": lambda heads, spec, tokens, mean: ReceivedRecorder(
        heads, spec.counted, tokens.shown, tokens.sources, mean=mean
    ),
    "pooled": lambda heads, spec, tokens, mean: PooledRecorder(
        heads, spec.pool, tokens.shown, tokens.sources, real=tokens.real, mean=mean
    ),
    "spans": _span_recorder,
}
