"""Fork this process: the copy shares its memory until one of the two writes to it."""

import ctypes
import os
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection as _Connection
from multiprocessing.connection import Pipe
from typing import Any, TypeAlias

Connection: TypeAlias = "_Connection[Any, Any]"
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


def fork(call: Callable[[Connection], object]) -> tuple[int, Connection]:
    """Start a copy of this process that calls a function and ends; return its pid, and the parent's end of a pipe.

    It ends whenever this process ends, and ignores Ctrl-C.
    """
    parent_end, child_end = Pipe()
    parent = os.getpid()
    if sys.stdout is not None:
        sys.stdout.flush()
    with warnings.catch_warnings():
        # There are other threads, which it does not need.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        child_end.close()
        return pid, parent_end
    code = 70
    try:
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        for signal_number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(signal_number, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGHUP, signal.SIGTERM})
        parent_end.close()
        call(child_end)
        code = 0
    finally:
        os._exit(code)
