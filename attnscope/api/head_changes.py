"""What differs between the heads of two models, from Python."""

import os
from collections.abc import Mapping
from typing import Any

from attnscope.api.head_results import HeadChangesResult
from attnscope.api.model import OpenModel
from attnscope.base.errors import UsageError
from attnscope.request.options import HEADS
from attnscope.studies.registry import call_of

_AXES = tuple(option.name for option in HEADS if option.several == "compared")


def list_among(named: Mapping[str, Any]) -> str | None:
    """Return the name of the argument that is a list, with a value for each of two models; None if none is."""
    lists = [name for name in _AXES if isinstance(named.get(name), list | tuple)]
    if len(lists) > 1:
        raise UsageError(f"{' and '.join(sorted(lists))} are lists", hint="compare one thing at a time")
    return lists[0] if lists else None


def compare_two(axis: str, named: Mapping[str, Any], text: Any, options: Mapping[str, Any]) -> HeadChangesResult:
    """Measure the heads of two models, one after the other, and compare them."""
    from attnscope.studies.heads.changes import compare_heads

    call_of("heads", options, (axis, named[axis]))
    text = text if text is None or isinstance(text, str) else list(text)
    sides: list[tuple[str, Any]] = []
    for value in named[axis]:
        arguments = {**named, axis: value}
        with OpenModel(arguments.pop("model"), arguments) as opened:
            findings = opened.heads(text, **options).data
        sides.append((_label(value, findings.provenance.model), findings))
    return HeadChangesResult(compare_heads(axis, sides))


def _label(value: object, model: str | None) -> str:
    """Return a value as one would type it; of a model in memory, its name."""
    if value is None:
        return "none"
    return os.fsdecode(value) if isinstance(value, str | os.PathLike) else model or type(value).__name__
