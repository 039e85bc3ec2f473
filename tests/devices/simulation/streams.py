"""Streams and events of simulated devices: what one stream writes is not there for another that has not waited."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import Tensor


class SimulatedStream:
    """A queue of operators, which run at once, and of copies from pinned memory, which run as late as they may.

    Attributes:
        launched: How many were launched on it.
        awaited: Stream to how many of its operators this one has waited for.
    """

    def __init__(self, *options: object, **named: object) -> None:
        self.launched = 0
        self.awaited: dict[SimulatedStream, int] = {}
        self._copies: list[Callable[[], object]] = []
        self._running = threading.Lock()

    def launch(self) -> None:
        """Count an operator, which runs after the copies in front of it."""
        self.arrive()
        self.launched += 1

    def copy_later(self, copy: Callable[[], object]) -> None:
        """Put a copy into the queue."""
        with self._running:
            self.launched += 1
            self._copies.append(copy)

    def arrive(self) -> None:
        """Run the copies, also those that another thread runs at the moment."""
        with self._running:
            copies, self._copies = self._copies, []
            for copy in copies:
                copy()

    def wait_event(self, event: SimulatedEvent) -> None:
        """Let later operators wait for those in front of an event."""
        event.synchronize()
        for stream, count in event.behind.items():
            self.awaited[stream] = max(count, self.awaited.get(stream, 0))


class SimulatedEvent:
    """A place in a stream.

    Attributes:
        behind: Stream to how many of its operators are in front of the event.
    """

    def __init__(self, *options: object, **named: object) -> None:
        self.behind: dict[SimulatedStream, int] = {}

    def record(self, stream: SimulatedStream | None = None) -> None:
        """Put the event behind what was launched on a stream; None for the current one."""
        stream = stream or streams.current()
        self.behind = {**stream.awaited, stream: stream.launched}

    def query(self) -> bool:
        """Tell whether all in front of the event has ended: never before somebody waits for it."""
        return not self.behind

    def synchronize(self) -> None:
        """Wait for what is in front of the event; for nothing if it was never recorded."""
        for stream in self.behind:
            stream.arrive()


@dataclass
class _Memory:
    """Memory that another stream than the default one writes.

    Attributes:
        writer: That stream.
        count: How many of its operators have to end before the memory is written.
        users: Other streams that used it.
        recorded: Streams that the allocator knows of.
    """

    writer: SimulatedStream
    count: int
    users: set[SimulatedStream] = field(default_factory=set)
    recorded: set[SimulatedStream] = field(default_factory=set)


class Streams:
    """The streams of a process.

    Attributes:
        pinned: Pinned memory by its address.
        reused: How often memory was given back while a stream used it that the allocator did not know of.
    """

    def __init__(self) -> None:
        self._default, self._chosen = SimulatedStream(), threading.local()
        self.reset()

    def reset(self) -> None:
        """Forget what was pinned and written."""
        self.pinned: dict[int, Tensor] = {}
        self.reused = 0
        self._memory: dict[int, _Memory] = {}

    def current(self, device: object = None) -> SimulatedStream:
        """Return the calling thread's stream."""
        return getattr(self._chosen, "stream", self._default)

    @contextmanager
    def chosen(self, stream: SimulatedStream) -> Iterator[None]:
        """Launch on another stream, in this thread."""
        before = self.current()
        self._chosen.stream = stream
        try:
            yield
        finally:
            self._chosen.stream = before

    @property
    def beside(self) -> bool:
        """Tell whether the calling thread launches on another stream than the default one."""
        return self.current() is not self._default

    def read(self, tensors: Iterable[Tensor]) -> None:
        """Check what an operator takes.

        Raises:
            RuntimeError: Another stream writes it, and this one does not wait for that.
        """
        if not self._memory:
            return
        current = self.current()
        for tensor in tensors:
            memory = self._memory.get(_key(tensor))
            if memory is None or memory.writer is current:
                continue
            if current.awaited.get(memory.writer, 0) < memory.count:
                raise RuntimeError("a stream takes a tensor that another one still writes")
            memory.users.add(current)

    def read_beside(self, tensor: Tensor) -> None:
        """Check a copy to the host, on another stream than the default one, of what that one writes; see `read`."""
        if self.beside:
            self._memory.setdefault(_key(tensor), _Memory(self._default, self._default.launched))
            self.read([tensor])

    def write(self, tensors: Iterable[Tensor]) -> None:
        """Note what an operator on another stream than the default one writes."""
        if self.beside:
            for tensor in tensors:
                memory = self._memory.setdefault(_key(tensor), _Memory(self.current(), 0))
                memory.count = self.current().launched

    def record(self, tensor: Tensor, stream: SimulatedStream) -> None:
        """Let the allocator know that a stream uses a tensor."""
        if (memory := self._memory.get(_key(tensor))) is not None:
            memory.recorded.add(stream)

    def free(self, key: int) -> None:
        """Give memory back."""
        memory = self._memory.pop(key, None)
        self.reused += memory is not None and not memory.users <= memory.recorded

    def pin(self, tensor: Tensor) -> Tensor:
        """Return a copy of a CPU tensor in pinned memory."""
        pinned = tensor.clone()
        self.pinned[pinned.untyped_storage().data_ptr()] = pinned
        return pinned

    def is_pinned(self, tensor: Tensor) -> bool:
        """Tell whether a CPU tensor is in pinned memory."""
        return tensor.untyped_storage().data_ptr() in self.pinned


def _key(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


streams = Streams()
