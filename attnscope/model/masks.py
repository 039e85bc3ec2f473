"""Masks that need tensors, and how masks combine. What the words of an expression mean is in `masks.terms`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnscope.request.masks.terms import Bidirectional, Causal, Hidden, Mask, MaskTerm, MatrixFile, Own


@dataclass(frozen=True)
class PaddingMask(Mask):
    """In text b only the first `lengths[b]` keys exist.

    Attributes:
        lengths: Real keys of every text, (B,), int64.
        padded_rows: What padding attends to is of interest, too; without, a causal kernel needs no mask, since real
            tokens do not see the padding behind them.
    """

    lengths: Tensor
    padded_rows: bool = True

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
class HiddenKeysMask(Mask):
    """In every text some keys are seen by no query.

    Attributes:
        hidden: True where a key is hidden, (B, K), bool.
    """

    hidden: Tensor

    def allowed(self, q: Tensor, k: Tensor) -> Tensor:
        """Allow the other keys."""
        return ~self.hidden[:, None, None, k[0]]  # (B, 1, 1, K)

    def all_visible_range(self, q0: int, q1: int, n_keys: int) -> tuple[int, int]:
        """Return the longest run of keys that are hidden in no text."""
        return self._visible_run

    @cached_property
    def _visible_run(self) -> tuple[int, int]:
        ends = [-1, *self.hidden.any(0).nonzero()[:, 0].tolist(), self.hidden.shape[1]]
        return max(((a + 1, b) for a, b in pairwise(ends)), key=lambda run: run[1] - run[0])


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


@dataclass(frozen=True)
class ShiftedMask(Mask):
    """Another mask for queries that are counted from a later position: those before are in a cache.

    Attributes:
        mask: The mask of the whole text.
        start: Position of the first query.
    """

    mask: Mask
    start: int

    def allowed(self, q: Tensor, k: Tensor) -> Tensor | None:
        """Evaluate the mask at the positions in the whole text."""
        found: Tensor | None = self.mask.allowed(q + self.start, k)
        return found

    def key_range(self, q0: int, q1: int, n_keys: int) -> tuple[int, int]:
        """Evaluate the mask at the positions in the whole text."""
        return self.mask.key_range(q0 + self.start, q1 + self.start, n_keys)

    def all_visible_range(self, q0: int, q1: int, n_keys: int) -> tuple[int, int]:
        """Evaluate the mask at the positions in the whole text."""
        return self.mask.all_visible_range(q0 + self.start, q1 + self.start, n_keys)


def intersect(parts: Sequence[Mask]) -> Mask:
    """Return the mask that allows what every part allows; parts that allow everything are dropped."""
    real = [p for part in parts for p in (part.parts if isinstance(part, Intersection) else (part,))]
    real = [p for p in dict.fromkeys(real) if type(p) not in (Mask, Bidirectional)]
    return real[0] if len(real) == 1 else Intersection(tuple(real)) if real else Bidirectional()


def plain_mask(mask: Mask, n_queries: int, n_keys: int) -> Mask | None:
    """Return the causal or bidirectional mask that gives real tokens what `mask` gives them; None for another mask."""
    parts = mask.parts if isinstance(mask, Intersection) else (mask,)
    narrowing = [part for part in parts if part.all_visible_range(0, n_queries, n_keys) != (0, n_keys)]
    causal = [part for part in narrowing if isinstance(part, Causal)]
    if causal and n_queries == n_keys:
        narrowing = [part for part in narrowing if not isinstance(part, PaddingMask) or part.padded_rows]
    if len(narrowing) > len(causal):
        return None
    return causal[0] if causal else Bidirectional()


def build_mask(
    terms: Sequence[MaskTerm], own: Mask | None = None, resolved: Mapping[MaskTerm, Mask] | None = None
) -> Mask:
    """Return the mask that a parsed expression stands for.

    Args:
        terms: From `parse_mask`.
        own: The mask that the word `own` refers to.
        resolved: The masks of terms that need more than their words: files, and hidden tokens.
    """
    made: list[Mask] = []
    for term in terms:
        if isinstance(term, MatrixFile | Hidden):
            made.append((resolved or {})[term])
        else:
            made.append(own or Bidirectional() if isinstance(term, Own) else term)
    return intersect(made)


def mask_from_matrix(matrix: "np.ndarray[Any, np.dtype[np.bool_]]", device: torch.device) -> Mask:
    """Return the mask that a boolean matrix (queries, keys) says."""
    return MatrixMask(torch.from_numpy(matrix).to(device))


def hidden_keys_mask(hidden: Sequence[Sequence[int]], longest: int, device: torch.device) -> Mask:
    """Return the mask that hides some keys of every text from all queries."""
    places = torch.zeros(len(hidden), longest, dtype=torch.bool)
    for number, keys in enumerate(hidden):
        places[number, list(keys)] = True
    return HiddenKeysMask(places.to(device))


def padding_mask(lengths: Sequence[int], longest: int, device: torch.device, *, padded_rows: bool = True) -> Mask:
    """Return the mask that hides padded keys; it allows everything where no text is padded. See PaddingMask."""
    if all(n == longest for n in lengths):
        return Bidirectional()
    return PaddingMask(torch.tensor(lengths, device=device), padded_rows)
