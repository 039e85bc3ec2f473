"""The arrays of a Report as a .safetensors file."""

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from attnscope.report import HeadReport, Report, TextReport

_DTYPES = {"float32": "F32", "int64": "I64"}


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
    facts = {field: getattr(text, field) for field in ("text", "pair", "tokens", "context", "notes", "hidden")}
    return {**facts, "heads": heads}


def safetensors_parts(report: Report) -> Iterator[bytes]:
    """Yield a header, then every array from memory: the library's writer makes two more copies of each."""
    header: dict[str, Any] = {"__metadata__": _metadata(report)}
    # widest numbers first, so that each array begins at a multiple of its numbers' size
    arrays = sorted(tensors(report).items(), key=lambda one: (-one[1].itemsize, one[0]))
    end = 0
    for name, array in arrays:
        start, end = end, end + array.nbytes
        header[name] = {"dtype": _DTYPES[array.dtype.name], "shape": array.shape, "data_offsets": (start, end)}
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for _, array in arrays:
        yield array.tobytes()  # contiguous rows, also of a slice
