"""Encode findings as strict JSON and decode them: float32 in shortest exact digits, null for no number."""

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import orjson

from attnscope.base.errors import JSON_FILE, AttnscopeError
from attnscope.findings.arrays import decode_array
from attnscope.findings.axes import check_axes, every_array
from attnscope.findings.run import Report

# Number of values that are encoded at once: they take about 10 ms.
_PIECE = 1 << 18
_MARK = b"\0"


def to_json(data: msgspec.Struct) -> bytes:
    """Return findings as strict JSON on one line."""
    return b"".join(json_parts(data))


def json_parts(data: msgspec.Struct) -> Iterator[bytes]:
    """Encode findings as `to_json` does, in pieces; the JSON of many matrices takes three times their memory.

    Everything except the arrays is encoded at once, with a placeholder for each array: a byte that JSON never contains.
    """
    arrays: list[Any] = []

    def mark(array: Any) -> msgspec.Raw:
        arrays.append(array)
        return msgspec.Raw(_MARK)

    first_part, *later_parts = msgspec.json.encode(data, enc_hook=mark).split(_MARK)
    yield first_part
    for array, text in zip(arrays, later_parts, strict=True):
        yield from _array_parts(array)
        yield text


def decode_json(data: bytes | msgspec.Raw, findings_type: Any) -> Any:
    """Decode untrusted JSON as findings, arrays included; raise a msgspec.DecodeError for anything else."""
    try:
        return msgspec.json.decode(data, type=findings_type, dec_hook=decode_array)
    except RecursionError as e:
        raise msgspec.DecodeError("nested too deeply") from e


class _Tagged(msgspec.Struct):
    schema: str = ""


def schema_of(data: bytes) -> str:
    """Return the schema that findings name; empty if they name none."""
    try:
        return msgspec.json.decode(data, type=_Tagged).schema
    except (ValueError, RecursionError):
        return ""


def from_json(data: bytes, findings_type: Any = Report) -> Any:
    """Read findings that `to_json` wrote; refuse another type or version, and contradictions."""
    schema = findings_type.__struct_defaults__[-1]
    try:
        findings = decode_json(data, findings_type)
    except ValueError as e:
        # msgspec.DecodeError is a ValueError, and so is the error for bytes that are not UTF-8.
        there = schema_of(data)
        what = findings_type.__name__.lower()
        if there.startswith("attnscope.") and there.partition("/")[0] != schema.partition("/")[0]:
            raise AttnscopeError(
                f"holds '{there}', not a {what}", hint=f"use a file of '{schema}'"
            ) from e
        raise AttnscopeError(
            f"not an attnscope {what} ({e})", hint=f"save one with {JSON_FILE}"
        ) from e
    require_version(findings)
    check_axes(findings)
    restore_forbidden(findings)
    return findings


def restore_forbidden(findings: msgspec.Struct) -> None:
    """Write −inf, for which JSON has null, into the cells of `masked` that the mask forbids."""
    for name, array in every_array(findings):
        if name == "masked":
            array[np.isnan(array)] = -np.inf


def require_version(findings: Any) -> None:
    """Refuse findings of another version than this program's."""
    schema = findings.__struct_defaults__[-1]
    if findings.schema != schema:
        raise AttnscopeError(
            f"schema is '{findings.schema}'", hint=f"this version reads '{schema}'"
        )


def encode_array(value: Any) -> msgspec.Raw:
    """Return an array as nested JSON lists, numbers in shortest exact digits."""
    return msgspec.Raw(b"".join(_array_parts(value)))


def _array_parts(array: Any) -> Iterator[bytes]:
    """Yield an array as nested JSON lists, some rows at a time.

    This takes little memory, and lets other threads run, since orjson holds the GIL: one of them may wait for a signal.
    """
    if array.size <= _PIECE:
        yield orjson.dumps(np.ascontiguousarray(array), option=orjson.OPT_SERIALIZE_NUMPY)
        return
    rows = _PIECE // array[0].size
    yield b"["
    for start in range(0, len(array), rows or 1):
        if start:
            yield b","
        if rows:
            piece = np.ascontiguousarray(array[start : start + rows])
            yield orjson.dumps(piece, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
        else:
            yield from _array_parts(array[start])
    yield b"]"
