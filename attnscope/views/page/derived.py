"""Numbers that a page computes from others that it holds, bit by bit: these are left out. `web/src/model.ts` repeats it."""

from collections.abc import Sequence

import numpy as np

from attnscope.views.page.container import Array
from attnscope.views.walk.scene import Scene, WalkHead

# A norm of values is looked for among as many neighbours, in float32, of one that division gives.
_NEIGHBOURS = 3


def keys_of_rows(scene: Scene, name: str) -> Array:
    """Return the key whose weight a statistic of each row is, `first` or `self`; −1 for none."""
    keys = scene.keys.places
    if name == "first":
        return np.full(len(scene.queries.positions), keys.get(0, -1))
    if name == "self":
        return np.array([keys.get(position, -1) for position in scene.queries.positions])
    return np.full(len(scene.queries.positions), -1)


def keys_of_sources(scene: Scene, places: Array) -> Array:
    """Return the keys of sources, −1 for those that are none: `places` are indices on the axis of sources."""
    keys = [scene.key_of_source(source) for source in range(len(scene.sources.positions))]
    # the last is that of a place of −1
    return np.array([*(-1 if key is None else key for key in keys), -1])[places]


def lists_its_matrix(scene: Scene, head: WalkHead) -> bool:
    """Tell whether the weights of a head's listed sources are those of its matrix."""
    assert head.sources is not None
    places = head.sources.places.T[:, None]
    weights = head.sources.measures["weight"].T[:, None]
    rows = np.arange(places.shape[-1])
    return are_in_matrices([head], keys_of_sources(scene, places), rows, weights)


def are_in_matrices(heads: Sequence[WalkHead], keys: Array, rows: Array, numbers: Array) -> bool:
    """Tell whether the exact matrices of weights have these numbers, bit by bit.

    Args:
        keys: Key of each number, (…, heads, rows); −1 for NaN.
        rows: Indices of the queries.
        numbers: The numbers, shaped like `keys`.
    """
    for n, head in enumerate(heads):
        matrix = head.stages.get("weights")
        if matrix is None or not head.holds("weights", int(rows[0]), int(rows[-1])):
            return False
        of_head = keys[..., n, :]
        found = np.where(of_head < 0, np.nan, matrix[rows - head.start, of_head])
        if not np.array_equal(found, numbers[..., n, :], equal_nan=True):
            return False
    return True


def norms(weights: Array, values: Array, keys: Array, n_keys: int) -> Array | None:
    """Return the float32 norms, (heads, keys), whose products with weights are these values exactly; None for none.

    `weights`, `values` and `keys` are (ranks, heads, rows); NaN and −1 stand for sources that are not there.
    """
    known = (keys >= 0) & (weights > 0) & np.isfinite(values)
    if not np.array_equal(np.isnan(values), keys < 0) or (values[(keys >= 0) & ~known] != 0).any():
        return None
    head_of = np.broadcast_to(np.arange(keys.shape[1])[:, None], keys.shape)
    # the largest weight of a key comes last, and its quotient stays
    order = np.argsort(weights[known], kind="stable")
    cells = head_of[known][order], keys[known][order]
    factors, products = weights[known][order], values[known][order]
    estimate = np.zeros((keys.shape[1], n_keys), np.float32)
    estimate[cells] = products.astype(np.float64) / factors
    found = np.full(estimate.shape, np.nan, np.float32)
    for step in range(-_NEIGHBOURS, _NEIGHBOURS + 1):
        near = (estimate.view(np.int32) + step).view(np.float32)
        fits = np.ones(estimate.shape, bool)
        np.logical_and.at(fits, cells, factors * near[cells] == products)
        found = np.where(fits, near, found)
    return None if np.isnan(found[cells]).any() else np.where(np.isnan(found), 0, found)
