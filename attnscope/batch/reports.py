"""Read a Report that `attnscope run --format json` wrote as records for a table."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from attnscope.base.errors import AttnscopeError
from attnscope.batch.header import KeptPart, Settings
from attnscope.batch.records import Record, TopArrays
from attnscope.findings.codec import decode_json, from_json
from attnscope.findings.narrowing import require_heads
from attnscope.findings.row_statistics import STATISTICS, RowArrays
from attnscope.findings.run import Report, TextReport


class _SchemaField(msgspec.Struct):
    schema: str = ""


def read_report(path: Path) -> Report | None:
    """Return the Report in a file; None where the file holds something else.

    Raises:
        AttnscopeError: It cannot be read, or is a Report of another version.
    """
    try:
        data = path.read_bytes()
        if not decode_json(data, _SchemaField).schema.startswith("attnscope.report/"):
            return None
        return from_json(data)
    except ValueError:  # msgspec.DecodeError is one, and so is a byte that is not UTF-8
        return None
    except OSError as e:
        raise AttnscopeError(f"cannot be read ({e.strerror})", where=path) from e
    except AttnscopeError as e:
        raise AttnscopeError(e.parts.message, where=path, hint=e.parts.hint) from e


def settings_of(report: Report) -> Settings:
    """Return the settings of a dump that would hold the same as a report.

    Raises:
        AttnscopeError: The report is one of a measure over layers, which no dump holds.
    """
    require_heads(report, "the report")
    heads = [head for text in report.texts for head in text.heads]
    by: Literal["value", "projected"] = "value"
    if any(head.top.projected is not None for head in heads):
        by = "projected"
    keep: list[KeptPart] = ["top", "rows"]
    keep += ["columns"] if any(head.columns is not None for head in heads) else []
    keep += ["stages"] if any(head.stages for head in heads) else []
    return Settings(by=by, keep=tuple(keep))


def records_of(report: Report) -> Iterator[Record]:
    """Return every text as a record that holds what a table shows."""
    return (_record(text) for text in report.texts if text.heads)


def _record(text: TextReport) -> Record:
    def stacked(values: Sequence[Any]) -> Any:
        return None if any(value is None for value in values) else np.stack(values)

    def parts(part: str, names: tuple[str, ...]) -> dict[str, Any]:
        return {name: stacked([getattr(getattr(head, part), name) for head in text.heads]) for name in names}

    columns = [None if head.columns is None else head.columns.mass for head in text.heads]
    return Record(
        text.index,
        text.index,
        text.index + 1,
        "",
        "ok",
        text=text.text,
        tokens=text.tokens,
        sources=text.context,
        queries=text.queries,
        keys=text.keys,
        units=[(head.layer, head.head) for head in text.heads],
        top=TopArrays(**parts("top", TopArrays.__struct_fields__)),
        rows=RowArrays(**parts("rows", STATISTICS), sink=stacked([head.sink for head in text.heads])),
        columns=stacked(columns),
        stages={stage: stacked([head.stages[stage] for head in text.heads]) for stage in text.heads[0].stages},
    )
