"""Tensors that say `cuda:N` or `mps`, hold their numbers on the CPU, and refuse what such a device refuses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from tests.devices.simulation.counts import counts, memory
from tests.devices.simulation.kernels import (
    Operator,
    aten,
    attention_kernel,
    described,
    tensor_float_32,
)
from tests.devices.simulation.streams import SimulatedStream, streams

SIMULATED = ("cuda", "mps")


@dataclass
class Current:
    """What torch.cuda.set_device changes."""

    index: int = 0


current = Current()


class _Allocation:
    """The share of a tensor in the device's memory, until the tensor is gone."""

    __slots__ = ("_key", "_size")

    def __init__(self, numbers: Tensor) -> None:
        self._size = numbers.untyped_storage().nbytes()
        self._key: int | None = None
        self._key = memory.allocate(numbers)

    def __del__(self) -> None:
        # at the end of the interpreter, it is gone
        if self._key is not None and memory is not None:
            memory.free(self._key, self._size)


class SimulatedTensor(Tensor):
    """A tensor on a simulated device; `numbers` is the same tensor on the CPU."""

    numbers: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, numbers: Tensor, device: torch.device) -> SimulatedTensor:
        allocation = _Allocation(numbers)
        tensor = Tensor._make_wrapper_subclass(
            cls,
            numbers.size(),
            strides=numbers.stride(),
            storage_offset=numbers.storage_offset(),
            dtype=numbers.dtype,
            layout=numbers.layout,
            device=device,
            requires_grad=numbers.requires_grad,
        )
        # torch swaps the parameters of a module only without weak references to them, so none frees the memory
        tensor.numbers, tensor.allocation = numbers, allocation
        return tensor

    def __init__(self, *args: object) -> None:
        pass

    def __tensor_flatten__(self) -> tuple[list[str], torch.device]:
        return ["numbers"], self.device

    @staticmethod
    def __tensor_unflatten__(
        inner: Mapping[str, Tensor], device: torch.device, *_: object
    ) -> SimulatedTensor:
        return SimulatedTensor(inner["numbers"], device)

    @classmethod
    def __torch_dispatch__(
        cls,
        op: OpOverload,
        types: object,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        if op is aten.scaled_dot_product_attention.default:
            return _attention(op, args, kwargs)
        if described(op).composite:  # taken apart, so that kernels are counted as they are launched
            return op._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)
        return run(op, args, kwargs)

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"{self.numbers!r} on {self.device}"

    def numpy(self, *, force: bool = False) -> Any:
        if force:
            return self.cpu().numpy()
        raise TypeError(
            f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host "
            "memory first."
        )

    def __array__(self, dtype: object = None) -> Any:
        return self.numpy()

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def data_ptr(self) -> int:
        return self.numbers.data_ptr()

    def pin_memory(self, *args: object) -> Tensor:
        raise RuntimeError(
            f"cannot pin 'torch.cuda.{self.dtype}' only dense CPU tensors can be pinned"
        )

    def record_stream(self, stream: SimulatedStream) -> None:  # type: ignore[override]
        streams.record(self.numbers, stream)

    def __deepcopy__(self, memo: object) -> Tensor:
        return self.clone()

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        return Tensor.to, (self.cpu(), str(self.device))


