"""Read one text per line from a file or standard input."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from attnscope.base.errors import AttnscopeError, listed
from attnscope.base.files.reading import MB, reading
from attnscope.base.system.file_system import open_nonblocking, wait_for_data
from attnscope.request.run_config import TextInput

MAX_LINE = 4 * MB


def read_text_file(source: str | Path) -> tuple[list[TextInput], list[str]]:
    """Read one text per line, as strict UTF-8; blank lines are left out.

    Pipes are read too, so that `--file <(…)` works; one that gets no writer counts as empty.

    Args:
        source: The file, or `-` for standard input.

    Returns:
        The texts, each with its place `FILE:LINE`, and notes on what was left out.
    """
    with reading(source):
        if str(source) == "-":
            if sys.stdin is None:
                raise AttnscopeError("standard input is closed", hint="pass a file")
            return _read_lines(sys.stdin.buffer, "stdin")
        descriptor = open_nonblocking(source)
        with open(descriptor, "rb") as file:
            wait_for_data(descriptor)
            return _read_lines(file, str(source))


def _read_lines(file: IO[bytes], name: str) -> tuple[list[TextInput], list[str]]:
    texts: list[TextInput] = []
    blank: list[int] = []
    line_number = 0
    for line_number, start, line in read_lines(file):
        utf16 = start == 0 and line is not None and line.startswith((b"\xff\xfe", b"\xfe\xff"))
        hint = "save it as UTF-8"
        if utf16:
            hint = "it looks like UTF-16: save it as UTF-8"
        text = decode_line(line, start, f"{name}:{line_number}", hint)
        if text.strip():
            texts.append(TextInput(text, where=f"{name}:{line_number}"))
        else:
            blank.append(line_number)
    if not texts:
        raise AttnscopeError(
            "has no text" if line_number else "is empty",
            where=name,
            hint="expected one text per line",
        )
    if not blank:
        return texts, []
    lines = "line" if len(blank) == 1 else f"{len(blank)} lines:"
    return texts, [f"{name}: {lines} {listed([*map(str, blank)], 5)} skipped: blank"]


def read_lines(file: IO[bytes]) -> Iterator[tuple[int, int, bytes | None]]:
    """Yield number (from 1), first byte and content of every line, without its end; None if it is too long."""
    offset = line_number = 0
    while line := file.readline(MAX_LINE + 1):
        line_number += 1
        if len(line) > MAX_LINE and not line.endswith(b"\n"):
            # Its end is only looked for by those who go on: a device may be endless.
            yield line_number, offset, None
            size = len(line)
            while (more := file.readline(1 << 20)) and not more.endswith(b"\n"):
                size += len(more)
            offset += size + len(more)
            continue
        start = offset
        offset = offset + len(line)
        yield line_number, start, line.removesuffix(b"\n").removesuffix(b"\r")


def decode_line(
    line: bytes | None, start: int, where: str | None = None, hint: str = "convert it to UTF-8"
) -> str:
    """Return a line's text; a byte order mark at the start of the file is taken off."""
    if line is None:
        message = f"the line is longer than {MAX_LINE:,} bytes"
        raise AttnscopeError(message, where=where, hint="split it into several texts")
    try:
        text = line.decode()
    except UnicodeDecodeError as e:
        at = f"byte {e.start} of the line ({start + e.start} of the file)"
        raise AttnscopeError(
            f"byte 0x{line[e.start]:02x} at {at} is not UTF-8", where=where, hint=hint
        ) from e
    if start == 0:
        return text.removeprefix("\ufeff")
    return text
