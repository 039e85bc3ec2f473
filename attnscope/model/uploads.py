"""Copy parameters to a GPU while it computes.

A copy from ordinary memory, on the stream that computes, waits for everything that was launched before it, and the host
waits for the copy. So parameters go through pinned buffers, on a stream of their own, and the stream that computes
waits for them on the device.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock

import torch
from torch import Tensor

_PIECE = 1 << 24  # bytes of a pinned buffer; there are two, one filled while the other is copied


@dataclass
class Uploads:
    """Copies of parameters to one device; copies to the CPU or to MPS are `Tensor.to`."""

    device: torch.device
    _released: torch.cuda.Event | None = None
    _turn: int = 0
    _filling: Lock = field(default_factory=Lock)

    @property
    def _beside(self) -> bool:
        return self.device.type == "cuda"

    @cached_property
    def _stream(self) -> torch.cuda.Stream:
        return torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]

    @cached_property
    def _buffers(self) -> list[tuple[Tensor, torch.cuda.Event]]:
        """Two pinned buffers, each with the event after which it may be written again."""
        return [(torch.empty(_PIECE, dtype=torch.uint8).pin_memory(), _event()) for _ in range(2)]

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Launch the calling thread's work beside computation, after released parameters are out of use.

        Without that wait the host could run several blocks ahead of the device, which would then hold all of them.
        """
        if not self._beside:
            yield
            return
        if self._released is not None:
            self._released.synchronize()
        with torch.cuda.stream(self._stream):
            yield

    def copy(self, tensor: Tensor) -> Tensor:
        """Return a contiguous CPU tensor on the device; within `beside`, when `arrival` is reached."""
        if not self._beside:
            return tensor.to(self.device)
        uploaded = torch.empty_like(tensor, device=self.device)
        target, source = (side.view(-1).view(torch.uint8) for side in (uploaded, tensor))
        with self._filling:
            for start in range(0, len(source), _PIECE):
                part = source[start : start + _PIECE]
                buffer, copied = self._buffers[self._turn]
                self._turn = 1 - self._turn
                copied.synchronize()
                buffer[: len(part)].copy_(part)
                target[start : start + len(part)].copy_(buffer[: len(part)], non_blocking=True)
                copied.record()
        return uploaded

    def arrival(self) -> torch.cuda.Event | None:
        """Return the event after which all copies of this thread are complete; None if they are already."""
        if not self._beside:
            return None
        arrival = _event()
        arrival.record()
        return arrival

    def receive(self, arrival: torch.cuda.Event, parameters: Iterable[Tensor]) -> None:
        """Let the thread's next launches use parameters: the device, not the host, waits for their copies."""
        computing = torch.cuda.current_stream(self.device)
        computing.wait_event(arrival)
        for parameter in parameters:
            # their memory is the copying stream's, which would take it back while it is still read
            parameter.record_stream(computing)

    def release(self) -> None:
        """Note that parameters are dropped: only work that is already launched may read them."""
        if self._beside:
            self._released = _event()
            self._released.record(torch.cuda.current_stream(self.device))


def _event() -> torch.cuda.Event:
    return torch.cuda.Event()  # type: ignore[no-untyped-call]
