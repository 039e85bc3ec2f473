"""RG-LRU and mLSTM, and the gate of Falcon-H1: numbers equal what modules of transformers give for unit values."""

import numpy as np
import pytest
import torch
import transformers as hf
from transformers.models.xlstm.modeling_xlstm import mlstm_recurrent_sequence_native

import attnscope
from attnscope.cli import main
from tests.helpers import hybrids
from tests.page.reading import read_page, text_in

TEXT = "the bank by the river was old"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("gated")

    def folder(model_type):
        path = root / model_type
        if not path.exists():
            hybrids.save_hybrid(path, hybrids.with_long_states(hybrids.make_hybrid(model_type)))
        return str(path)

    return folder


def run_watched(folder, tokens, names):
    """What modules of these names take and give, of every layer that has them."""
    model = hf.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    calls = {name: [] for name in names}
    for path, module in model.named_modules():
        name = path.rpartition(".")[2]
        if name in calls:
            of_name = calls[name]
            module.register_forward_hook(
                lambda module, args, kwargs, output, of_name=of_name: of_name.append(
                    (module, args, kwargs, output)
                ),
                with_kwargs=True,
            )
    with torch.inference_mode():
        model(input_ids=torch.tensor([tokens]), use_cache=False)
    return calls


def test_every_channel_of_recurrent_gemma_is_what_its_scan_gives_for_unit_inputs(folders):
    folder = folders("recurrent_gemma")
    whole = attnscope.inspect(TEXT, model=folder, layer=[0, 2], head="all").data.texts[0]
    mixing = whole.mixing
    assert mixing.channels == {0: 32, 2: 32}
    assert set(mixing.kinds) == {"rg-lru"}
    calls = run_watched(folder, [token.id for token in whole.tokens], ["rg_lru", "linear_y"])
    n = len(whole.tokens)
    for layer in range(2):
        module, (x, positions), _, output = calls["rg_lru"][layer]
        scans = []
        scan = module._rnn_scan
        module._rnn_scan = lambda scan=scan, scans=scans, **named: (
            scans.append(named) or scan(**named)
        )
        with torch.inference_mode():
            module(x, positions)
        (named,) = scans
        written = named["hidden_states"] / x  # the factor on each input, (1, T, channels)
        units = slice(32 * layer, 32 * layer + 32)
        for token in range(n):
            unit = torch.zeros_like(x)
            unit[:, token] = written[:, token]
            column, _ = scan(**{**named, "hidden_states": unit})
            np.testing.assert_allclose(mixing.matrix[units, :, token], column[0].T, atol=1e-5)
        np.testing.assert_allclose(mixing.write[units], written[0].T, rtol=1e-4)
        np.testing.assert_allclose(
            np.einsum("cij,jc->ic", mixing.matrix[units], x[0]), output[0], atol=1e-4
        )
        decay = named["recurrent_gate"][0].T.double().numpy()
        np.testing.assert_allclose(mixing.half_life[units], np.log(0.5) / np.log(decay), rtol=1e-2)
        gate = torch.nn.functional.gelu(calls["linear_y"][layer][3], approximate="tanh")
        np.testing.assert_allclose(mixing.gate[units], gate[0].T, atol=1e-5)
    mean = attnscope.inspect(TEXT, model=folder, layer=2, head="mean").data.texts[0].mixing
    np.testing.assert_allclose(mean.matrix[0], mixing.matrix[32:].mean(0), atol=1e-6)


def test_every_head_of_an_xlstm_is_what_its_memory_gives_for_unit_values(folders):
    folder = folders("xlstm")
    whole = attnscope.inspect(TEXT, model=folder, layer="all", head="all").data.texts[0]
    mixing = whole.mixing
    calls = run_watched(
        folder, [token.id for token in whole.tokens], ["mlstm_backend", "ogate_preact"]
    )
    n = len(whole.tokens)
    for layer in range(2):
        _, _, named, _ = calls["mlstm_backend"][layer]
        tensors = {name: named[name] for name in ("query", "key", "igate", "fgate")}
        unit = torch.eye(n).expand(1, 4, n, n)
        expected = mlstm_recurrent_sequence_native(value=unit, **tensors)[0].numpy()
        units = slice(4 * layer, 4 * layer + 4)
        scale = np.abs(expected).max()
        np.testing.assert_allclose(mixing.matrix[units], expected, atol=1e-5 * scale)
        np.testing.assert_allclose(mixing.write[units], named["igate"][0].exp(), rtol=1e-5)
        fades = torch.nn.functional.logsigmoid(named["fgate"][0].double())
        np.testing.assert_allclose(mixing.half_life[units], np.log(0.5) / fades, rtol=1e-4)
        gate = calls["ogate_preact"][layer][3].sigmoid()[0].reshape(n, 4, -1).mean(-1).T
        np.testing.assert_allclose(mixing.gate[units], gate, rtol=1e-5)


