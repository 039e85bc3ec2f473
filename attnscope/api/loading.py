"""Read saved findings."""

import os
from pathlib import Path
from typing import Any

from attnscope.api.options import file_path
from attnscope.api.results import InspectResult, Result, TableResult
from attnscope.base.errors import AttnscopeError, UsageError
from attnscope.base.files.reading import read_file
from attnscope.findings.array_files import ARRAY_FILES
from attnscope.findings.codec import from_json, schema_of
from attnscope.findings.run import Report
from attnscope.studies.compare.runs import read_report
from attnscope.studies.registry import kinds
from attnscope.studies.study import FindingsKind

_CAP = 4 << 30


def load_as(path: str | os.PathLike[str], kind: type | None = None) -> Any:
    """Read findings of any kind that a study declares.

    Args:
        kind: The result type that it must be; None for whatever the file holds.
    """
    types = {findings: result_type(findings) for findings in (declared.findings_type() for declared in kinds())}
    if kind is not None and kind not in types.values():
        named = getattr(kind, "__name__", repr(kind))
        known = dict.fromkeys(result.__name__ for result in types.values())
        raise UsageError(f"{named:.80} cannot be loaded", where="kind", hint=f"use {', '.join(known)}")
    file = file_path(path)
    held = _kind_in(file)
    expected = (
        next((findings for findings in types if types[findings] is kind), Report)
        if held is None
        else held.findings_type()
    )
    if held is not None and kind not in (None, types[expected]):
        hint = f"attnscope.load({os.fspath(path)!r}, attnscope.{types[expected].__name__})"
        raise AttnscopeError(f"holds the findings of {held.typed or held.name}", where=file, hint=hint)
    try:
        if expected is Report:
            return InspectResult(read_report(file))
        return types[expected](from_json(read_file(file, cap=_CAP), expected))
    except AttnscopeError as e:
        raise e if e.where else AttnscopeError(e.parts.message, where=file, hint=e.parts.hint) from e


def result_type(findings: type) -> type[Result[Any]]:
    """Return the class for these findings in Python: the one that is declared for them."""
    types: tuple[Any, ...] = (*Result.__subclasses__(), *TableResult.__subclasses__())
    declared = (result_type for result_type in types if result_type.__init__ is Result.__init__)
    return next((result_type for result_type in declared if findings in result_type.__orig_bases__[0].__args__), Result)


def _kind_in(file: Path) -> FindingsKind | None:
    """Return the kind of findings that a JSON file names; None for an unknown one."""
    if file.suffix.lower() in ARRAY_FILES:
        return None
    name = schema_of(read_file(file, cap=_CAP)).partition("/")[0]
    return next((known_kind for known_kind in kinds() if known_kind.schema.partition("/")[0] == name), None)
