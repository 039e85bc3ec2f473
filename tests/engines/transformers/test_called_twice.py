"""Diff Llama passes two sets of values with the same queries and keys: both are the values of one head."""

import numpy as np
import pytest
import torch
import transformers as hf

import attnscope
from attnscope.base.errors import UsageError
from attnscope.cli import main
from tests.helpers import hybrids

TEXT = "the bank by the river was old"
IDS = torch.tensor([[4, 5, 6, 4, 7, 8, 9, 2]])


@pytest.fixture(scope="module")
def model():
    sizes = {**hybrids.SIZES, "num_hidden_layers": 3}
    torch.manual_seed(7)
    made = hf.DiffLlamaForCausalLM._from_config(
        hf.DiffLlamaConfig(**sizes), attn_implementation="eager"
    )
    return hybrids.raise_weights(made.eval())


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    return str(hybrids.save_hybrid(tmp_path_factory.mktemp("diffllama"), model))


@torch.inference_mode()
def outputs(model, monkeypatch):
    """Return weights, (H, T, T), and outputs of both calls side by side, (H, T, 2·Ev), of every layer."""
    calls = []
    plain = hf.AttentionInterface.get_interface

    def get_interface(self, name, default):
        function = plain(self, name, default)

        def watched(*args, **kwargs):
            calls.append(function(*args, **kwargs))
            return calls[-1]

        return watched

    with monkeypatch.context() as patched:
        patched.setattr(hf.AttentionInterface, "get_interface", get_interface)
        model(input_ids=IDS)
    layers = zip(calls[::2], calls[1::2], strict=True)
    return [
        (weights[0].numpy(), torch.cat((one, other), -1)[0].transpose(0, 1).numpy())
        for (one, weights), (other, _) in layers
    ]


def test_weights_and_outputs_are_those_of_eager_attention(model, folder, monkeypatch):
    options = {"layer": "all", "head": "all", "stages": ("weights", "output")}
    for head in attnscope.inspect(TEXT, model=folder, **options).data.texts[0].heads:
        weights, output = outputs(model, monkeypatch)[head.layer]
        np.testing.assert_allclose(head.stages["weights"], weights[head.head], atol=1e-5)
        np.testing.assert_allclose(head.stages["output"], output[head.head], rtol=0, atol=2e-5)
    assert attnscope.check(TEXT, model=folder).passed


def test_contributions_are_of_both_sets_of_values(folder):
    head = (
        attnscope.inspect(TEXT, model=folder, layer=1, head=2, by="value", top=8, special=True)
        .data.texts[0]
        .heads[0]
    )
    e = attnscope.explain(TEXT, model=folder, layer=1, head=2, query=5, top=8).data
    norms = np.linalg.norm(e.value_vectors, axis=-1)
    assert e.value_vectors.shape[1] == 16
    for key, value, weight in zip(
        head.top.keys[5], head.top.value[5], head.top.weight[5], strict=True
    ):
        if key >= 0:
            assert value == pytest.approx(weight * norms[list(e.keys).index(key)], rel=1e-4)


def test_predictions_generation_and_cuts(model, folder):
    text = attnscope.inspect(TEXT, model=folder, generate=3).data.texts[0]
    expected = model.generate(IDS[:, :-1], max_new_tokens=3, do_sample=False, pad_token_id=0)[
        0
    ].tolist()
    assert [token.id for token in text.tokens] == expected[: len(text.tokens)]
    with torch.inference_mode():
        before = model(input_ids=IDS).logits[0, 7].softmax(-1)
    effect = attnscope.ablate(TEXT, model=folder, cut="L1H1", at=7).data.effects[0].predictions[0]
    for token in effect.tokens:
        assert token.before == pytest.approx(float(before[token.id]), abs=1e-5)
    assert max(abs(token.before - token.after) for token in effect.tokens) > 1e-4


def test_projected_is_refused(folder):
    with pytest.raises(
        UsageError,
        match="the outputs of two heads are subtracted in front of the output projection",
    ):
        attnscope.inspect(TEXT, model=folder, by="projected")


def test_the_difference_of_a_pair_is_what_the_model_normalizes(model, folder, monkeypatch):
    taken = []
    handles = [
        layer.self_attn.groupnorm.register_forward_pre_hook(lambda _, args: taken.append(args[0]))
        for layer in model.model.layers
    ]
    eager = outputs(model, monkeypatch)
    for handle in handles:
        handle.remove()
    mixing = (
        attnscope.inspect(TEXT, model=folder, measure="mixing", layer="all", head="all")
        .data.texts[0]
        .mixing
    )
    assert [(unit.layer, unit.head) for unit in mixing.units] == [
        (n, h) for n in range(3) for h in range(2)
    ]
    for (n, h), matrix in zip(mixing.units, mixing.matrix, strict=True):
        weights, output = eager[n]
        attention = model.model.layers[n].self_attn
        first, second = (
            np.exp(
                float(
                    getattr(attention, f"lambda_q{i}").detach()
                    @ getattr(attention, f"lambda_k{i}").detach()
                )
            )
            for i in (1, 2)
        )
        factor = first - second + 0.8 - 0.6 * np.exp(-0.3 * n)
        np.testing.assert_allclose(matrix, weights[h] - factor * weights[h + 2], rtol=0, atol=1e-5)
        np.testing.assert_allclose(
            output[h] - factor * output[h + 2], taken[n][0, :, h].numpy(), rtol=0, atol=1e-5
        )


def test_a_row_shows_both_weights_and_their_difference(folder, capsys):
    assert (
        main(
            [
                "run",
                TEXT,
                "--model",
                folder,
                "--measure",
                "mixing",
                "--layer",
                "1",
                "--head",
                "1",
                "--query",
                "river",
            ]
        )
        == 0
    )
    screen = capsys.readouterr().out
    assert "M = α − λα′" in screen and "half-life" not in screen
    mixing = (
        attnscope.inspect(TEXT, model=folder, measure="mixing", layer=1, head=1, query="river")
        .data.texts[0]
        .mixing
    )
    first, second = (
        attnscope.inspect(TEXT, model=folder, layer=1, head=h, stages=("weights",))
        .data.texts[0]
        .heads[0]
        for h in (1, 3)
    )
    np.testing.assert_allclose(
        mixing.direct[0, 0], first.stages["weights"][4][: mixing.direct.shape[-1]], atol=1e-5
    )
    rest = mixing.direct[0, 0] - mixing.matrix[0, 0]
    expected = (1 - mixing.row_sum[0, 0]) * second.stages["weights"][4]
    np.testing.assert_allclose(rest, expected[: len(rest)], atol=1e-5)
    e = attnscope.explain(TEXT, model=folder, layer=1, head=1, query="river", top=8).data
    norms = dict(zip(e.keys, np.linalg.norm(e.value_vectors, axis=-1), strict=True))
    for key, value, share in zip(
        mixing.keys[0, 0], mixing.value[0, 0], mixing.mixing[0, 0], strict=True
    ):
        assert key < 0 or value == pytest.approx(abs(share) * norms[key], rel=1e-4)


def test_rollout_through_differences_is_refused(folder):
    with pytest.raises(UsageError, match="layer 0"):
        attnscope.inspect(TEXT, model=folder, measure="rollout")
