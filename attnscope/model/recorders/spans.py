"""Record the weight that the spans of a text give each other: sums of a size that does not grow with the text."""

from bisect import bisect_left
from collections.abc import Sequence
from threading import Lock

import numpy as np
import torch
from torch import Tensor

from attnscope.model.recorders.base import SumRecorder, exact_zeros
from attnscope.model.tile import Overlap, Tile, as_slice
from attnscope.model.workers import Deferred

# cells of a matrix of keys and spans: short texts have one, long ones make it block by block
_MEMBERSHIPS = 1 << 20


class SpanTokens:
    """Spans of the tokens of a batch, shared by the recorders of all layers.

    `of_token` is the number of each token's span, (B, T), int64; −1 for padding.
    """

    def __init__(self, of_token: Tensor, count: int) -> None:
        self.of_token = of_token
        self.count = count
        self._host = of_token.cpu().numpy()  # because each read of a GPU would wait
        fits = of_token.numel() * count <= _MEMBERSHIPS
        self._keys = self._members(0, of_token.shape[1]) if fits else None

    def _members(self, k0: int, k1: int) -> Tensor:
        spans = torch.arange(self.count, device=self.of_token.device)
        return (self.of_token[:, k0:k1, None] == spans).float()  # (B, k, S)

    def among(self, rows: Sequence[int]) -> list[int]:
        """Return the spans that any text has among some rows."""
        present = np.unique(self._host[:, as_slice(rows)])
        return [int(span) for span in present if span >= 0]

    def members(self, rows: Sequence[int], spans: Sequence[int]) -> Tensor:
        """Return 1 where a row belongs to a span, (B, spans, rows), float32."""
        numbers = torch.tensor(spans, device=self.of_token.device)
        return (self.of_token[:, None, as_slice(rows)] == numbers[:, None]).float()

    def sum_keys(self, weights: Tensor, k0: int, exact: torch.dtype) -> Tensor:
        """Sum weights on the keys from k0 on, (B, …, k), by span, (B, …, S), block by block to bound memory."""
        # (B, n, k)
        flat = weights.flatten(1, -2)
        shape = (*weights.shape[:-1], self.count)
        k1 = k0 + flat.shape[-1]
        if self._keys is not None:
            return (flat @ self._keys[:, k0:k1]).to(exact).view(shape)
        size = max(1, _MEMBERSHIPS // (self.count * len(flat)))
        total = flat.new_zeros(*flat.shape[:2], self.count, dtype=exact)
        for start in range(k0, k1, size):
            end = min(start + size, k1)
            total += flat[..., start - k0 : end - k0] @ self._members(start, end)
        return total.view(shape)


class TokenReading:
    """Weights of one span's tokens in each text, summed over the heads of all layers that share the reading.

    Attributes:
        received: Weight of the span's tokens on every token, (B, T).
        counted: Heads in which each token of the span, and each of the rows, may see something, (B, T).
        shares: Weight of each row on every span, for each text (rows, S).
    """

    def __init__(
        self, spans: SpanTokens, queries: Sequence[int], rows: Sequence[Sequence[int]]
    ) -> None:
        """Read the span of `queries` in every text; `rows` of each text, sorted, keep shares of their own."""
        self._spans = spans
        self._places = rows
        device = spans.of_token.device
        self._queries = spans.of_token == torch.tensor(queries, device=device)[:, None]  # (B, T)
        self._read = self._queries.clone()
        for text, text_rows in enumerate(rows):
            self._read[text, list(text_rows)] = True
        self._host = self._read.cpu().numpy()
        self.received = exact_zeros(*spans.of_token.shape, device=device)
        self.counted = torch.zeros_like(self.received)
        self.shares = [
            exact_zeros(len(text_rows), spans.count, device=device) for text_rows in rows
        ]

    def of_tile(
        self, weights: Tensor, rows: Sequence[int], live: Tensor, k0: int
    ) -> Deferred | None:
        """Sum up weights (B, h, r, k); `live` counts the heads in which each row is not fully masked, (B, r)."""
        at = as_slice(rows)
        if not self._host[:, at].any():
            return None
        over_heads = weights.sum(1)  # (B, r, k)
        received = (self._queries[:, None, at].to(over_heads.dtype) @ over_heads)[:, 0]  # (B, k)
        counted = live * self._read[:, at]
        inside = [
            slice(bisect_left(text_rows, rows[0]), bisect_left(text_rows, rows[-1] + 1))
            for text_rows in self._places
        ]
        chosen_rows = sorted(
            {
                row - rows[0]
                for text_rows, here in zip(self._places, inside, strict=True)
                for row in text_rows[here]
            }
        )
        # (B, chosen, S)
        shares = self._spans.sum_keys(over_heads[:, chosen_rows], k0, self.received.dtype)
        index_of = {row + rows[0]: index for index, row in enumerate(chosen_rows)}

        def add() -> None:
            self.received[:, k0 : k0 + received.shape[1]] += received
            self.counted[:, at] += counted
            for text, (text_rows, here) in enumerate(zip(self._places, inside, strict=True)):
                if here.start < here.stop:
                    self.shares[text][here] += shares[
                        text, as_slice([index_of[row] for row in text_rows[here]])
                    ]

        return add


class SpanRecorder(SumRecorder):
    """Weights summed over the keys of each span, and averaged over the queries of each.

    A fully masked row has no weights, so it is left out of averages. `reading` also sums the weights of some rows.
    """

    path = "spans.weights"
    # so that compiled loops make the weights of a large layer, in less time than operators
    n_strongest = 1

    def __init__(
        self,
        heads: Sequence[int],
        spans: SpanTokens,
        *,
        mean: bool = False,
        reading: TokenReading | None = None,
    ) -> None:
        texts, width = spans.of_token.shape
        super().__init__(heads, range(width), mean=mean)
        self._spans = spans
        self._reading = reading
        shape = (texts, self.n_kept, spans.count)
        self._sum = exact_zeros(*shape, spans.count, device=spans.of_token.device)
        self._count = exact_zeros(*shape, device=spans.of_token.device)
        self._sink: Tensor | None = None
        self._making = Lock()

    def _record(self, tile: Tile, overlap: Overlap) -> Deferred | None:
        rows = self.rows[overlap.rows]
        present = self._spans.among(rows)
        if not present:
            return None
        # (B, h, r, k)
        weights = overlap.cut(tile.weights)
        exact = self._sum.dtype
        members = self._spans.members(rows, present)  # (B, P, r)
        # (B, h, P, k): queries first, since a tile has few spans of them
        by_key = members[:, None] @ weights
        part = self._spans.sum_keys(by_key, tile.k0, exact)  # (B, h, P, S)
        fully_masked = overlap.fully_masked(tile)  # (B, h, r)
        live = members[:, None].expand(-1, weights.shape[1], -1, -1)  # (B, h, P, r)
        if fully_masked is not None:
            live = live * ~fully_masked[:, :, None]
        sums = [
            (self._sum, self.over_heads(part)),
            (self._count, self.over_heads(live.sum(-1).to(exact))),
        ]
        if tile.sink is not None:
            on_sink = (live @ overlap.cut(tile.sink)[..., None]).squeeze(-1).to(exact)  # (B, h, P)
            with self._making:
                self._sink = torch.zeros_like(self._count) if self._sink is None else self._sink
            sums.append((self._sink, self.over_heads(on_sink)))
        read = None
        if self._reading is not None:
            read = self._reading.of_tile(weights, rows, live.sum((1, 2)), tile.k0)
        at = self.place(overlap)

        def add() -> None:
            for index, span in enumerate(present):
                for total, added in sums:
                    total[:, at, span] += added[:, :, index]
            if read is not None:
                read()

        return add

    def compute(self) -> Tensor:
        """Return (B, heads, S, S); NaN in the rows of a span without a query that may see anything."""
        return self._sum / self._count[..., None]

    def results(self) -> dict[str, Tensor]:
        sink = self.sink()
        weights = {"spans.weights": self.compute().float()}
        if sink is None:
            return weights
        return weights | {"spans.sink": sink.float()}

    def sink(self) -> Tensor | None:
        """Return the weight of each span's queries on the sink, (B, heads, S); None if the layer has none."""
        if self._sink is None:
            return None
        return self._sink / self._count
