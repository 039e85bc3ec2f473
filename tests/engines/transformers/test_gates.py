"""Gates between weights·v and the output projection: found by running, and part of everything that follows them."""

import re
from functools import cache

import numpy as np
import pytest
import torch
import transformers as hf

import attnscope
from attnscope.base.errors import AttnscopeError
from attnscope.cli import main
from attnscope.engines.transformers.interface import AttentionCapture
from tests.explore.headless import walk_without_terminal
from tests.families.census import build, text_class
from tests.helpers import hybrids

TEXT = "the bank by the river was old"
IDS = [4, 5, 6, 4, 7, 8, 9, 2]
# Types with a gate, elementwise or one factor per head, that can be built small.
GATED = [
    "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "afmoe", "axk2", "beam", "lfm3", "muse_glimmer_text",
    "hy_v4", "qwen4_exp_text",
]  # fmt: skip


@cache
def made(model_type):
    if model_type in hybrids.HYBRIDS:
        return hybrids.make_hybrid(model_type)
    return build(model_type, text_class(hf.CONFIG_MAPPING[model_type]))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("gated")

    def folder(model_type):
        path = root / model_type
        if not path.exists():
            hybrids.save_hybrid(path, made(model_type))
        return str(path)

    return folder


class EagerLayer:
    """What eager attention and the output projection of a layer took and gave, in float64."""

    def __init__(self, v, weights, output):
        groups = weights.shape[1] // v.shape[1]
        self.v = v[0].repeat_interleave(groups, dim=0).double().numpy()  # (H, K, Ev)
        self.weights = weights[0].double().numpy()  # (H, Q, K)
        self.output = output[0].transpose(0, 1).double().numpy()  # (H, Q, Ev)
        self.taken = self.projected = self.weight = np.zeros(0)

    @property
    def gate(self):
        """(H, Q, Ev); the outputs of random weights are never 0."""
        heads, rows, width = self.output.shape
        return self.taken.reshape(rows, heads, width).transpose(1, 0, 2) / self.output


@torch.inference_mode()
def eager(model, monkeypatch):
    """Return the layers with attention, in order: functions and projections of transformers are watched."""
    layers = []
    plain = hf.AttentionInterface.get_interface

    def get_interface(self, name, default):
        function = plain(self, name, default)

        def watched(module, q, k, v, *args, **kwargs):
            output, weights = function(module, q, k, v, *args, **kwargs)[:2]
            layer = EagerLayer(v, weights, output)
            projection = module.o_proj

            def take(linear, given, projected):
                bias = 0.0 if linear.bias is None else linear.bias
                layer.taken = given[0][0].double().numpy()
                layer.projected = (projected[0] - bias).double().numpy()
                layer.weight = linear.weight.double().numpy()
                handle.remove()

            handle = projection.register_forward_hook(take)
            layers.append(layer)
            return output, weights

        return watched

    with monkeypatch.context() as patched:
        patched.setattr(hf.AttentionInterface, "get_interface", get_interface)
        model(
            input_ids=torch.tensor([IDS]), attention_mask=torch.ones(1, len(IDS), dtype=torch.int64)
        )
    return layers


def of_heads(report, layers):
    """Yield every head of a report with its layer of eager transformers."""
    numbers = sorted({head.layer for head in report.texts[0].heads})
    for head in report.texts[0].heads:
        yield head, layers[numbers.index(head.layer)]


