"""A pass over many texts that a GPU computes while the host does something else: the host waits for it once.

A host that reads a number waits for everything that was launched before, and the device then waits for the host. So
conditions that hold as a rule are read at the end, with all that is recorded, which leaves the device through pinned
memory on a stream of its own.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

import torch
from torch import Tensor


class Frame:
    """What of one pass arrives later: its conditions, and its arrays on the CPU."""

    def __init__(self) -> None:
        self._conditions: list[Tensor] = []
        self._numbers: list[Tensor] = []
        self._arrived: torch.cuda.Event | None = None

    def add(self, condition: Tensor) -> None:
        """Take a condition, a scalar of bool on the device, which holds for the time being."""
        self._conditions.append(condition)

    def add_numbers(self, numbers: Sequence[Tensor]) -> None:
        """Take the condition that scalars on the device are finite, which is computed at the end, of all together."""
        self._numbers.extend(numbers)

    def copies(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return tensors of a GPU in pinned memory, which they reach before `holds` returns.

        torch takes pinned memory for what it copies without waiting, and the next frame takes it again.
        """
        launched = _event()
        launched.record()
        stream = _copy_stream(tensors[0].device)
        stream.wait_event(launched)
        with torch.cuda.stream(stream):
            copies = [tensor.to("cpu", non_blocking=True) for tensor in tensors]
            for tensor in tensors:
                tensor.record_stream(stream)  # else its memory is given away before it is read
            self._arrived = _event()
            self._arrived.record()
        return copies

    def close(self) -> None:
        """Send the conditions to the CPU, too: nothing else is launched."""
        if self._numbers:
            self._conditions.append(torch.stack(self._numbers).isfinite().all())
        if self._conditions:
            holds = torch.stack(self._conditions).all()
            self._conditions = self.copies([holds]) if holds.device.type == "cuda" else [holds]

    def holds(self, meanwhile: Callable[[], bool]) -> bool:
        """Wait for the pass, and tell whether all conditions hold; if not, it has to be computed without a frame.

        Args:
            meanwhile: Does a little of other work; False if there is no more. A thread would do as much, but each
                operator that is launched lets it have the interpreter for milliseconds.
        """
        if self._arrived is not None:
            while not self._arrived.query() and meanwhile():  # type: ignore[no-untyped-call]
                pass
            self._arrived.synchronize()
        return all(bool(condition) for condition in self._conditions)


_FRAME: ContextVar[Frame | None] = ContextVar("frame", default=None)


@contextmanager
def one_frame() -> Iterator[Frame]:
    """Leave to a frame what a GPU computes inside, and do not wait for it."""
    frame = Frame()
    token = _FRAME.set(frame)
    try:
        yield frame
        frame.close()
    finally:
        _FRAME.reset(token)


def holds(condition: Tensor) -> bool:
    """Read a condition, a scalar of bool; on a GPU within a frame return True, since the frame reads it later."""
    frame = _FRAME.get()
    if frame is None or condition.device.type == "cpu":
        return bool(condition)
    frame.add(condition)
    return True


def are_finite(numbers: Sequence[Tensor]) -> bool:
    """Tell whether scalars of one device are finite; on a GPU within a frame return True, as `holds` does."""
    frame = _FRAME.get()
    if frame is None or numbers[0].device.type == "cpu":
        return bool(torch.stack(list(numbers)).isfinite().all())
    frame.add_numbers(numbers)
    return True


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a CPU tensor on a device: to a GPU from pinned memory, for which the host does not wait."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def download(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors of one device on the CPU; those of a GPU within a frame arrive when the frame has been waited for.

    What is kept for long stays out of pinned memory, since nothing else can use it meanwhile.
    """
    frame = _FRAME.get()
    if frame is None or not tensors or tensors[0].device.type != "cuda":
        return [tensor.cpu() for tensor in tensors]
    return frame.copies(tensors)


@cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream on which results leave a GPU, beside what it computes next."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _event() -> torch.cuda.Event:
    return torch.cuda.Event()  # type: ignore[no-untyped-call]
