"""Cells of a matrix that fill a screen are those of the whole matrix, one by one or several in one."""

from types import SimpleNamespace

import numpy as np
import pytest

from attnscope.views.walk.window import window, zooms

N_QUERIES = 23
N_KEYS = 19
START = 3  # rows before it are not held
EDGES_OF_RUNS = np.array([0, 4, 5, 11, 17])


def walk_head(stage, cells, map_weights=None):
    maps = None
    if map_weights is not None:
        maps = SimpleNamespace(weights=map_weights, queries=EDGES_OF_RUNS, keys=EDGES_OF_RUNS)
    return SimpleNamespace(
        start=START,
        stages={stage: cells},
        sources=None,
        map=maps,
        holds=lambda name, first, last: name == stage and START <= first <= last < N_QUERIES,
    )


def of_largest_magnitude(square, stage):
    known = square[np.isfinite(square)]
    if not known.size:
        return np.nan if stage == "weights" else -np.inf
    return known[np.argmax(np.abs(known))]


@pytest.mark.parametrize("stage", ["masked", "weights"])
@pytest.mark.parametrize("zoom", [1, 2, 4])
@pytest.mark.parametrize(("rows", "columns"), [((1, 5), (0, 4)), ((2, 30), (1, 30))])
def test_cells_are_those_of_the_matrix_that_are_largest_in_their_square(stage, zoom, rows, columns):
    generator = np.random.default_rng(zoom)
    whole = generator.normal(size=(N_QUERIES, N_KEYS)).astype(np.float32)
    if stage == "weights":
        whole = np.abs(whole)
    whole[generator.random(whole.shape) < 0.3] = np.nan if stage == "weights" else -np.inf
    rows, columns = range(*rows), range(*columns)
    if zoom == 1:
        rows = range(rows.start + START, rows.stop)
    scene = SimpleNamespace(queries=SimpleNamespace(positions=range(N_QUERIES)))
    head = walk_head(stage, whole[START:])
    found = window(scene, head, (stage, N_KEYS), rows, columns, zoom)
    if rows.start * zoom < START:
        assert found.kind == "missing" and np.isnan(found.values).all()
        expected = [
            [np.nan for key in columns if key * zoom < N_KEYS]
            for query in rows
            if query * zoom < N_QUERIES
        ]
    else:
        assert found.kind == ("exact" if zoom == 1 else "pooled")
        expected = [
            [
                of_largest_magnitude(
                    whole[query * zoom : (query + 1) * zoom, key * zoom : (key + 1) * zoom], stage
                )
                if zoom > 1
                else whole[query, key]
                for key in columns
                if key * zoom < N_KEYS
            ]
            for query in rows
            if query * zoom < N_QUERIES
        ]
    np.testing.assert_array_equal(found.values, np.array(expected, np.float32))


@pytest.mark.parametrize(
    ("rows", "columns"), [((0, 6), (0, 5)), ((2, 6), (1, 3)), ((3, 3), (0, 2))]
)
def test_cells_of_a_map_are_the_largest_of_its_runs_that_they_overlap(rows, columns):
    zoom = 4
    generator = np.random.default_rng(3)
    map_weights = generator.random((len(EDGES_OF_RUNS), len(EDGES_OF_RUNS))).astype(np.float32)
    map_weights[np.triu_indices(len(EDGES_OF_RUNS), 1)] = np.nan
    scene = SimpleNamespace(queries=SimpleNamespace(positions=range(N_QUERIES)))
    head = walk_head("weights", np.zeros((0, N_KEYS), np.float32), map_weights)
    rows, columns = range(*rows), range(*columns)
    head.holds = lambda *place: False
    found = window(scene, head, ("weights", N_KEYS), rows, columns, zoom)
    if rows:
        assert found.kind == "map"
    run_of = np.searchsorted(EDGES_OF_RUNS, np.arange(N_QUERIES), side="right") - 1
    expected = np.full((len(rows), len(columns)), np.nan, np.float32)
    for i, query in enumerate(rows):
        for j, key in enumerate(columns):
            queries = run_of[query * zoom : min((query + 1) * zoom, N_QUERIES)]
            keys = run_of[key * zoom : min((key + 1) * zoom, N_KEYS)]
            square = map_weights[np.ix_(queries, keys)]
            if np.isfinite(square).any():
                expected[i, j] = np.nanmax(square)
    np.testing.assert_array_equal(found.values, expected)


def test_zooms_double_until_a_screen_of_sixteen_cells_has_all():
    assert zooms(16, 10) == (1,)
    assert zooms(33, 10) == (1, 2)
    assert zooms(10, 65) == (1, 2, 4)
    assert zooms(100, 100, 8) == (1,)
    assert zooms(200, 100, 8) == (1, 8)
