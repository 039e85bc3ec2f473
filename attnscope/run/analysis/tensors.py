"""Select one text, or a mean over heads, from recorded tensors."""

from typing import Any

import torch
from torch import Tensor

from attnscope.findings.row_statistics import LINEAR
from attnscope.model.trace import UnitRecorders


def to_numpy(tensor: Tensor) -> Any:
    """Return a float32 array of its own on the CPU."""
    return tensor.float().cpu().numpy()


def row_statistic(recorded: UnitRecorders, name: str, text: int) -> Tensor:
    """Return a statistic of every counted row, (rows,).

    For a mean, the statistic of the mean rows; NaN for rows that are not kept.
    """
    if recorded.contributions is None:
        fact: Tensor = recorded.rows[0].recorded[name][text, recorded.head]
        return fact
    if not LINEAR[name]:
        mean: Tensor = mean_row_statistic(recorded, name)[text, 0]
        return mean
    return torch.stack([r.recorded[name][text].mean(0) for r in recorded.rows]).mean(0)


def mean_row_statistic(recorded: UnitRecorders, name: str) -> Tensor:
    """Return a statistic of mean rows that is not the mean over heads, (B, 1, rows); NaN for rows not kept."""
    counted, kept = recorded.rows[0], recorded.mean_rows
    if kept is not None and list(kept.rows) == list(counted.rows):
        return kept.recorded[name]
    values = torch.full_like(counted.recorded[name][:, :1], torch.nan)
    if kept is not None:
        values[:, :, torch.searchsorted(torch.tensor(counted.rows), torch.tensor(kept.rows))] = kept.recorded[name]
    return values


def row_sink(recorded: UnitRecorders, text: int) -> Tensor | None:
    """Return the weight of every counted row on the sink, (rows,); None if there is no sink."""
    sinks = [rows.sink for rows in recorded.rows if rows.sink is not None]
    if not sinks:
        return None
    if recorded.contributions is None:
        return sinks[0][text, recorded.head]
    return torch.stack([sink[text].mean(0) for sink in sinks]).mean(0)


def masked_rows(recorded: UnitRecorders, text: int) -> Tensor:
    """Return which counted rows may see nothing, (rows,), bool; over a mean, in any of its heads."""
    if recorded.contributions is None:
        rows: Tensor = recorded.rows[0].fully_masked[text, recorded.head]
        return rows
    return torch.stack([recorder.fully_masked[text].any(0) for recorder in recorded.rows]).any(0)
