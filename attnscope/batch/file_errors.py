"""Turn errors of the operating system into errors that name the file."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attnscope.base.errors import AttnscopeError


class OutputInUse(AttnscopeError):
    """Another process writes to the output."""


@contextmanager
def naming_errors(path: Path, *, reading: bool = False) -> Iterator[None]:
    """Turn an OSError into an AttnscopeError that names the file."""
    try:
        yield
    except BlockingIOError as e:
        raise OutputInUse(
            "another process is writing to it",
            where=path,
            hint="wait for it, or choose another output",
        ) from e
    except OSError as e:
        reason = e.strerror or type(e).__name__
        hint = None if reading else "what was written is kept; run the same command to resume"
        raise AttnscopeError(
            f"cannot be {'read' if reading else 'written'} ({reason})", where=path, hint=hint
        ) from e
