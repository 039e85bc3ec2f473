"""Turn errors of the operating system into errors that name the file."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attnscope.errors import AttnscopeError


@contextmanager
def naming_errors(path: Path, *, reading: bool = False) -> Iterator[None]:
    """Turn what the system refuses into an error that names the file."""
    try:
        yield
    except BlockingIOError as e:
        raise AttnscopeError("another process writes to it", where=path, hint="wait for it, or name another") from e
    except OSError as e:
        reason = e.strerror or type(e).__name__
        hint = None if reading else "what is written stays; the same command goes on from there"
        raise AttnscopeError(f"cannot be {'read' if reading else 'written'} ({reason})", where=path, hint=hint) from e
