"""Softmax of a tile's rows by compiled loops, and what the same pass finds out about each row.

Compiling them takes time, so only layers that are large enough go this way; others, GPUs, and places without LLVM use
operators of torch and NumPy for the same numbers.
"""

from dataclasses import dataclass
from functools import cache
from math import prod
from types import ModuleType
from typing import Any

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
        entropy: In bits, (B, h, q).
        places: Places of the largest weights, counted from k0, (B, h, q, count); −1 where fewer keys are allowed.
        strongest: These weights, (B, h, q, count); 0 where fewer keys are allowed.
    """

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
    return RowSummary(torch.from_numpy(entropy).view(shape), places, strongest)


def _rows(tensor: Tensor) -> NDArray[Any]:
    """Return a contiguous tensor (…, n) as the array of its rows, which shares its memory."""
    return tensor.view(prod(tensor.shape[:-1]), tensor.shape[-1]).numpy()
