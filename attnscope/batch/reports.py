"""Files of a Report: read one that `attnscope run --json` wrote as records for a table, and write one."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from attnscope.base.errors import AttnscopeError, UsageError, arg
from attnscope.base.files.atomic import check_target, write_atomic
from attnscope.base.layer_kinds import MIXING
from attnscope.batch import tables
from attnscope.batch.header import KeptPart, Settings
from attnscope.batch.records import Record
from attnscope.findings.codec import from_json, schema_of
from attnscope.findings.heads import HeadRef, UnitArrays
from attnscope.findings.narrowing import require_heads
from attnscope.findings.run import Report
from attnscope.findings.spans import SpanArrays
from attnscope.studies.formats import export
from attnscope.studies.study import TABLES
from attnscope.views.settings import DisplaySettings


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
    if any(text.mixing is not None for text in report.texts):
        return Settings(by="value", keep=("stages",))
    require_heads(report, "the report")
    heads = [text.heads for text in report.texts]
    by: Literal["value", "projected"] = "value"
    if any(of_text.top is not None and of_text.top.projected is not None for of_text in heads):
        by = "projected"
    keep: list[KeptPart] = ["top", "rows"]
    if any(of_text.columns is not None for of_text in heads):
        keep += ["columns"]
    if any(text.spans is not None for text in report.texts):
        keep += ["spans"]
    if any(of_text.stages for of_text in heads):
        keep += ["stages"]
    return Settings(by=by, keep=tuple(keep))


def file_parts(
    findings: Any,
    path: Path,
    settings: DisplaySettings | None = None,
    table: str | None = None,
) -> Iterator[bytes]:
    """Yield the contents of a file of this name as `export` does; a table of a report is one that dumps have."""
    if isinstance(findings, Report) and path.suffix.lower() in TABLES:
        return _table_parts(findings, path.suffix.lower(), table)
    return export(findings, path, settings)


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
    table_kind = tables.kind_of(
        settings, "matrices" if table is None and "matrices" in there else table
    )
    parts = (part for record in records_of(report) for part in tables.tables(table_kind, record))
    rows = tables.TableRows(tables.columns(table_kind, settings), parts)
    yield from tables.csv_bytes(rows) if ending == ".csv" else tables.parquet_bytes(rows)


def records_of(report: Report) -> Iterator[Record]:
    """Yield every text as a record with the content of tables; weights between spans are a record of their own."""
    for text in report.texts:
        record = partial(Record, text.index, text.index, text.index + 1, "", "ok", text=text.text)
        if text.heads:
            heads: dict[str, Any] = {
                name: getattr(text.heads, name) for name in UnitArrays.__struct_fields__
            }
            yield record(
                tokens=text.tokens,
                sources=text.context,
                queries=text.queries,
                keys=text.keys,
                **heads,
            )
        if text.mixing is not None and text.mixing.matrix is not None:
            matrices = {MIXING: text.mixing.matrix}
            yield record(
                tokens=text.tokens,
                units=text.mixing.units,
                queries=text.queries,
                keys=text.keys,
                stages=matrices,
            )
        if text.spans is not None:
            # A layer without attention over tokens has no weights.
            layers = [
                layer
                for layer, weights in enumerate(text.spans.weights)
                if not np.isnan(weights).all()
            ]
            units = [
                HeadRef(layer, head)
                for layer in layers
                for head in range(text.spans.weights.shape[1])
            ]
            weights = text.spans.weights[layers].reshape(len(units), *text.spans.weights.shape[2:])
            sink = None
            if text.spans.sink is not None:
                sink = text.spans.sink[layers].reshape(len(units), -1)
            tokens = text.tokens[: len(text.spans.text.of_token)]
            spans = SpanArrays(weights, sink)
            yield record(tokens=tokens, units=units, divided=text.spans.text, spans=spans)
