"""What a pass over many texts does once, and not in every layer: a GPU that nobody waits for has the next work ready.

A host that reads a number waits for everything that was launched before, and the device then waits for the host.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor


class Frame:
    """Conditions of one pass, which hold for the time being and are read together."""

    def __init__(self) -> None:
        self._conditions: list[Tensor] = []

    def add(self, condition: Tensor) -> None:
        """Take a condition, a scalar of bool on the device."""
        self._conditions.append(condition)

    def holds(self) -> bool:
        """Tell whether all conditions hold, by one wait; if one does not, the pass is computed again without frame."""
        return not self._conditions or bool(torch.stack(self._conditions).all())


_FRAME: ContextVar[Frame | None] = ContextVar("frame", default=None)


@contextmanager
def one_frame() -> Iterator[Frame]:
    """Leave the conditions of what is computed inside, on a GPU, to the frame."""
    frame = Frame()
    token = _FRAME.set(frame)
    try:
        yield frame
    finally:
        _FRAME.reset(token)


def holds(condition: Tensor) -> bool:
    """Read a condition, a scalar of bool; on a GPU within a frame return True, since the frame reads it later."""
    frame = _FRAME.get()
    if frame is None or condition.device.type == "cpu":
        return bool(condition)
    frame.add(condition)
    return True


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a CPU tensor on a device: to a GPU from pinned memory, for which the host does not wait."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def download(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors of one device on the CPU; within a frame in pinned memory, by one wait for all of them.

    torch takes pinned memory for what it copies without waiting, and the next frame takes it again. What is kept for
    long stays out of it, since nothing else can use it meanwhile.
    """
    if _FRAME.get() is None or not tensors or tensors[0].device.type != "cuda":
        return [tensor.cpu() for tensor in tensors]
    copies = [tensor.to("cpu", non_blocking=True) for tensor in tensors]
    torch.cuda.current_stream(tensors[0].device).synchronize()
    return copies
