"""Round what the operators of a module give once more, for a module whose arithmetic is in no modules of its own.

A matrix that a module multiplies by itself is in no innermost module, so that `rounded_again` does not see the product.
Only operators whose last bits depend on what else is in the batch are rounded: sums, whose order a kernel chooses, and
functions that vectorised code computes in another way at the end of a row.
"""

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

# by operator, the place of its first factor
_PRODUCTS = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1}
_OTHERS = {
    "sum", "mean", "var", "cumsum", "_softmax", "softmax", "native_layer_norm", "_fused_rms_norm", "convolution",
    "exp", "tanh", "gelu", "silu", "sigmoid", "erf", "rsqrt", "linear", "matmul", "scaled_dot_product_attention",
    "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_attention_math_for_mps",
}  # fmt: skip


class RoundedOperators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Change every number that these operators give by up to its rounding, evenly distributed."""

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._generator = torch.Generator().manual_seed(seed + 2000)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an operator."""
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in _PRODUCTS:
            return self._rounded(result, *args[_PRODUCTS[name] : _PRODUCTS[name] + 2])
        if name not in _OTHERS:
            return result
        if isinstance(result, tuple | list):
            return (self._rounded(result[0]), *result[1:])
        return self._rounded(result)

    def _rounded(
        self, result: Tensor, left: Tensor | None = None, right: Tensor | None = None
    ) -> Tensor:
        """Round numbers to half a step of their type, and a product also to √K·‖x∘w‖ half steps of float32."""
        if not result.is_floating_point() or result.dtype == torch.float64:
            return result
        limits = torch.finfo(result.dtype)
        wide = result.float()
        reach = wide.abs() * (limits.eps / 2)
        if left is not None and right is not None:
            sums = torch.matmul(left.float().square(), right.float().square()).sqrt()
            reach = reach + sums * (sqrt(left.shape[-1]) * torch.finfo(torch.float32).eps / 2)
        noise = torch.rand(result.shape, generator=self._generator).to(result.device) * 2 - 1
        # scores of barred keys are the largest number of the type: a step further would be infinite
        ordinary = wide.abs() < limits.max / 2
        return torch.where(ordinary, wide + noise * reach, wide).to(result.dtype)
