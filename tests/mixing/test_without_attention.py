"""Models that have no attention at all, and layers with a matrix for every channel: shown by run, heads and info.

Numbers equal what transformers' own scans give for unit vectors in place of values.
"""

import inspect
import json

import numpy as np
import pytest
import torch
import transformers as hf

import attnscope
from attnscope.base.errors import AttnscopeError
from attnscope.cli import main
from attnscope.findings.head_roles import HEAD_ROLES
from tests.helpers import hybrids

TEXT = "the bank by the river was old"
TYPES = ("mamba2", "mamba", "falcon_mamba", "rwkv", "xlstm", "lightning")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("pure")

    def folder(name):
        path = root / name
        if not path.exists():
            changes = {"layer_types": ["linear_attention"] * 4} if name == "lightning" else {}
            made = hybrids.make_hybrid("minimax" if name == "lightning" else name, **changes)
            hybrids.save_hybrid(path, made)
        return str(path)

    return folder


def channel_matrices(folder, name, tokens):
    """M of every channel of every layer without its gate, (channels, T, T), by a scan over unit vectors."""
    model = hf.AutoModelForCausalLM.from_pretrained(folder)
    file = inspect.getmodule(type(model))
    original = getattr(file, name)
    calls = []

    def spy(*args, **kwargs):
        bound = inspect.signature(original).bind(*args, **kwargs).arguments
        calls.append({**bound.pop("kwargs", {}), **bound})
        return original(*args, **kwargs)

    setattr(file, name, spy)
    try:
        with torch.inference_mode():
            model(input_ids=torch.tensor([tokens]), use_cache=False)
            return [
                np.stack([column(original, call, j) for j in range(len(tokens))], -1)
                for call in calls
            ]
    finally:
        setattr(file, name, original)


def column(function, bound, j):
    """What every channel gives everywhere for a value of 1 at token j."""
    if "hidden_states" in bound:
        unit = torch.eye(bound["hidden_states"].shape[2])[j].expand_as(bound["hidden_states"])
        return function(**bound | {"hidden_states": unit, "z": None})[0].double().numpy()
    unit = torch.eye(bound["value"].shape[1])[j][None, :, None].expand_as(bound["value"])
    return function(**bound | {"value": unit})[0][0].T.double().numpy()


@pytest.mark.parametrize(
    ("model_type", "name"),
    [
        ("mamba", "mamba_selective_scan"),
        ("falcon_mamba", "mamba_selective_scan"),
        ("rwkv", "rwkv_linear_attention"),
    ],
)
def test_every_channel_has_its_matrix_and_the_mean_is_of_all(folders, model_type, name):
    """The mean over channels, signed, is the form of the pictures of "The Hidden Attention of Mamba Models"."""
    folder = folders(model_type)
    whole = attnscope.inspect(TEXT, model=folder, layer="all", head="all").data.texts[0]
    expected = channel_matrices(folder, name, [token.id for token in whole.tokens])
    channels = len(expected[0])
    assert whole.mixing.channels == dict.fromkeys(range(len(expected)), channels)
    matrices = whole.mixing.matrix.reshape(len(expected), channels, *expected[0].shape[1:])
    np.testing.assert_allclose(matrices, expected, atol=1e-5)
    mean = attnscope.inspect(TEXT, model=folder, layer=1, head="mean").data.texts[0].mixing
    np.testing.assert_allclose(mean.matrix[0], expected[1].mean(0), atol=1e-5)
    np.testing.assert_allclose(mean.write[0], np.mean(whole.mixing.write[channels:], 0), rtol=1e-5)
    np.testing.assert_allclose(
        mean.gate[0], np.mean(whole.mixing.gate[channels:], 0), rtol=1e-4, atol=1e-6
    )
    assert (np.tril(mean.matrix[0]) == mean.matrix[0]).all()
    if model_type == "rwkv":
        np.testing.assert_allclose(whole.mixing.row_sum, 1, rtol=1e-5)
        assert (whole.mixing.matrix >= 0).all()


def test_off_the_diagonal_a_channel_of_mamba_is_the_published_hidden_attention(folders):
    """C_i (Ā_i … Ā_{j+1}) B̄_j, with Ā = exp(Δ A) and B̄ = Δ B (Ali, Zimerman and Wolf, 2024)."""
    folder = folders("mamba")
    text = attnscope.inspect(TEXT, model=folder, layer=0, head="all").data.texts[0]
    model = hf.AutoModelForCausalLM.from_pretrained(folder)
    mixer = model.backbone.layers[0].mixer
    projected = []
    mixer.x_proj.register_forward_hook(
        lambda _part, _args, output: projected.append(output[0].double())
    )
    with torch.inference_mode():
        model(torch.tensor([[token.id for token in text.tokens]]), use_cache=False)
    states = mixer.A_log.shape[1]
    rank = mixer.dt_proj.in_features
    low, b, c = projected[0].split([rank, states, states], -1)
    rates = -mixer.A_log.detach().double().exp()
    weight, bias = (
        parameter.detach().double() for parameter in (mixer.dt_proj.weight, mixer.dt_proj.bias)
    )
    step = torch.nn.functional.softplus(low @ weight.T + bias)
    n = len(text.tokens)
    expected = np.zeros((len(rates), n, n))
    for i in range(n):
        for j in range(i + 1):
            decay = (step[j + 1 : i + 1, :, None] * rates).sum(0).exp()  # (channels, states)
            expected[:, i, j] = (c[i] * decay * step[j, :, None] * b[j]).sum(-1)
    skip = mixer.D.detach().double().numpy()[:, None, None] * np.eye(n)
    np.testing.assert_allclose(
        text.mixing.matrix, expected + skip, atol=1e-5 * np.abs(expected).max()
    )


