"""Find the largest difference of each stage between two lists of stages."""

import torch
from torch import Tensor

from tests.helpers.reference_stages import STAGES, Stages

TOLERANCE = 1e-5


def differences(ours: list[Stages], theirs: list[Stages], lengths: list[int]) -> dict[str, float]:
    """Stage to its largest difference over all layers, heads, and the rows and columns that are not padding.

    Weights lie between 0 and 1 and are compared as they are. Scores and outputs have no such bound, so each layer's
    difference is divided by that layer's largest magnitude where that is above 1: float32 has 7 digits, not 7 decimals.
    Where one side bars a key (−inf) and the other does not, the difference is infinite. A score that the reference
    does not know is NaN there, and is not compared.
    """
    assert len(ours) == len(theirs)
    found = dict.fromkeys(STAGES, 0.0)
    for mine, its in zip(ours, theirs, strict=True):
        for stage in STAGES:
            a, b = getattr(mine, stage), getattr(its, stage)
            assert a.shape == b.shape
            for text, n in enumerate(lengths):
                real = (text, slice(None), slice(n), slice(None if stage == "output" else n))
                x, y = a[real], b[real]
                if its.shifted and stage in ("scaled", "masked"):  # every query may see itself
                    x, y = (side - side.diagonal(dim1=-2, dim2=-1)[..., None] for side in (x, y))
                found[stage] = max(found[stage], _difference(x, y, stage == "weights"))
    return found


def _difference(a: Tensor, b: Tensor, absolute: bool) -> float:
    if not torch.equal(a == -torch.inf, b == -torch.inf):
        return float("inf")
    finite = b > -torch.inf  # False for NaN, too
    a, b = a[finite], b[finite]
    size = 1.0 if absolute else max(1.0, float(b.abs().max()))
    return float((a - b).abs().max()) / size
