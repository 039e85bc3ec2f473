"""Read one text per line from a file or standard input."""

import sys
from pathlib import Path
from typing import BinaryIO

from attnscope.base.errors import AttnscopeError, listed
from attnscope.base.files.reading import MB
from attnscope.base.system.file_system import open_nonblocking, wait_for_data
from attnscope.request.run_config import TextInput

MAX_LINE = 4 * MB


def read_texts(source: str | Path) -> tuple[list[TextInput], list[str]]:
    """Read one text per line, as strict UTF-8; blank lines are left out.

    Pipes are read too, so that `--file <(…)` works; one that gets no writer counts as empty.

    Args:
        source: The file, or `-` for standard input.

    Returns:
        The texts, each with its place `FILE:LINE`, and notes on what was left out.
    """
    try:
        if str(source) == "-":
            if sys.stdin is None:
                raise AttnscopeError("standard input is closed", hint="pass a file")
            return _read_lines(sys.stdin.buffer, "stdin")
        descriptor = open_nonblocking(source)
        with open(descriptor, "rb") as file:
            wait_for_data(descriptor)
            return _read_lines(file, str(source))
    except FileNotFoundError as e:
        raise AttnscopeError("no such file", where=source) from e
    except (OSError, ValueError) as e:
        raise AttnscopeError(f"cannot be read ({getattr(e, 'strerror', None) or e})", where=source) from e


def _read_lines(file: BinaryIO, name: str) -> tuple[list[TextInput], list[str]]:
    texts: list[TextInput] = []
    blank: list[int] = []
    offset = number = 0
    while line := file.readline(MAX_LINE + 1):
        number += 1
        text = _decode_line(line, f"{name}:{number}", offset)
        offset += len(line)
        if text.strip():
            texts.append(TextInput(text, where=f"{name}:{number}"))
        else:
            blank.append(number)
    if not texts:
        raise AttnscopeError("has no text" if number else "is empty", where=name, hint="expected one text per line")
    if not blank:
        return texts, []
    lines = "line" if len(blank) == 1 else f"{len(blank)} lines:"
    return texts, [f"{name}: {lines} {listed([*map(str, blank)], 5)} skipped: blank"]


def _decode_line(line: bytes, where: str, offset: int) -> str:
    """Return one line without its line end, and without a byte order mark at the start of the file."""
    if len(line) > MAX_LINE:
        raise AttnscopeError(
            f"the line is longer than {MAX_LINE:,} bytes", where=where, hint="split it into several texts"
        )
    try:
        text = line.decode()
    except UnicodeDecodeError as e:
        message = (
            f"byte 0x{line[e.start]:02x} at byte {e.start} of the line ({offset + e.start} of the file) is not UTF-8"
        )
        utf16 = offset == 0 and line.startswith((b"\xff\xfe", b"\xfe\xff"))
        hint = "it looks like UTF-16: save it as UTF-8" if utf16 else "save it as UTF-8"
        raise AttnscopeError(message, where=where, hint=hint) from e
    text = text.removesuffix("\n").removesuffix("\r")
    return text.removeprefix("\ufeff") if offset == 0 else text
