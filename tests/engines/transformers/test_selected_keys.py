"""Keys that an indexer selects are the mask, and the weight that others would have is told."""

from functools import cache

import numpy as np
import pytest
import torch
import transformers as hf

import attnscope
from attnscope.cli import main
from attnscope.engines.transformers import interface
from tests.families.census import build, text_class
from tests.helpers import hybrids

TEXT = "the bank by the river was old"
IDS = [4, 5, 6, 4, 7, 8, 9, 2]
SPARSE = [
    "deepseek_v32",
    "glm_moe_dsa",
    "axk2",
    "hy_v4",
    "mistral_large4_text",
    "qwen4_exp_text",
    "minimax_m3_vl_text",
]


@cache
def made(model_type):
    if model_type in hybrids.HYBRIDS:
        return hybrids.make_hybrid(model_type)
    settings = {"index_topk": 2}
    # which selects blocks of keys, others for each key/value head
    if model_type == "minimax_m3_vl_text":
        settings = {
            "index_block_size": 2,
            "index_topk_blocks": 2,
            "index_local_blocks": 1,
            "index_n_heads": 2,
        }
        settings["layer_types"] = ["minimax_m3_sparse"] * 4
    return build(model_type, text_class(hf.CONFIG_MAPPING[model_type]), **settings)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("sparse")

    def folder(model_type):
        path = root / model_type
        if not path.exists():
            hybrids.save_hybrid(path, made(model_type))
        return str(path)

    return folder


@torch.inference_mode()
def eager(model, monkeypatch):
    """Return weights of eager attention and those that they would be under a causal mask alone, (H, T, T) each."""
    layers = []
    plain = hf.AttentionInterface.get_interface

    def get_interface(self, name, default):
        function = plain(self, name, default)

        def watched(module, q, k, v, *args, scaling, **kwargs):
            output, weights = function(module, q, k, v, *args, scaling=scaling, **kwargs)[:2]
            k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
            scores = (q @ k.mT)[0].double() * scaling
            ahead = torch.ones(scores.shape[1:]).triu(1).bool()
            causal = scores.masked_fill(ahead, -torch.inf)
            if (sinks := kwargs.get("s_aux")) is not None:
                column = sinks.double()[:, None, None].expand(-1, len(IDS), 1)
                causal = torch.cat((causal, column), -1)
            causal = causal.softmax(-1)[..., : len(IDS)]
            layers.append((weights[0].double().numpy(), causal.numpy()))
            return output, weights

        return watched

    with monkeypatch.context() as patched:
        patched.setattr(hf.AttentionInterface, "get_interface", get_interface)
        model(
            input_ids=torch.tensor([IDS]), attention_mask=torch.ones(1, len(IDS), dtype=torch.int64)
        )
    return layers


@pytest.mark.parametrize("model_type", SPARSE)
def test_weights_and_what_was_left_out_are_those_of_eager_attention(
    folders, monkeypatch, model_type
):
    layers = eager(made(model_type), monkeypatch)
    report = attnscope.inspect(
        TEXT, model=folders(model_type), layer="all", head="all", stages=("masked", "weights")
    ).data
    numbers = sorted({head.layer for head in report.texts[0].heads})
    assert {path for layer in numbers for path in report.provenance.layer_kinds[layer]} == {
        "sparse"
    }
    missed = []
    for head in report.texts[0].heads:
        weights, causal = (of_layer[head.head] for of_layer in layers[numbers.index(head.layer)])
        np.testing.assert_allclose(head.stages["weights"], weights, rtol=0, atol=1e-5)
        np.testing.assert_array_equal(np.isneginf(head.stages["masked"]), weights == 0)
        expected = (causal * (weights == 0)).sum(-1)
        np.testing.assert_allclose(head.rows.unselected, expected, rtol=0, atol=1e-5)
        missed.append(expected.max())
    assert max(missed) > 0.1


def test_the_screen_says_that_keys_were_selected(folders, capsys):
    assert (
        main(["run", TEXT, "--model", folders("deepseek_v32"), "--layer", "1", "--head", "2"]) == 0
    )
    out = " ".join(capsys.readouterr().out.split())
    assert "S in every layer" in out
    assert "causal, of which an indexer selects keys" in out
    assert " missed by the indexer" in out


def test_a_padded_text_selects_the_same_keys(folders):
    """Each text of a batch has the weights that it has alone."""
    options = {"model": folders("glm_moe_dsa"), "layer": "all", "head": "all", "stages": "weights"}
    alone = attnscope.inspect("the river", **options).data.texts[0]
    beside = attnscope.inspect(["the river", TEXT], **options).data.texts[0]
    for one, other in zip(alone.heads, beside.heads, strict=True):
        np.testing.assert_allclose(
            one.stages["weights"], other.stages["weights"], rtol=0, atol=1e-5
        )
        np.testing.assert_allclose(one.rows.unselected, other.rows.unselected, rtol=0, atol=1e-5)


def test_another_mask_leaves_the_selection_out(folders):
    """Under `causal` alone nothing is selected; under `own` and a window, the window holds for what would be seen."""
    options = {
        "model": folders("deepseek_v32"),
        "layer": 0,
        "head": 1,
        "stages": ("masked", "weights"),
    }
    causal = attnscope.inspect(TEXT, mask="causal", **options).data.texts[0].heads[0]
    assert np.isfinite(causal.stages["masked"]).sum() == len(IDS) * (len(IDS) + 1) // 2
    assert np.abs(causal.rows.unselected).max() == 0
    window = attnscope.inspect(TEXT, mask="own+window:2", **options).data.texts[0].heads[0]
    assert not np.isfinite(
        np.tril(window.stages["masked"], -2)[np.tril_indices(len(IDS), -2)]
    ).any()
    near = np.tril(np.triu(causal.stages["masked"], -1))
    near[near == 0] = -np.inf
    shares = np.exp(near) / np.exp(near).sum(-1, keepdims=True)
    expected = (shares * ~np.isfinite(window.stages["masked"])).sum(-1)
    live = np.isfinite(window.rows.unselected)
    np.testing.assert_allclose(window.rows.unselected[live], expected[live], atol=1e-5)


def test_a_planted_bug_shows(folders, monkeypatch):
    """One more key than the indexer selects."""
    selected_keys = interface.selected_keys
    monkeypatch.setattr(
        interface,
        "selected_keys",
        lambda mask, indices, n: selected_keys(
            mask, torch.cat((indices, 0 * indices[..., :1]), -1), n
        ),
    )
    assert not attnscope.check(TEXT, model=folders("deepseek_v32")).passed


def test_a_tiny_model_passes_the_check(folders):
    for model_type in ("deepseek_v32", "glm_moe_dsa"):
        assert attnscope.check(TEXT, model=folders(model_type)).passed
