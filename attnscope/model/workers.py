"""Threads that compute tiles side by side, each with a single OpenMP thread.

An operator on a tile is short, and as a parallel OpenMP region it ends at a barrier: where the system has taken one of
its threads away, every operator waits for that thread, and a layer takes up to 40 times as long (measured on two cores
beside one busy process). Whole tiles on threads of their own do not wait until the layer ends. torch's operators,
NumPy's `argmax` and compiled loops release the interpreter's lock while they run.
"""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache
from threading import Barrier, local
from typing import TypeVar

import torch

Part = TypeVar("Part")
Deferred = Callable[[], None]  # what must happen in the order of the parts
_AHEAD = 4  # parts that are computed or wait beyond those of all threads: what they deferred takes memory
_thread = local()  # its `number` within the pool


def run_parts(parts: Iterator[Part], compute: Callable[[Part, int], list[Deferred]], n_threads: int) -> None:
    """Compute parts on several threads; results do not depend on their number.

    `compute` gets the number of the thread, too, and returns functions that run in the order of the parts, such as an
    addition to a shared sum. It is called within inference mode if the caller is; what it raises for the first part, in
    order, that fails is raised. With one thread, everything happens in the calling one.
    """
    if n_threads == 1:
        with one_openmp_thread():
            for part in parts:
                for deferred in compute(part, 0):
                    deferred()
        return
    pool, inference = _pool(n_threads), torch.is_inference_mode_enabled()
    unfinished: deque[Future[list[Deferred]]] = deque()

    def work(part: Part) -> list[Deferred]:
        with torch.inference_mode(inference):
            return compute(part, _thread.number)

    def finish() -> None:
        for deferred in unfinished[0].result():
            deferred()
        unfinished.popleft()

    try:
        with one_openmp_thread():
            for part in parts:
                unfinished.append(pool.submit(work, part))
                if len(unfinished) > n_threads + _AHEAD:
                    finish()
            while unfinished:
                finish()
    finally:
        # A signal may have interrupted the wait; no thread may write after that.
        for future in unfinished:
            future.cancel()
        wait(unfinished)


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
    usual, ready = torch.get_num_threads(), Barrier(n_threads + 1)

    def begin(number: int) -> None:
        # A thread's first call takes over the number of the process, also after it was set.
        torch.get_num_threads()
        torch.set_num_threads(1)
        _thread.number = number
        ready.wait()

    pool = ThreadPoolExecutor(n_threads, "attention")
    started = [pool.submit(begin, number) for number in range(n_threads)]
    ready.wait()
    wait(started)
    torch.set_num_threads(usual)  # the number is that of new threads, too
    return pool
