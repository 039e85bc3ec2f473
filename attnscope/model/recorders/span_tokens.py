"""Which span each token of a batch belongs to."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from attnscope.model.tile import as_slice


@dataclass(frozen=True)
class SpanTokens:
    """Spans of the tokens of a batch, shared by the recorders of all layers.

    Attributes:
        of_token: Number of each token's span, (B, T), int64; −1 for padding.
        count: Number of spans of the text that has most.
    """

    of_token: Tensor
    count: int
    _host: "np.ndarray[tuple[int, int], np.dtype[np.int64]]" = field(init=False, repr=False)
    _keys: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Prepare what tiles look up: on a GPU, each read of it would wait."""
        object.__setattr__(self, "_host", self.of_token.cpu().numpy())
        spans = torch.arange(self.count, device=self.of_token.device)
        object.__setattr__(self, "_keys", (self.of_token[..., None] == spans).float())  # (B, T, S)

    def among(self, rows: Sequence[int]) -> list[int]:
        """Return the spans that any text has among some rows."""
        present = np.unique(self._host[:, as_slice(rows)])
        return [int(span) for span in present if span >= 0]

    def members(self, rows: Sequence[int], spans: Sequence[int]) -> Tensor:
        """Return 1 where a row belongs to a span, (B, spans, rows), float32."""
        numbers = torch.tensor(spans, device=self.of_token.device)
        return (self.of_token[:, None, as_slice(rows)] == numbers[:, None]).float()

    def keys(self, k0: int, k1: int) -> Tensor:
        """Return 1 where a key belongs to a span, (B, keys, S), float32."""
        return self._keys[:, k0:k1]
