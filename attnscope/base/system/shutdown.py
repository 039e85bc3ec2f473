"""Work to finish or clean up before a signal ends the process.

A signal ends the process immediately, as `kill -9` does: nothing unwinds, so no error handler can swallow it
and continue with half of the work. What must be cleaned up is registered here, and the command line runs it.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_LOCK = threading.RLock()
_FINISHING = 0.6  # of the patience with unfinished steps goes to what is worth saving
_registered: list[Callable[[], object]] = []
_finishing: list[Callable[[float], object]] = []


@contextmanager
def defer_signals() -> Iterator[None]:
    """Delay the end by a signal until the block is done, as long as `clean_up` waits; after a signal, block.

    For short steps only: one line of a file, a message, the creation of a file that was registered.
    """
    with _LOCK:
        yield


@contextmanager
def at_signal(call: Callable[[], object]) -> Iterator[None]:
    """Register a callback that runs first if a signal ends the process inside the block.

    Args:
        call: Function to call, in another thread; its exceptions are dropped.
    """
    _registered.append(call)
    try:
        yield
    finally:
        _registered.remove(call)


@contextmanager
def finish_at_signal(call: Callable[[float], object]) -> Iterator[None]:
    """Register a callback that runs before any clean-up if a signal arrives inside the block.

    Args:
        call: Called in another thread with the seconds that it may take; its exceptions are dropped.
    """
    _finishing.append(call)
    try:
        yield
    finally:
        _finishing.remove(call)


def finish(seconds: float) -> None:
    """Run the registered `finish_at_signal` callbacks, the latest first, within a time limit."""
    until = time.monotonic() + seconds
    for call in reversed(_finishing):
        with suppress(Exception):
            call(max(0.0, until - time.monotonic()))


def clean_up(patience: float) -> None:
    """Run the registered clean-up, the latest first, and keep `defer_signals` from beginning new work."""
    until = time.monotonic() + patience
    finish(_FINISHING * patience)
    _LOCK.acquire(timeout=max(0.0, until - time.monotonic()))
    for call in reversed(_registered):
        with suppress(Exception):
            call()
