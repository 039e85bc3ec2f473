"""Threads that compute tiles side by side, each with a single OpenMP thread.

An operator on a tile is short, and as a parallel OpenMP region it ends at a barrier: where the system has taken one of
its threads away, every operator waits for that thread, and a layer takes up to 40 times as long (measured on two cores
beside one busy process). Whole tiles on threads of their own do not wait until the layer ends. torch's operators,
NumPy's `argmax` and compiled loops release the interpreter's lock while they run.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache
from threading import Barrier, Condition, Lock
from typing import Generic, TypeVar

import torch

Part = TypeVar("Part")
Deferred = Callable[[], None]  # what must happen in the order of the parts
# parts of which a thread may be in front of the slowest one: what they deferred takes memory
_AHEAD = 4


def run_parts(
    parts: Iterator[Part], compute: Callable[[Part, int], list[Deferred]], n_threads: int
) -> None:
    """Compute parts on several threads; results do not depend on their number.

    Args:
        compute: Computes a part, given the number of the thread, and returns a function that runs in the order of the
            parts, such as an addition to a shared sum. Called within inference mode if the caller is.
        n_threads: How many threads; with one, everything happens in the calling thread.

    Raises:
        BaseException: What `compute` raised for the first part, in order, that failed.
    """
    if n_threads == 1:
        with one_openmp_thread():
            for part in parts:
                for deferred in compute(part, 0):
                    deferred()
        return
    queue = _Queue(parts)
    inference = torch.is_inference_mode_enabled()

    def work(thread_index: int) -> None:
        with torch.inference_mode(inference):
            while (taken := queue.take()) is not None:
                index, part = taken
                try:
                    queue.finish(index, compute(part, thread_index))
                except BaseException as error:
                    queue.fail(index, error)
                    return

    futures: list[Future[None]] = []
    try:
        for thread_index in range(n_threads):
            futures.append(_pool(n_threads).submit(work, thread_index))
        for future in futures:
            future.result()
    finally:
        # A signal may have interrupted the wait; no thread may write after that.
        queue.stop()
        wait(futures)
    if queue.error is not None:
        raise queue.error


@contextmanager
def one_openmp_thread() -> Iterator[None]:
    """Let operators of the calling thread run without parallel regions."""
    usual = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(usual)


@cache
def _pool(n_threads: int) -> ThreadPoolExecutor:
    """Return threads that operators do not split their work over, kept for the life of the process."""
    usual = torch.get_num_threads()
    ready = Barrier(n_threads + 1)

    def begin() -> None:
        # A thread's first call takes over the number of the process, also after it was set.
        torch.get_num_threads()
        torch.set_num_threads(1)
        ready.wait()

    pool = ThreadPoolExecutor(n_threads, "attention")
    started = [pool.submit(begin) for _ in range(n_threads)]
    ready.wait()
    wait(started)
    torch.set_num_threads(usual)  # the number is that of new threads, too
    return pool


class _Queue(Generic[Part]):
    """Hands out parts, and runs deferred functions in their order."""

    def __init__(self, parts: Iterator[Part]) -> None:
        self._parts = parts
        self._taking = Lock()
        self._taken = 0
        self._finished: dict[int, list[Deferred]] = {}
        self._next = 0
        self._changed = Condition()
        self._stopped = False
        self._failed = -1
        self.error: BaseException | None = None

    def take(self) -> tuple[int, Part] | None:
        """Return the next part and its place; None if none is left or work has stopped."""
        with self._taking:
            if self._stopped:
                return None
            try:
                part = next(self._parts)
            except StopIteration:
                return None
            except BaseException as error:
                self.fail(self._taken, error)
                return None
            self._taken += 1
            return self._taken - 1, part

    def finish(self, index: int, deferred: list[Deferred]) -> None:
        """Run deferred functions as soon as all earlier parts are finished."""
        with self._changed:
            self._changed.wait_for(lambda: index - self._next <= _AHEAD or self._stopped)
            self._finished[index] = deferred
            while (ready := self._finished.pop(self._next, None)) is not None:
                for addition in ready:
                    addition()
                self._next += 1
            self._changed.notify_all()

    def fail(self, index: int, error: BaseException) -> None:
        """Stop, and remember the failure of the first part, in order, that failed."""
        with self._changed:
            if self.error is None or index < self._failed:
                self.error = error
                self._failed = index
        self.stop()

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
