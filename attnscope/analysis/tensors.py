"""What recorders of one unit kept, in; the part of one text, or of the mean that a unit stands for, out."""

from typing import Any

import torch
from torch import Tensor

from attnscope.model.trace import Kept


def to_numpy(tensor: Tensor) -> Any:
    """A float32 array of its own on the CPU."""
    return tensor.float().cpu().numpy()


def row_fact(kept: Kept, name: str, text: int) -> Tensor:
    """A statistic of every counted row, (rows,); over a mean, the mean of the heads' (and layers') statistics."""
    if kept.contributions is None:
        fact: Tensor = kept.rows[0].kept[name][text, kept.head]
        return fact
    return torch.stack([r.kept[name][text].mean(0) for r in kept.rows]).mean(0)


def row_sink(kept: Kept, text: int) -> Tensor | None:
    """What every counted row gives to the sink, (rows,); None where there is none."""
    sinks = [one.sink for one in kept.rows if one.sink is not None]
    if not sinks:
        return None
    if kept.contributions is None:
        return sinks[0][text, kept.head]
    return torch.stack([sink[text].mean(0) for sink in sinks]).mean(0)


def fully_masked(kept: Kept, text: int) -> Tensor:
    """Which counted rows may see nothing, (rows,), bool; over a mean of layers, in any of them."""
    return torch.stack([one.dead[text] for one in kept.rows]).any(0)
