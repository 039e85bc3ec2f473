"""Cost of attention: counted by hand, and pair by pair."""

import numpy as np
import pytest

from attnscope.base.model_config import ModelConfig
from attnscope.request.masks.expression import parse_mask
from attnscope.run.cost import LENGTHS, allowed_pairs, cost_table, pairs_by_window
from tests.referee import masks

SIZES = dict(vocab_size=11, d_model=12, n_layers=3, n_heads=4, n_kv_heads=2, d_head=5, d_value=7)


def count_pairs(mask: str, tokens: int) -> int:
    return int(masks.allowed(mask, np.ones((tokens, tokens), dtype=bool)).sum())


@pytest.mark.parametrize(
    "mask",
    [
        "causal",
        "bidirectional",
        "window:3",
        "causal+window:4",
        "prefix:5",
        "prefix:5+window:2",
        "window:100",
        "causal+block:4",
        "sink:3",
        "causal+(sink:2|window:3)",
        "(sink:1|window:2)+(prefix:3|block:5)+(causal|sink:4|window:2)",
        "window:1|causal+sink:2|docs:1,3,13",
        "docs:5,9,3+causal",
    ],
)
@pytest.mark.parametrize("tokens", [1, 2, 17])
def test_pairs_one_by_one(mask, tokens):
    assert allowed_pairs(parse_mask(mask), tokens) == count_pairs(mask, tokens)


@pytest.mark.parametrize(
    "mask",
    [
        "causal",
        "bidirectional",
        "prefix:5",
        "causal+block:4",
        "window:6",
        "sink:2|window:3",
        "docs:4,13",
        "block:3|sink:5",
    ],
)
def test_pairs_under_several_windows_one_by_one(mask):
    windows = [3, None, 1, 16, 17, 18, 10**17, 3]
    for tokens in (1, 17):
        every = [mask if window is None else f"({mask})+window:{window}" for window in windows]
        counted = [count_pairs(one, tokens) for one in every]
        assert pairs_by_window(parse_mask(mask), windows, tokens) == counted


def test_a_billion_layers_cost_a_billion_times_as_much_as_one():
    few, many = (
        cost_table(ModelConfig(**SIZES | {"n_layers": layers}))[-1] for layers in (1, 10**9)
    )
    for name in (
        "qk_flops",
        "av_flops",
        "projection_flops",
        "scores_bytes",
        "weights_bytes",
        "kept_bytes",
    ):
        assert getattr(many, name) == 10**9 * getattr(few, name)


def test_a_row_by_hand():
    (row,) = cost_table(ModelConfig(**SIZES, mask="bidirectional", max_positions=9), (10,))
    pairs = 3 * 4 * 10 * 10
    assert (row.qk_flops, row.av_flops) == (2 * 5 * pairs, 2 * 7 * pairs)
    query_key_value_out = 12 * 4 * 5 + 12 * 2 * 5 + 12 * 2 * 7 + 4 * 7 * 12
    assert row.projection_flops == 3 * 10 * 2 * query_key_value_out
    assert row.scores_bytes == row.weights_bytes == 4 * pairs
    assert row.kept_bytes == 3 * 4 * (10 * (3 * 16 + 12 * 4) + 3 * 10 * 10 * 4)
    assert not row.fits


def test_layers_with_and_without_windows():
    (row,) = cost_table(ModelConfig(**SIZES, mask="causal", windows=(2, None, 2)), (10,))
    assert row.qk_flops == 2 * 5 * 4 * (19 + 55 + 19)


def test_no_output_projection():
    with_it, without = (
        cost_table(ModelConfig(**SIZES, out_projection=o), (1,))[0].projection_flops
        for o in (True, False)
    )
    assert with_it - without == 3 * 2 * 4 * 7 * 12


def test_matrices_grow_with_the_square_and_what_is_kept_does_not():
    rows = cost_table(ModelConfig(**SIZES))
    assert [row.tokens for row in rows] == list(LENGTHS) == [128 << i for i in range(11)]
    assert rows[-1].scores_bytes == 4 * rows[-2].scores_bytes
    assert rows[-1].kept_bytes < 2 * rows[-2].kept_bytes
    assert all(row.fits for row in rows)
