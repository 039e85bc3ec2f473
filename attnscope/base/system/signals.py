"""End the process at a signal, wherever it arrives."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from attnscope.base.system.shutdown import clean_up, defer_signals

_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
_PATIENCE = 0.5  # seconds that a signal waits for what should not be torn


@contextmanager
def end_on_signals() -> Iterator[None]:
    """End the process within a second of SIGINT, SIGTERM or SIGHUP, wherever they arrive.

    They are blocked, and a thread waits for them. So none is raised as an exception, which a library, a destructor or
    a `finally` could swallow, and none has to wait for a long call in the main thread that lets other threads run. One
    that is ignored (nohup, a background job) stays ignored. Afterwards they end the process at once.
    """
    numbers = {number for number in _SIGNALS if signal.getsignal(number) != signal.SIG_IGN}
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
            for number in numbers:
                signal.signal(number, signal.SIG_DFL)
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
