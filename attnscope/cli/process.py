"""The process around the program: a standard output that loses nothing in silence, and an end at every signal."""

import errno
import io
import os
import select
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from attnscope.errors import AttnscopeError
from attnscope.system.escape import escape_control
from attnscope.system.shutdown import clean_up, unbroken

_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
_PATIENCE = 0.5  # seconds that a signal waits for what should not be torn


class PipeClosed(BaseException):
    """Nobody reads standard output any more, as after `| head`."""


class _Stdout(io.RawIOBase):
    """Standard output that says what went wrong with it."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        if self._descriptor is None:
            raise OSError(errno.EBADF, "standard output is closed")
        return self._descriptor

    def isatty(self) -> bool:
        return self._descriptor is not None and os.isatty(self._descriptor)

    def write(self, data: Any) -> int:
        if self._descriptor is None:
            raise AttnscopeError("standard output is closed", hint="--output FILE writes to a file")
        while True:
            try:
                return os.write(self._descriptor, data)
            except BlockingIOError:
                select.select([], [self._descriptor], [])  # a parent made it non-blocking
            except BrokenPipeError as e:
                raise PipeClosed from e
            except OSError as e:
                found = f"cannot write to standard output ({e.strerror})"
                raise AttnscopeError(found, hint="--output FILE writes to a file") from e


@contextmanager
def checked_stdout() -> Iterator[None]:
    """Replace `sys.stdout` by one that tells failures apart and shows what its encoding lacks as `\\u2190`.

    If it has already been replaced, as test runners do, it is kept.
    """
    _hold_descriptors()
    outer = sys.stdout
    if outer is not sys.__stdout__:
        yield
        return
    raw = _Stdout(None if outer is None else outer.fileno())
    encoding = "utf-8" if outer is None else outer.encoding
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(raw), encoding, "backslashreplace", line_buffering=raw.isatty())
    try:
        yield
    finally:
        sys.stdout = outer  # with nothing in its buffer that Python would flush when it exits, fail at, and return 120


def _hold_descriptors() -> None:
    """Open /dev/null where 0, 1 or 2 is closed: else the next file opened becomes standard output."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


@contextmanager
def end_on_signals() -> Iterator[None]:
    """Let SIGINT, SIGTERM and SIGHUP end the process within a second, wherever they arrive.

    They are blocked, and a thread waits for them. So none is raised as an exception, which a library, a destructor or
    a `finally` could swallow, and none has to wait for a long call in the main thread that lets other threads run. One
    that is ignored (nohup, a background job) stays ignored. Afterwards they end the process at once.
    """
    numbers = {number for number in _SIGNALS if signal.getsignal(number) != signal.SIG_IGN}
    if not hasattr(signal, "pthread_sigmask"):  # Windows: there, Ctrl-C ends the process at once
        yield
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    threading.Thread(target=_end_at, args=(numbers,), name="attnscope-signals", daemon=True).start()
    try:
        yield
    finally:
        with unbroken():  # a signal that has arrived decides the exit code
            for number in numbers:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)


def _end_at(numbers: set[signal.Signals]) -> None:
    """Wait for a signal, and end the process with 128 plus its number."""
    code = 128 + signal.sigwait(numbers)
    with suppress(RuntimeError):  # no more threads
        last = threading.Timer(_PATIENCE + 0.2, os._exit, (code,))  # a terminal or file system may hang
        last.daemon = True
        last.start()
    clean_up(_PATIENCE)
    os._exit(code)


@contextmanager
def one_line_warnings() -> Iterator[None]:
    """Show a library's warning as one line on stderr, not as source code."""

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        print_notice("warning", escape_control(" ".join(str(message).split())))

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def print_notice(kind: str, line: str) -> None:
    """Write one line to stderr; where even that fails, the exit code is left to say it."""
    try:
        if sys.stderr is not None:
            with unbroken():
                sys.stderr.write(f"attnscope: {kind}: {line}\n")
                sys.stderr.flush()
    except (OSError, ValueError):
        sys.stderr = None
