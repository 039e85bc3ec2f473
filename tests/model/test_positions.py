"""Positions against numbers worked out by hand from the papers' formulas."""

import math

import pytest
import torch

from attnscope.base.model_config import ModelConfig, Rope, RopeScaling
from attnscope.model.positions import (
    alibi,
    alibi_slopes,
    learned_rows,
    rotary_frequencies,
    rotary_table,
    rotate,
    sinusoidal,
)

CPU = torch.device("cpu")


def test_sinusoidal_is_vaswanis_formula() -> None:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos of the same; at width 4 the rates are 1 and 1/100."""
    table = sinusoidal(3, 4, CPU)
    assert table[0].tolist() == [0.0, 1.0, 0.0, 1.0]
    assert table[1].tolist() == pytest.approx(
        [0.8414710, 0.5403023, 0.0099998, 0.9999500], abs=1e-6
    )
    assert table[2].tolist() == pytest.approx(
        [0.9092974, -0.4161468, 0.0199987, 0.9998000], abs=1e-6
    )


def test_sinusoidal_of_odd_width_ends_in_a_sine() -> None:
    assert sinusoidal(2, 3, CPU)[1].tolist() == pytest.approx(
        [0.8414710, 0.5403023, math.sin(10000 ** (-2 / 3))], abs=1e-6
    )


@pytest.mark.parametrize(
    ("heads", "slopes"),
    [
        (1, [1 / 256]),
        (2, [1 / 16, 1 / 256]),
        (4, [1 / 4, 1 / 16, 1 / 64, 1 / 256]),
        (8, [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]),
        (3, [1 / 16, 1 / 256, 1 / 4]),
        (6, [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8]),
        (12, [2**-i for i in range(1, 9)] + [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]),
    ],
)
def test_alibi_slopes_are_those_of_its_authors(heads: int, slopes: list[float]) -> None:
    assert alibi_slopes(heads) == pytest.approx(slopes)


def test_alibi_grows_with_distance() -> None:
    bias = alibi(torch.arange(3)[:, None], torch.arange(3)[None], torch.tensor([1]), 2)
    assert (bias * 256).tolist() == [[[0.0, -1.0, -2.0], [-1.0, 0.0, -1.0], [-2.0, -1.0, 0.0]]]


def test_rotation_turns_each_pair_by_its_own_angle() -> None:
    """At width 4 and theta 100 the frequencies are 1 and 1/10; pairs are (0, 2) and (1, 3)."""
    cos, sin = rotary_table(Rope(theta=100.0), 4, 3, 3, CPU, torch.float32)
    x = torch.tensor([1.0, 0.0, 0.0, 2.0]).expand(1, 1, 3, 4)
    for position, row in enumerate(rotate(x, cos, sin)[0, 0].tolist()):
        slow = position / 10
        expected = [math.cos(position), -2 * math.sin(slow), math.sin(position), 2 * math.cos(slow)]
        assert row == pytest.approx(expected, abs=1e-6)


def test_scores_of_rotated_vectors_depend_on_their_distance_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 1, 1, 8, generator=generator)
    cos, sin = rotary_table(Rope(), 8, 30, 30, CPU, torch.float32)
    turned_q, turned_k = (rotate(x.expand(1, 1, 30, 8), cos, sin)[0, 0] for x in (q, k))
    scores = turned_q @ turned_k.T
    for distance in range(-5, 6):
        diagonal = scores.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=1e-4, atol=1e-4)


def test_what_is_not_rotated_passes_through() -> None:
    cos, sin = rotary_table(Rope(), 2, 4, 4, CPU, torch.float32)
    x = torch.arange(24.0).reshape(1, 1, 4, 6)
    assert torch.equal(rotate(x, cos, sin)[..., 2:], x[..., 2:])
    assert not torch.equal(rotate(x, cos, sin)[..., :2], x[..., :2])


def test_linear_scaling_divides_every_frequency() -> None:
    plain, _ = rotary_frequencies(Rope(), 8, 1, CPU)
    scaled, factor = rotary_frequencies(Rope(scaling=RopeScaling("linear", 4.0)), 8, 1, CPU)
    assert factor == 1.0
    torch.testing.assert_close(scaled, plain / 4)


def test_llama3_keeps_short_waves_divides_long_ones_and_blends_between() -> None:
    """Frequencies 1, 0.1, 0.01, 0.001 turn 15.9, 1.59, 0.159 and 0.0159 times in 100 tokens: kept above 4."""
    scaling = RopeScaling("llama3", 8.0, 100, low_freq_factor=1.0, high_freq_factor=4.0)
    found, factor = rotary_frequencies(Rope(theta=10000.0, scaling=scaling), 8, 1, CPU)
    share = (100 * 0.1 / (2 * math.pi) - 1) / 3
    assert factor == 1.0
    assert found.tolist() == pytest.approx(
        [1.0, (1 - share) * 0.1 / 8 + share * 0.1, 0.01 / 8, 0.001 / 8], rel=1e-5
    )


def test_yarn_ramps_between_dimensions_and_warms_the_scores() -> None:
    """Of width 8, theta 10000, 100 tokens, 4 and 1 rotations: dimensions 0.6 and 1.2, rounded outwards to 0 and 2."""
    scaling = RopeScaling("yarn", 4.0, 100, beta_fast=4.0, beta_slow=1.0)
    found, factor = rotary_frequencies(Rope(scaling=scaling), 8, 1, CPU)
    assert factor == pytest.approx(0.1 * math.log(4) + 1)
    assert found.tolist() == pytest.approx(
        [1.0, 0.1 * 0.5 + 0.1 / 4 * 0.5, 0.01 / 4, 0.001 / 4], rel=1e-5
    )
    given = RopeScaling("yarn", 4.0, 100, beta_fast=4.0, beta_slow=1.0, attention_factor=1.5)
    cos, _ = rotary_table(Rope(scaling=given), 8, 1, 1, CPU, torch.float32)
    assert cos.tolist() == [[1.5] * 8]


def test_learned_rows_count_from_the_offset_and_pass_over_padding() -> None:
    sizes = {
        "vocab_size": 9,
        "d_model": 4,
        "n_layers": 1,
        "n_heads": 1,
        "n_kv_heads": 1,
        "d_head": 4,
        "d_value": 4,
    }
    ids = torch.tensor([[5, 1, 6, 7], [5, 6, 1, 1]])
    plain = ModelConfig(**sizes, positions="learned", position_offset=2)
    assert learned_rows(ids, plain).tolist() == [[2, 3, 4, 5]]
    roberta = ModelConfig(**sizes, positions="learned", position_offset=2, padding_id=1)
    assert learned_rows(ids, roberta).tolist() == [[2, 1, 3, 4], [2, 3, 1, 1]]
