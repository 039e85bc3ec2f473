"""Matrix products behind attention and linear layers."""

from functools import cache, partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from attnscope.base.system.machine import amd_family

_DOT = 8192  # BLAS uses several threads for longer vectors
# tokens of texts whose linear layers MKL multiplies on every processor, since it is more exact
_FEW_ROWS = 64
_WORTH_A_CALL = 1 << 19  # multiplications; smaller products are faster together, as one batch


def uses_onednn(x: Tensor, weight: Tensor) -> bool:
    """Return whether oneDNN multiplies these in attention."""
    plain = (
        x.dtype == torch.float32 == weight.dtype
        and x.device.type == "cpu"
        and not torch.is_grad_enabled()
    )
    return plain and x.numel() > 0 < weight.numel() and _onednn()


def layer_uses_onednn(x: Tensor, weight: Tensor) -> bool:
    """Return whether oneDNN multiplies these in a linear layer: only if it is much faster, in long texts on AMD.

    oneDNN adds all products of a sum one after the other, and MKL (as in eager transformers) in blocks. The error of a
    layer's numbers is 1.5 times as large, of up to 16 rows 3 times, and where one channel is massive it becomes 4 times
    as large on the way through 30 layers.
    """
    return x.numel() > _FEW_ROWS * x.shape[-1] and _onednn_is_faster() and uses_onednn(x, weight)


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, after: tuple[str, str] | None = None
) -> Tensor:
    """Return x·weightᵀ + bias, followed by the non-linearity `after`, in oneDNN's words, if `layer_uses_onednn`."""
    if layer_uses_onednn(x, weight):
        return _onednn_linear(x, weight, bias, after)
    return F.linear(x, weight, bias)


def _onednn_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, after: tuple[str, str] | None = None
) -> Tensor:
    if not (weight.is_contiguous() or weight.mT.is_contiguous()):
        # Rows that are not contiguous take up to 1,000 times as long.
        weight = weight.contiguous()
    name, variant = after or ("none", "")
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, name, [], variant)
    return product


def multiplies_narrow(x: Tensor) -> bool:
    """Return whether the device multiplies 16-bit numbers and adds them up in float32: as exact as float32, and faster.

    torch 2.8 and later can, with CUDA.
    """
    narrow = x.dtype in (torch.bfloat16, torch.float16) and x.device.type == "cuda"
    return narrow and torch.version.hip is None and hasattr(torch.ops.aten.bmm, "dtype_out")


def matmul_transposed(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """Return a·bᵀ, (…, M, N) in float32, of (…, M, E), float32 or what `multiplies_narrow`, and (…, N, E).

    `out` is room for the result, which may be used or not.
    """
    m, e = a.shape[-2:]
    n = b.shape[-2]
    if a.dtype != torch.float32:
        wide = a.new_empty(*a.shape[:-1], n, dtype=torch.float32) if out is None else out
        count = a.shape[:-2].numel()  # in place of −1, which is ambiguous if no key is visible
        sides = a.reshape(count, m, e), b.reshape(count, n, e).mT
        torch.ops.aten.bmm.dtype_out(*sides, torch.float32, out=wide.view(count, m, n))
        return wide
    if (
        m * n * e < _WORTH_A_CALL
        or a.device.type != "cpu"
        or not _onednn()
        or (out is not None and _mkl_in_place())
    ):
        return torch.matmul(a, b.mT, out=out)
    left = a.reshape(-1, m, e)
    right = b.reshape(-1, n, e)
    multiply = _onednn_linear if uses_onednn(a, b) else F.linear
    if len(left) == 1:
        return multiply(left[0].contiguous(), right[0]).view(*a.shape[:-1], n)
    product = a.new_empty(len(left), m, n) if out is None else out.view(-1, m, n)
    for i in range(len(left)):
        product[i] = multiply(left[i], right[i])
    return product.view(*a.shape[:-1], n)


def matmul_grouped(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """Return a·bᵀ, (B, H, M, N), of (B, H, M, E) and (B, G, N, E): H / G neighbours in `a` share a matrix of `b`.

    `out` is room for the result, which may be used or not; no matrix of `b` is copied.
    """
    batch, heads, m, e = a.shape
    groups, n = b.shape[1:3]
    if heads == groups:
        return matmul_transposed(a, b, out)
    joined = a.reshape(batch, groups, heads // groups * m, e)
    room = None
    if out is not None:
        room = out.view(batch, groups, heads // groups * m, n)
    return matmul_transposed(joined, b, room).view(batch, heads, m, n)


def sums_of_products(a: Tensor, b: Tensor) -> Tensor:
    """Sum a·b over the last dimension of two float32 tensors (…, K), without their product in memory: (…)."""
    if a.device.type != "cpu":
        return (a * b).sum(-1)
    # vecdot is of NumPy 2, and twice as fast
    dot = getattr(np, "vecdot", None) or partial(np.einsum, "...i,...i->...")
    starts = range(0, max(1, a.shape[-1]), _DOT)
    parts = [
        dot(a[..., start : start + _DOT].numpy(), b[..., start : start + _DOT].numpy())
        for start in starts
    ]
    return torch.from_numpy(sum(parts[1:], start=parts[0]))


@cache
def _onednn() -> bool:
    """Tell whether oneDNN is the better choice here, and torch's operator, which isn't public, takes our arguments.

    torch multiplies float32 by MKL, which leaves AVX-512 unused on AMD: oneDNN is 2.2 times as fast there, and as
    exact. Without AVX-512, MKL takes 0.6 to 0.9 of oneDNN's time (AMD EPYC, Zen 3). The choice follows from the
    processor rather than from timing both, so that a run repeats to the last bit.
    """
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    try:
        product = torch.ops.mkldnn._linear_pointwise(
            torch.ones(1, 2), torch.ones(3, 2), None, "none", [], ""
        )
    except (AttributeError, RuntimeError, TypeError):
        return False
    return bool((product == 2).all())


@cache
def _onednn_is_faster() -> bool:
    """Tell whether oneDNN multiplies large matrices faster than MKL; on Intel, MKL takes 0.9 to 1.0 of its time."""
    return _onednn() and amd_family() is not None


@cache
def _mkl_in_place() -> bool:
    """Tell whether MKL, which writes a product in place, is faster than oneDNN and a copy.

    True on Zen 4 (family 25, as Zen 3, for which `_onednn` is false), which executes an AVX-512 instruction in two
    halves: MKL, which does not use AVX-512 there, takes 1.1 times as long as oneDNN, but saves a copy that costs more.
    """
    return amd_family() == 25


def has_float64(device: torch.device) -> bool:
    """Return whether a device computes in float64."""
    return device.type != "mps"


def to_float64(x: Tensor) -> Tensor:
    """Convert a tensor to float64 on its device, or on the CPU if the device has no float64."""
    return (x if has_float64(x.device) else x.cpu()).double()
