"""Read files and strict JSON, with one-line errors that name the actual kind of file."""

import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from attnscope.base.errors import AttnscopeError
from attnscope.base.system.file_system import open_nonblocking

MB = 1_000_000
# commas and brackets; 20 times a vocabulary of 250,000, and under a gigabyte once parsed
MAX_JSON_PARTS = 5_000_000

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")  # how JSON spells a half of a pair
_KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
_MAGIC = (
    (b"version https://git-lfs", "a Git LFS pointer", "fetch the file itself: git lfs pull"),
    (b"<!doctype", "an HTML page", "download the file itself, not the page about it"),
    (b"<html", "an HTML page", "download the file itself, not the page about it"),
    (b"pk\x03\x04", "a zip archive, as torch.save writes", "convert it to safetensors"),
    (b"\x80\x02", "a Python pickle", "convert it to safetensors"),
    (b"\x80\x04", "a Python pickle", "convert it to safetensors"),
    (b"\x1f\x8b", "gzip-compressed", "decompress it first"),
    (b"gguf", "a GGUF file", "give the file itself, with a name that ends in .gguf"),
    (b"\x89hdf", "an HDF5 file", "use the model's safetensors version"),
    (b"\xef\xbb\xbf", "text that starts with a byte order mark", "save it as plain UTF-8"),
    (b"\xff\xfe", "UTF-16 text", "save it as UTF-8"),
    (b"\xfe\xff", "UTF-16 text", "save it as UTF-8"),
    (b"{\0", "UTF-16 text", "save it as UTF-8"),
    (b"\0{", "UTF-16 text", "save it as UTF-8"),
)


@contextmanager
def open_regular(path: Path) -> Iterator[tuple[BinaryIO, os.stat_result]]:
    """Open a regular file for reading, unbuffered, without ever blocking; symbolic links are followed."""
    try:
        with _open(path) as file:
            status = os.fstat(file.fileno())
            _require_regular_file(status, path)
            yield file, status
    except OSError as e:
        raise AttnscopeError(_reason(e), where=path) from e


def _open(path: Path) -> BinaryIO:
    try:
        # Opening a device can have side effects.
        _require_regular_file(os.stat(path), path)
        return open(path, "rb", buffering=0, opener=lambda name, _: open_nonblocking(name))
    except ValueError as e:
        raise AttnscopeError("is not a valid file name", where=path) from e


@contextmanager
def reading(name: str | Path) -> Iterator[None]:
    """Turn an error of opening or reading a file into one that names it."""
    try:
        yield
    except FileNotFoundError as e:
        raise AttnscopeError("no such file", where=name) from e
    except (OSError, ValueError) as e:
        raise AttnscopeError(
            f"cannot be read ({getattr(e, 'strerror', None) or e})", where=name
        ) from e


def read_file(path: Path, *, cap: int) -> bytes:
    """Read a whole regular file."""
    with open_regular(path) as (file, status):
        data = b"" if status.st_size > cap else read_at_most(file, cap + 1)
    if max(status.st_size, len(data)) > cap:
        raise AttnscopeError(
            f"has {max(status.st_size, len(data)):,} bytes",
            where=path,
            hint=f"at most {cap:,} are read",
        )
    return data


def read_at_most(file: BinaryIO, count: int) -> bytes:
    """Return the next `count` bytes, or all that are left."""
    parts = []
    while count > 0 and (part := file.read(min(count, 16 * MB))):
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def read_json(path: Path, *, cap: int) -> Any:
    """Read a JSON file strictly: see `parse_json`."""
    return parse_json(read_file(path, cap=cap), str(path))


def as_object(value: Any, where: str) -> dict[str, Any]:
    """Return the value; refuse all but a JSON object."""
    if not isinstance(value, dict):
        raise AttnscopeError(
            f"is {format_value(value)}, not a JSON object", where=where, hint="expected { … }"
        )
    return value


def parse_json(data: bytes, where: str) -> Any:
    """Parse UTF-8 JSON; duplicate keys, NaN, Infinity and numbers that overflow to it are refused."""
    refuse_non_json(data, where)
    if (plain := _parse_verbatim(data)) is not None:
        return plain
    non_finite: list[str] = []
    halves = _SURROGATE.search(data) is not None
    try:
        text = decode_utf8(data, where)
        value = json.loads(
            text,
            object_pairs_hook=lambda pairs: _checked(pairs, where, non_finite, halves=halves),
            parse_float=lambda digits: _finite(digits, non_finite),
            parse_constant=lambda word: _NonFinite(word, non_finite),
        )
    except json.JSONDecodeError as e:
        location = f"line {e.lineno}, column {e.colno}: {e.msg.removesuffix(' starting at')}"
        if e.pos >= len(text.rstrip()) or e.msg.startswith("Unterminated"):
            raise AttnscopeError(
                f"is truncated at {location}", where=where, hint="complete it, or download it again"
            ) from e
        raise AttnscopeError(f"is not JSON at {location}", where=where) from e
    except RecursionError as e:
        raise AttnscopeError(
            "is nested too deeply", where=where, hint="model files have fewer levels"
        ) from e
    except ValueError as e:
        # Python limits the digits of its own integers.
        raise AttnscopeError("contains an integer with thousands of digits", where=where) from e
    if non_finite:
        raise AttnscopeError(f"contains {non_finite[0]}, which is not JSON", where=where)
    if halves:
        _refuse_halves(value, where)
    return value


