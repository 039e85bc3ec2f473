"""Call the Rust library `tokenizers`, and turn its errors and panics into one AttnscopeError."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from attnscope.base.errors import AttnscopeError
from attnscope.base.system.signals import at_signal

_T = TypeVar("_T")
_STDERR_LOCK = threading.RLock()


def call_rust(call: Callable[[], _T], path: Path, doing: str) -> _T:
    """Call into `tokenizers`; `doing` is the problem to report if that fails."""
    try:
        with _silenced_stderr():
            return call()
    except BaseException as e:
        # A panic in Rust has a class that is no Exception and cannot be imported.
        panic = (type(e).__module__, type(e).__name__) == ("pyo3_runtime", "PanicException")
        if not (panic or isinstance(e, Exception)) or isinstance(e, MemoryError):
            # An interruption must not be reported as a failed tokenizer.
            raise
        reason = " ".join(str(e).split())[:200]
        hint = "download it again, or save it again with transformers"
        raise AttnscopeError(f"{doing}: {reason}", where=path, hint=hint) from e


@contextmanager
def _silenced_stderr() -> Iterator[None]:
    """Redirect file descriptor 2 to /dev/null: Rust's panic hook writes there, past sys.stderr."""
    with _STDERR_LOCK:
        try:
            saved_fd = os.dup(2)
        except OSError:
            # There is no stderr to protect.
            yield
            return
        try:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 2)
            os.close(nowhere)
            # What the process says when it ends must be seen.
            with at_signal(lambda: os.dup2(saved_fd, 2)):
                yield
        finally:
            os.dup2(saved_fd, 2)
            os.close(saved_fd)
