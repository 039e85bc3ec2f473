"""The process around the program: a standard output that loses nothing in silence, and messages of one line."""

import errno
import io
import json
import os
import select
import stat
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

from attnscope.base.errors import AttnscopeError, arg
from attnscope.base.system.escape import escape_control
from attnscope.base.system.signals import defer_signals

# Read by transformers when it is imported: no request to the network, and no output on standard error.
_QUIET_OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_typed: dict[str, str] = {}  # the user's own settings of these
_json_notices = False


def describe_counts(counts: Mapping[str, int]) -> str:
    """Count the texts of a dump by status: `2 texts ok, 1 skipped`."""
    nonzero = [(counts[status], status) for status in ("ok", "skipped", "failed") if counts[status]]
    first_count = [f"{count:,} text{'s' * (count > 1)} {status}" for count, status in nonzero[:1]]
    return (
        ", ".join([*first_count, *(f"{count:,} {status}" for count, status in nonzero[1:])])
        or "no records"
    )


def forbid_network() -> None:
    """Forbid libraries of Hugging Face the network."""
    _typed.clear()
    _typed.update({name: os.environ[name] for name in _OFFLINE if name in os.environ})
    os.environ.update(_QUIET_OFFLINE)


def allow_network() -> None:
    """Allow the network again for requested downloads, unless the user has forbidden it."""
    for name in _OFFLINE:
        os.environ.pop(name, None)
    os.environ.update(_typed)


class PipeClosed(BaseException):
    """Standard output is no longer read, as after `| head`."""


class _Stdout(io.RawIOBase):
    """A stdout that reports write errors."""

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
            raise AttnscopeError(
                "standard output is closed",
                hint=f"{arg('output', placeholder='FILE')} writes to a file",
            )
        while True:
            try:
                return os.write(self._descriptor, data)
            except BlockingIOError:
                select.select([], [self._descriptor], [])  # the parent process made it non-blocking
            except BrokenPipeError as e:
                raise PipeClosed from e
            except OSError as e:
                message = f"cannot write to standard output ({e.strerror})"
                raise AttnscopeError(
                    message, hint=f"{arg('output', placeholder='FILE')} writes to a file"
                ) from e


@contextmanager
def checked_stdout() -> Iterator[None]:
    """Replace `sys.stdout` by one that tells failures apart and shows what its encoding lacks as `\\u2190`.

    A stdout that test runners have already replaced is kept.
    """
    # Otherwise, the next file opened would become a standard stream that is closed.
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    outer = sys.stdout
    if outer is not sys.__stdout__:
        yield
        return
    raw = _Stdout(None if outer is None else outer.fileno())
    encoding = "utf-8" if outer is None else outer.encoding
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(raw), encoding, "backslashreplace", line_buffering=raw.isatty()
    )
    try:
        yield
    finally:
        # Its buffer is empty, so that Python has nothing to flush at exit, fail at, and return 120.
        sys.stdout = outer


@contextmanager
def one_line_warnings() -> Iterator[None]:
    """Show a library's warning as one line on stderr, not as source code."""

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        print_notice("warning", escape_control(" ".join(str(message).split())))

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def wants_color(stream: Any) -> bool:
    """Tell whether to write colour to a stream.

    NO_COLOR forbids it; FORCE_COLOR asks for it; otherwise, terminals have it.
    """
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream is not None and stream.isatty() and os.environ.get("TERM") not in (None, "dumb")


def is_piped(stream: Any) -> bool:
    """Tell whether something was piped or redirected to a stream: no terminal, and no device such as /dev/null."""
    try:
        mode = os.fstat(stream.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # closed, or no file
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def is_partly_read(stream: Any) -> bool:
    """Tell whether other processes have read from a file: the list of a loop, `while read -r name; do …; done <
    names`."""
    try:
        return os.lseek(stream.fileno(), 0, os.SEEK_CUR) > 0
    except (OSError, ValueError):  # a pipe has no position
        return False


def begins(stream: Any, seconds: float) -> bool:
    """Wait for input; return whether the stream has something to read, or has ended, within the time limit.

    A pipe without a writer cannot be told from one whose writer is slow, so a command that works without input
    waits only so long.

    Args:
        stream: A stream for which `is_piped` is true.
    """
    try:
        return bool(select.select([stream], [], [], seconds)[0])
    except (OSError, ValueError):  # Windows waits for sockets alone
        return False


def choose_notices(words: Sequence[str]) -> None:
    """Write each line on standard error as a JSON object if `--errors json` is typed, also if that cannot be parsed."""
    global _json_notices
    options = words[: words.index("--")] if "--" in words else words
    _json_notices = os.environ.get("ATTNSCOPE_ERRORS") == "json"
    for word, following in pairwise([*options, ""]):
        if word == "--errors":
            _json_notices = following == "json"
        elif word.startswith("--errors="):
            _json_notices = word == "--errors=json"


def print_notice(
    kind: str, line: str, facts: Mapping[str, Any] | None = None, command: Sequence[str] = ()
) -> None:
    """Write one line to stderr; a failure to write is ignored, as the exit code says the same.

    On a terminal, a longer line is broken between words.

    Args:
        kind: What the line is: `error`, `note`, `wrote` and so on.
        line: The line for a reader.
        facts: Members of the JSON object that says the same; None if the line is its message.
        command: Words of the command that is the line, as a shell reads them; it reads on at a broken line's end.
    """
    if _json_notices:
        notice = json.dumps({"kind": kind, **(facts or {"message": line})}, ensure_ascii=False)
    else:
        words = command or line.split(" ")
        notice = _fitted(["attnscope:", f"{kind}:", *words], is_command=bool(command))
    try:
        if sys.stderr is not None:
            with defer_signals():
                sys.stderr.write(f"{notice}\n")
                sys.stderr.flush()
    except (OSError, ValueError):
        sys.stderr = None


def _fitted(words: Sequence[str], *, is_command: bool) -> str:
    """Join words; if standard error is a terminal, in lines that fit it unless a word is longer."""
    columns = _columns(sys.stderr)
    if columns is None:
        return " ".join(words)
    from rich.cells import cell_len

    ending = " \\" if is_command else ""
    if is_command:
        # an option and its value stay together if both fit a line
        long = [word[0] == "-" and cell_len(f"  {word}{ending}") > columns for word in words]
        words = [
            part
            for word, apart in zip(words, long, strict=True)
            for part in (word.split(" ", 1) if apart else [word])
        ]
    lines: list[str] = []
    line = ""
    for word in words:
        wider = f"{line} {word}" if line else word
        if line and cell_len(wider) + len(ending) > columns:
            lines.append(line + ending)
            line = f"  {word}"
        else:
            line = wider
    return "\n".join([*lines, line])


def _columns(stream: Any) -> int | None:
    """Return the width of a terminal; None if the stream is none, or does not say."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (AttributeError, OSError, ValueError):
        return None
