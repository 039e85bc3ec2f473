"""GPUs that are not there: `simulated_devices()` makes torch believe in two CUDA devices and an MPS device.

It takes a CPU build of torch, and no compiler. A fallback for the dispatch keys CUDA and MPS makes creation and copying
return `SimulatedTensor`s; c10's device guards of these types are the CPU's, which do nothing; torch.cuda reports the
devices, and their memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import torch
from torch import library
from torch.utils import _pytree as pytree

from tests.devices.simulation.counts import counts, memory
from tests.devices.simulation.kernels import aten
from tests.devices.simulation.streams import SimulatedEvent, SimulatedStream, streams
from tests.devices.simulation.tensor import SimulatedTensor, current, run

__all__ = [
    "SimulatedTensor",
    "counts",
    "current",
    "memory",
    "missing",
    "simulated_devices",
    "streams",
]

DEVICES, CAPACITY = 2, 139 << 30
_HOST_FREE = 256 << 30
_TYPES = {"CUDA": 1, "MPS": 13}  # c10::DeviceType
# Kernels that all backends share would be taken before the fallback where Python's own key is left out, as within
# torch.tensor(…, device=…).
_FACTORIES = (
    "arange", "arange.start", "arange.start_step", "linspace", "eye", "eye.m", "randperm", "randint", "randint.low",
    "tril_indices", "triu_indices", "logspace",
)  # fmt: skip
_lasting: list[object] = []  # what torch points to from now on


def missing() -> str:
    """Return why devices cannot be simulated under this build of torch; empty if they can."""
    if torch.version.cuda or torch.version.hip or torch.backends.mps.is_built():
        return "simulated devices need a CPU build of torch"
    return ""


@contextmanager
def simulated_devices(capacity: int = CAPACITY) -> Iterator[None]:
    """Let torch believe in two CUDA devices of `capacity` bytes each, and an MPS device.

    What this machine has free would decide which groups fit, so the host of these devices has memory of its own, too.
    """
    _register()
    memory.capacity = capacity
    replaced = {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: DEVICES,
        "current_device": lambda: current.index,
        "synchronize": lambda device=None: None,
        "empty_cache": lambda: None,
        "get_device_name": lambda device=None: "simulated GPU",
        "get_device_capability": lambda device=None: (9, 0),
        "is_bf16_supported": lambda *args, **kwargs: True,
        "memory_allocated": lambda device=None: memory.held,
        "max_memory_allocated": lambda device=None: memory.peak,
        "memory_reserved": lambda device=None: memory.held,
        "reset_peak_memory_stats": lambda device=None: setattr(memory, "peak", memory.held),
        "mem_get_info": lambda device=None: (memory.capacity - memory.held, memory.capacity),
        "get_device_properties": lambda device=None: SimpleNamespace(
            name="simulated GPU",
            major=9,
            minor=0,
            total_memory=memory.capacity,
            multi_processor_count=132,
        ),
        "manual_seed": lambda seed: None,
        "manual_seed_all": lambda seed: None,
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "set_rng_state": lambda state, device=None: None,
        "device": _current_device,
        "Stream": SimulatedStream,
        "Event": SimulatedEvent,
        "stream": streams.chosen,
        "current_stream": streams.current,
    }
    try:
        with (
            patch.multiple(torch.cuda, **replaced),
            patch.object(torch.Tensor, "pin_memory", lambda tensor: streams.pin(tensor)),
            patch.object(torch.backends.mps, "is_available", lambda: True),
            patch("torch.mps.recommended_max_memory", lambda: memory.capacity),
            patch("torch.mps.current_allocated_memory", lambda: memory.held),
            patch("attnscope.request.memory.available_memory", lambda: _HOST_FREE),
        ):
            yield
    finally:
        memory.capacity = CAPACITY
        streams.reset()


@contextmanager
def _current_device(device: int | str | torch.device) -> Iterator[None]:
    place = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if place.type != "cuda":
        raise ValueError(f"Expected a cuda device, but got: {place}")
    before, current.index = current.index, place.index or 0
    try:
        yield
    finally:
        current.index = before


def _register() -> None:
    """Give torch what it lacks without GPUs, once for the process: it stays, and without devices nothing reaches it."""
    if _lasting:
        return
    for backend, number in _TYPES.items():
        _register_guard(number)
        fallback, aten_operators = library.Library("_", "IMPL"), library.Library("aten", "IMPL")
        fallback.fallback(_run_lost, backend)
        aten_operators.impl(
            "copy_", lambda *args, **kwargs: run(aten.copy_.default, args, kwargs), backend
        )
        for name in _FACTORIES:
            packet, _, overload = name.partition(".")
            op = getattr(getattr(aten, packet), overload or "default")
            aten_operators.impl(name, lambda *args, op=op, **kwargs: run(op, args, kwargs), backend)
        _lasting.extend([fallback, aten_operators])


def _run_lost(op: torch._ops.OpOverload, *args: object, **kwargs: object) -> object:
    """Run an operator that no tensor of ours has caught: one that makes a tensor, or a copy from the CPU."""
    lost = [
        x
        for x in pytree.tree_leaves((args, kwargs))
        if isinstance(x, torch.Tensor) and x.device.type != "cpu"
    ]
    assert all(isinstance(x, SimulatedTensor) for x in lost), (
        f"{op} got {type(lost[0])} on {lost[0].device}"
    )
    return run(op, args, kwargs)


def _register_guard(number: int) -> None:
    """Put a device guard into c10's table: the CPU's, which does nothing, under another type and current device.

    c10::impl::DeviceGuardImplInterface is an abstract class: an object of it points to a table of functions, of which
    the first is type() and the third getDevice(). A c10::Device is two bytes, its type and its index.
    """
    libc10 = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    registry = (ctypes.c_void_p * 22).in_dll(libc10, "_ZN3c104impl26device_guard_impl_registryE")
    assert not registry[number], "this torch has devices of its own"
    in_front, functions, pointer = 2, 28, ctypes.sizeof(ctypes.c_void_p)
    table = ctypes.cast(registry[0], ctypes.POINTER(ctypes.c_void_p))[0] - in_front * pointer
    copied = (ctypes.c_void_p * (in_front + functions)).from_buffer_copy(
        (ctypes.c_void_p * (in_front + functions)).from_address(table)
    )
    kind = ctypes.CFUNCTYPE(ctypes.c_uint8, ctypes.c_void_p)(lambda _: number)
    here = ctypes.CFUNCTYPE(ctypes.c_uint16, ctypes.c_void_p)(lambda _: number | current.index << 8)
    copied[in_front], copied[in_front + 2] = (
        ctypes.cast(function, ctypes.c_void_p).value for function in (kind, here)
    )
    guard = ctypes.c_void_p(ctypes.addressof(copied) + in_front * pointer)
    _lasting.extend([copied, kind, here, guard])
    registry[number] = ctypes.addressof(guard)
