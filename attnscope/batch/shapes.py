"""Check that the parts of a record in a dump fit together: a checksum only says that it is as written."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from attnscope.base.errors import AttnscopeError
from attnscope.batch.header import MEASURES, Settings
from attnscope.batch.records import Record, TopArrays
from attnscope.batch.sinks import arrays_of
from attnscope.findings.record_parts import PARTS, Axis
from attnscope.findings.row_statistics import ROW_STATISTICS
from attnscope.findings.run import STAGES

_LARGEST = 1 << 62
_HINT = "another program wrote or changed it: restore it from a backup"


def check_record(record: Record, settings: Settings, path: Path) -> None:
    """Refuse a record whose positions, counts and array shapes contradict each other, or that lacks what was kept.

    Raises:
        AttnscopeError: The record is inconsistent; the message names the field.
    """
    for where, found in _faults(record, settings):
        raise AttnscopeError(f"record {record.index}: {where} {found}", where=path, hint=_HINT)


def _faults(record: Record, settings: Settings) -> Iterator[tuple[str, str]]:
    if not 0 <= record.index <= _LARGEST:
        yield "index", f"is not from 0 to {_LARGEST}"
    if record.status != "ok":
        return
    n_queries, sources = len(record.tokens), record.tokens if record.sources is None else record.sources
    for name, places, count in (
        ("queries", record.queries, n_queries),
        ("keys", record.keys, len(sources)),
        ("positions", record.positions, n_queries),
    ):
        if not all(a < b for a, b in zip([-1, *places], [*places, count], strict=True)):
            yield name, f"is not an ascending list of positions below {count}"
    for part in settings.keep:
        if getattr(record, part) is None:
            yield part, "is missing"
    if record.rows is not None and "rows" in settings.keep:
        for one in ROW_STATISTICS:  # dumps of older versions lack statistics that were added later
            if one.name in settings.kept_statistics and not one.added and getattr(record.rows, one.name) is None:
                yield f"rows.{one.name}", "is missing"
    for name, array in arrays_of(record).items():
        expected = _expected(name, record, array.shape, len(sources))
        if array.shape != expected:
            yield name, f"has shape {list(array.shape)}, the record's counts require {list(expected)}"
        if array.dtype != (np.int32 if name == "top.keys" else np.float32):
            yield name, f"holds {array.dtype}"
    if record.top is not None:
        yield from _top_faults(record.top, settings, len(sources))
    for stage in settings.stages if "stages" in settings.keep else ():
        if stage not in record.stages or stage not in STAGES:
            yield f"stages.{stage[:40]}", "is missing"


def _expected(name: str, record: Record, shape: Sequence[int], n_sources: int) -> tuple[int, ...]:
    """Return the shape that a record's counts make of an array; what they leave open is as it is."""
    part, _, array = name.partition(".")
    found = [len(record.units)]
    for place, axis in enumerate(PARTS[part].axes_of(array), 1):
        there = shape[place] if len(shape) > place else 0
        known: dict[Axis, int] = {"query": len(record.queries), "key": len(record.keys), "source": n_sources}
        known |= {"query run": min(there, len(record.tokens)), "key run": min(there, n_sources)}
        if axis == "rank" and record.top is not None:
            known["rank"] = record.top.keys.shape[place] if record.top.keys.ndim > place else 0
        found.append(known.get(axis, there))
    return tuple(found)


def _top_faults(top: TopArrays, settings: Settings, n_sources: int) -> Iterator[tuple[str, str]]:
    for name in MEASURES[settings.by]:
        if getattr(top, name) is None:
            yield f"top.{name}", "is missing"
    if top.keys.size and not (int(top.keys.min()) >= -1 and int(top.keys.max()) < n_sources):
        yield "top.keys", f"has a position of {n_sources} or more"
