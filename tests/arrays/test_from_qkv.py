"""Given queries, keys and values: every stage is that of NumPy, whatever form the arrays come in."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import attnscope
from attnscope.base.errors import UsageError
from tests.arrays.drawn import arguments, draw
from tests.helpers.row_statistics import entropy

STAGES = ("scores", "scaled", "masked", "weights", "output")


def test_arrays_are_compared_with_each_other_and_under_masks():
    q, k, v = np.random.default_rng(5).normal(size=(3, 2, 6, 4)).astype("float32")
    plain, narrow = attnscope.from_qkv(q, k, v), attnscope.from_qkv(q, k, v, window=2)
    found = attnscope.compare(qkv=[plain, narrow], layer="all", head="all", tolerance=1e-6)
    assert not found.data.verdict.passed
    assert found.data.axis == "qkv"
    for head in found.changes[0].heads:
        which = int(head.first[-1])
        np.testing.assert_array_equal(
            head.difference, narrow.weights[0, which] - plain.weights[0, which]
        )
    masked = attnscope.compare(qkv=plain, mask=["own", "causal+window:2"], head=0)
    np.testing.assert_allclose(
        masked.changes[0].heads[0].difference, narrow.weights[0, 0] - plain.weights[0, 0], atol=1e-6
    )
    for options, message in (
        (
            {"model": "riverbank"},
            "qkv: has several values, but one model and one set",
        ),
        ({"mask": ["own", "causal"]}, "qkv and mask have several values"),
    ):
        with pytest.raises(UsageError, match=message):
            attnscope.compare(qkv=[plain, narrow], **options)


@pytest.mark.parametrize("seed", range(14))
def test_every_stage_is_that_of_numpy(seed):
    compare_with_numpy(seed)


def compare_with_numpy(seed):
    """Draw arrays, give them in a drawn form, and recompute every stage."""
    rng = np.random.default_rng(seed)
    drawn = draw(rng)
    given = arguments(drawn, rng)
    stages = STAGES if "v" in drawn.parts else STAGES[:-1]
    report = attnscope.from_qkv(**given, stages=stages)
    assert report.provenance.dtype == {"float64": "float32"}.get(drawn.dtype, drawn.dtype)
    for number, text in enumerate(report.texts):
        assert [token.text for token in text.tokens] == drawn.tokens[number]
        assert text.layers == drawn.layers
        rows = text.queries
        for at, layer in enumerate(drawn.layers):
            expected = drawn.stages(layer, number)
            assert rows == list(range(len(drawn.tokens[number])))[-expected["scores"].shape[1] :]
            for stage in stages:
                close(
                    getattr(text, stage)[at],
                    expected[stage],
                    f"seed {seed}, text {number}, layer {layer}, {stage}",
                )
            for head in range(len(expected["scores"])):
                check_row_facts(
                    text[layer, head], expected["weights"][head], rows, drawn, layer, number, head
                )


def close(found, expected, where):
    size = max(1.0, float(np.abs(expected[np.isfinite(expected)]).max(initial=1.0)))
    np.testing.assert_allclose(found, expected, atol=2e-6 * size, rtol=0, err_msg=where)


def check_row_facts(head, weights, rows, drawn, layer, number, which):
    """Entropy, the weight on the first token, what the sink takes, and the strongest sources with their values."""
    sinks = drawn.settings[layer]["sinks"]
    alive = np.isfinite(weights).all(-1)
    np.testing.assert_allclose(head.rows.entropy[alive], entropy(weights[alive]), atol=1e-5)
    np.testing.assert_allclose(head.rows.first[alive], weights[alive, 0], atol=2e-6)
    if sinks is not None:
        np.testing.assert_allclose(head.rows.sink[alive], 1 - weights.sum(-1)[alive], atol=4e-6)
    for row in np.flatnonzero(alive):
        best = head.top(rows[row], 1)[0]
        assert weights[row, best.position] >= weights[row].max() - 4e-6
        if "v" in drawn.parts:
            v = drawn.parts["v"][layer][number]
            norm = np.linalg.norm(
                v[which // (len(drawn.parts["q"][layer][number]) // len(v)), best.position]
            )
            assert best.value == pytest.approx(
                weights[row, best.position] * norm, abs=1e-5 * max(1, norm)
            )
        else:
            assert np.isnan(best.value)


def test_the_default_is_one_layer_all_heads_and_a_scale_of_one_by_the_root_of_the_width():
    q, k = np.random.default_rng(0).normal(size=(2, 3, 5, 16)).astype(np.float32)
    report = attnscope.from_qkv(q, k)
    assert isinstance(report, attnscope.InspectResult) and report.weights.shape == (1, 3, 5, 5)
    masked = torch.tensor(q @ k.transpose(0, 2, 1) / 4).masked_fill(
        ~torch.ones(5, 5).tril().bool(), -torch.inf
    )
    np.testing.assert_allclose(report.weights[0], masked.softmax(-1), atol=1e-6)
    assert [token.text for token in report.tokens] == ["t0", "t1", "t2", "t3", "t4"]


def test_a_boolean_or_additive_mask_and_a_mask_by_layer():
    q, k = np.random.default_rng(1).normal(size=(2, 2, 6, 4)).astype(np.float32)
    allowed = np.random.default_rng(2).random((6, 6)) < 0.6
    allowed[3] = False
    expected = attnscope.from_qkv(q, k, mask=allowed)
    assert np.isnan(expected.weights[0, :, 3]).all()
    assert ((expected.weights[0, 0] > 0) == allowed)[[0, 1, 2, 4, 5]].all()
    added = torch.where(torch.tensor(allowed), 0.0, torch.finfo(torch.bfloat16).min).to(
        torch.bfloat16
    )
    for same in (added[None, None], np.where(allowed, 0, -np.inf)):
        np.testing.assert_array_equal(attnscope.from_qkv(q, k, mask=same).weights, expected.weights)
    each = np.stack([allowed, np.tri(6, dtype=bool)])
    by_head = attnscope.from_qkv(q, k, mask=each)
    np.testing.assert_array_equal(by_head.weights[0, 0], expected.weights[0, 0])
    np.testing.assert_array_equal(by_head.weights[0, 1], attnscope.from_qkv(q, k).weights[0, 1])
    every = attnscope.from_qkv(q, k, mask="bidirectional")
    function = every.inspect(mask=lambda b, h, i, j: (j <= i) | (h == 0), layer=0, head="all")
    np.testing.assert_array_equal(function.weights[0, 0], every.weights[0, 0])
    np.testing.assert_array_equal(function.weights[0, 1], by_head.weights[0, 1])
    by_layer = attnscope.from_qkv([q, q], [k, k], mask=["causal", "causal+window:2"])
    window = attnscope.from_qkv([q, q], [k, k], window={1: 2})
    np.testing.assert_array_equal(by_layer.weights, window.weights)
    assert by_layer.mask.used == "causal, with window:2 in 1 of 2 layers"


def test_a_rotation_is_that_of_transformers():
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    torch.manual_seed(0)
    q, k = torch.randn(1, 4, 9, 16), torch.randn(1, 2, 9, 16)
    angles = torch.arange(9)[:, None] * 500.0 ** (-torch.arange(0, 16, 2) / 16)
    angles = torch.cat((angles, angles), -1)[None]
    turned = [side[0] for side in apply_rotary_pos_emb(q, k, angles.cos(), angles.sin())]
    expected = attnscope.from_qkv(*turned).weights
    np.testing.assert_allclose(
        attnscope.from_qkv(q[0], k[0], rope=500).weights, expected, atol=2e-6
    )
    # neighbours are what halves were
    order = torch.stack((torch.arange(8), torch.arange(8) + 8), -1).flatten()
    rope = {"theta": 500.0, "interleaved": True}
    found = attnscope.from_qkv(q[0][..., order], k[0][..., order], rope=rope)
    np.testing.assert_allclose(found.weights, expected, atol=2e-6)


def test_explain_shows_the_arithmetic_from_queries_and_keys_on():
    rng = np.random.default_rng(5)
    for seed in range(4):
        drawn = replace(draw(rng), score_mod=None)  # which explain refuses
        report = attnscope.from_qkv(**arguments(drawn, rng))
        layer, number = drawn.layers[-1], len(drawn.tokens) - 1
        query = len(drawn.tokens[number]) - 1
        stages = drawn.stages(layer, number)
        explained = report.explain(number, query=query, layer=layer, head=0)
        assert explained.holds, [check for check in explained.data.checks if not check.holds]
        for stage in ("scores", "scaled", "masked", "weights"):
            close(getattr(explained, stage), stages[stage][0, -1], f"{seed} {stage}")
        if "v" in drawn.parts:
            close(explained.output, stages["output"][0, -1], f"{seed} output")
        part = explained.data.cells[0].parts
        assert sum(each.product for each in part) == pytest.approx(
            explained.data.cells[0].score, abs=1e-4
        )
        assert "not known: queries, keys and values were given" in explained.text()


def test_explain_checks_a_rotation_and_says_how_far_pairs_turn():
    q, k, v = np.random.default_rng(3).normal(size=(3, 2, 40, 8)).astype(np.float32)
    explained = attnscope.from_qkv(q, k, v, rope=100.0).explain(query=39, layer=0, head=1)
    assert explained.holds and explained.data.check("position") is not None
    lengths = sorted(part.wavelength for part in explained.data.cells[0].parts)
    np.testing.assert_allclose(lengths, 2 * np.pi * 100.0 ** (np.arange(4) / 4), rtol=1e-6)
    assert [step.name for step in explained.data.query_steps] == ["q", "q rotated"]


def test_heads_and_other_views_of_given_arrays():
    rng = np.random.default_rng(7)
    q, k, v = rng.normal(size=(3, 2, 3, 8, 4)).astype(np.float32)  # two layers
    report = attnscope.from_qkv(q, k, v, tokens="the old bank by the wide cold river".split())
    measured = report.measure_heads(measure="entropy")
    expected = [
        [report[layer, head].rows.entropy.mean() for head in range(3)] for layer in range(2)
    ]
    np.testing.assert_allclose(measured.values, expected, atol=1e-5)
    on_bank = report.measure_heads(key="bank", query="river")
    np.testing.assert_allclose(on_bank.values, report.weights[:, :, 7, 2], atol=1e-6)
    survey = report.measure_heads()
    assert np.isfinite(survey.values[survey.roles.index("previous")]).all()
    assert np.isnan(survey.values[survey.roles.index("induction")]).all(), (
        "there is no model for random tokens"
    )
    other = report.inspect(mask="bidirectional", query="river", layer=1, head=0)
    assert other.mask.what_if == "same-scores"
    scores = report.inspect(stages="scaled", layer=1, head=0).scaled[0, 0, 7]
    np.testing.assert_allclose(other.weights[0, 0, 0], torch.tensor(scores).softmax(-1), atol=1e-6)
    rolled = report.inspect(measure="rollout", layer="all")
    layers = [0.5 * report.weights[n].mean(0) + 0.5 * np.eye(8) for n in range(2)]
    np.testing.assert_allclose(
        rolled.texts[0].data.rollouts[-1].matrix, layers[1] @ layers[0], atol=1e-5
    )
    change = attnscope.compare(report, attnscope.from_qkv(q, k, v, scale=0.1)).changes[0]
    assert len(change.heads) == 6


def test_arrays_of_jax_are_its_own_softmax():
    jax = pytest.importorskip("jax", reason="jax is not installed")
    sides = np.random.default_rng(0).normal(size=(3, 5, 2, 8)).astype(np.float32)
    q, k, v = map(jax.numpy.asarray, sides)  # (tokens, heads, width), as jax.nn takes them
    output = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    report = attnscope.from_qkv(q, k, v, layout="tokens,heads,width", stages=("weights", "output"))
    np.testing.assert_allclose(report.output[0], np.asarray(output).transpose(1, 0, 2), atol=2e-6)
    scores = jax.numpy.einsum("qhd,khd->hqk", q, k) / np.sqrt(8)
    weights = jax.nn.softmax(
        jax.numpy.where(np.tril(np.ones((5, 5), bool)), scores, -np.inf), axis=-1
    )
    np.testing.assert_allclose(report.weights[0], weights, atol=1e-6)


def test_projections_of_multi_head_attention_give_its_weights():
    torch.manual_seed(0)
    module = torch.nn.MultiheadAttention(12, 3, batch_first=True).eval()
    x = torch.randn(1, 7, 12)
    with torch.no_grad():
        output, weights = module(x, x, x, average_attn_weights=False)
        q, k, v = (
            torch.nn.functional.linear(x[0], weight, bias).view(7, 3, 4)
            for weight, bias in zip(
                module.in_proj_weight.chunk(3), module.in_proj_bias.chunk(3), strict=True
            )
        )
        report = attnscope.from_qkv(
            q, k, v, mask="bidirectional", layout="thd", stages=("weights", "output")
        )
        np.testing.assert_allclose(report.weights[0], weights[0], atol=1e-6)
        joined = torch.tensor(report.output[0]).transpose(0, 1).reshape(7, 12)
        np.testing.assert_allclose(module.out_proj(joined), output[0], atol=1e-6)
    np.testing.assert_array_equal(attnscope.from_weights(weights).weights[0], weights[0])


def test_a_function_of_text_head_query_and_key_is_the_mask():
    """It is called as FlexAttention calls a `mask_mod`, and counts texts as they were given."""
    rng = np.random.default_rng(5)
    lengths, heads, width = [3, 6, 4], 4, 8
    q, k = (rng.normal(size=(count, sum(lengths), width)).astype("float32") for count in (heads, 2))
    report = attnscope.from_qkv(
        q,
        k,
        mask=lambda b, h, i, j: (j <= i) & (i - j < 1 + b + h),
        cu_seqlens=[0, *np.cumsum(lengths)],
        stages=STAGES[:-1],
    )
    start = 0
    for text, length in enumerate(lengths):
        part = slice(start, start := start + length)
        scores = (
            q[:, part].astype(float) @ np.repeat(k[:, part], 2, 0).transpose(0, 2, 1) / width**0.5
        )
        head, row, key = np.ogrid[:heads, :length, :length]
        masked = np.where((key <= row) & (row - key < 1 + text + head), scores, -np.inf)
        weights = np.exp(masked - masked.max(-1, keepdims=True))
        close(
            report.texts[text].weights[0], weights / weights.sum(-1, keepdims=True), f"text {text}"
        )


@pytest.mark.parametrize(
    "spans",
    [
        {"a": (0, 8), "b": (9, 15)},
        [{"name": "a", "start": 0, "end": 8}, {"name": "b", "start": 9, "end": 15}],
        ["The bank", " by the"],
    ],
)
def test_arrays_are_divided_by_every_form_of_spans(spans):
    q, k = np.random.default_rng(3).normal(size=(2, 1, 4, 8)).astype(np.float32)
    given = attnscope.from_qkv(q, k, tokens=["The", "bank", "by", "the"], mask="bidirectional")
    weights = given.inspect(spans=spans).span_weights[0, 0]
    np.testing.assert_allclose(
        weights[-1, -1], given.weights[0, 0, 2:, 2:].sum(-1).mean(), rtol=1e-5
    )


def test_a_masked_array_that_hides_nothing_is_a_plain_one():
    q, k = np.random.default_rng(3).normal(size=(2, 1, 4, 8)).astype(np.float32)
    masked = attnscope.from_qkv(
        np.ma.masked_array(q), np.ma.masked_array(k, np.zeros(k.shape, bool))
    )
    assert np.array_equal(masked.weights, attnscope.from_qkv(q, k).weights)


def test_a_window_narrows_every_alternative_of_a_mask(tmp_path):
    """In arrays, in a file of arrays and in a stack, of one layer and of several."""
    # (layer, head, token, width)
    q, k, v = np.random.default_rng(5).normal(size=(3, 2, 2, 9, 4)).astype("float32")
    query, key = np.arange(9)[:, None], np.arange(9)[None]
    expected = ((key <= query) | (key < 1)) & (abs(query - key) < 3)
    np.savez(tmp_path / "qkv.npz", q=q, k=k, v=v, mask="causal|sink:1", window=3)
    (tmp_path / "stack.toml").write_text(
        'd_model = 8\nn_layers = 2\nn_heads = 2\nmask = "causal|sink:1"\nwindows = [3, 3]\n'
    )
    text = "a b c d e f g h i"
    for given in (
        {"qkv": attnscope.from_qkv(q, k, v, mask="causal|sink:1", window=3)},
        {"qkv": str(tmp_path / "qkv.npz")},
        {"config": str(tmp_path / "stack.toml"), "text": text},
    ):
        found = attnscope.inspect(layer="all", head="all", stages="masked", **given)
        assert (np.isfinite(found.masked) == expected).all(), given
        assert found.data.mask.own == "(causal|sink:1)+window:3"
    mixed = attnscope.from_qkv(q, k, v, mask={0: "causal|sink:1", 1: "causal"}, window=3)
    cells = np.isfinite(
        attnscope.inspect(qkv=mixed, layer="all", head="all", stages="masked").masked
    )
    assert (cells[0] == expected).all() and (cells[1] == (key <= query) & (query - key < 3)).all()