def run(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> object:
    """Check an operator against what the device allows, count it, and compute it on the CPU.

    Raises:
        RuntimeError: The device refuses it.
        TypeError: It would make float64 on a device without.
    """
    known, flat = described(op), [*_leaves(args), *_leaves(kwargs.values())]
    on_device = [x for x in flat if isinstance(x, SimulatedTensor)]
    on_host = [x for x in flat if isinstance(x, Tensor) and not isinstance(x, SimulatedTensor)]
    place = on_device[0].device if on_device else None
    target = kwargs.get("device")
    if target is not None:
        target = torch.device(target)
        place = _numbered(target) if target.type in SIMULATED else None
    device = place or (on_device[0].device if on_device else None)
    if device is not None:
        _check(op, known, args, on_device, on_host, device)
        if any(isinstance(x, torch.Generator) and x.device.type != device.type for x in flat):
            raise RuntimeError(f"Expected a '{device.type}' device type for generator ({op})")
    streams.read(x.numbers for x in on_device)
    if _copies_later(op, args, kwargs):
        return args[0]
    if op is aten._to_copy.default and kwargs.get("non_blocking") and on_device and place is None:
        return _arrives_later(on_device[0].numbers)
    if known.launches:
        streams.current().launch()
    _count(op, known, args, on_device, place)
    plain_args, plain_kwargs = (
        [_plain(x) for x in args],
        {name: _plain(x) for name, x in kwargs.items()},
    )
    if target is not None and target.type in SIMULATED:
        plain_kwargs["device"] = torch.device("cpu")
    result = _compute(op, known, plain_args, plain_kwargs)
    if known.fresh and isinstance(result, Tensor):
        _spoil(result)
    owners = {id(x.numbers): x for x in on_device}
    if op is aten._to_copy.default and (id(result) in owners or any(result is x for x in on_host)):
        result = result.clone()

    def wrap(x: Any) -> Any:
        if not isinstance(x, Tensor) or isinstance(x, SimulatedTensor):
            return x
        owner = owners.get(id(x))
        if owner is not None:
            if owner.shape != x.shape or owner.stride() != x.stride():
                raise RuntimeError(
                    f"{op} changed the shape of a tensor in place: {owner.shape} to {x.shape}"
                )
            return owner
        if place is None:
            return x
        _check_dtype(x.dtype, place)
        if not torch.is_inference_mode_enabled() or x.is_inference():
            return SimulatedTensor(x, place)
        # a view of a tensor from outside of inference mode is not an inference tensor
        with torch.inference_mode(mode=False):
            return SimulatedTensor(x, place)

    wrapped = type(result)(map(wrap, result)) if isinstance(result, list | tuple) else wrap(result)
    if known.launches:
        streams.write(x.numbers for x in _leaves([wrapped]) if isinstance(x, SimulatedTensor))
    return wrapped


def _leaves(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _leaves(value)
        else:
            yield value


def _plain(value: Any) -> Any:
    """Return an argument with the numbers of tensors in place of the tensors."""
    if isinstance(value, SimulatedTensor):
        return value.numbers
    return (
        type(value)([_plain(part) for part in value]) if isinstance(value, list | tuple) else value
    )


def _copies_later(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Put a copy from pinned memory that the host does not wait for into the queue of its stream."""
    if op is not aten.copy_.default or not (
        (len(args) > 2 and args[2]) or kwargs.get("non_blocking")
    ):
        return False
    target, source = args[:2]
    if (
        not isinstance(target, SimulatedTensor)
        or isinstance(source, SimulatedTensor)
        or not streams.is_pinned(source)
    ):
        return False
    streams.current().copy_later(lambda: target.numbers.copy_(source))
    streams.write([target.numbers])
    if streams.beside:
        counts.copy_beside(source.nbytes)
    else:
        counts.upload_bytes += source.nbytes
    return True


def _arrives_later(numbers: Tensor) -> Tensor:
    """Put a copy to pinned memory, which holds nothing until the host waits for it, into the queue of its stream."""
    streams.read_beside(numbers)
    copy = streams.pin(numbers)
    _spoil(copy)
    streams.current().copy_later(lambda: copy.copy_(numbers))
    counts.read_bytes += numbers.nbytes
    return copy


def _numbered(device: torch.device) -> torch.device:
    if device.type == "mps":
        return torch.device("mps", 0)
    return torch.device(
        "cuda", current.index if device.index is None or device.index < 0 else device.index
    )


def _check(
    op: OpOverload,
    known: Operator,
    args: Sequence[Any],
    on_device: Sequence[Tensor],
    on_host: Sequence[Tensor],
    device: torch.device,
) -> None:
    """Refuse what a device refuses: operands elsewhere, operators without a kernel."""
    if not known.copies and on_device:
        elsewhere = any(x.device != on_device[0].device for x in on_device)
        if elsewhere or _misplaced(known, args, on_host):
            places = " and ".join(sorted({str(x.device) for x in (*on_device, *on_host)}))
            shapes = ", ".join(str(tuple(x.shape)) for x in on_host)
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found at least two devices, {places} "
                f"({op}; on the CPU: {shapes})"
            )
    backend = device.type.upper()
    if not known.runs_on(backend):
        raise RuntimeError(f"Could not run '{op}' with arguments from the '{backend}' backend")
    if (
        known.multiplies
        and on_device
        and not (on_device[0].is_floating_point() or on_device[0].is_complex())
    ):
        raise RuntimeError(f"\"{op._opname}_cuda\" not implemented for '{on_device[0].dtype}'")


def _misplaced(known: Operator, args: Sequence[Any], on_host: Sequence[Tensor]) -> bool:
    """Tell whether an operator on the device has an operand on the host that it does not take."""
    if known.indexed:  # indices from the host are copied to the device, but not the other way round
        if not isinstance(args[0], SimulatedTensor):
            return True
        uploaded = [i for i in args[1] if i is not None and not isinstance(i, SimulatedTensor)]
        for index in uploaded:
            counts.wait("upload", index.nbytes)
        values = [
            x for x in args[2:] if isinstance(x, Tensor) and not isinstance(x, SimulatedTensor)
        ]
        return any(x.ndim for x in values)
    return any(x.ndim for x in on_host) or bool(on_host and not known.takes_scalars)


def _check_dtype(dtype: torch.dtype, device: torch.device) -> None:
    if device.type == "mps" and dtype in (torch.float64, torch.complex128):
        raise TypeError(
            "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64. Please use "
            "float32 instead."
        )


def _count(
    op: OpOverload,
    known: Operator,
    args: Sequence[Any],
    on_device: Sequence[Tensor],
    place: torch.device | None,
) -> None:
    if known.copies:
        source = args[1] if op is aten.copy_.default else args[0]
        arrives = (
            isinstance(args[0], SimulatedTensor) if op is aten.copy_.default else place is not None
        )
        if isinstance(source, SimulatedTensor) and not arrives:
            counts.wait("read", source.nbytes)
            return
        if not isinstance(source, SimulatedTensor) and arrives and isinstance(source, Tensor):
            counts.wait("upload", source.nbytes)
            return
    elif known.reads:
        counts.wait("read", on_device[0].element_size())
        return
    masks = args[1] if known.indexed else ()
    if known.sized or any(
        isinstance(i, Tensor) and i.dtype in (torch.bool, torch.uint8) for i in masks
    ):
        counts.wait("size")
    if known.launches:
        counts.launch(known.name)


def _compute(
    op: OpOverload, known: Operator, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    if op is aten.bmm.dtype_out:  # 16-bit numbers, added up in float32
        return aten.bmm.out(args[0].float(), args[1].float(), **kwargs)
    if known.multiplies and torch.backends.cuda.matmul.allow_tf32:
        args = [
            tensor_float_32(x) if isinstance(x, Tensor) and x.dtype == torch.float32 else x
            for x in args
        ]
    # CUDA's kernels widen on their way
    if op in (aten._softmax.default, aten._log_softmax.default) and args[2]:
        return op(args[0].float(), args[1], False)
    if op is aten.histc.default and not args[0].is_floating_point():  # CUDA counts integers, too
        return op(args[0].float(), *args[1:], **kwargs).to(args[0].dtype)
    return op(*args, **kwargs)


def _spoil(fresh: Tensor) -> None:
    """Fill memory that nobody has written yet with what shows in results."""
    if fresh.is_floating_point():
        fresh.fill_(torch.nan)
    elif fresh.dtype == torch.bool:
        fresh.fill_(True)
    elif not fresh.is_complex():
        fresh.fill_(torch.iinfo(fresh.dtype).max // 2)


def _attention(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given = dict(zip(names, args, strict=False)) | dict(kwargs)
    q, k, v, mask = (given.get(name) for name in names[:4])
    operands = [x for x in (q, k, v, mask) if x is not None]
    if any(not isinstance(x, SimulatedTensor) or x.device != q.device for x in operands):
        places = [str(x.device) for x in operands]
        raise RuntimeError(
            f"Expected query, key, value and attn_mask to be on the same device, but got {places}"
        )
    if mask is not None and mask.dtype not in (torch.bool, q.dtype):
        raise RuntimeError(
            f"Expected attn_mask dtype to be bool or to match query dtype, but got {mask.dtype}"
        )
    kernel = attention_kernel(q, k, v, mask, bool(given.get("is_causal")))
    counts.attend(f"{kernel}, masked" if mask is not None else kernel)
    output = op(
        **{name: x.numbers if isinstance(x, SimulatedTensor) else x for name, x in given.items()}
    )
    # as fused kernels lay it out: (B, Q, H, E)
    output = output.transpose(1, 2).contiguous().transpose(1, 2)
    return SimulatedTensor(output, q.device)
