"""Decide whether a layer's rows are reduced by compiled loops, and call them with tensors.

The only module that imports `compiled_rows`. Compiling takes time, so only large layers go this way. Smaller ones,
GPUs, and machines where LLVM is missing or may not make code use operators of torch and NumPy, which give the same
numbers up to rounding.
"""

import ctypes
import mmap
import platform
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from math import prod
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnscope.request.estimate import WORTH_COMPILED_LOOPS
from attnscope.request.masks.terms import Mask

# others are not known to work with LLVM's way of loading code
_PROCESSORS = {"x86_64", "amd64", "aarch64", "arm64"}


def row_loops(cells: int, device: torch.device) -> ModuleType | None:
    """Return the compiled loops if they pay for this many cells; None if operators are used."""
    if device.type == "cpu" and cells >= WORTH_COMPILED_LOOPS:
        return _load()
    return None


def find_summarizer(
    strongest: Iterable[int],
    mask: Mask,
    cells: int,
    n_queries: int,
    n_keys: int,
    device: torch.device,
) -> "Callable[[Tensor, Tensor], RowSummary] | None":
    """Return `softmax` by compiled loops for a large layer whose sources are ranked; None if operators are to be used.

    `strongest` is how many largest weights of a row each recorder asks for; a sliding window uses operators.
    """
    n_strongest = max(strongest, default=0)
    if not n_strongest or mask.key_range(n_queries - 1, n_queries, n_keys)[0] > 0:
        return None
    loops = row_loops(cells, device)
    if loops is None:
        return None
    return partial(softmax, loops, n_strongest)


@cache
def _load() -> ModuleType | None:
    if platform.machine().lower() not in _PROCESSORS:
        return None
    try:
        import llvmlite.binding  # noqa: F401
    except ImportError:
        gain = "attention in long texts takes about 0.7 of this time with llvmlite: pip install 'attnscope[fast]'"
        warnings.warn(gain, stacklevel=2)
        return None
    try:
        if not may_execute():
            raise OSError("the system does not let a process execute memory that it has written")
        from attnscope.model import compiled_rows
    except Exception as e:  # such as a version that does not know what is asked of it
        reason = " ".join(str(e).split())[:200] or type(e).__name__
        warnings.warn(
            f"compiled loops are unavailable, so long texts will be slower ({reason})", stacklevel=2
        )
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
    """Findings about every row of a tile that the compiled softmax returns in addition to the weights."""

    loops: ModuleType
    entropy: Tensor  # in bits, (B, h, q)
    largest: Tensor  # largest masked score, (B, h, q); −inf without an allowed key
    # places of the largest weights, counted from k0, (B, h, q, count); −1 where fewer keys are allowed
    places: Tensor
    strongest: Tensor  # these weights, (B, h, q, count); 0 where fewer keys are allowed

    def sums(self, weights: Tensor, kinds: Tensor, reaches: Sequence[int], query: int) -> Tensor:
        """Sum weights (B, h, r, k), r being neighbours: by distance, up to some distances, and on some kinds of keys.

        `kinds` are the keys of each kind, (B, n_kinds, k), bool. Returns (1 + n_reaches + n_kinds, B, h, r): Σ w ·
        |query − key|; weights on keys at most so far away; those on keys of each kind.
        """
        distances = np.array(reaches, np.int64)
        return torch.from_numpy(
            self.loops.sums(weights.contiguous().numpy(), kinds.numpy(), distances, query)
        )


def softmax(loops: ModuleType, count: int, masked: Tensor, weights: Tensor) -> RowSummary:
    """Write the softmax of masked scores (B, h, q, k) into `weights`; return a summary of every row.

    It is 0 in a row without an allowed key. `weights` may be `masked` itself.
    """
    shape = masked.shape[:3]
    strongest = masked.new_empty(*shape, count)
    places = torch.empty_like(strongest, dtype=torch.int64)
    statistics = loops.softmax(*map(_rows, (masked, weights, places, strongest)))
    entropy, largest = (torch.from_numpy(values).view(shape) for values in statistics)
    return RowSummary(loops, entropy, largest, places, strongest)


def _rows(tensor: Tensor) -> NDArray[Any]:
    """Return a contiguous tensor (…, n) as the array of its rows, which shares its memory."""
    return tensor.view(prod(tensor.shape[:-1]), tensor.shape[-1]).numpy()
