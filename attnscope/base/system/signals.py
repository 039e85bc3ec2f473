"""End the process at a signal, wherever it arrives, after what is worth saving or has to be cleaned up.

A signal ends the process immediately, as `kill -9` does: nothing unwinds, so no error handler can swallow it
and continue with half of the work. What must be cleaned up is registered here, and the command line runs it.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]
_PATIENCE = 0.5  # seconds that a signal waits for what should not be torn


@contextmanager
def end_on_signals() -> Iterator[None]:
    """End the process within a second of SIGINT, SIGTERM or SIGHUP, wherever they arrive.

    They are blocked, and a thread waits for them. So none is raised as an exception, which a library, a destructor or
    a `finally` could swallow, and none has to wait for a long call in the main thread that lets other threads run. One
    that is ignored (nohup, a background job) stays ignored. Afterwards they end the process at once.
    """
    numbers = {
        signal_number
        for signal_number in _SIGNALS
        if signal.getsignal(signal_number) != signal.SIG_IGN
    }
    if not hasattr(signal, "pthread_sigmask"):
        # On Windows, Ctrl-C ends the process at once.
        yield
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    threading.Thread(target=_end_at, args=(numbers,), name="attnscope-signals", daemon=True).start()
    try:
        yield
    finally:
        # The first signal determines the exit code.
        with defer_signals():
            for signal_number in numbers:
                signal.signal(signal_number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Let processes that are started here end at SIGTERM: they inherit the signals that this thread blocks."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _end_at(numbers: set[signal.Signals]) -> None:
    """Wait for a signal, and end the process with 128 plus its number."""
    code = 128 + signal.sigwait(numbers)
    with suppress(RuntimeError):
        # A terminal or file system may hang; a process at its limit of threads goes without.
        last = threading.Timer(_PATIENCE + 0.2, os._exit, (code,))
        last.daemon = True
        last.start()
    clean_up(_PATIENCE)
    os._exit(code)


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