@pytest.mark.parametrize("model_type", GATED)
def test_contributions_follow_the_gate(folders, monkeypatch, model_type):
    """Σ_j α_ij (g_i ⊙ v_j) W_O is the output of eager attention, and `projected` are the norms of its summands."""
    layers = eager(made(model_type), monkeypatch)
    report = attnscope.inspect(
        TEXT,
        model=folders(model_type),
        by="projected",
        layer="all",
        head="all",
        top=len(IDS),
        special=True,
    ).data
    written = {id(layer): np.zeros_like(layer.projected) for layer in layers}
    for head, layer in of_heads(report, layers):
        h, width = head.head, layer.v.shape[-1]
        gated = layer.gate[h][:, None] * layer.v[h]  # (Q, K, Ev)
        summands = gated @ layer.weight[:, h * width : (h + 1) * width].T
        written[id(layer)] += (layer.weights[h][..., None] * summands).sum(1)
        for name, vectors in (("value", gated), ("projected", summands)):
            expected = layer.weights[h] * np.linalg.norm(vectors, axis=-1)
            scale = np.abs(expected).max()
            for query, keys in enumerate(head.top.keys):
                known = keys >= 0
                numbers = getattr(head.top, name)[query]
                np.testing.assert_allclose(
                    numbers[known], expected[query, keys[known]], rtol=0, atol=1e-5 * max(1, scale)
                )
        np.testing.assert_allclose(head.rows.gate, layer.gate[h].mean(-1), rtol=0, atol=2e-5)
    assert all(np.abs(layer.gate - 1).max() > 0.1 for layer in layers)
    for layer in layers:
        scale = np.abs(layer.projected).max()
        np.testing.assert_allclose(
            written[id(layer)], layer.projected, rtol=0, atol=1e-5 * max(1, scale)
        )


@pytest.mark.parametrize("model_type", ["qwen3_next", "lfm3"])
def test_an_explanation_passes_the_gate(folders, monkeypatch, model_type):
    """What all heads add to the residual stream is the output of eager attention."""
    layer = eager(made(model_type), monkeypatch)[-1]
    report = attnscope.inspect(TEXT, model=folders(model_type), layer=-1, head="all").data
    added = np.zeros(layer.projected.shape[1])
    for head in report.texts[0].heads:
        e = attnscope.explain(
            TEXT, query=5, layer=head.layer, head=head.head, model=folders(model_type)
        ).data
        assert all(check.holds for check in e.checks)
        np.testing.assert_allclose(e.gate.values, layer.gate[head.head, 5], atol=2e-5)
        np.testing.assert_allclose(e.gated.values, e.gate.values * e.output, atol=1e-6)
        added += e.projected.values
    np.testing.assert_allclose(
        added, layer.projected[5], rtol=0, atol=2e-5 * np.abs(layer.projected).max()
    )


@pytest.mark.parametrize("means", [False, True])
def test_a_head_is_cut_behind_its_gate(folders, means):
    """What the projection takes of a head is replaced by 0, or by the mean of what it took."""
    model = made("qwen3_next")
    ids = torch.tensor([IDS])
    projection = model.model.layers[1].self_attn.o_proj

    def logits(change):
        handle = projection.register_forward_pre_hook(lambda module, given: (change(given[0]),))
        with torch.inference_mode():
            result = model(input_ids=ids).logits[0, -1]
        handle.remove()
        return result.softmax(-1).numpy()

    def cut(taken):
        taken = taken.clone()
        taken[..., 8:16] = taken[0, :, 8:16].mean(0) if means else 0.0
        return taken

    before = logits(lambda taken: taken)
    after = logits(cut)
    found = (
        attnscope.ablate(
            TEXT,
            cut="L1H1",
            model=folders("qwen3_next"),
            replacement="mean" if means else "zero",
            at=len(IDS) - 1,
        )
        .data.effects[0]
        .predictions[0]
    )
    assert np.abs(after - before).max() > 1e-3
    for token in found.tokens:
        assert token.before == pytest.approx(float(before[token.id]), abs=1e-5)
        assert token.after == pytest.approx(float(after[token.id]), abs=1e-5)


def _left_out(gate):
    return None


def _twice(gate):
    return gate * gate


def _of_another_head(gate):
    return gate.roll(1, dims=1)


@pytest.mark.parametrize("bug", [_left_out, _twice, _of_another_head])
def test_a_planted_bug_fails_the_check(folders, monkeypatch, bug):
    assert attnscope.check(TEXT, model=folders("qwen3_next")).passed
    gate_of = AttentionCapture.gate_of
    monkeypatch.setattr(AttentionCapture, "gate_of", lambda *given: bug(gate_of(*given)))
    found = attnscope.check(TEXT, model=folders("qwen3_next")).data
    failed = [check.name for check in found.checks if check.verdict == "fail"]
    assert failed == ["the output of attention is W·(weights·v)"]


@pytest.mark.parametrize("model_type", ["bitnet"])
def test_what_is_no_gate_is_refused(folders, model_type):
    """A norm over all heads divides each head's output by the others' as well."""
    with pytest.raises(
        AttnscopeError, match="layer 0, something other than a gate stands between weights·v and"
    ):
        attnscope.inspect(TEXT, by="projected", model=folders(model_type))
    head = attnscope.inspect(TEXT, model=folders(model_type)).data.texts[0].heads[0]
    assert head.rows.gate is None


