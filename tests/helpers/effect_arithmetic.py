"""What a cut changes, how ranks agree, rollout and value zeroing: the formulas as papers have them, in float64."""

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]


def log_softmax(logits: Array) -> Array:
    """Natural log-probabilities over the last axis."""
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def divergence(before: Array, after: Array) -> float:
    """KL(before ‖ after) in bits, of natural log-probabilities (V,)."""
    return float((np.exp(before) * (before - after)).sum() / np.log(2))


def change_of(before: Array, after: Array) -> tuple[Array, Array]:
    """Cosine and ‖after − before‖ of vectors, (T, D) each."""
    lengths = np.linalg.norm(before, axis=-1) * np.linalg.norm(after, axis=-1)
    return (before * after).sum(-1) / lengths, np.linalg.norm(after - before, axis=-1)


def rank_correlation(first: Sequence[float] | Array, second: Sequence[float] | Array) -> float:
    """Pearson's correlation of ranks, each counted against all others; NaN where one side is constant."""
    ranks = [
        [sum(b < a for b in side) + (sum(b == a for b in side) + 1) / 2 for a in side]
        for side in (first, second)
    ]
    if any(len(set(side)) == 1 for side in ranks):
        return float("nan")
    return float(np.corrcoef(ranks)[0, 1])


def shares(matrix: Array) -> Array:
    """Every row divided by its sum; a row of zeros as it is."""
    sums = matrix.sum(-1, keepdims=True)
    return matrix / np.where(sums > 0, sums, 1.0)


def roll_out(layers: Sequence[Array], *, residual: bool) -> Array:
    """Abnar and Zuidema, 2020: Ã_l = (0.5 A_l + 0.5 I) Ã_(l−1), of heads' weights (H, T, T); rows summing to 1."""
    product = None
    for weights in layers:
        one = weights.mean(0)
        one = shares(0.5 * one + 0.5 * np.eye(len(one)) if residual else one)
        product = one if product is None else one @ product
    assert product is not None
    return product


def zeroing_shares(whole: Array, zeroed: Sequence[Array]) -> Array:
    """Mohebbi et al., 2023: 1 − cosine of every token's output, (T, D), with and without each value; rows sum to 1."""
    return shares(np.array([1 - change_of(whole, one)[0] for one in zeroed]).T)
