"""Files of a Report: read one that `attnscope run --json` wrote as records for a table, and write one."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Unpack

import numpy as np

from attnscope.base.errors import AttnscopeError, UsageError, arg
from attnscope.base.files.atomic import check_target, write_atomic
from attnscope.batch import tables
from attnscope.batch.header import KeptPart, Settings
from attnscope.batch.records import Record, SpanArrays, gather_parts
from attnscope.findings.axes import stacked
from attnscope.findings.codec import from_json, schema_of
from attnscope.findings.narrowing import require_heads
from attnscope.findings.run import Report, TextReport
from attnscope.findings.spans import SpanReport
from attnscope.studies.formats import Options, export
from attnscope.studies.study import TABLES


def read_report(path: Path) -> Report | None:
    """Return the Report in a file; None if the file holds something else."""
    try:
        data = path.read_bytes()
        if not schema_of(data).startswith("attnscope.report/"):
            return None
        report: Report = from_json(data)
        return report
    except OSError as e:
        raise AttnscopeError(f"cannot be read ({e.strerror})", where=path) from e
    except AttnscopeError as e:
        raise AttnscopeError(e.parts.message, where=path, hint=e.parts.hint) from e


def settings_of(report: Report) -> Settings:
    """Return the settings of a dump that would hold the same as a report."""
    require_heads(report, "the report")
    heads = [head for text in report.texts for head in text.heads]
    by: Literal["value", "projected"] = "value"
    if any(head.top.projected is not None for head in heads):
        by = "projected"
    keep: list[KeptPart] = ["top", "rows"]
    keep += ["columns"] if any(head.columns is not None for head in heads) else []
    keep += ["spans"] if any(text.spans is not None for text in report.texts) else []
    keep += ["stages"] if any(head.stages for head in heads) else []
    return Settings(by=by, keep=tuple(keep))


def file_parts(
    findings: Any, path: Path, *, table: str | None = None, width: int | None = None, **options: Unpack[Options]
) -> Iterator[bytes]:
    """Yield the contents of a file of this name as `export` does; a table of a report is one that dumps have."""
    if isinstance(findings, Report) and path.suffix.lower() in TABLES:
        return _table_parts(findings, path.suffix.lower(), table)
    return export(findings, path, width=width, **options)


def write_report(report: Report, path: str) -> str:
    """Write a report to a new file; return a description of the file."""
    target = Path(path).expanduser()
    if target.exists():
        raise AttnscopeError("exists", where=target, hint="name another file")
    parts = file_parts(report, target)
    check_target(target, force=False)
    return f"{target} ({write_atomic(target, parts, force=False):,} bytes)"


def _table_parts(report: Report, ending: str, table: str | None) -> Iterator[bytes]:
    """Yield a file with a table of a report, as `attnscope convert` makes it; by default of matrices, or the first."""
    settings = settings_of(report)
    there = tables.kinds_of(settings)
    if table is not None and there and table not in there:
        message = f"the report has {', '.join(there)}"
        raise UsageError(message, where=arg("table", table), hint=f"use {arg('table', there[0])}")
    kind = tables.kind_of(settings, "matrices" if table is None and "matrices" in there else table)
    parts = (part for record in records_of(report) for part in tables.tables(kind, record))
    rows = tables.TableRows(tables.columns(kind, settings), parts)
    yield from tables.csv_bytes(rows) if ending == ".csv" else tables.parquet_bytes(rows)


def records_of(report: Report) -> Iterator[Record]:
    """Yield every text as a record with the content of tables; weights between spans are a record of their own."""
    for text in report.texts:
        if text.heads:
            yield _head_record(text)
        if text.spans is not None:
            yield _span_record(text, text.spans)


def _span_record(text: TextReport, report: SpanReport) -> Record:
    # A layer without attention over tokens has no weights.
    layers = [layer for layer, weights in enumerate(report.weights) if not np.isnan(weights).all()]
    n_heads = report.weights.shape[1]
    units = len(layers) * n_heads
    sink = None if report.sink is None else report.sink[layers].reshape(units, -1)
    return _record(
        text,
        tokens=text.tokens[: len(report.text.of_token)],
        units=[(layer, head) for layer in layers for head in range(n_heads)],
        divided=report.text,
        spans=SpanArrays(report.weights[layers].reshape(units, *report.weights.shape[2:]), sink),
    )


def _record(text: TextReport, **contents: Any) -> Record:
    return Record(text.index, text.index, text.index + 1, "", "ok", text=text.text, **contents)


def _head_record(text: TextReport) -> Record:
    arrays = stacked(text.heads).items()
    parts = gather_parts({path: array for path, array in arrays if not path.startswith(("pooled.", "words."))})
    return _record(
        text,
        tokens=text.tokens,
        sources=text.context,
        queries=text.queries,
        keys=text.keys,
        units=[(head.layer, head.head) for head in text.heads],
        **parts,
    )
