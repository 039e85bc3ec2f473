"""Arrays over texts, heads and rows of a batch, for dumps."""

from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from attnscope.findings.row_statistics import LINEAR, STATISTICS
from attnscope.model.recorders import HeadRecorder
from attnscope.model.trace import Trace, UnitRecorders
from attnscope.run.analysis.head_reports import mean_row_statistic, top_of_mean


def unit_names(trace: Trace) -> list[tuple[int | str, int | str]]:
    """Name the layer and head of every unit: numbers, or `mean`."""
    return [
        ("mean" if unit.mean_layer else unit.layers[0], "mean" if unit.mean_head else unit.heads[0])
        for unit, _ in trace.recorded
    ]


def unit_arrays(trace: Trace) -> dict[str, Any]:
    """Return all recorded values of a batch as NumPy arrays with axes text, unit, row, then the array's own.

    Returns:
        `top.keys` (int32), `top.weight` and so on, `rows.entropy` and so on, `columns`, `pooled`, `stages.weights` and
        so on; rows and columns are those of `RecordSpec`. With sheets, each of `stages` is a list of every text's own.
    """
    parts = []
    for _, together in groupby((recorded for _, recorded in trace.recorded), key=lambda unit: id(unit.matrices)):
        # Heads of one layer, which share their recorders.
        units = list(together)
        heads = [unit.head for unit in units]
        layer_arrays = _unit_arrays(units[0], trace)
        parts.append({n: x if heads == list(range(x.shape[1])) else x[:, heads] for n, x in layer_arrays.items()})
    arrays: dict[str, Any] = {name: torch.cat([part[name] for part in parts], 1).cpu().numpy() for name in parts[0]}
    if trace.packed is not None:
        for stage in trace.record_spec.stages:
            arrays[f"stages.{stage}"] = [text.numpy() for text in trace.packed.texts(stage)]
    return arrays


def _unit_arrays(recorded: UnitRecorders, trace: Trace) -> dict[str, Tensor]:
    """Return the arrays of a unit and the units that share its recorders, (B, heads, …) each; one head for a mean."""
    w, arrays = trace.record_spec, dict[str, Tensor]()
    if "top" in w.parts:
        keys, measures = _top_arrays(recorded, trace)
        arrays |= {"top.keys": keys.int()} | {f"top.{name}": measure for name, measure in measures.items()}
    if "rows" in w.parts:
        arrays |= {f"rows.{name}": _row_arrays(recorded, name) for name in STATISTICS}
        if any(recorder.sink is not None for _, other in trace.recorded for recorder in other.rows):
            arrays["rows.sink"] = _row_arrays(recorded, "sink")
    arrays |= {name: recorder.compute() for name, recorder in recorded.sums.items() if name not in ("spans", "heads")}
    heads = recorded.sums.get("heads")
    if isinstance(heads, HeadRecorder):
        arrays |= {f"heads.{name}": values for name, values in heads.arrays().items()}
    if "spans" in recorded.sums:
        arrays |= _span_arrays(recorded.sums["spans"], trace)
    if trace.packed is None:
        arrays |= {f"stages.{stage}": recorded.matrices.compute()[stage] for stage in w.stages}
    return arrays


def _span_arrays(spans: Any, trace: Trace) -> dict[str, Tensor]:
    """Return weights between spans, and on sinks if any layer has these."""
    weights, sink = spans.compute().float(), spans.sink()
    if all(other.sums["spans"].sink() is None for _, other in trace.recorded):  # type: ignore[attr-defined]
        return {"spans.weights": weights}
    return {"spans.weights": weights, "spans.sink": torch.zeros_like(weights[..., 0]) if sink is None else sink.float()}


def _row_arrays(recorded: UnitRecorders, name: str) -> Tensor:
    """Return a statistic of every row, (B, heads, rows), or one head, the mean of all, over a mean."""
    if recorded.matrices.mean and not LINEAR.get(name, True):
        return mean_row_statistic(recorded, name)
    if name == "sink":
        # A layer without sinks has no weight on them.
        sinks = ((rows.sink, rows.recorded["first"]) for rows in recorded.rows)
        per_layer = [torch.zeros_like(first) if sink is None else sink for sink, first in sinks]
    else:
        per_layer = [rows.recorded[name] for rows in recorded.rows]
    if not recorded.matrices.mean:
        return per_layer[0]
    return torch.stack([rows.mean(1, keepdim=True) for rows in per_layer]).mean(0)


def _top_arrays(recorded: UnitRecorders, trace: Trace) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the strongest sources in every text, (B, heads, rows, rank); one head over a mean."""
    if recorded.top is not None:
        return recorded.top.keys, recorded.top.measures
    per_text = [top_of_mean(recorded, trace, text, slice(None)) for text in range(len(trace.record_tokens.eligible))]
    names = trace.record_spec.measures or tuple(per_text[0][1])
    keys = torch.stack([keys for keys, _ in per_text])[:, None]
    return keys, {n: torch.stack([m[n] for _, m in per_text])[:, None] for n in names}
