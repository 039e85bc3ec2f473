"""Dynamic time warping, against the functions of transformers and against every path of small matrices."""

import numpy as np
import pytest
import torch
from transformers.models.whisper.generation_whisper import _dynamic_time_warping, _median_filter

from attnscope.run.analysis.alignment import (
    align,
    alignment_gains,
    choose_alignment_heads,
    standardised,
    warp,
)


@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (5, 1), (4, 9), (9, 4), (23, 140)])
def test_the_path_equals_that_of_transformers(shape: tuple[int, int]) -> None:
    # with ties
    cost = np.random.default_rng(sum(shape)).integers(-3, 3, shape).astype(np.float64)
    path = warp(cost)
    rows, frames = _dynamic_time_warping(cost)
    assert path.rows.tolist() == rows.tolist()
    assert path.frames.tolist() == frames.tolist()


def test_the_aligned_path_is_the_cheapest_of_all() -> None:
    cost = np.random.default_rng(1).normal(size=(4, 5))

    def cheapest(row: int, frame: int) -> float:
        if (row, frame) == (0, 0):
            return float(cost[0, 0])
        steps = [(row - 1, frame - 1), (row - 1, frame), (row, frame - 1)]
        return float(cost[row, frame]) + min(cheapest(*step) for step in steps if min(step) >= 0)

    path = warp(cost)
    assert cost[path.rows, path.frames].sum() == pytest.approx(cheapest(3, 4))


@pytest.mark.parametrize("frames", [3, 40])
def test_weights_are_standardised_as_in_transformers(frames: int) -> None:
    weights = torch.rand(
        2, 6, frames, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    expected = (weights - weights.mean(-2, keepdim=True)) / weights.std(
        -2, keepdim=True, unbiased=False
    )
    expected = _median_filter(expected[None], 7)[0]
    np.testing.assert_allclose(standardised(weights.numpy(), 7), expected, atol=1e-12)


def test_a_single_row_takes_all_frames() -> None:
    path = align(np.random.default_rng(0).random((2, 1, 12)), 7)
    assert path.frames.tolist() == [*range(12)]
    assert path.starts().tolist() == [0]


def test_rows_start_where_their_weight_does() -> None:
    weights = np.full((1, 3, 30), 0.01)
    for row, (start, end) in enumerate([(0, 8), (8, 21), (21, 30)]):
        weights[0, row, start:end] = 1
    assert align(weights, 3).starts().tolist() == [0, 8, 21]


def _stairs(n_rows: int, n_frames: int, shift: float, blur: float, seed: int) -> np.ndarray:
    """Return weights of a head that goes through a sound in order, `shift` rows late, with noise."""
    rng = np.random.default_rng(seed)
    centre = (np.arange(n_rows)[:, None] + 0.5 - shift) * n_frames / n_rows
    scores = (
        -(((np.arange(n_frames) - centre) / blur) ** 2) + rng.normal(size=(n_rows, n_frames)) * 0.3
    )
    weights = np.exp(scores)
    return weights / weights.sum(-1, keepdims=True)


def test_heads_that_hear_the_next_token_align_and_sharper_ones_that_hear_the_last_do_not() -> None:
    in_time = [_stairs(20, 160, 0.0, 6.0, seed) for seed in range(3)]
    late = [_stairs(20, 160, 1.0, 2.0, seed) for seed in range(3, 6)]
    rng = np.random.default_rng(9)
    others = [rng.dirichlet(np.ones(160), 20) for _ in range(4)]
    weights = np.stack([*late, *others, *in_time])
    gains = alignment_gains(weights, 7)
    assert sorted(np.argsort(-gains)[:3].tolist()) == [7, 8, 9]
    assert choose_alignment_heads(gains) == [7, 8, 9]
