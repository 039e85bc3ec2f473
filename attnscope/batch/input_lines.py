"""Decompress an input and split it into lines of bounded length."""

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, BinaryIO

from attnscope.base.errors import AttnscopeError
from attnscope.batch.frames import open_zstandard
from attnscope.request.text_files import MAX_LINE

COMPRESSED = (".gz", ".zst")


@contextmanager
def open_decompressed(file: BinaryIO, ending: str, name: str) -> Iterator[IO[bytes]]:
    """Read a file's content, decompressed if the ending is `.gz` or `.zst`."""
    try:
        if ending == ".gz":
            with gzip.GzipFile(fileobj=file) as content:
                yield content  # type: ignore[misc]
        elif ending == ".zst":
            with open_zstandard(file, name) as content:
                yield content
        else:
            yield file
    except (EOFError, gzip.BadGzipFile, zlib.error) as e:
        raise AttnscopeError(f"damaged {ending} file ({e})", where=name, hint="compress it again") from e
    except OSError as e:
        raise AttnscopeError(f"cannot be read ({e.strerror or e})", where=name) from e


def read_lines(file: IO[bytes]) -> Iterator[tuple[int, int, bytes | None]]:
    """Yield number (from 1), first byte and content of every line, without its end; None if it is too long."""
    offset = number = 0
    while line := file.readline(MAX_LINE + 1):
        number += 1
        if len(line) > MAX_LINE and not line.endswith(b"\n"):
            size = len(line)
            while (more := file.readline(1 << 20)) and not more.endswith(b"\n"):
                size += len(more)
            yield number, offset, None
            offset += size + len(more)
            continue
        start, offset = offset, offset + len(line)
        yield number, start, line.removesuffix(b"\n").removesuffix(b"\r")


def decode_line(line: bytes | None, start: int) -> str:
    """Return a line's text; a byte order mark at the start of the file is taken off."""
    if line is None:
        raise AttnscopeError(f"the line is longer than {MAX_LINE:,} bytes", hint="split it into several texts")
    try:
        text = line.decode()
    except UnicodeDecodeError as e:
        at = f"byte {e.start} of the line ({start + e.start} of the file)"
        raise AttnscopeError(f"byte 0x{line[e.start]:02x} at {at} is not UTF-8", hint="convert it to UTF-8") from e
    return text.removeprefix("\ufeff") if start == 0 else text
