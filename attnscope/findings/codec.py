"""Encode findings as strict JSON and decode them: float32 in shortest exact digits, null for no number."""

from collections.abc import Iterator
from inspect import cleandoc
from typing import Any, TypeVar

import msgspec
import numpy as np
import orjson

from attnscope.base.errors import JSON_FILE, AttnscopeError
from attnscope.findings.arrays import decode_array
from attnscope.findings.compare import COMPARE_SCHEMA, Comparison
from attnscope.findings.explain import EXPLAIN_SCHEMA, Explanation
from attnscope.findings.result_shapes import check_comparison, check_explanation
from attnscope.findings.run import SCHEMA, Report
from attnscope.findings.shapes import check_shapes

_PIECE = 1 << 18  # number of values that are encoded at once, in about 10 ms
_Data = TypeVar("_Data", bound=msgspec.Struct)
_MARK = b"\0"


def to_json(data: msgspec.Struct) -> bytes:
    """Return any of our findings as strict JSON on one line."""
    return b"".join(json_parts(data))


def json_parts(data: msgspec.Struct) -> Iterator[bytes]:
    """Encode findings as `to_json` does, piece by piece: the JSON of many matrices takes three times their memory.

    Everything except the arrays is encoded at once, with a placeholder for each array: a byte that JSON never contains.
    """
    arrays: list[Any] = []

    def mark(array: Any) -> msgspec.Raw:
        arrays.append(array)
        return msgspec.Raw(_MARK)

    first, *others = msgspec.json.encode(data, enc_hook=mark).split(_MARK)
    yield first
    for array, text in zip(arrays, others, strict=True):
        yield from _array_parts(array)
        yield text


def decode_json(data: bytes | msgspec.Raw, kind: Any) -> Any:
    """Decode untrusted JSON as one of our types, arrays included.

    Raises:
        msgspec.DecodeError: It is not JSON, of another type, or nested too deeply.
    """
    try:
        return msgspec.json.decode(data, type=kind, dec_hook=decode_array)
    except RecursionError as e:
        raise msgspec.DecodeError("nested too deeply") from e


class _Tagged(msgspec.Struct):
    schema: str = ""


def _schema_of(data: bytes) -> str:
    """Return what findings call themselves; empty where nothing says that."""
    try:
        return msgspec.json.decode(data, type=_Tagged).schema
    except (ValueError, RecursionError):
        return ""


def read_json_as(kind: type[_Data], data: bytes, schema: str, what: str) -> _Data:
    """Read what `to_json` wrote.

    Args:
        kind: The type that it must be.
        data: The JSON.
        schema: The version that this program reads.
        what: Name of the type, for errors.

    Raises:
        AttnscopeError: The JSON has another type or version.
    """
    try:
        found: Any = decode_json(data, kind)
    except ValueError as e:  # msgspec.DecodeError is one, and so is a byte that is not UTF-8
        there = _schema_of(data)
        if there.startswith("attnscope.") and there.partition("/")[0] != schema.partition("/")[0]:
            raise AttnscopeError(f"holds '{there}', not a {what}", hint=f"use a file of '{schema}'") from e
        raise AttnscopeError(f"not an attnscope {what} ({e})", hint=f"save one with {JSON_FILE}") from e
    if found.schema != schema:
        raise AttnscopeError(f"schema is '{found.schema}'", hint=f"this version reads '{schema}'")
    return found  # type: ignore[no-any-return]


def from_json(data: bytes) -> Report:
    """Read a Report that `to_json` wrote.

    Raises:
        AttnscopeError: The JSON is not a Report of this version, or is inconsistent.
    """
    report = read_json_as(Report, data, SCHEMA, "report")
    check_shapes(report)
    _restore_masked(report)
    return report


def _restore_masked(report: Report) -> None:
    """Make −inf of the nulls that stand for it in `masked`."""
    for text in report.texts:
        for head in text.heads:
            if "masked" in head.stages:
                masked = head.stages["masked"]
                masked[np.isnan(masked)] = -np.inf


def comparison_from_json(data: bytes) -> Comparison:
    """Read a Comparison that `to_json` wrote.

    Raises:
        AttnscopeError: The JSON is not a Comparison of this version, or is inconsistent.
    """
    comparison = read_json_as(Comparison, data, COMPARE_SCHEMA, "comparison")
    check_comparison(comparison)
    for side in comparison.sides:
        _restore_masked(side.report)
    return comparison


def explanation_from_json(data: bytes) -> Explanation:
    """Read an Explanation that `to_json` wrote.

    Raises:
        AttnscopeError: The JSON is not an Explanation of this version, or is inconsistent.
    """
    explanation = read_json_as(Explanation, data, EXPLAIN_SCHEMA, "explanation")
    check_explanation(explanation)
    masked = explanation.row.masked
    masked[np.isnan(masked)] = -np.inf
    return explanation


def json_schema(kind: type[msgspec.Struct] = Report) -> dict[str, Any]:
    """Generate the JSON Schema of findings from their types."""
    return clean_descriptions(msgspec.json.schema(kind, schema_hook=lambda _: {}))  # type: ignore[no-any-return]


def clean_descriptions(schema: Any) -> Any:
    """Take the indentation out of descriptions: they are docstrings, which Python 3.13 stores without it."""
    if isinstance(schema, dict):
        return {
            name: cleandoc(value) if name == "description" and isinstance(value, str) else clean_descriptions(value)
            for name, value in schema.items()
        }
    return [clean_descriptions(one) for one in schema] if isinstance(schema, list) else schema


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
