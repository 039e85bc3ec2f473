"""Read saved findings."""

import os
from pathlib import Path
from typing import Any

from attnscope.api.options import file_path
from attnscope.api.results import CompareResult, ExplainResult, InspectResult
from attnscope.base.errors import AttnscopeError, UsageError
from attnscope.base.files.reading import read_file
from attnscope.findings.codec import from_json, schema_of
from attnscope.findings.compare import COMPARE_SCHEMA, Comparison
from attnscope.findings.explain import EXPLAIN_SCHEMA, Explanation
from attnscope.findings.run import SCHEMA
from attnscope.studies.compare.runs import read_report

_CAP = 4 << 30
_SCHEMAS = {SCHEMA: "InspectResult", COMPARE_SCHEMA: "CompareResult", EXPLAIN_SCHEMA: "ExplainResult"}
_KINDS: dict[type, Any] = {CompareResult: Comparison, ExplainResult: Explanation}


def load_as(path: str | os.PathLike[str], kind: type) -> Any:
    """Read findings of a kind.

    Args:
        path: The file.
        kind: InspectResult, CompareResult or ExplainResult.

    Raises:
        AttnscopeError: It cannot be read, or holds something else, or its parts contradict each other.
        UsageError: There is no such kind.
    """
    if kind is not InspectResult and kind not in _KINDS:
        named = getattr(kind, "__name__", repr(kind))
        raise UsageError(f"{named:.80} cannot be loaded", where="kind", hint=f"use {', '.join(_SCHEMAS.values())}")
    file = file_path(path)
    try:
        if kind is InspectResult:
            return InspectResult(read_report(file))
        return kind(from_json(read_file(file, cap=_CAP), _KINDS[kind]))
    except AttnscopeError as e:
        there = _kind_in(file)
        if there is not None and there != kind.__name__:
            hint = f"attnscope.load({os.fspath(path)!r}, attnscope.{there})"
            message = f"holds the findings of {there.removesuffix('Result').lower()}"
            raise AttnscopeError(message, where=file, hint=hint) from e
        raise e if e.where else AttnscopeError(e.parts.message, where=file, hint=e.parts.hint) from e


def _kind_in(file: Path) -> str | None:
    """Return which of the results a file of JSON holds; None where that cannot be said."""
    try:
        return _SCHEMAS.get(schema_of(read_file(file, cap=_CAP)))
    except AttnscopeError:
        return None
