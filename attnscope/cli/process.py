"""The process around the program: a standard output that loses nothing in silence, and signals as exceptions."""

import errno
import io
import os
import select
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from attnscope.errors import AttnscopeError
from attnscope.visible import visible


class Signalled(BaseException):
    """SIGINT, SIGTERM or SIGHUP arrived; not an Exception, so that no handler of ordinary errors takes it.

    Attributes:
        number: The signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class ReaderGone(BaseException):
    """Nobody reads standard output any more, as after `| head`."""


class _Output(io.RawIOBase):
    """Standard output that says what went wrong with it.

    Attributes:
        dropped: Whatever is still to be written is not wanted any more.
    """

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor
        self.dropped = False

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        if self._descriptor is None:
            raise OSError(errno.EBADF, "standard output is closed")
        return self._descriptor

    def isatty(self) -> bool:
        return self._descriptor is not None and os.isatty(self._descriptor)

    def write(self, data: Any) -> int:
        if self.dropped:
            return len(data)
        if self._descriptor is None:
            raise AttnscopeError("standard output is closed", hint="--output FILE writes to a file")
        while True:
            try:
                return os.write(self._descriptor, data)
            except BlockingIOError:
                select.select([], [self._descriptor], [])  # a parent made it non-blocking
            except BrokenPipeError as e:
                raise ReaderGone from e
            except OSError as e:
                found = f"standard output cannot be written ({e.strerror})"
                raise AttnscopeError(found, hint="--output FILE writes to a file") from e


@contextmanager
def own_stdout() -> Iterator[None]:
    """Replace `sys.stdout` by one that tells failures apart and shows what its encoding lacks as `\\u2190`.

    Where somebody else has replaced it already, as test runners do, it stays.
    """
    _hold_descriptors()
    outer = sys.stdout
    if outer is not sys.__stdout__:
        yield
        return
    raw = _Output(None if outer is None else outer.fileno())
    encoding = "utf-8" if outer is None else outer.encoding
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(raw), encoding, "backslashreplace", line_buffering=raw.isatty())
    try:
        yield
    finally:
        sys.stdout = outer  # with nothing in its buffer that Python would flush when it exits, fail at, and return 120


def drop_stdout() -> None:
    """Forget what is buffered for standard output: a full pipe must not hold up the end after a signal."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if isinstance(raw, _Output):
        raw.dropped = True


def _hold_descriptors() -> None:
    """Open /dev/null where 0, 1 or 2 is closed: else the next file opened becomes standard output."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


@contextmanager
def signals_raise() -> Iterator[list[int]]:
    """Turn SIGINT, SIGTERM and SIGHUP into `Signalled`; one that is ignored (nohup, background job) stays ignored.

    Yields:
        The signals that arrived, also those whose exception somebody swallowed.
    """
    arrived: list[int] = []

    def raise_(number: int, frame: FrameType | None) -> None:
        arrived.append(number)
        raise Signalled(number)

    outer_hook, outer = sys.unraisablehook, {}
    if threading.current_thread() is threading.main_thread():
        numbers = (getattr(signal, name, None) for name in ("SIGINT", "SIGTERM", "SIGHUP"))
        outer = {n: signal.getsignal(n) for n in numbers if n and signal.getsignal(n) != signal.SIG_IGN}
    try:
        sys.unraisablehook = _again
        for number in outer:
            signal.signal(number, raise_)
        yield arrived
    finally:
        sys.unraisablehook = outer_hook
        for number, handler in outer.items():
            signal.signal(number, handler)


def _again(lost: Any) -> None:
    """Send a signal once more whose exception met a destructor, where Python prints exceptions and goes on."""
    if isinstance(lost.exc_value, Signalled):
        threading.Timer(0.01, os.kill, (os.getpid(), lost.exc_value.number)).start()
    else:
        sys.__unraisablehook__(lost)


@contextmanager
def one_line_warnings() -> Iterator[None]:
    """Show a library's warning as one line on stderr, not as source code."""

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        complain("warning", visible(" ".join(str(message).split())))

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def complain(kind: str, line: str) -> None:
    """Write one line to stderr; where even that fails, the exit code is left to say it."""
    try:
        if sys.stderr is not None:
            sys.stderr.write(f"attnscope: {kind}: {line}\n")
            sys.stderr.flush()
    except (OSError, ValueError):
        sys.stderr = None
