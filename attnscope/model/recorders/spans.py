"""Record the weight that the spans of a text give each other: sums of a size that does not grow with the text."""

from bisect import bisect_left
from collections.abc import Sequence

import torch
from torch import Tensor

from attnscope.model.precision import has_float64
from attnscope.model.recorders.base import BaseRecorder, Overlap
from attnscope.model.recorders.span_tokens import SpanTokens
from attnscope.model.tile import Tile, as_slice
from attnscope.model.workers import Deferred


class TokenReading:
    """Weights of one span's tokens in each text, summed over the heads of all layers that share the reading.

    Args:
        rows: Rows of every text whose own shares are kept, sorted.

    Attributes:
        received: Weight of the span's tokens on every token, (B, T).
        counted: Heads in which each token of the span, and each of the rows, may see something, (B, T).
        shares: Weight of each row on every span, for each text (rows, S).
    """

    def __init__(self, spans: SpanTokens, queries: Sequence[int], rows: Sequence[Sequence[int]]) -> None:
        self._spans, self._places = spans, rows
        device = spans.of_token.device
        self._queries = spans.of_token == torch.tensor(queries, device=device)[:, None]  # (B, T)
        self._read = self._queries.clone()
        for text, text_rows in enumerate(rows):
            self._read[text, list(text_rows)] = True
        self._host = self._read.cpu().numpy()
        exact = torch.float64 if has_float64(device) else torch.float32
        self.received = torch.zeros(spans.of_token.shape, dtype=exact, device=device)
        self.counted = torch.zeros_like(self.received)
        self.shares = [torch.zeros(len(text_rows), spans.count, dtype=exact, device=device) for text_rows in rows]

    def of_tile(self, weights: Tensor, rows: Sequence[int], live: Tensor, k0: int) -> Deferred | None:
        """Sum up weights (B, h, r, k); `live` counts the heads in which each row is not fully masked, (B, r)."""
        at = as_slice(rows)
        if not self._host[:, at].any():
            return None
        over_heads = weights.sum(1)  # (B, r, k)
        received = (self._queries[:, None, at].to(over_heads.dtype) @ over_heads)[:, 0]  # (B, k)
        counted = live * self._read[:, at]
        inside = [
            slice(bisect_left(text_rows, rows[0]), bisect_left(text_rows, rows[-1] + 1)) for text_rows in self._places
        ]
        chosen = sorted(
            {row - rows[0] for text_rows, here in zip(self._places, inside, strict=True) for row in text_rows[here]}
        )
        shares = self._spans.sum_keys(over_heads[:, chosen], k0, self.received.dtype)  # (B, chosen, S)
        number = {row + rows[0]: place for place, row in enumerate(chosen)}

        def add() -> None:
            self.received[:, k0 : k0 + received.shape[1]] += received
            self.counted[:, at] += counted
            for text, (text_rows, here) in enumerate(zip(self._places, inside, strict=True)):
                if here.start < here.stop:
                    self.shares[text][here] += shares[text, as_slice([number[row] for row in text_rows[here]])]

        return add


class SpanRecorder(BaseRecorder):
    """Weights summed over the keys of each span, and averaged over the queries of each.

    A fully masked row has no weights, so it is left out of averages.

    Args:
        mean: Mean over heads (and over every layer that it is shown) instead of each apart.
        reading: Also sums the weights of some rows; None for nothing.
    """

    n_strongest = 1  # so that compiled loops make the weights of a large layer, in less time than operators

    def __init__(
        self, heads: Sequence[int], spans: SpanTokens, *, mean: bool = False, reading: TokenReading | None = None
    ) -> None:
        texts, width = spans.of_token.shape
        super().__init__(heads, range(width))
        self.mean, self._spans, self._reading = mean, spans, reading
        device = spans.of_token.device
        exact = torch.float64 if has_float64(device) else torch.float32
        shape = (texts, 1 if mean else len(self.heads), spans.count)
        self._sum = torch.zeros(*shape, spans.count, dtype=exact, device=device)
        self._count = torch.zeros(*shape, dtype=exact, device=device)
        self._sink: Tensor | None = None
        self._sink_shape = shape

    def _record(self, tile: Tile, overlap: Overlap) -> Deferred | None:
        rows = self.rows[overlap.rows]
        present = self._spans.among(rows)
        if not present:
            return None
        weights, exact = overlap.cut(tile.weights), self._sum.dtype  # (B, h, r, k)
        members = self._spans.members(rows, present)  # (B, P, r)
        by_key = members[:, None] @ weights  # (B, h, P, k): queries first, since a tile has few spans of them
        part = self._spans.sum_keys(by_key, tile.k0, exact)  # (B, h, P, S)
        fully_masked = overlap.fully_masked(tile)  # (B, h, r)
        live = members[:, None].expand(-1, weights.shape[1], -1, -1)  # (B, h, P, r)
        if fully_masked is not None:
            live = live * ~fully_masked[:, :, None]
        count = live.sum(-1).to(exact)  # (B, h, P)
        sink = None
        if tile.sink is not None:
            sink = (live @ overlap.cut(tile.sink)[..., None]).squeeze(-1).to(exact)  # (B, h, P)
        read = None if self._reading is None else self._reading.of_tile(weights, rows, live.sum((1, 2)), tile.k0)
        here = overlap.here
        if self.mean:
            part, count, here = part.sum(1, keepdim=True), count.sum(1, keepdim=True), [0]
            sink = None if sink is None else sink.sum(1, keepdim=True)
        at = as_slice(here)

        def add() -> None:
            if sink is not None and self._sink is None:
                self._sink = torch.zeros(self._sink_shape, dtype=exact, device=self._sum.device)
            for number, span in enumerate(present):
                self._sum[:, at, span] += part[:, :, number]
                self._count[:, at, span] += count[:, :, number]
                if sink is not None and self._sink is not None:
                    self._sink[:, at, span] += sink[:, :, number]
            if read is not None:
                read()

        return add

    def compute(self) -> Tensor:
        """Return (B, heads, S, S); NaN in the rows of a span without a query that may see anything."""
        return self._sum / self._count[..., None]

    def sink(self) -> Tensor | None:
        """Return the weight of each span's queries on the sink, (B, heads, S); None if the layer has none."""
        return None if self._sink is None else self._sink / self._count
