"""What the operators of a device can do, from the tables that torch ships."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

aten: Any = torch.ops.aten

_COPIES = {aten.copy_.default, aten._to_copy.default, aten._copy_from.default}
_INDEXED = {
    aten.index.Tensor, aten.index_put_.default, aten.index_put.default, aten._index_put_impl_.default,
    aten._unsafe_index.Tensor,
}  # fmt: skip
_FRESH = {
    aten.empty.memory_format, aten.empty_like.default, aten.empty_strided.default, aten.new_empty.default,
    aten.new_empty_strided.default,
}  # fmt: skip
_PRODUCTS = {
    aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default, aten.mv.default, aten.dot.default,
    aten.mm.out, aten.bmm.out, aten.bmm.dtype_out, aten.addmm.out, aten.baddbmm.out, aten.addmv.default,
}  # fmt: skip
_SIZED_BY_NUMBERS = {
    aten.nonzero.default, aten.masked_select.default, aten._unique2.default, aten._unique.default,
    aten.unique_dim.default, aten.unique_consecutive.default, aten.repeat_interleave.Tensor, aten.bincount.default,
    aten.equal.default,
}  # fmt: skip
_READS = {aten._local_scalar_dense.default, aten.item.default, aten.is_nonzero.default}
_VIEWS = {aten.detach.default, aten.alias.default, aten._unsafe_view.default}
# Not tagged as pointwise, though a 0-dimensional tensor of the CPU may be an operand of them, too.
_TAKES_SCALARS = {
    "masked_fill", "masked_fill_", "where", "fill_", "index_put_", "index_put", "_index_put_impl_", "lerp", "addcmul",
    "addcmul_", "clamp", "clamp_", "clamp_min", "clamp_max", "isin", "index_fill_", "minimum", "maximum",
}  # fmt: skip


@cache
def _backends() -> dict[str, set[str] | None]:
    """Operator, with its overload, to the backends that have a kernel for it; None where it is made of others."""
    import torchgen
    from torchgen.gen import parse_native_yaml
    from torchgen.model import DispatchKey

    folder = Path(torchgen.__file__).parent / "packaged" / "ATen" / "native"
    parsed = parse_native_yaml(str(folder / "native_functions.yaml"), str(folder / "tags.yaml"))
    kernels = {
        key.name: parsed.backend_indices[key].index for key in (DispatchKey.CUDA, DispatchKey.MPS)
    }
    table: dict[str, set[str] | None] = {}
    for function in parsed.native_functions:
        composite = (
            function.has_composite_implicit_autograd_kernel
            or function.has_composite_explicit_autograd_kernel
            or function.has_composite_explicit_autograd_non_functional_kernel
        )
        named = {function.func.name, function.structured_delegate}
        name = str(function.func.name)
        table[name if "." in name else f"{name}.default"] = (
            None if composite else {key for key, index in kernels.items() if named & index.keys()}
        )
    return table


@dataclass(frozen=True)
class Operator:
    """What is known of an operator, whatever its operands are.

    Attributes:
        name: Its name without `aten::`, under which launches are counted.
        composite: Whether torch takes it apart before a device sees it.
        launches: Whether it does more than make a view, or room.
        copies: Whether it copies between devices.
        indexed: Whether it takes tensors as indices.
        fresh: Whether it makes room that nobody has written yet.
        multiplies: Whether it multiplies matrices.
        sized: Whether the shape of its result depends on numbers.
        reads: Whether its result is a number on the host.
        takes_scalars: Whether it takes 0-dimensional operands from the CPU.
    """

    name: str
    composite: bool
    launches: bool
    copies: bool
    indexed: bool
    fresh: bool
    multiplies: bool
    sized: bool
    reads: bool
    takes_scalars: bool
    _backends: frozenset[str] | None

    def runs_on(self, backend: str) -> bool:
        """Tell whether `CUDA` or `MPS` has a kernel for it."""
        return self._backends is None or backend in self._backends


@cache
def described(op: OpOverload) -> Operator:
    """Describe an operator; those that torch's table lacks are assumed to have kernels."""
    name = op._schema.name.removeprefix("aten::")
    backends = _backends().get(f"{name}.{op._schema.overload_name or 'default'}")
    if op._schema.name.startswith(("mkldnn", "quantized")):
        backends = set()
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    return Operator(
        name,
        composite=torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key),
        launches=not (op.is_view or op in _VIEWS or op in _FRESH),
        copies=op in _COPIES,
        indexed=op in _INDEXED,
        fresh=op in _FRESH,
        multiplies=op in _PRODUCTS,
        sized=op in _SIZED_BY_NUMBERS,
        reads=op in _READS,
        takes_scalars=torch.Tag.pointwise in op.tags or name in _TAKES_SCALARS,
        _backends=None if backends is None else frozenset(backends),
    )


def tensor_float_32(x: Tensor) -> Tensor:
    """Round float32 to the 10 bits of mantissa that tensor cores read under TF32, to nearest even."""
    bits = x.contiguous().view(torch.int32)
    rounded = ((bits + 0x0FFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32)
    return torch.where(torch.isfinite(x), rounded, x)


def attention_kernel(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> str:
    """Return the kernel that torch chooses on an H100 without cuDNN: flash, efficient or math (sdp_utils.cpp)."""
    half = q.dtype in (torch.float16, torch.bfloat16)
    square, one_width = q.shape[2] == k.shape[2], q.shape[-1] == v.shape[-1]
    if half and mask is None and one_width and q.shape[-1] <= 256 and (square or not causal):
        return "flash"
    aligned = all(x.shape[-1] % (8 if half else 4) == 0 for x in (q, v))
    if q.shape[1] == k.shape[1] and aligned and (mask is None or not causal):
        return "efficient"
    return "math"
