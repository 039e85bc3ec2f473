"""`run --cut`: the matrices and predictions of a model without a head or an edge, against hooks on `transformers`."""

import json

import numpy as np
import pytest
import torch

import attnscope
from attnscope.cli import main
from tests.ablation.test_effects import TEXT, gpt2, ids_of, seen  # noqa: F401  (a fixture)
from tests.parity.test_cuts import heads_replaced, masked_edges

CUTS = ["L0H1", "L1H2: 5→0:2", "*: 3→2"]


@pytest.mark.parametrize("engine", ["native", "transformers"])
def test_matrices_are_those_of_the_model_without_heads_and_edges(gpt2, engine):  # noqa: F811
    path, model = gpt2
    config = model.config
    found = attnscope.inspect(
        TEXT, model=path, engine=engine, layer="all", head="all", cut=CUTS, predict=True
    )
    text = found.data.texts[0]
    width = config.n_embd // config.n_head
    nothing = torch.full((config.n_head, width), torch.nan)
    nothing[1] = 0.0
    every = list(range(config.n_head))
    edges = [(layer, every, [3], [2]) for layer in range(config.n_layer)] + [(1, [2], [5], [0, 1])]
    n = len(text.tokens)
    with heads_replaced(model, "gpt2", {0: nothing}), masked_edges(model, "gpt2", edges, n):
        _, _, weights = seen(model, ids_of(text))
    _, _, uncut = seen(model, ids_of(text))
    for layer in range(config.n_layer):
        for head in every:
            assert np.allclose(found[layer, head].weights, weights[layer, head], atol=2e-6)
            assert np.isneginf(found[layer, head].masked[3, 2])
    assert np.abs(weights[-1] - uncut[-1]).max() > 1e-3
    assert found.data.cuts == CUTS
    effect = attnscope.ablate(TEXT, model=path, engine=engine, cut=CUTS).data.effects[0]
    after = {token.id: token.after for token in effect.predictions[0].tokens}
    assert [after[token.id] for token in text.predictions[0].tokens] == pytest.approx(
        [token.probability for token in text.predictions[0].tokens], abs=1e-6
    )


def test_a_screen_and_json_say_what_was_cut(gpt2, capsys):  # noqa: F811
    path, _ = gpt2
    assert main(["run", TEXT, "--model", path, "--cut", "L0H1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cuts"] == ["L0H1"]
    assert main(["run", TEXT, "--model", path, "--cut", "L0H1"]) == 0
    assert "L0H1; a cut head writes nothing, whatever its weights" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--generate", "2"], "--cut and --generate cannot be used together"),
        (["--measure", "rollout"], "--cut and --measure cannot be used together"),
        (["--by", "logit"], "--cut and --by logit cannot be used together"),
    ],
)
def test_what_does_not_run_with_cuts_is_refused(gpt2, capsys, options, said):  # noqa: F811
    path, _ = gpt2
    assert main(["run", TEXT, "--model", path, "--cut", "L0H1", *options]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("cut", "head", "is_less"),
    [
        ("L0H1: 2←", "1", True),
        ("L0H1: 2←", "mean", True),
        ("L0H1: 2←", "0", False),
        ("L0H1: 2←1", "1", False),
    ],
)
def test_a_row_without_keys_is_not_said_to_sum_to_1(gpt2, cut, head, is_less, capsys):  # noqa: F811
    path, _ = gpt2
    asked = ["--layer", "0", "--head", head, "--stage", "weights"]
    assert main(["run", TEXT, "--model", path, "--cut", cut, *asked]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "each row sums to 1" in shown
    assert ("less where all keys of a head are cut" in shown) == is_less


@pytest.mark.parametrize(("cut", "is_less"), [("L0H1: 2←", True), ("L0H1: 2←1", False)])
def test_a_row_of_spans_without_keys_is_not_said_to_sum_to_1(cut, is_less, capsys):
    text = "The river bank. It was wet. Nobody swam."
    asked = ["--layer", "0", "--head", "1", "--spans", "sentences"]
    assert main(["run", text, "--cut", cut, *asked]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "each row sums to 1" in shown
    assert ("less where all keys of a head are cut" in shown) == is_less


@pytest.mark.parametrize(("cut", "is_less"), [("L0H1: 2←", True), ("L0H1: 2←1", False)])
def test_a_row_of_a_map_without_keys_is_not_said_to_sum_to_1(gpt2, cut, is_less, capsys):  # noqa: F811
    path, _ = gpt2
    asked = ["--layer", "0", "--head", "1", "--pool", "64", "--cut", cut]
    assert main(["run", TEXT, "--model", path, *asked]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "each row sums to 1" in shown
    assert ("less where all keys of a head are cut" in shown) == is_less


@pytest.mark.parametrize(("cut", "distant"), [("*: ←0:", False), ("L0H1: 2←0:", True)])
def test_rows_without_any_weight_have_no_mean_distance(gpt2, cut, distant, capsys):  # noqa: F811
    path, _ = gpt2
    asked = ["run", TEXT, "--model", path, "--layer", "0", "--head", "1"]
    for form in ([], ["--pool", "4"]):
        assert main([*asked, "--cut", cut, *form]) == 0
        shown = capsys.readouterr().out
        assert "of its weight on" in shown
        assert ("mean distance" in shown) == distant


def test_a_map_without_any_weight_claims_none(gpt2, capsys):  # noqa: F811
    path, _ = gpt2
    assert main(["run", TEXT, "--model", path, "--pool", "64", "--cut", "*: ←0:11"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "logarithmic" not in shown
    assert (
        "· is exactly zero most attended of 11 sources, by total weight from all queries: none receives any"
        in shown
    )
