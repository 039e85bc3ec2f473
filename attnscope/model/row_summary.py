"""Softmax of a tile's rows by compiled loops, and what the same pass finds out about each row.

Compiling them takes time, so only layers that are large enough go this way. Smaller ones, GPUs, and machines where LLVM
is missing or may not make code use operators of torch and NumPy, which give the same numbers up to rounding.
"""

import ctypes
import mmap
import platform
import warnings
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

from attnscope.request.estimate import WORTH_COMPILED_LOOPS

_PROCESSORS = {"x86_64", "amd64", "aarch64", "arm64"}  # others are not known to work with LLVM's way of loading code


def row_loops(cells: int, device: torch.device) -> ModuleType | None:
    """Return the compiled loops if so many cells are worth them; None if operators are to be used."""
    return _load() if device.type == "cpu" and cells >= WORTH_COMPILED_LOOPS else None


@cache
def _load() -> ModuleType | None:
    if platform.machine().lower() not in _PROCESSORS:
        return None
    try:
        if not may_execute():
            raise OSError("the system does not let a process execute memory that it has written")
        from attnscope.model import compiled_rows
    except ImportError:
        return None  # llvmlite is not installed
    except Exception as e:  # such as a version that does not know what is asked of it
        reason = " ".join(str(e).split())[:200] or type(e).__name__
        warnings.warn(f"long texts take longer than elsewhere: loops cannot be compiled here ({reason})", stacklevel=2)
        return None
    return compiled_rows


def may_execute() -> bool:
    """Tell whether the system lets a process execute memory that it has written.

    Hardened systems do not (systemd's MemoryDenyWriteExecute, SELinux without execmem). LLVM does not notice that, and
    the first call of its code would end the process.
    """
    if not hasattr(mmap, "PROT_EXEC"):
        return True  # Windows
    page = mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    protection = mmap.PROT_READ | mmap.PROT_EXEC
    allow = ctypes.CDLL(None).mprotect
    return bool(allow(ctypes.c_void_p(address), ctypes.c_size_t(mmap.PAGESIZE), protection) == 0)


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
