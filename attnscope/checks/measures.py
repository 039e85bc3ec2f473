"""Two tensors that ought to be the same in; how far apart they are, head by head, out."""

from collections.abc import Sequence

import torch
from torch import Tensor

from attnscope.report.check import Check, Differences


def apart(ours: Tensor, theirs: Tensor, *, absolute: bool = False) -> Tensor:
    """The largest difference of every head, (H,), of tensors (B, H, …).

    Weights lie between 0 and 1 and are compared as they are. Scores and outputs have no such bound: their difference is
    divided by the largest magnitude of the layer where that is above 1. Where one is −inf or NaN and the other is not,
    the difference is infinite.
    """
    ours, theirs = ours.double(), theirs.double()
    same = (ours == theirs) | (ours.isnan() & theirs.isnan())
    finite = ours.isfinite() & theirs.isfinite()
    gap = (ours - theirs).abs().masked_fill(~finite, torch.inf).masked_fill(same, 0.0)
    size = 1.0
    if not absolute and finite.any():
        size = max(1.0, float(theirs[finite].abs().max()))
    return gap.transpose(0, 1).flatten(1).amax(1) / size  # (H,)


def judge(name: str, found: Sequence[Tensor], limit: float, note: str | None = None) -> Check:
    """A check of the largest of these deviations, one tensor (H,) a layer."""
    worst = [float(one.max()) for one in found]
    layer = max(range(len(worst)), key=worst.__getitem__)
    value = worst[layer]
    where = f"L{layer}H{int(found[layer].argmax())}" if value > 0 else None
    measured = value if value < float("inf") else None
    return Check(name, "pass" if value <= limit else "fail", measured, limit, where, note)


def skip(name: str, why: str) -> Check:
    """A check that has no meaning here."""
    return Check(name, "skipped", note=why)


def differences(reference: str, stage: str, found: Sequence[Tensor], limit: float) -> Differences:
    """What `judge` judges, by layer and head."""
    by_head = [[float(x) if x < float("inf") else None for x in one] for one in found]
    return Differences(reference, stage, limit, by_head)
