"""Turn arrays of any library into tensors, and the axes of a layout into texts one after the other."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnscope.base.errors import AttnscopeError
from attnscope.request.memory import memory_bound, require_memory

_KEPT = (torch.float32, torch.bfloat16, torch.float16)
_PACKED = ("layers", "texts", "tokens", "heads", "width")


def as_tensor(array: Any, where: str, dtype: str | None = None) -> Tensor:
    """Return an array as a tensor of float32, bfloat16 or float16, without a copy if possible; float64 becomes float32.

    It may be a tensor, an array of NumPy, anything with DLPack or `__array__` (JAX, MLX, CuPy), or nested lists. With
    `dtype` `bfloat16` it is one that NumPy holds as uint16.
    """
    if isinstance(array, Tensor):
        tensor = array.detach()
    else:
        tensor = _from_library(array, where)
    if dtype == "bfloat16" and tensor.dtype == torch.uint16:
        tensor = tensor.view(torch.bfloat16)
    if isinstance(tensor, torch.masked.MaskedTensor):
        raise _masked(where)
    if tensor.layout != torch.strided or tensor.is_nested:
        raise AttnscopeError("is a sparse or nested tensor", where=where, hint="pass a dense one")
    if tensor.device.type == "meta":
        raise AttnscopeError(
            "is a tensor of the device meta, without numbers", where=where, hint="load the numbers"
        )
    # repeats its numbers
    expanded = not tensor.is_quantized and tensor.untyped_storage().nbytes() < tensor.nbytes
    if expanded or tensor.dtype == torch.float64:
        _require_copy(4 * tensor.numel(), where)
    if tensor.dtype == torch.float64:
        return tensor.to(torch.float32)
    if tensor.dtype not in _KEPT:
        hint = "pass float32, bfloat16 or float16; dequantise what is stored as whole numbers"
        raise AttnscopeError(
            f"has type {str(tensor.dtype).removeprefix('torch.')}", where=where, hint=hint
        )
    return tensor


def _from_library(array: Any, where: str) -> Tensor:
    if np.ma.is_masked(array):
        raise _masked(where)
    if not isinstance(array, np.ndarray) and hasattr(array, "__dlpack__"):
        try:
            tensor: Tensor = torch.utils.dlpack.from_dlpack(array)
            return tensor
        except (RuntimeError, BufferError, TypeError, ValueError, AttributeError) as e:
            if not hasattr(array, "__array__"):
                raise _no_array(e, where) from e
    try:
        values = np.asarray(array)
    except Exception as e:  # whatever a library's conversion raises
        raise _no_array(e, where) from e
    if values.dtype.name == "bfloat16":  # of ml_dtypes, which torch does not know
        return torch.from_numpy(np.ascontiguousarray(values).view(np.uint16).copy()).view(
            torch.bfloat16
        )
    if values.dtype.kind not in "fiub" or values.dtype.itemsize > 8:
        hint = "pass float32, bfloat16 or float16"
        raise AttnscopeError(f"holds {values.dtype}, no real numbers", where=where, hint=hint)
    # torch shares none of these
    copied = (
        not values.dtype.isnative
        or not values.flags.writeable
        or min(values.strides, default=0) < 0
    )
    if copied:
        _require_copy(values.nbytes, where)
        values = values.astype(values.dtype.newbyteorder("="))
    return torch.from_numpy(values)


def _masked(where: str) -> AttnscopeError:
    return AttnscopeError(
        "is a masked array that hides numbers", where=where, hint="pass a plain one, and use mask="
    )


def _no_array(error: Exception, where: str) -> AttnscopeError:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return AttnscopeError(
        f"is no array ({reason:.200})", where=where, hint="pass an array of numbers"
    )


def _require_copy(size: int, where: str) -> None:
    """Refuse an array of which memory does not hold a copy, such as one number that is repeated 10^12 times."""
    require_memory(
        {where: size}, replace(memory_bound(None), most=0), "pass fewer tokens or layers"
    )


def pack(tensor: Tensor, axes: Sequence[str], where: str) -> Tensor:
    """Return (rows, heads, width) of the texts one after the other; a view if the axes allow it."""
    ordered = tensor.permute([axes.index(axis) for axis in _PACKED if axis in axes])
    if "texts" in axes:
        ordered = ordered.flatten(0, 1)
    if not bool(torch.isfinite(ordered.sum(dtype=torch.float32))) and not bool(
        torch.isfinite(ordered).all()
    ):
        row, head, dimension = (~torch.isfinite(ordered)).nonzero()[0].tolist()
        value = float(ordered[row, head, dimension])
        message = f"holds {value} at token {row}, head {head}, dimension {dimension}"
        raise AttnscopeError(
            message, where=where, hint="pass finite numbers; padding is not needed"
        )
    return ordered


def pad(
    packed: Tensor, ranges: Sequence[tuple[int, int]], lengths: Sequence[int], device: torch.device
) -> Tensor:
    """Return some texts of (rows, heads, width) side by side, (B, heads, longest, width), filled up with zeros.

    A text has the rows of its range, which are its last tokens if they are fewer than its length.
    """
    if len(ranges) == 1 and ranges[0][1] - ranges[0][0] == lengths[0]:
        ((start, end),) = ranges
        return packed[start:end].transpose(0, 1)[None].to(device)
    batch = packed.new_zeros(len(ranges), max(lengths), *packed.shape[1:])
    for index, ((start, end), length) in enumerate(zip(ranges, lengths, strict=True)):
        batch[index, length - (end - start) : length] = packed[start:end]
    return batch.transpose(1, 2).to(device)
