"""Layers that have attention over tokens are found, shown under the model's own numbers, and named with the others."""

import json

import numpy as np
import pytest
import torch

import attnscope
from attnscope.base.errors import UsageError
from attnscope.base.layer_kinds import count_attending, spell_legend, spell_map
from attnscope.cli import main
from tests.helpers import hybrids
from tests.helpers.transformers_runs import run

TEXT = "the bank by the river was old"
# model_type → its map; the layers that eager transformers returns weights of are found in the test
MAPS = {
    "qwen3_next": "G A │ G A",
    "qwen3_5_text": "G A │ G A",
    "kimi_linear": "K A │ K A",
    "olmo_hybrid": "G A │ G A",
    "granitemoehybrid": "M A │ M A",
    "jamba": "M A │ M A",
    "bamba": "M A │ M A",
    "falcon_h1": "A+M in every layer",
    "nemotron_h": "M A – A",
    "zamba": "M M A+M │ M M A+M",
    "zamba2": "M M A+M │ M M A+M",
    "lfm2": "C A │ C A",
    "minimax": "L A │ L A",
    "recurrent_gemma": "R W │ R W",
    "deepseek_v32": "S in every layer",
    "glm_moe_dsa": "S in every layer",
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders of the hybrid types, made when asked for."""
    root = tmp_path_factory.mktemp("hybrids")

    def folder(model_type):
        path = root / model_type
        if not path.exists():
            hybrids.save_hybrid(path, hybrids.make_hybrid(model_type))
        return path

    return folder


def eager_weights(model, layers):
    """Weights of the text by layer, (H, T, T): a hook on the softmax of eager attention keeps what it returns."""
    weights = []

    def softmax(*args, **options):
        weights.append(original(*args, **options))
        return weights[-1]

    original, torch.nn.functional.softmax = torch.nn.functional.softmax, softmax
    try:
        with torch.inference_mode():
            model(input_ids=torch.tensor([[4, 5, 6, 4, 7, 8, 9, 2]]))
    finally:
        torch.nn.functional.softmax = original
    square = [w[0] for w in weights if w.ndim == 4 and w.shape[-1] == w.shape[-2] == 8]
    return dict(zip(layers, square, strict=True))


@pytest.mark.parametrize("model_type", list(MAPS))
def test_layers_with_attention_are_found_under_their_own_numbers(folders, model_type):
    report = run(folders(model_type), [TEXT], layer="all", head="all")
    kinds = report.provenance.layer_kinds
    assert spell_map(kinds) == MAPS[model_type]
    attending = [
        layer for layer, paths in enumerate(kinds) if {*paths} & {"softmax", "window", "sparse"}
    ]
    assert list(report.provenance.attending) == attending
    assert list(dict.fromkeys(head.layer for head in report.texts[0].heads)) == attending
    expected = eager_weights(hybrids.make_hybrid(model_type), attending)
    for head in report.texts[0].heads:
        theirs = expected[head.layer][head.head].float().numpy()
        np.testing.assert_allclose(head.stages["weights"], theirs, rtol=0, atol=1e-5)


def test_what_changes_the_output_of_attention_is_found(folders):
    """A gate stands between weights·v and o_proj in Qwen3-Next; in Granite 4 nothing does."""
    for model_type, gated in (("qwen3_next", True), ("granitemoehybrid", False)):
        head = (
            attnscope.inspect(TEXT, by="projected", model=str(folders(model_type)))
            .data.texts[0]
            .heads[0]
        )
        assert (head.rows.gate is not None) == gated


def test_a_folder_says_what_runs_it(folders, capsys):
    assert main(["run", TEXT, "--model", str(folders("lfm2"))]) == 0
    assert (
        "transformers runs it: attnscope itself does not have the architecture"
        in capsys.readouterr().out
    )
    assert main(["info", "--model", str(folders("lfm2"))]) == 0
    out = capsys.readouterr().out
    assert (
        "C A │ C A 2 of 4 layers have attention over tokens (A softmax, C convolution)"
        in " ".join(out.split())
    )
    assert "norm" not in out


def test_without_transformers_the_line_is_what_to_type(folders, monkeypatch, capsys):
    monkeypatch.setattr("attnscope.engines.opening.find_spec", lambda name: None)
    assert main(["run", TEXT, "--model", str(folders("lfm2"))]) == 1
    assert "pip install 'attnscope[transformers]'" in capsys.readouterr().err


def test_words_and_negative_numbers_select_among_the_layers_that_attend(folders):
    folder = folders("qwen3_next")
    assert {head.layer for head in run(folder, [TEXT], layer="auto").texts[0].heads} <= {1, 3}
    assert [head.layer for head in run(folder, [TEXT], layer="-1", head="0").texts[0].heads] == [3]
    assert [head.layer for head in run(folder, [TEXT], layer="-2", head="0").texts[0].heads] == [1]
    (mean,) = run(folder, [TEXT], layer="mean", head="mean").texts[0].heads
    every = run(folder, [TEXT], layer="all", head="all").texts[0].heads
    np.testing.assert_allclose(
        mean.stages["weights"],
        np.mean([head.stages["weights"] for head in every], axis=0),
        atol=1e-6,
    )


def test_a_layer_without_attention_is_refused_with_the_map(folders):
    for options in ({"layer": [1, 2]}, {"cut": "L0H1"}):
        with pytest.raises(UsageError, match="has no attention over tokens") as refused:
            attnscope.inspect(
                TEXT, model=str(folders("qwen3_next")), engine="transformers", **options
            )
        assert "2 of 4 layers have attention over tokens: G A │ G A" in str(refused.value)
    with pytest.raises(UsageError, match="tokens read each other through gated delta"):
        attnscope.inspect(
            TEXT, model=str(folders("qwen3_next")), engine="transformers", measure="rollout"
        )


def test_every_study_takes_the_layers_that_attend(folders):
    options = {"model": str(folders("qwen3_next")), "engine": "transformers"}
    roles = {
        role["name"]: role["values"]
        for role in json.loads(attnscope.heads(**options).to_json())["roles"]
    }
    assert [all(value is None for value in row) for row in roles["next"]] == [
        True,
        False,
        True,
        False,
    ]
    # of shares in the others
    assert not any(value is None for row in roles["previous"] for value in row)
    effects = attnscope.ablate(TEXT, each="head", **options)
    assert np.isnan(effects.values[[0, 2]]).all()
    assert np.isfinite(effects.values[[1, 3]]).all()
    spans = json.loads(attnscope.inspect(TEXT, spans="sentences", **options).to_json())["texts"][0][
        "spans"
    ]
    assert [layer[0][0][0] is None for layer in spans["weights"]] == [True, False, True, False]


def test_maps_are_spelled_in_groups():
    delta, softmax = ("gated delta",), ("softmax",)
    assert spell_map([delta, delta, softmax] * 2) == "G G A │ G G A"
    assert spell_map([delta, softmax] * 8) == "G A │ G A │ … (8 times)"
    assert spell_map([delta, softmax] * 8, whole=True) == " │ ".join(["G A"] * 8)
    assert spell_map([delta, softmax, softmax]) == "G A A"
    assert spell_map([("softmax", "mamba"), ("mamba",)]) == "A+M M"
    assert spell_legend([delta, softmax]) == "A softmax, G gated delta"
    assert count_attending([delta, softmax]) == "1 of 2 layers has attention over tokens"
