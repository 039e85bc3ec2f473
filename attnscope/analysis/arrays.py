"""A Trace of many texts in; plain arrays over texts and units out."""

from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from attnscope.analysis.heads import top_of_mean
from attnscope.model.recorders import Rows
from attnscope.model.trace import Kept, Trace, Wanted


def unit_names(trace: Trace) -> list[tuple[int | str, int | str]]:
    """Layer and head of every unit: numbers, or `mean`."""
    return [
        ("mean" if unit.mean_layer else unit.layers[0], "mean" if unit.mean_head else unit.heads[0])
        for unit, _ in trace.kept
    ]


def unit_arrays(trace: Trace) -> dict[str, Any]:
    """Everything kept of a batch as NumPy arrays whose axes are text, unit, row and whatever follows.

    Returns:
        `top.keys` (int32), `top.weight` and so on, `rows.entropy` and so on, `columns`, `pooled`, `stages.weights` and
        so on; rows and columns are those of `Wanted`. With sheets, each of `stages` is a list of every text's own.
    """
    parts = []
    for _, together in groupby((kept for _, kept in trace.kept), key=lambda one: id(one.matrices)):
        units = list(together)  # heads of one layer, which share their recorders
        heads = [one.head for one in units]
        whole = _whole(units[0], trace)
        parts.append({n: x if heads == list(range(x.shape[1])) else x[:, heads] for n, x in whole.items()})
    found: dict[str, Any] = {name: torch.cat([part[name] for part in parts], 1).cpu().numpy() for name in parts[0]}
    if trace.sheets is not None:
        for stage in trace.wanted.stages:
            found[f"stages.{stage}"] = [text.numpy() for text in trace.sheets.texts(stage)]
    return found


def _whole(kept: Kept, trace: Trace) -> dict[str, Tensor]:
    """All that a unit and those that share its recorders keep, (B, heads, …) each; one head over a mean."""
    w, found = trace.wanted, dict[str, Tensor]()
    if w.keep.top:
        keys, measures = _whole_top(kept, w)
        found |= {"top.keys": keys.int()} | {f"top.{name}": measure for name, measure in measures.items()}
    if w.keep.rows:
        found |= {f"rows.{name}": _whole_rows(kept, name) for name in Rows.NAMES}
        if any(one.sink is not None for _, other in trace.kept for one in other.rows):
            found["rows.sink"] = _whole_rows(kept, "sink")
    if kept.columns is not None:
        found["columns"] = kept.columns.result()
    if kept.pooled is not None:
        found["pooled"] = kept.pooled.result()
    if trace.sheets is None:
        found |= {f"stages.{stage}": kept.matrices.result()[stage] for stage in w.stages}
    return found


def _whole_rows(kept: Kept, name: str) -> Tensor:
    """A statistic of every row, (B, heads, rows), or one head, the mean of all, over a mean."""
    each = [_of_rows(one, name) for one in kept.rows]
    return torch.stack([one.mean(1, keepdim=True) for one in each]).mean(0) if kept.matrices.mean else each[0]


def _of_rows(rows: Rows, name: str) -> Tensor:
    if name != "sink":
        return rows.kept[name]
    return (
        torch.zeros_like(rows.kept["first"]) if rows.sink is None else rows.sink
    )  # a layer without sinks gives nothing


def _whole_top(kept: Kept, wanted: Wanted) -> tuple[Tensor, dict[str, Tensor]]:
    """The strongest sources in every text, (B, heads, rows, rank); one head over a mean."""
    if kept.top is not None:
        return kept.top.keys, kept.top.measures
    each = [top_of_mean(kept, wanted, text, slice(None)) for text in range(len(wanted.eligible))]
    names = wanted.keep.measures or tuple(each[0][1])
    keys = torch.stack([keys for keys, _ in each])[:, None]
    return keys, {n: torch.stack([m[n] for _, m in each])[:, None] for n in names}
