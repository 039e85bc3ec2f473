"""Softmax of a tile's rows by compiled loops, and what the same pass finds out about each row.

Compiling them takes time, so only layers that are large enough go this way; others, GPUs, and places without LLVM use
operators of torch and NumPy for the same numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnscope.planning.estimate import WORTH_COMPILED_LOOPS


def row_loops(cells: int, device: torch.device) -> ModuleType | None:
    """Return the compiled loops if so many cells are worth them; None if operators are to be used."""
    return _load() if device.type == "cpu" and cells >= WORTH_COMPILED_LOOPS else None


@cache
def _load() -> ModuleType | None:
    try:
        from attnscope.model import compiled_rows
    except Exception:  # llvmlite is not installed, or its version does not know what is asked of it
        return None
    return compiled_rows


@dataclass(frozen=True)
class RowSummary:
    """What is known of every row of a tile once its softmax is computed.

    Attributes:
        loops: The compiled loops, which can sum its weights up, too.
        entropy: In bits, (B, h, q).
        places: Places of the largest weights, counted from k0, (B, h, q, count); −1 where fewer keys are allowed.
        strongest: These weights, (B, h, q, count); 0 where fewer keys are allowed.
    """

    loops: ModuleType
    entropy: Tensor
    places: Tensor
    strongest: Tensor


def softmax(loops: ModuleType, count: int, masked: Tensor, weights: Tensor) -> RowSummary:
    """Write the softmax of masked scores (B, h, q, k) into `weights`; return what that showed of every row.

    Args:
        loops: The compiled loops.
        count: How many of the largest weights are looked for.
        masked: −inf where a key is not allowed, otherwise finite; k is at least 1.
        weights: Receives the softmax; 0 in a row without an allowed key. It may be `masked` itself.
    """
    shape = masked.shape[:3]
    strongest = masked.new_empty(*shape, count)
    places = torch.empty_like(strongest, dtype=torch.int64)
    entropy = loops.softmax(*map(_rows, (masked, weights, places, strongest)))
    return RowSummary(loops, torch.from_numpy(entropy).view(shape), places, strongest)


def sums(loops: ModuleType, weights: Tensor, kinds: Tensor, reaches: Sequence[int], query: int) -> Tensor:
    """Sum weights (B, h, r, k) up, r being neighbours: by distance, up to some distances, and on some kinds of keys.

    Args:
        loops: The compiled loops.
        weights: k is at least 1.
        kinds: Keys of each kind, (B, n_kinds, k), bool.
        reaches: Distances.
        query: Place of the first row among the keys.

    Returns:
        (1 + n_reaches + n_kinds, B, h, r): Σ w · |query − key|; weights on keys at most so far away; those on keys of
        each kind.
    """
    found = loops.sums(weights.contiguous().numpy(), kinds.numpy(), np.array(reaches, np.int64), query)
    return torch.from_numpy(found)


def _rows(tensor: Tensor) -> NDArray[Any]:
    """Return a contiguous tensor (…, n) as the array of its rows, which shares its memory."""
    return tensor.view(prod(tensor.shape[:-1]), tensor.shape[-1]).numpy()
