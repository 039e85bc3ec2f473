"""The cells of a matrix on a screen: exact or pooled cells, and their known values."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from attnscope.findings.arrays import Matrix
from attnscope.views.walk.cell import listed_weights
from attnscope.views.walk.scene import Scene, WalkHead

Kind = Literal["exact", "pooled", "map", "listed", "missing"]
UNKNOWN = np.float32(np.nan)


@dataclass(frozen=True)
class Window:
    """Some cells of a matrix."""

    values: Matrix  # (rows, columns); NaN where a cell is not known, −inf where it is not allowed
    # `exact` cells; `pooled`, the largest of several; of a `map` of runs; only the `listed` sources of every row; or
    # `missing`
    kind: Kind


def zooms(n_queries: int, n_keys: int, size: int = 2) -> tuple[int, ...]:
    """Return the possible numbers of positions in a cell: 1, and from `size` up twice as many until a screen has all.

    `size` is above 2 if only a map, whose runs are as long, shows cells of several positions.
    """
    levels = [1]
    while size * 16 < max(n_queries, n_keys):
        levels.append(size)
        size *= 2
    return tuple(levels)


def window(
    scene: Scene,
    head: WalkHead,
    stage_and_keys: tuple[str, int],
    rows: range,
    columns: range,
    zoom: int = 1,
) -> Window:
    """Return some cells of a stage: row i has the queries from i·zoom on, and columns have keys in the same way."""
    stage, n_keys = stage_and_keys
    n_queries = len(scene.queries.positions)
    q0 = min(rows.start * zoom, n_queries)
    q1 = min(rows.stop * zoom, n_queries)
    k0 = min(columns.start * zoom, n_keys)
    k1 = min(columns.stop * zoom, n_keys)
    if q1 > q0 and head.holds(stage, q0, q1 - 1):
        cells = head.stages[stage][q0 - head.start : q1 - head.start, k0:k1]
        if zoom == 1:
            return Window(cells, "exact")
        return Window(_pool(cells, zoom, stage), "pooled")
    if stage == "weights" and zoom > 1 and head.map is not None:
        return Window(_of_map(head, range(q0, q1, zoom), range(k0, k1, zoom), (q1, k1)), "map")
    if stage == "weights" and zoom == 1 and head.sources is not None:
        return Window(_listed(scene, head, range(q0, q1), range(k0, k1)), "listed")
    shape = -(-(q1 - q0) // zoom), -(-(k1 - k0) // zoom)
    return Window(np.full(shape, UNKNOWN), "missing")


def _pool(cells: Matrix, zoom: int, stage: str) -> Matrix:
    """Pool cells to the one of largest magnitude in each square; of weights, that is the largest."""
    if not cells.size:
        return cells
    rows = range(0, cells.shape[0], zoom)
    columns = range(0, cells.shape[1], zoom)
    high = np.where(np.isnan(cells), -np.inf, cells)
    high = np.maximum.reduceat(np.maximum.reduceat(high, rows, axis=0), columns, axis=1)
    if stage == "weights":
        return np.where(np.isneginf(high), UNKNOWN, high)
    low = np.where(np.isfinite(cells), cells, np.inf)
    low = np.minimum.reduceat(np.minimum.reduceat(low, rows, axis=0), columns, axis=1)
    pooled: Matrix = np.where(np.isfinite(low) & (-low > high), low, high)
    return pooled


def _of_map(head: WalkHead, queries: range, keys: range, end: tuple[int, int]) -> Matrix:
    """Return the largest cell of the map that overlaps each square."""
    assert head.map is not None
    cells = np.where(np.isnan(head.map.weights), -1.0, head.map.weights)
    for axis, (starts, runs) in enumerate(((queries, head.map.queries), (keys, head.map.keys))):
        edges = np.array([*starts, end[axis]])
        first_runs = np.searchsorted(runs, edges[:-1], side="right") - 1
        last_runs = np.searchsorted(runs, edges[1:] - 1, side="right") - 1
        taken = [
            cells.take(range(a, b + 1), axis).max(axis)
            for a, b in zip(first_runs.tolist(), last_runs.tolist(), strict=True)
        ]
        cells = np.stack(taken, axis) if taken else cells.take([], axis)
    return np.where(cells < 0, UNKNOWN, cells).astype(np.float32)


def _listed(scene: Scene, head: WalkHead, queries: range, keys: range) -> Matrix:
    """Return the weights of listed sources; NaN for all others."""
    cells = np.full((len(queries), len(keys)), UNKNOWN)
    for row, query in enumerate(queries):
        for key, weight in listed_weights(scene, head, query).items():
            if key in keys:
                cells[row, key - keys.start] = weight
    return cells
