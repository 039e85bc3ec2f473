"""The statistics of a row of weights by their definitions, in NumPy: nothing of attnscope's is used."""

from collections.abc import Sequence
from typing import Any

import numpy as np

WITHIN = (16, 64, 256, 1024)
NEEDS_ALIGNMENT = ("self", "distance", *(f"within_{n}" for n in WITHIN))
Array = np.ndarray[Any, np.dtype[Any]]


def key_factors(
    queries: Sequence[int],
    special: Array,
    punctuation: Array,
    *,
    aligned: bool = True,
    real: Array | None = None,
) -> dict[str, Array]:
    """Return what each statistic but the entropy multiplies weights by before it sums them, (queries, keys).

    Args:
        queries: Positions of the rows.
        special: Special tokens, (keys,), bool.
        punctuation: Tokens of punctuation alone, (keys,), bool.
        aligned: Queries and keys are the same tokens; otherwise no key is the row's own.
        real: Keys that are tokens and not padding, (keys,), bool; None for all.
    """
    keys = np.arange(len(special))
    apart = np.abs(np.asarray(queries)[:, None] - keys)
    own = (apart == 0) & aligned
    factors = {
        "first": keys == 0,
        "special": np.asarray(special, dtype=bool),
        "self": own,
        "other": ~own
        & ~np.asarray(special, dtype=bool)
        & (keys != 0)
        & (True if real is None else real),
        "distance": apart,
        **{f"within_{n}": apart <= n for n in WITHIN},
        "punctuation": np.asarray(punctuation, dtype=bool),
    }
    return {name: np.broadcast_to(factor, apart.shape) for name, factor in factors.items()}


def information(weights: Array) -> Array:
    """Return −log₂ of each weight, whose mean under the weights is their entropy; 0 for a weight of 0."""
    bits: Array = -np.log2(np.where(weights > 0, weights, 1))
    return bits


def entropy(weights: Array) -> Array:
    """Return the entropy of rows (…, keys) in bits, (…)."""
    bits: Array = (weights * information(weights)).sum(-1)
    return bits


def group_means(
    weights: Array, row_groups: Any, key_groups: Any, counted: Array | None = None
) -> Array:
    """Sum rows (…, queries, keys) up over groups of keys, and average over groups of rows: (…, row groups, key groups).

    Rows of NaN do not count. A group of which no row counts has NaN.

    Args:
        weights: The rows.
        row_groups: Number of each row's group, (queries,).
        key_groups: Number of each key's group, (keys,).
        counted: Rows that count, (queries,), bool; None for all.
    """
    alive = ~np.isnan(weights).any(-1)
    if counted is not None:
        alive &= counted
    rows = np.eye(max(row_groups) + 1)[row_groups] * alive[..., None]
    keys = np.eye(max(key_groups) + 1)[key_groups]
    with np.errstate(invalid="ignore"):
        means: Array = rows.swapaxes(-1, -2) @ np.nan_to_num(weights) @ keys
        means /= rows.sum(-2)[..., None]
    return means


def runs(count: int, size: int) -> Array:
    """Return the number of each position's run, where a pooled map has at most `size` of them, (count,)."""
    return np.arange(count) * min(size, count) // count


def row_statistics(
    weights: Array,
    special: Array,
    punctuation: Array,
    *,
    queries: Sequence[int] | None = None,
    aligned: bool = True,
    real: Array | None = None,
) -> dict[str, Array]:
    """Return statistics of rows (…, queries, keys), (…, queries) each; NaN in rows of NaN, and where undefined.

    Args:
        weights: Rows that sum to 1, or are NaN.
        special: See `key_factors`.
        punctuation: See `key_factors`.
        queries: Positions of the rows; None for the first ones.
        aligned: See `key_factors`.
        real: See `key_factors`.
    """
    positions = range(weights.shape[-2]) if queries is None else queries
    found = {"entropy": entropy(weights)}
    for name, factors in key_factors(
        positions, special, punctuation, aligned=aligned, real=real
    ).items():
        total = (weights * factors).sum(-1)
        found[name] = (
            total if aligned or name not in NEEDS_ALIGNMENT else np.full_like(total, np.nan)
        )
    return found