def test_auto_chooses_layer_and_channel_and_lists_the_strongest(folders, capsys):
    folder = folders("mamba")
    every = attnscope.inspect(TEXT, model=folder, layer="all", head="all").data.texts[0]
    words = [row for row, token in enumerate(every.tokens) if not token.special]
    own = np.abs(np.diagonal(every.mixing.matrix, axis1=1, axis2=2))
    shares = (1 - own / every.mixing.size)[:, words].mean(1)
    chosen = attnscope.inspect(TEXT, model=folder).data.texts[0].mixing
    best = every.mixing.units[int(shares.argmax())]
    assert chosen.units == [best]
    of_layer = shares[[unit.layer == best.layer for unit in every.mixing.units]]
    order = np.argsort(-of_layer)[:10]
    assert [head.head for head in chosen.ranked] == order.tolist()
    np.testing.assert_allclose([head.share for head in chosen.ranked], of_layer[order], rtol=1e-4)
    assert main(["run", TEXT, "--model", folder]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f"channel {best.head} of 40 chosen automatically" in out
    assert f"channels H{best.head} {of_layer.max():.2f}" in out
    assert main(["run", TEXT, "--model", folder, "--head", "mean"]) == 0
    assert "mean of the matrices of all 40 channels" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("model_type", TYPES)
def test_run_heads_and_info_open_a_model_without_attention(folders, model_type, capsys):
    folder = folders(model_type)
    text = attnscope.inspect(TEXT, model=folder).data.texts[0]
    assert text.mixing.matrix.shape == (1, 8, 8)
    survey = attnscope.heads(folder, TEXT, draws=2).data
    by_name = survey.by_name()
    assert np.isfinite(by_name["previous"]).all()
    assert np.isnan(by_name["copying"]).all()
    assert set(survey.shares) == set(range(survey.provenance.n_layers))
    assert main(["info", "--model", folder]) == 0
    assert "in every layer 0 of" in " ".join(capsys.readouterr().out.split())


def test_other_commands_refuse_a_model_without_attention_in_one_sentence(folders, tmp_path, capsys):
    folder = folders("mamba2")
    texts = tmp_path / "texts.txt"
    texts.write_text(f"{TEXT}\n")
    commands = [
        ["compare", TEXT, "--mask", "own", "--mask", "window:2"],
        ["ablate", TEXT, "--each", "head"],
        ["ablate", TEXT, "--cut", "L0H0"],
        ["check"],
        ["doctor"],
        ["learn", "scores"],
        ["run", TEXT, "--measure", "rollout"],
        ["heads", TEXT, "--key", "bank", "--measure", "value"],
        ["heads", TEXT, "--key", "bank", "--mask", "window:2"],
        ["heads", TEXT, "--measure", "entropy"],
        ["heads", "--needle", TEXT, "--lengths", "32"],
        ["batch", str(texts), "-o", str(tmp_path / "a.jsonl")],
    ]
    for command in commands:
        capsys.readouterr()
        assert main([*command, "--model", folder]) in (1, 2), command
        error = capsys.readouterr().err.strip()
        assert error.count("\n") == 0
        assert "no layer of this model has attention over tokens" in error, command
    options = {"mask": "window:2", "scale": 2.0, "cut": "L0H0", "hide": "bank", "predict": True}
    for name, value in options.items():
        with pytest.raises(AttnscopeError, match=r"softmax|predictions") as error:
            attnscope.inspect(TEXT, model=folder, **{name: value})
        assert "layer='auto'" not in str(error.value)
    with pytest.raises(AttnscopeError, match="have no role 'copying'") as error:
        attnscope.heads(folder, TEXT, role="copying")
    shared = [role.name for role in HEAD_ROLES if role.of_shares]
    assert f"use some of {', '.join(shared)}" in str(error.value)
    with pytest.raises(AttnscopeError, match="a mean of signed matrices"):
        attnscope.inspect(TEXT, model=folder, head="mean")


def test_heads_by_key_of_channels_is_the_mean_of_their_shares(folders):
    folder = folders("mamba")
    every = attnscope.inspect(TEXT, model=folder, layer="all", head="all").data.texts[0]
    shares = np.abs(every.mixing.matrix) / every.mixing.size[..., None]
    found = attnscope.heads(folder, TEXT, query="river", key="bank").data
    assert found.channels == {0: 40, 1: 40}
    np.testing.assert_allclose(
        found.values[:, 0], shares[:, 4, 1].reshape(2, 40).mean(1), rtol=1e-4
    )


def test_files_hold_channels_and_gates(folders, tmp_path):
    folder = folders("mamba")
    result = attnscope.inspect(TEXT, model=folder, layer=0, head=[3, 5])
    for name in ("a.json", "a.npz", "a.safetensors"):
        result.save(tmp_path / name)
        again = attnscope.load(tmp_path / name).data.texts[0].mixing
        np.testing.assert_array_equal(again.gate, result.data.texts[0].mixing.gate)
        assert again.channels == {0: 40}
    assert json.loads((tmp_path / "a.json").read_text())["texts"][0]["mixing"]["channels"] == {
        "0": 40
    }
    mean = attnscope.inspect(TEXT, model=folder, layer=0, head="mean")
    for name in ("b.json", "b.html", "b.svg", "b.csv", "b.npz"):
        mean.save(tmp_path / name)
        assert (tmp_path / name).stat().st_size > 300
