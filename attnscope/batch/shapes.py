"""Check that the parts of a record in a dump fit together: a checksum only says that it is as written."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from attnscope.base.errors import AttnscopeError
from attnscope.batch.header import MEASURES, Settings
from attnscope.batch.records import Record
from attnscope.findings.axes import arrays_in, faults
from attnscope.findings.row_statistics import ROW_STATISTICS
from attnscope.findings.run import STAGES

_LARGEST = 1 << 62
_HINT = "another program wrote or changed it: restore it from a backup"


def check_record(record: Record, settings: Settings, path: Path) -> None:
    """Refuse a record whose positions, counts and array shapes contradict each other, or that lacks kept arrays."""
    for where, fault in _faults(record, settings):
        raise AttnscopeError(f"record {record.index}: {where} {fault}", where=path, hint=_HINT)


def _faults(record: Record, settings: Settings) -> Iterator[tuple[str, str]]:
    if not 0 <= record.index <= _LARGEST:
        yield "index", f"is not from 0 to {_LARGEST}"
    if record.status != "ok":
        return
    for part in settings.keep:
        if getattr(record, part) is None:
            yield part, "is missing"
    if record.rows is not None and "rows" in settings.keep:
        for row in ROW_STATISTICS:
            # Dumps of older versions lack statistics that were added later.
            if row.name in settings.kept_statistics and not row.added and getattr(record.rows, row.name) is None:
                yield f"rows.{row.name}", "is missing"
    for name in MEASURES[settings.by] if record.top is not None else ():
        if getattr(record.top, name) is None:
            yield f"top.{name}", "is missing"
    for stage in settings.stages if "stages" in settings.keep else ():
        if stage not in record.stages or stage not in STAGES:
            yield f"stages.{stage[:40]}", "is missing"
    for name, along, array in arrays_in(record):
        if array.dtype != (np.float32 if along.positions is None else np.int32):
            yield name, f"holds {array.dtype}"
    yield from faults(record, {})