def test_a_gate_is_shown_beside_the_entropy(folders, capsys):
    head = (
        attnscope.inspect(TEXT, model=folders("qwen3_next"), layer=1, head=0).data.texts[0].heads[0]
    )
    words = head.rows.gate[:-1].mean()
    assert main(["run", TEXT, "--model", folders("qwen3_next"), "--layer", "1", "--head", "0"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert re.search(rf"entropy \d\.\d\d bits; gate {words:.2f}", out)


def test_a_gate_that_is_almost_closed_is_named(folders, monkeypatch, capsys):
    gate_of = AttentionCapture.gate_of
    monkeypatch.setattr(AttentionCapture, "gate_of", lambda *given: gate_of(*given) / 20)
    assert main(["run", TEXT, "--model", folders("qwen3_next"), "--layer", "1", "--head", "0"]) == 0
    assert re.search(r"gate 0\.0\d \(almost closed\)", " ".join(capsys.readouterr().out.split()))


def test_heads_are_measured_by_their_gate(folders, capsys):
    options = {"model": folders("qwen3_next")}
    values = attnscope.heads(text=TEXT, measure="gate", **options).data.values
    assert np.isnan(values[[0, 2]]).all()
    for head in attnscope.inspect(TEXT, layer="all", head="all", **options).data.texts[0].heads:
        assert values[head.layer, head.head] == pytest.approx(head.rows.gate[:-1].mean(), abs=1e-6)
    assert main(["heads", TEXT, "--measure", "gate", "--model", folders("bitnet")]) == 2
    assert "no layer of the model has one" in capsys.readouterr().err


def test_a_mean_counts_layers_without_a_gate_as_open(folders):
    options = {"model": folders("qwen3_next")}
    every = attnscope.inspect(TEXT, layer="all", head="all", **options).data.texts[0].heads
    (mean,) = attnscope.inspect(TEXT, layer="mean", head="mean", **options).data.texts[0].heads
    np.testing.assert_allclose(
        mean.rows.gate, np.mean([head.rows.gate for head in every], axis=0), atol=1e-6
    )


def test_a_gate_of_another_type_is_close_in_bfloat16(folders):
    head = (
        attnscope.inspect(TEXT, model=folders("axk2"), dtype="bfloat16", by="projected")
        .data.texts[0]
        .heads[0]
    )
    assert np.isfinite(head.rows.gate).all()


def test_a_walk_shows_the_gate_of_a_row(folders, monkeypatch):
    screens = walk_without_terminal(monkeypatch)
    assert (
        main(["explore", TEXT, "--model", folders("qwen3_next"), "--layer", "1", "--head", "0"])
        == 0
    )
    gate = (
        attnscope.inspect(TEXT, model=folders("qwen3_next"), layer=1, head=0)
        .data.texts[0]
        .heads[0]
        .rows.gate
    )
    shown = re.search(r"bits · gate (\d\.\d\d)", " ".join(screens[0]))
    assert shown is not None
    assert float(shown[1]) in np.round(gate.astype(float), 2)


def test_a_model_in_memory_has_its_gates_and_keeps_its_hooks(folders):
    model = made("qwen3_next")
    hooks = [
        len(module._forward_pre_hooks) + len(module._forward_hooks) for module in model.modules()
    ]
    tokenizer = hf.PreTrainedTokenizerFast(tokenizer_file=f"{folders('qwen3_next')}/tokenizer.json")
    options = {"layer": 1, "head": 2, "by": "projected"}
    head = (
        attnscope.inspect(TEXT, model=model, tokenizer=tokenizer, **options).data.texts[0].heads[0]
    )
    other = attnscope.inspect(TEXT, model=folders("qwen3_next"), **options).data.texts[0].heads[0]
    np.testing.assert_allclose(head.rows.gate, other.rows.gate, atol=1e-6)
    np.testing.assert_allclose(head.top.projected, other.top.projected, rtol=1e-5)
    assert hooks == [
        len(module._forward_pre_hooks) + len(module._forward_hooks) for module in model.modules()
    ]
