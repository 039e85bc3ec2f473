"""Which span each token of a batch belongs to."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from attnscope.model.tile import as_slice

_MEMBERSHIPS = 1 << 20  # cells of a matrix of keys and spans: short texts have one, long ones make it block by block


@dataclass(frozen=True)
class SpanTokens:
    """Spans of the tokens of a batch, shared by the recorders of all layers."""

    of_token: Tensor  # number of each token's span, (B, T), int64; −1 for padding
    count: int
    _host: "np.ndarray[tuple[int, int], np.dtype[np.int64]]" = field(init=False, repr=False)
    _keys: Tensor | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Copy lookup values to the CPU, because each read of a GPU would wait."""
        object.__setattr__(self, "_host", self.of_token.cpu().numpy())
        fits = self.of_token.numel() * self.count <= _MEMBERSHIPS
        object.__setattr__(self, "_keys", self._members(0, self.of_token.shape[1]) if fits else None)

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
        flat, shape = weights.flatten(1, -2), (*weights.shape[:-1], self.count)  # (B, n, k)
        k1 = k0 + flat.shape[-1]
        if self._keys is not None:
            return (flat @ self._keys[:, k0:k1]).to(exact).view(shape)
        size = max(1, _MEMBERSHIPS // (self.count * len(flat)))
        total = flat.new_zeros(*flat.shape[:2], self.count, dtype=exact)
        for start in range(k0, k1, size):
            end = min(start + size, k1)
            total += flat[..., start - k0 : end - k0] @ self._members(start, end)
        return total.view(shape)
