"""Plain data in, strict JSON out, and back: float32 in shortest exact digits, null for what is no number."""

from typing import Any, TypeVar

import msgspec
import numpy as np
import orjson

from attnscope.errors import AttnscopeError
from attnscope.report.arrays import decode_array
from attnscope.report.run import SCHEMA, Report
from attnscope.report.shapes import check_shapes

_PIECE = 1 << 18  # numbers that are written at once, in about 10 ms
_Data = TypeVar("_Data", bound=msgspec.Struct)


def to_json(data: msgspec.Struct) -> bytes:
    """Any of our findings as strict JSON on one line."""
    return msgspec.json.encode(data, enc_hook=encode_array)


def decode_json(data: bytes | msgspec.Raw, kind: Any) -> Any:
    """Decode untrusted JSON as a type of ours, arrays included.

    Raises:
        msgspec.DecodeError: It is not JSON, of another type, or nested too deeply.
    """
    try:
        return msgspec.json.decode(data, type=kind, dec_hook=decode_array)
    except RecursionError as e:
        raise msgspec.DecodeError("nested too deeply") from e


def read_json_as(kind: type[_Data], data: bytes, schema: str, what: str) -> _Data:
    """Read what `to_json` wrote.

    Args:
        kind: The type that it must be.
        data: The JSON.
        schema: The version that this program reads.
        what: What the type is called, for errors.

    Raises:
        AttnscopeError: It is of another type or version.
    """
    try:
        found: Any = decode_json(data, kind)
    except ValueError as e:  # msgspec.DecodeError is one, and so is a byte that is not UTF-8
        raise AttnscopeError(f"not an attnscope {what} ({e})", hint="save one with --format json") from e
    if found.schema != schema:
        raise AttnscopeError(f"schema is '{found.schema}'", hint=f"this version reads '{schema}'")
    return found  # type: ignore[no-any-return]


def from_json(data: bytes) -> Report:
    """Read a Report that `to_json` wrote.

    Raises:
        AttnscopeError: It is not a Report, or one of another version, or its parts contradict each other.
    """
    report = read_json_as(Report, data, SCHEMA, "report")
    check_shapes(report)
    for text in report.texts:
        for head in text.heads:
            if "masked" in head.stages:
                masked = head.stages["masked"]
                masked[np.isnan(masked)] = -np.inf
    return report


def json_schema(kind: type[msgspec.Struct] = Report) -> dict[str, Any]:
    """JSON Schema of findings, generated from their types."""
    return msgspec.json.schema(kind, schema_hook=lambda _: {})


def encode_array(value: Any) -> msgspec.Raw:
    """An array as nested JSON lists, numbers in shortest exact digits.

    A large one is written in pieces, for orjson keeps other threads from running: a signal may be waited for in one.
    """
    return msgspec.Raw(_array_json(np.ascontiguousarray(value)))


def _array_json(value: "np.ndarray[Any, Any]") -> bytes:
    if value.size <= _PIECE:
        return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    rows = _PIECE // value[0].size
    if not rows:
        return b"[%b]" % b",".join(map(_array_json, value))
    return b"[%b]" % b",".join(_array_json(value[i : i + rows])[1:-1] for i in range(0, len(value), rows))
