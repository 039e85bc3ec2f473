"""Masks as small predicates that say which keys a query may see, and that compose.

One polarity everywhere: `allowed`, True where a query may attend. No mask holds a Q×K tensor of its own; each
answers for the tile that it is asked about, and says which range of keys a block of queries can reach at all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnscope.config import MaskTerm


@dataclass(frozen=True)
class Mask:
    """Everything is allowed; other masks narrow this."""

    def allowed(self, q: Tensor, k: Tensor) -> Tensor | None:
        """Return which keys each query may see.

        Args:
            q: Query positions, (Q, 1), int64.
            k: Key positions, (1, K), int64.

        Returns:
            Bool, (Q, K) or (B, 1, Q, K), True where allowed; None where everything is.
        """
        return None

    def key_range(self, q0: int, q1: int, n_keys: int) -> tuple[int, int]:
        """Return a range [k0, k1) with every key that any of the queries q0 … q1 − 1 may see."""
        return 0, n_keys

    def all_visible_range(self, q0: int, q1: int, n_keys: int) -> tuple[int, int]:
        """Return a range [k0, k1) of keys that all of the queries q0 … q1 − 1 may see; k0 ≥ k1 for none.

        Cells outside it are evaluated one by one, so a mask that knows none is slow but right.
        """
        return 0, 0


@dataclass(frozen=True)
class Bidirectional(Mask):
    """Every query sees every key."""

    def all_visible_range(self, q0: int, q1: int, n_keys: int) -> tuple[int, int]:
        """Return all keys."""
        return 0, n_keys


@dataclass(frozen=True)
class Causal(Mask):
    """A query sees itself and earlier keys."""

    def allowed(self, q: Tensor, k: Tensor) -> Tensor:
        """Allow the query itself and earlier keys."""
        return k <= q

    def key_range(self, q0: int, q1: int, n_keys: int) -> tuple[int, int]:
        """End after the last query."""
        return 0, min(q1, n_keys)

    def all_visible_range(self, q0: int, q1: int, n_keys: int) -> tuple[int, int]:
        """End after the first query, which sees the fewest keys."""
        return 0, min(q0 + 1, n_keys)


@dataclass(frozen=True)
class SlidingWindow(Mask):
    """A query sees keys less than `size` positions away, on both sides."""

    size: int

    def allowed(self, q: Tensor, k: Tensor) -> Tensor:
        """Allow keys fewer than `size` positions away."""
        return (q - k).abs() < self.size

    def key_range(self, q0: int, q1: int, n_keys: int) -> tuple[int, int]:
        """Start with the window of the first query, end with that of the last."""
        return min(max(0, q0 - self.size + 1), n_keys), min(n_keys, q1 + self.size - 1)

    def all_visible_range(self, q0: int, q1: int, n_keys: int) -> tuple[int, int]:
        """Start with the window of the last query, end with that of the first."""
        return max(0, q1 - self.size), min(n_keys, q0 + self.size)


@dataclass(frozen=True)
class Prefix(Mask):
    """Everyone sees the first `size` keys; beyond them, causal (a prefix language model)."""

    size: int

    def allowed(self, q: Tensor, k: Tensor) -> Tensor:
        """Allow the prefix, the query itself and earlier keys."""
        return (k <= q) | (k < self.size)

    def key_range(self, q0: int, q1: int, n_keys: int) -> tuple[int, int]:
        """End after the last query or the prefix."""
        return 0, min(n_keys, max(q1, self.size))

    def all_visible_range(self, q0: int, q1: int, n_keys: int) -> tuple[int, int]:
        """End after the first query or the prefix."""
        return 0, min(n_keys, max(q0 + 1, self.size))


@dataclass(frozen=True)
class BlockDiagonal(Mask):
    """A query sees the keys of its own block of `size` tokens: documents packed one after the other."""

    size: int

    def allowed(self, q: Tensor, k: Tensor) -> Tensor:
        """Allow keys of the query's own block."""
        return q // self.size == k // self.size

    def key_range(self, q0: int, q1: int, n_keys: int) -> tuple[int, int]:
        """Cover the blocks of the first and the last query."""
        return min(q0 // self.size * self.size, n_keys), min(n_keys, -(-q1 // self.size) * self.size)

    def all_visible_range(self, q0: int, q1: int, n_keys: int) -> tuple[int, int]:
        """Cover the block of the queries, if all of them are in one."""
        if q0 // self.size != (q1 - 1) // self.size:
            return 0, 0
        return q0 // self.size * self.size, min(n_keys, (q0 // self.size + 1) * self.size)


@dataclass(frozen=True)
class PaddingMask(Mask):
    """In text b only the first `lengths[b]` keys exist.

    Attributes:
        lengths: Real keys of every text, (B,), int64.
    """

    lengths: Tensor

    def allowed(self, q: Tensor, k: Tensor) -> Tensor:
        """Allow a text's real keys."""
        return (k < self.lengths[:, None, None])[:, None]  # (B, 1, 1, K)

    def key_range(self, q0: int, q1: int, n_keys: int) -> tuple[int, int]:
        """End with the longest text."""
        return 0, min(n_keys, self._ends[1])

    def all_visible_range(self, q0: int, q1: int, n_keys: int) -> tuple[int, int]:
        """End with the shortest text."""
        return 0, min(n_keys, self._ends[0])

    @cached_property
    def _ends(self) -> tuple[int, int]:
        """Keys of the shortest and of the longest text."""
        return int(self.lengths.min()), int(self.lengths.max())


@dataclass(frozen=True)
class MatrixMask(Mask):
    """A boolean matrix from elsewhere: (Q, K) or (B, 1, Q, K), True where allowed."""

    matrix: Tensor

    def allowed(self, q: Tensor, k: Tensor) -> Tensor:
        """Look up the matrix."""
        return self.matrix[..., q, k]


@dataclass(frozen=True)
class Intersection(Mask):
    """A key is visible where every part allows it."""

    parts: tuple[Mask, ...]

    def allowed(self, q: Tensor, k: Tensor) -> Tensor | None:
        """Combine the parts with a logical and."""
        result: Tensor | None = None
        for part in self.parts:
            one = part.allowed(q, k)
            if one is not None:
                result = one if result is None else result & one
        return result

    def key_range(self, q0: int, q1: int, n_keys: int) -> tuple[int, int]:
        """Intersect the parts' ranges."""
        spans = [part.key_range(q0, q1, n_keys) for part in self.parts]
        low = max((s[0] for s in spans), default=0)
        return low, max(low, min((s[1] for s in spans), default=n_keys))

    def all_visible_range(self, q0: int, q1: int, n_keys: int) -> tuple[int, int]:
        """Intersect the parts' ranges."""
        ranges = [part.all_visible_range(q0, q1, n_keys) for part in self.parts]
        return max((r[0] for r in ranges), default=0), min((r[1] for r in ranges), default=n_keys)


def intersect(parts: Sequence[Mask]) -> Mask:
    """Return the mask that allows what every part allows; parts that allow everything are dropped."""
    real = [p for part in parts for p in (part.parts if isinstance(part, Intersection) else (part,))]
    real = [p for p in dict.fromkeys(real) if type(p) not in (Mask, Bidirectional)]
    return real[0] if len(real) == 1 else Intersection(tuple(real)) if real else Bidirectional()


def build_mask(terms: Sequence[MaskTerm], own: Mask | None = None, files: Mapping[str, Mask] | None = None) -> Mask:
    """The mask that a parsed expression stands for.

    Args:
        terms: From `selection.parse_mask`.
        own: What the word `own` stands for.
        files: The masks that the expression's files hold.
    """
    made: list[Mask] = []
    for term in terms:
        match term.kind:
            case "own":
                made.append(own or Bidirectional())
            case "bidirectional":
                made.append(Bidirectional())
            case "causal":
                made.append(Causal())
            case "window":
                made.append(SlidingWindow(term.size))
            case "prefix":
                made.append(Prefix(term.size))
            case "block":
                made.append(BlockDiagonal(term.size))
            case "file":
                made.append((files or {})[term.path])
    return intersect(made)


def mask_from_matrix(matrix: "np.ndarray[Any, np.dtype[np.bool_]]", device: torch.device) -> Mask:
    """The mask that a boolean matrix (queries, keys) says."""
    return MatrixMask(torch.from_numpy(matrix).to(device))


def padding_mask(lengths: Sequence[int], longest: int, device: torch.device) -> Mask:
    """What keeps padded keys out of sight; allows everything where no text is padded."""
    if all(n == longest for n in lengths):
        return Bidirectional()
    return PaddingMask(torch.tensor(lengths, device=device))
