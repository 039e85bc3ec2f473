"""A given output of attention against the computed one: where it differs, and the rule under which it would not."""

import json

import numpy as np
import pytest
import torch

import attnscope
from attnscope.base.errors import AttnscopeError
from attnscope.cli import main
from tests.helpers.schemas import validate

RNG = np.random.default_rng(1)
Q = RNG.normal(size=(2, 4, 9, 8)).astype("float32")  # 2 layers × 4 heads × 9 tokens × 8
K, V = RNG.normal(size=(2, 2, 2, 9, 8)).astype("float32")  # 2 groups
SINKS = [0.5, -1.0, 2.0, 0.0]


def output(
    layer,
    *,
    scale=8**-0.5,
    mask="causal",
    window=None,
    softcap=None,
    sinks=None,
    last=9,
    first=None,
    turn=False,
):
    """Attention of a layer in NumPy float64; `turn` shares keys in turn, `first` is the position of the first query."""
    groups = np.arange(4) % 2 if turn else np.arange(4) // 2
    q, k, v = (
        Q[layer][:, 9 - last :].astype("f8"),
        K[layer][groups].astype("f8"),
        V[layer][groups].astype("f8"),
    )
    scores = np.einsum("hqd,hkd->hqk", q, k) * scale
    scores = scores if softcap is None else softcap * np.tanh(scores / softcap)
    rows, keys = (
        np.arange(last)[:, None] + (9 - last if first is None else first),
        np.arange(9)[None],
    )
    allowed = (keys <= rows) if mask == "causal" else np.ones((last, 9), bool)
    allowed &= abs(rows - keys) < (window or 99)
    weights = np.where(allowed, np.exp(scores), 0.0)
    extra = 0.0 if sinks is None else np.exp(np.array(sinks))[:, None, None]
    return (weights / (weights.sum(-1, keepdims=True) + extra)) @ v


def compared(out, **given):
    last = out[0].shape[1]
    report = attnscope.from_qkv(
        list(Q[:, :, 9 - last :]), list(K), list(V), output=[o.astype("f4") for o in out], **given
    )
    return report.data.texts[0].given_output


def test_an_output_that_is_right_agrees():
    found = compared([output(0, window=4, softcap=2, sinks=SINKS), output(1, window=4, softcap=2, sinks=SINKS)],
                     window=4, softcap=2.0, sinks=SINKS)  # fmt: skip
    assert found.agrees
    assert found.tried == []
    assert found.differences.shape == (2, 4)
    assert found.largest < 1e-5


def test_the_place_of_a_wrong_number_is_named():
    out = [output(0), output(1)]
    out[1][2, 5, 3] += 0.25
    found = compared(out)
    assert (found.layer, found.head, found.query, found.dimension, found.first_layer) == (
        1,
        2,
        5,
        3,
        1,
    )
    assert found.given - found.computed == pytest.approx(0.25, abs=1e-5)
    expected = np.zeros((2, 4))
    expected[1, 2] = 0.25
    np.testing.assert_allclose(found.differences, expected, atol=1e-5)
    assert not found.agrees
    assert found.explained_by is None


@pytest.mark.parametrize(
    ("used", "given", "rule"),
    [
        ({"mask": "bidirectional"}, {}, "mask bidirectional"),
        ({}, {"mask": "bidirectional"}, "mask causal"),
        ({}, {"window": 4}, "no window"),
        ({"window": 3}, {"window": 4}, "window 3"),
        ({"window": 5}, {"window": 4}, "window 5"),
        ({}, {"softcap": 1.5}, "no soft-cap"),
        ({}, {"sinks": SINKS}, "no sinks"),
        ({}, {"scale": 0.7}, "scale 1/√width"),
        ({"scale": 1.0}, {}, "scale 1"),
        ({"turn": True}, {}, "heads that share keys in turn (h mod groups)"),
        ({"last": 2, "first": 0}, {}, "causal from the first key on (top left)"),
    ],
)
def test_the_rule_that_another_program_used_is_found(used, given, rule):
    found = compared([output(0, **used), output(1, **used)], **given)
    assert not found.agrees
    assert found.explained_by == rule
    assert found.tried[0].difference < 1e-5 < found.tried[1].difference


def test_rounding_of_16_bits_is_no_difference():
    q, k, v = (torch.from_numpy(side).bfloat16() for side in (Q, K, V))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    found = (
        attnscope.from_qkv(list(q), list(k), list(v), output=list(out)).data.texts[0].given_output
    )
    assert found.agrees
    assert found.largest > 1e-4


def test_files_and_screens_have_the_difference_of_an_output(tmp_path, monkeypatch, capfdbinary):
    monkeypatch.chdir(tmp_path)
    out = output(0)
    out[2, 5] += 0.25
    for name, given in (("bad", out), ("good", output(0))):
        arrays = {
            "layer.0.q": Q[0],
            "layer.0.k": K[0],
            "layer.0.v": V[0],
            "layer.0.output": given.astype("f4"),
        }
        np.savez(f"{name}.npz", **arrays)
    assert main(["run", "--qkv", "bad.npz", "--json"]) == 0
    found = json.loads(capfdbinary.readouterr().out)
    validate(found, "report")
    assert found["texts"][0]["given_output"]["head"] == 2
    assert main(["run", "--qkv", "bad.npz"]) == 0
    screen = " ".join(capfdbinary.readouterr().out.decode().split())
    assert "the given output differs by up to 0.25 (L0H2, query 5 t5" in screen
    assert "strongest L0H2 0.25" in screen
    assert main(["run", "--qkv", "good.npz", "-o", "good.safetensors", "--quiet"]) == 0
    assert attnscope.load("good.safetensors").data.texts[0].given_output.agrees
    assert main(["run", "--qkv", "good.npz"]) == 0
    assert "the given output equals the computed one" in " ".join(
        capfdbinary.readouterr().out.decode().split()
    )


def test_an_output_that_does_not_fit_is_refused():
    for given, message in (
        ({"output": output(0)[:, :5]}, "give it the tokens and heads of q"),
        ({"output": output(0)[:2]}, "give it the tokens and heads of q"),
        ({"output": output(0) * np.nan}, "holds nan"),
    ):
        with pytest.raises(AttnscopeError, match=message):
            attnscope.from_qkv(Q[0], K[0], V[0], **given)
    with pytest.raises(AttnscopeError, match="give v, too"):
        attnscope.from_qkv(Q[0], K[0], output=output(0))
