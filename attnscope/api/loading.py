"""Read saved findings."""

import os
from pathlib import Path
from typing import Any

import msgspec

from attnscope.api.options import file_path
from attnscope.api.results import CompareResult, ExplainResult, InspectResult
from attnscope.base.errors import AttnscopeError, UsageError
from attnscope.base.files.reading import read_file
from attnscope.findings.codec import comparison_from_json, explanation_from_json
from attnscope.findings.compare import COMPARE_SCHEMA
from attnscope.findings.explain import EXPLAIN_SCHEMA
from attnscope.findings.run import SCHEMA
from attnscope.studies.compare.runs import read_report

_CAP = 4 << 30
_SCHEMAS = {SCHEMA: "InspectResult", COMPARE_SCHEMA: "CompareResult", EXPLAIN_SCHEMA: "ExplainResult"}
_READERS: dict[type, Any] = {CompareResult: comparison_from_json, ExplainResult: explanation_from_json}


class _Versioned(msgspec.Struct):
    schema: str


def load_as(path: str | os.PathLike[str], kind: type) -> Any:
    """Read findings of a kind.

    Args:
        path: The file.
        kind: InspectResult, CompareResult or ExplainResult.

    Raises:
        AttnscopeError: It cannot be read, or holds something else, or its parts contradict each other.
        UsageError: There is no such kind.
    """
    if kind is not InspectResult and kind not in _READERS:
        named = getattr(kind, "__name__", repr(kind))
        raise UsageError(f"{named:.80} cannot be loaded", where="kind", hint=f"use {', '.join(_SCHEMAS.values())}")
    file = file_path(path)
    try:
        if kind is InspectResult:
            return InspectResult(read_report(file))
        return kind(_READERS[kind](read_file(file, cap=_CAP)))
    except AttnscopeError as e:
        there = _kind_in(file)
        if there is not None and there != kind.__name__:
            hint = f"attnscope.load({os.fspath(path)!r}, attnscope.{there})"
            raise AttnscopeError(
                f"holds the findings of {there.removesuffix('Result').lower()}", where=file, hint=hint
            ) from e
        raise e if e.where else AttnscopeError(e.parts.message, where=file, hint=e.parts.hint) from e


def _kind_in(file: Path) -> str | None:
    """Return which of the results a file of JSON holds; None where that cannot be said."""
    try:
        return _SCHEMAS.get(msgspec.json.decode(read_file(file, cap=_CAP), type=_Versioned).schema)
    except (AttnscopeError, ValueError, RecursionError):
        return None
