"""Findings as the bytes of a file, in the format that its ending names."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from attnscope.errors import UsageError
from attnscope.report import Explanation, HeadReport, Report, TextReport, json_parts
from attnscope.report.check import CheckReport
from attnscope.report.compare import Comparison
from attnscope.report.heads import HeadSurvey, MeasuredHeads
from attnscope.views.check import as_text as check_as_text
from attnscope.views.head_tables import csv_parts, parquet_parts
from attnscope.views.plain import Page

if TYPE_CHECKING:
    from attnscope.views.terminal.heads import Listing

WIDTH = 120


def export(
    findings: Report | Comparison | Explanation | CheckReport | HeadSurvey | MeasuredHeads,
    path: Path,
    *,
    precision: int = 2,
    width: int | None = None,
    listing: "Listing | None" = None,
) -> Iterator[bytes]:
    """What a file of this name holds, piece by piece; writing it is the caller's business.

    Args:
        findings: What to export.
        path: The file's name; its ending chooses `.json`, `.txt` (the table view), `.svg` (the same in colour) or
            `.safetensors` (every array of a Report by name, such as `text0.L2H1.weights`), `.csv` or `.parquet` (a row
            for every head of a survey).
        precision: Digits after the point in `.txt` and `.svg`; the others are exact.
        width: Columns of `.txt` and `.svg`; None for 120.
        listing: Of a survey of heads: which of them `.txt` and `.svg` list.

    Raises:
        UsageError: The ending is none of these.
    """
    write = _WRITERS.get(path.suffix.lower())
    if write is None:
        found = f"unknown extension '{path.suffix}'" if path.suffix else "the name has no extension"
        raise UsageError(found, where=path, hint=f"use {', '.join(ENDINGS)}")
    if write is _safetensors and not isinstance(findings, Report):
        raise UsageError(
            "only reports of run can be written as .safetensors", where=path, hint="use .json, .txt or .svg"
        )
    if write is _svg and isinstance(findings, CheckReport):
        raise UsageError("a check has no picture", where=path, hint="use .json or .txt")
    if write in (_csv, _parquet) and not isinstance(findings, HeadSurvey | MeasuredHeads):
        hint = "use .json, .txt or .svg" + "; attnscope convert makes tables of reports" * isinstance(findings, Report)
        raise UsageError("only what heads finds can be written as a table", where=path, hint=hint)
    return write(findings, precision, width or WIDTH, listing)


def tensors(report: Report) -> dict[str, np.ndarray[Any, Any]]:
    """Every array of a report by name.

    `text0.queries` and `text0.keys` are the positions of rows and columns, `text0.ids` and `text0.context_ids` the
    tokens; `text0.L2H1.weights` a stage, `text0.L2H1.top.keys` the sources and `text0.L2H1.rows.entropy` a statistic;
    `text0.L2H1.pooled.weights` a map whose runs start at `text0.L2H1.pooled.queries` and `.keys`, and
    `text0.L2H1.columns.mass` what every source gets.
    """
    found: dict[str, np.ndarray[Any, Any]] = {}
    for text in report.texts:
        name = f"text{text.index}"
        found[f"{name}.queries"] = np.array(text.queries, dtype=np.int64)
        found[f"{name}.keys"] = np.array(text.keys, dtype=np.int64)
        found[f"{name}.ids"] = np.array([token.id for token in text.tokens], dtype=np.int64)
        if text.context is not None:
            found[f"{name}.context_ids"] = np.array([token.id for token in text.context], dtype=np.int64)
        for head in text.heads:
            found.update(_head_tensors(f"{name}.{_head_key(head)}", head))
    return found


def _head_key(head: HeadReport) -> str:
    return f"L{head.layer}H{head.head}"


def _head_tensors(name: str, head: HeadReport) -> dict[str, np.ndarray[Any, Any]]:
    found: dict[str, np.ndarray[Any, Any]] = {f"{name}.{stage}": matrix for stage, matrix in head.stages.items()}
    if head.sink is not None:
        found[f"{name}.sink"] = head.sink
    for part in ("top", "rows", "pooled", "columns"):
        struct = getattr(head, part)
        for field in () if struct is None else struct.__struct_fields__:
            value = getattr(struct, field)
            if isinstance(value, np.ndarray | list) and field != "left_out":
                found[f"{name}.{part}.{field}"] = np.asarray(value)
    return found


def _metadata(report: Report) -> dict[str, str]:
    """Everything of the report that is no array, as JSON under one key: the order of several is not kept."""
    texts = {f"text{text.index}": _text_facts(text) for text in report.texts}
    facts = {"schema": report.schema, "provenance": report.provenance, "mask": report.mask, "texts": texts}
    return {"attnscope": msgspec.json.encode(facts).decode()}


def _text_facts(text: TextReport) -> dict[str, Any]:
    heads = {
        _head_key(head): {
            **{field: getattr(head, field) for field in ("chosen", "scale", "softcap", "bias", "fully_masked")},
            "by": head.top.by,
            "left_out": head.top.left_out,
            "means": head.means,
        }
        for head in text.heads
    }
    facts = {field: getattr(text, field) for field in ("text", "pair", "tokens", "context", "notes")}
    return {**facts, "heads": heads}


def _json(findings: Any, _precision: int, _width: int, _listing: Any) -> Iterator[bytes]:
    yield from json_parts(findings)
    yield b"\n"


def _txt(findings: Any, precision: int, width: int, listing: Any) -> Iterator[bytes]:
    if isinstance(findings, CheckReport):
        yield check_as_text(findings, Page(width)).encode()
        return
    from attnscope.views.terminal.recorded import as_text  # rich is only needed for drawing

    yield as_text(findings, width=width, precision=precision, listing=listing).encode()


def _svg(findings: Any, precision: int, width: int, listing: Any) -> Iterator[bytes]:
    from attnscope.views.terminal.recorded import as_svg

    yield as_svg(findings, width=width, precision=precision, listing=listing).encode()


def _safetensors(findings: Any, _precision: int, _width: int, _listing: Any) -> Iterator[bytes]:
    """Yield a header, then every array from memory: the library's writer makes two more copies of each."""
    header: dict[str, Any] = {"__metadata__": _metadata(findings)}
    # widest numbers first, so that each array begins at a multiple of its numbers' size
    arrays = sorted(tensors(findings).items(), key=lambda one: (-one[1].itemsize, one[0]))
    end = 0
    for name, array in arrays:
        start, end = end, end + array.nbytes
        header[name] = {"dtype": _DTYPES[array.dtype.name], "shape": array.shape, "data_offsets": (start, end)}
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for _, array in arrays:
        yield array.tobytes()  # contiguous rows, also of a slice


def _csv(findings: Any, _precision: int, _width: int, _listing: Any) -> Iterator[bytes]:
    yield from csv_parts(findings)


def _parquet(findings: Any, _precision: int, _width: int, _listing: Any) -> Iterator[bytes]:
    yield from parquet_parts(findings)


_DTYPES = {"float32": "F32", "int64": "I64"}
_WRITERS: dict[str, Callable[[Any, int, int, Any], Iterator[bytes]]] = {
    ".json": _json,
    ".txt": _txt,
    ".svg": _svg,
    ".safetensors": _safetensors,
    ".csv": _csv,
    ".parquet": _parquet,
}
ENDINGS = (".json", ".txt", ".svg", ".safetensors")  # of reports