def decode_utf8(data: bytes, where: str | Path, hint: str = "save it as UTF-8") -> str:
    """Decode a file's content."""
    try:
        return data.decode()
    except UnicodeDecodeError as e:
        message = f"byte 0x{data[e.start]:02x} at offset {e.start} is not UTF-8"
        raise AttnscopeError(message, where=where, hint=hint) from e


def refuse_non_json(data: bytes, where: str) -> None:
    """Refuse bytes that cannot be JSON, or that hold too many values."""
    if wrong := identify_bytes(data):
        raise AttnscopeError(f"is {wrong[0]}, not JSON", where=where, hint=wrong[1])
    if len(data) > MAX_JSON_PARTS and sum(map(data.count, (b",", b"[", b"{"))) > MAX_JSON_PARTS:
        message = f"has more than {MAX_JSON_PARTS:,} values"
        raise AttnscopeError(message, where=where, hint="model files have fewer")


def _parse_verbatim(data: bytes) -> Any:
    """Parse JSON several times as fast, if it survives a round trip unchanged.

    Otherwise, it returns None.
    """
    import orjson

    try:
        value = orjson.loads(data)
        form = orjson.OPT_INDENT_2 if data[1:2] == b"\n" else None
        if orjson.dumps(value, option=form) == data:
            return value
        return None
    except (ValueError, TypeError):
        # Values that orjson cannot read, or can read but not write.
        return None


def identify_bytes(data: bytes) -> tuple[str, str] | None:
    """Return the kind of file of some bytes other than JSON and safetensors, with a hint; None if unknown."""
    if not data:
        return "empty", "download it again"
    if not data[:4096].strip(b"\0"):
        return "nothing but zero bytes", "the download did not finish: download it again"
    start = data[:512].lstrip(b" \t\r\n").lower()
    return next(((name, hint) for magic, name, hint in _MAGIC if start.startswith(magic)), None)


def format_value(value: Any) -> str:
    """Return a value from a file, short enough for an error line."""
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    if isinstance(value, list | dict):
        if value:
            if isinstance(value, list):
                return "a list"
            return "an object"
        if value == []:
            return "[]"
        return "{}"
    if isinstance(value, int) and abs(value) >= 10**40:
        return "a whole number of more than 40 digits"
    text = f"'{value}'" if isinstance(value, str) else str(value)
    if len(text) <= 60:
        return text
    return f"{text[:50]}… ({len(text)} characters)"


class _NonFinite(str):
    """A NaN or Infinity that was read, waiting for the key that it belongs to."""

    def __new__(cls, word: str, seen: list[str]) -> "_NonFinite":
        seen.append(word)
        return super().__new__(cls, word)


def _finite(digits: str, seen: list[str]) -> float | _NonFinite:
    value = float(digits)
    if abs(value) != float("inf"):
        return value
    return _NonFinite(digits[:20], seen)


def _refuse_halves(value: Any, where: str) -> None:
    """Refuse a lone half of a surrogate pair, which no file, hash or terminal can hold."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as e:
        message = f"contains half of a surrogate pair (U+{ord(e.object[e.start]):04X}), which is not valid text"
        raise AttnscopeError(message, where=where, hint="write the whole character") from e


def _checked(
    pairs: list[tuple[str, Any]], where: str, non_finite: list[str], *, halves: bool
) -> dict[str, Any]:
    """Return an object from its pairs; refuses a duplicate key, and names the key of a value that is refused."""
    for key, value in pairs if halves else ():
        if isinstance(value, str):
            _refuse_halves(value, f"{where}: {key}")
    if non_finite:
        for key, value in pairs:
            if isinstance(value, _NonFinite):
                raise AttnscopeError(
                    f"{value!s} is not JSON", where=f"{where}: {key}", hint="use a finite number"
                )
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: dict[str, Any] = {}
        for key, value in pairs:
            if key in seen:
                message = (
                    f"is given twice, as {format_value(seen[key])} and as {format_value(value)}"
                )
                raise AttnscopeError(
                    message, where=f"{where}: {format_value(key)[1:-1]}", hint="keep one of them"
                )
            seen[key] = value
    return result


def _require_regular_file(status: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(status.st_mode):
        description = next(
            (name for test, name in _KINDS if test(status.st_mode)), "something else"
        )
        raise AttnscopeError(f"is {description}, not a regular file", where=path)


def _reason(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, PermissionError):
        return "cannot be read: permission denied"
    return f"cannot be read: {(error.strerror or str(error)).lower()}"