def test_the_gate_of_falcon_h1_is_read_of_its_projection(folders, capsys):
    folder = folders("falcon_h1")
    options = {"model": folder, "layer": 1, "head": "all", "measure": "mixing"}
    whole = attnscope.inspect(TEXT, **options).data.texts[0]
    calls = run_watched(folder, [token.id for token in whole.tokens], ["in_proj"])
    module, _, _, projected = calls["in_proj"][1]
    model = hf.AutoModelForCausalLM.from_pretrained(folder)
    z = (projected * model.model.layers[1].mamba.mup_vector)[0, :, :64]
    gate = torch.nn.functional.silu(z).reshape(len(whole.tokens), 4, -1).mean(-1).T
    np.testing.assert_allclose(whole.mixing.gate, gate, atol=1e-6)
    assert module.out_features > 64
    assert (
        main(["run", TEXT, "--model", folder, "--layer", "1", "--head", "2", "--measure", "mixing"])
        == 0
    )
    assert "gate: mean factor on the output" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("model_type", "columns"),
    [("recurrent_gemma", ["Γ", "w", "M"]), ("xlstm", ["q·k", "Γ", "eⁱ", "M"])],
)
def test_a_row_lists_the_factors_that_there_are(folders, capsys, model_type, columns):
    assert (
        main(
            [
                "explain",
                TEXT,
                "--model",
                folders(model_type),
                "--layer",
                "0",
                "--head",
                "2",
                "--query",
                "was",
            ]
        )
        == 0
    )
    lines = capsys.readouterr().out.splitlines()
    heading = next(line for line in lines if line.split()[:1] == ["key"])
    assert heading.split()[1 : len(columns) + 1] == columns


def test_explain_takes_the_path_without_softmax_of_a_layer_that_has_both(folders, capsys):
    folder = folders("falcon_h1")
    options = {"model": folder, "layer": 1, "head": 2}
    row = attnscope.inspect(TEXT, query="was", measure="mixing", **options).data.texts[0].mixing
    whole = attnscope.inspect(TEXT, measure="mixing", **options).data.texts[0].mixing
    explained = (
        attnscope.explain(TEXT, query="was", measure="mixing", **options).data.texts[0].mixing
    )
    assert explained.kinds == ["mamba"]
    np.testing.assert_allclose(explained.matrix[0, 0], whole.matrix[0, 5], atol=1e-6)
    np.testing.assert_allclose(explained.direct, row.direct, atol=1e-6)
    (read,) = explained.read_keys
    assert read.key == np.abs(whole.matrix[0, 5]).argmax()
    own = whole.matrix[0, 5, read.key]
    np.testing.assert_allclose(sum(read.left) * explained.key_write[0, 0, read.key], own, rtol=1e-5)
    assert (
        main(["explain", TEXT, "--model", folder, "--layer", "1", "--head", "2", "--query", "was"])
        == 0
    )
    assert "softmax" in capsys.readouterr().out
    words = ["explain", TEXT, "--query", "bank", "--measure", "mixing"]
    assert main(words) == 2
    assert "no layer of this model has such a matrix without softmax" in capsys.readouterr().err


def test_an_explained_row_keeps_the_largest_keys_and_those_in_detail(folders, capsys):
    folder = folders("falcon_h1")
    options = {"model": folder, "layer": 1, "head": 2, "query": "was", "measure": "mixing"}
    whole = attnscope.explain(TEXT, **options).data.texts[0]
    row = np.abs(whole.mixing.matrix[0, 0])
    largest = sorted(np.argsort(-row)[:2].tolist())
    few = attnscope.explain(TEXT, top=2, **options).data.texts[0]
    assert few.keys == largest
    np.testing.assert_array_equal(few.mixing.matrix[0, 0], whole.mixing.matrix[0, 0, largest])
    left_out = 1 - row[largest].sum() / row.sum()
    assert few.notes[-1] == f"left out: 4 keys ({left_out:.2f} of |M|)"
    named = attnscope.explain(TEXT, top=2, key=[2], **options).data.texts[0]
    assert named.keys == [2]
    words = ["explain", TEXT, "--model", folder, "--layer", "1", "--head", "2", "--query", "was"]
    assert main([*words, "--measure", "mixing", "--top", "2"]) == 0
    screen = capsys.readouterr().out
    assert "left out: 4 keys" in screen
    more = screen.splitlines()[-1]
    assert "--head all" not in more  # which explain refuses
    assert "--key WORD" in more


def test_a_page_of_explain_is_titled_as_one(folders, tmp_path):
    page = tmp_path / "page.html"
    asked = ["explain", TEXT, "--model", folders("recurrent_gemma"), "--layer", "0", "--head", "2"]
    assert main([*asked, "--query", "was", "-o", str(page), "--quiet"]) == 0
    assert text_in(read_page(page).header["heading"]).endswith(" · attnscope explain")
