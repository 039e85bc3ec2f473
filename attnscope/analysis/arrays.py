"""A Trace of many texts in; plain arrays over texts and units out."""

from typing import Any

import torch
from torch import Tensor

from attnscope.analysis.heads import top_of_mean
from attnscope.analysis.tensors import to_numpy
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
        so on; rows and columns are those of `Wanted`.
    """
    w, kept = trace.wanted, [kept for _, kept in trace.kept]
    found: dict[str, Any] = {}
    if w.keep.top:
        tops = [_whole_top(one, w) for one in kept]
        found["top.keys"] = torch.stack([keys for keys, _ in tops], 1).int().cpu().numpy()
        for name in tops[0][1]:
            found[f"top.{name}"] = to_numpy(torch.stack([measures[name] for _, measures in tops], 1))
    if w.keep.rows:
        for name in Rows.NAMES:
            each = [torch.stack([_of_head(r.kept[name], one) for r in one.rows]).mean(0) for one in kept]
            found[f"rows.{name}"] = to_numpy(torch.stack(each, 1))
    for name in ("columns", "pooled"):
        recorders = [getattr(one, name) for one in kept]
        if recorders[0] is not None:
            found[name] = to_numpy(
                torch.stack([r.result()[:, one.head] for r, one in zip(recorders, kept, strict=True)], 1)
            )
    for stage in w.stages:
        found[f"stages.{stage}"] = to_numpy(torch.stack([one.matrices.result()[stage][:, one.head] for one in kept], 1))
    return found


def _of_head(values: Tensor, kept: Kept) -> Tensor:
    """One unit's share of a recorder's values (B, heads, …): a head, or the mean of them."""
    return values.mean(1) if kept.matrices.mean else values[:, kept.head]


def _whole_top(kept: Kept, wanted: Wanted) -> tuple[Tensor, dict[str, Tensor]]:
    """One unit's strongest sources in every text, (B, rows, rank)."""
    if kept.top is not None:
        return kept.top.keys[:, kept.head], {name: m[:, kept.head] for name, m in kept.top.measures.items()}
    rows = slice(0, len(wanted.rows))
    each = [top_of_mean(kept, wanted, text, rows) for text in range(len(wanted.eligible))]
    names = wanted.keep.measures or tuple(each[0][1])
    return torch.stack([keys for keys, _ in each]), {n: torch.stack([m[n] for _, m in each]) for n in names}
