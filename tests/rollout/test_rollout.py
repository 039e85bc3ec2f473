"""Rollout and value zeroing equal plain float64 computations: the papers' formulas over transformers' own layers."""

import json
import re
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from transformers import AutoModel

import attnscope
from attnscope.base.errors import AttnscopeError, UsageError
from attnscope.cli import main
from attnscope.engines.opening import open_source
from attnscope.findings.codec import from_json, to_json
from attnscope.request.run_config import TextInput
from attnscope.request.selection import PRINTED
from attnscope.studies.rollout.measure import plan_rollout
from attnscope.studies.rollout.run import report
from benchmarks.memory import peak
from tests.helpers.architectures import ONE_PART, TWO_PARTS, make, save
from tests.helpers.effect_arithmetic import roll_out, zeroing_shares
from tests.helpers.requests import requested

TEXTS = ("the bank by the river was old", "we sat on it all day while water ran")
VALUES = {
    "bert": "attention.self.value",
    "llama": "self_attn.v_proj",
    "opt": "self_attn.v_proj",
    "albert": "albert_layers.0.attention.value",
    "t5": "layer.0.SelfAttention.v",
}
LAYERS = {
    "bert": lambda model: model.encoder.layer,
    "llama": lambda model: model.layers,
    "opt": lambda model: model.decoder.layers,
    "albert": lambda model: [*model.encoder.albert_layer_groups] * 3,  # one module is every layer
    "t5": lambda model: model.block,
}
DEEP = {
    name: {**ONE_PART[name], "num_hidden_layers": 3}
    for name in ("bert", "llama", "gpt_oss", "opt", "albert")
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}

    def folder(name):
        if name not in made:
            config = DEEP.get(name) or TWO_PARTS.get(name) or ONE_PART[name]
            made[name] = save(tmp_path_factory.mktemp(name), make(name, config))
        return made[name]

    return folder


def run(folder, texts=TEXTS, context=None, **options):
    asked = requested(tuple(TextInput(t, context=context) for t in texts), str(folder), **options)
    return report(asked)


def _eager(folder):
    return AutoModel.from_pretrained(folder, attn_implementation="eager").double().eval()


def _attentions(folder, ids):
    """Every layer's weights, (H, T, T) in float64."""
    with torch.no_grad():
        return [
            one[0].numpy()
            for one in _eager(folder)(torch.tensor([ids]), output_attentions=True).attentions
        ]


@pytest.mark.parametrize("engine", ["native", "transformers"])
@pytest.mark.parametrize("name", ["bert", "llama"])
@pytest.mark.parametrize(
    ("measure", "residual"), [("rollout", True), ("rollout-no-residual", False)]
)
@pytest.mark.parametrize(("layer", "covered"), [("auto", [0, 1, 2]), ("1-2", [1, 2])])
def test_rollout_is_the_papers_product(folders, name, engine, measure, residual, layer, covered):
    report = run(folders(name), engine=engine, measure=measure, layer=layer)
    assert [len(text.rollouts) for text in report.texts] == [1, 1]
    for text in report.texts:
        attentions = _attentions(folders(name), [token.id for token in text.tokens])
        expected = roll_out([attentions[n] for n in covered], residual=residual)
        (rollout,) = text.rollouts
        assert (rollout.measure, rollout.layers, rollout.nothing) == (measure, covered, [])
        np.testing.assert_allclose(rollout.matrix, expected, rtol=0, atol=1e-5)
        np.testing.assert_allclose(rollout.matrix.sum(-1), 1, rtol=0, atol=1e-5)


def _zeroing(name, folder, ids, layer):
    """Mohebbi et al., 2023: the whole model runs once for each token, whose values a hook sets to 0 in one layer."""
    model, outputs, zeroed, running = _eager(folder), [], [], []
    model = model.encoder if name in TWO_PARTS else model

    def enter(*_):
        running.append(layer)

    def keep(_, __, output):
        if len(running) == before + 1:
            outputs.append(
                (output[0] if isinstance(output, tuple) else output).reshape(len(ids), -1)
            )

    def zero(_, __, values):
        if len(running) == before + 1:
            values[:, zeroed] = 0

    blocks = LAYERS[name](model)
    # a shared module has run so often before
    block, before = blocks[layer], layer if blocks[0] is blocks[-1] else 0
    block.register_forward_pre_hook(enter)
    block.register_forward_hook(keep)
    block.get_submodule(VALUES[name]).register_forward_hook(zero)
    with torch.no_grad():
        for some in ([], *([j] for j in range(len(ids)))):
            zeroed[:], running[:] = some, []
            model(torch.tensor([ids]))
    whole, *others = (output.numpy() for output in outputs)
    return zeroing_shares(whole, others)


@pytest.mark.parametrize(
    ("name", "engine", "copies"),
    [
        ("bert", "native", 1),
        ("bert", "native", 4),
        ("llama", "native", 100),
        ("bert", "transformers", 100),
        ("llama", "transformers", 4),
        ("opt", "transformers", 1),
        ("albert", "transformers", 3),
    ],
)
def test_value_zeroing_is_what_hooks_on_transformers_give(
    folders, name, engine, copies, monkeypatch
):
    monkeypatch.setattr("attnscope.studies.rollout.measure._copies", lambda n: min(n, copies))
    report = run(folders(name), measure="value-zeroing", layer="2,0", engine=engine)
    rolled = run(folders(name), measure="value-zeroing-rollout", layer="0-2", engine=engine)
    for text, product in zip(report.texts, rolled.texts, strict=True):
        ids = [token.id for token in text.tokens]
        expected = [_zeroing(name, folders(name), ids, layer) for layer in range(3)]
        assert [rollout.layers for rollout in text.rollouts] == [[0], [2]]
        for rollout in text.rollouts:
            np.testing.assert_allclose(
                rollout.matrix, expected[rollout.layers[0]], rtol=0, atol=1e-5
            )
            if name in ("llama", "opt"):
                assert (rollout.matrix[np.triu_indices(len(ids), 1)] == 0).all()
        (rollout,) = product.rollouts
        np.testing.assert_allclose(
            rollout.matrix, expected[2] @ expected[1] @ expected[0], rtol=0, atol=5e-5
        )


@pytest.mark.parametrize("name", ["gpt2", "gemma2", "gpt_oss", "mistral"])
def test_value_zeroing_of_both_engines_is_the_same(folders, name):
    """Fused projections, a soft-cap and norms behind a layer, sinks, a window; under a mask and with a hidden token."""
    for options in ({}, {"mask": "causal+window:3", "hide": "1"}):
        ours, theirs = (
            run(
                folders(name),
                TEXTS[:1],
                measure="value-zeroing",
                layer="all",
                engine=engine,
                **options,
            )
            for engine in ("native", "transformers")
        )
        for one, other in zip(ours.texts[0].rollouts, theirs.texts[0].rollouts, strict=True):
            assert one.nothing == other.nothing
            np.testing.assert_allclose(one.matrix, other.matrix, rtol=0, atol=1e-5)


def test_value_zeroing_of_an_encoder_among_two_parts(folders):
    report = run(
        folders("t5"),
        TEXTS[:1],
        engine="transformers",
        part="encoder",
        measure="value-zeroing",
        layer="0-1",
    )
    ids = [token.id for token in report.texts[0].tokens]
    for layer, rollout in enumerate(report.texts[0].rollouts):
        expected = _zeroing("t5", folders("t5"), ids, layer)
        np.testing.assert_allclose(rollout.matrix, expected, rtol=0, atol=1e-5)


def test_layers_that_are_no_modules_of_their_own_are_refused(folders):
    """The model is as it was afterwards."""
    model = AutoModel.from_pretrained(folders("gpt2"))
    model.h = torch.nn.Sequential(*model.h)
    asked = {"model": model, "tokenizer": str(folders("gpt2")), "measure": "value-zeroing"}
    with pytest.raises(
        AttnscopeError,
        match="layer 0 is no module of the model that can be run by itself; use measure='roll",
    ):
        attnscope.inspect(TEXTS[0], **asked)
    model.h = torch.nn.ModuleList(model.h)
    assert attnscope.inspect(TEXTS[0], **asked).data.texts[0].rollouts
    assert not any(module._forward_hooks for module in model.h)


def test_a_layer_is_measured_under_the_mask_that_it_has(folders):
    """A window of mistral: a token out of reach has no share."""
    for text in run(folders("mistral"), measure="value-zeroing", layer="1", hide="0").texts:
        (rollout,) = text.rollouts
        n = len(text.tokens)
        seen = np.tri(n, dtype=bool) & ~np.tri(n, k=-3, dtype=bool)
        seen[:, 0] = False
        np.testing.assert_array_equal(np.nan_to_num(rollout.matrix) > 0, seen)
        assert rollout.nothing == [0]
        assert np.isnan(rollout.matrix[0]).all()


def test_hidden_tokens_and_sinks_leave_rows_that_sum_to_one(folders):
    for residual, measure in ((True, "rollout"), (False, "rollout-no-residual")):
        for text in run(folders("gpt_oss"), measure=measure, hide="0").texts:
            (rollout,) = text.rollouts
            assert rollout.nothing == ([] if residual else [0])
            rows = rollout.matrix[1:] if rollout.nothing else rollout.matrix
            np.testing.assert_allclose(rows.sum(-1), 1, rtol=0, atol=1e-5)
            assert (rows[1:, 0] == 0).all()


def test_what_changes_by_rounding_alone_is_no_share(tmp_path):
    """A layer whose values are all 0 had shares of 1/3 each, of what a batch of copies rounds differently."""
    model = make("gpt2", ONE_PART["gpt2"])
    width = model.config.hidden_size
    with torch.no_grad():
        for block in model.h:
            block.attn.c_attn.weight[:, 2 * width :] = 0
            block.attn.c_attn.bias[2 * width :] = 0
    for text in run(save(tmp_path, model), measure="value-zeroing").texts:
        for rollout in text.rollouts:
            assert rollout.nothing == list(range(len(text.tokens)))
            assert np.isnan(rollout.matrix).all()


def test_sources_are_ranked_by_their_share_over_every_token(folders):
    whole = run(folders("llama"), texts=TEXTS[:1], measure="rollout").texts[0]
    report = run(
        folders("llama"),
        texts=TEXTS[:1],
        measure="rollout",
        query="-1,2",
        key="1",
        top=4,
        special=False,
    )
    (text,) = report.texts
    (rollout,) = text.rollouts
    assert (text.queries, text.keys, rollout.left_out) == (
        [2, len(whole.tokens) - 1],
        [1],
        ["special tokens", "first token"],
    )
    for row, query in enumerate(text.queries):
        shares = whole.rollouts[0].matrix[query].copy()
        np.testing.assert_array_equal(rollout.matrix[row], shares[[1]])
        for n, token in enumerate(whole.tokens):
            if token.special or n == 0:
                shares[n] = 0
        expected = [n for n in np.argsort(-shares, kind="stable")[:4] if shares[n] > 0]
        assert rollout.keys[row].tolist() == [*expected, *[-1] * (4 - len(expected))]
        np.testing.assert_array_equal(rollout.values[row][: len(expected)], shares[expected])


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (
            {"measure": "rollout", "layer": "0,2"},
            "layer: rollout needs consecutive layers; use 0-2",
        ),
        ({"measure": "rollout", "layer": "mean"}, "layer: rollout cannot be averaged over layers"),
        ({"measure": "rollout", "layer": "7"}, "layer: there is no layer 7"),
        (
            {"measure": "value-zeroing", "max_memory": 1 << 20},
            "max_memory is 1.0 MiB; use max_memory=",
        ),
    ],
)
def test_what_does_not_go_with_a_measure_is_refused(folders, options, error):
    with pytest.raises(AttnscopeError, match=re.escape(error)):
        run(folders("llama"), **options)


@pytest.mark.parametrize(
    "options",
    [
        {"head": 1},
        {"by": "value"},
        {"pool": 4},
        {"predict": True},
        {"generate": 2},
        {"target": "a"},
        {"stages": "scores"},
        {"least": 2},
        {"words": True},
        {"show_padding": True},
        {"cut": "L0H0"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_a_measure_takes_the_place_of_what_is_made_of_weights(options):
    with pytest.raises(UsageError, match="cannot be used together"):
        attnscope.inspect("ab", measure="rollout", **options)


def test_a_mask_cannot_apply_to_the_scores_of_zeroed_layers_alone():
    named = {"mask": "window:2", "what_if": "same-scores"}
    with pytest.raises(UsageError, match="what_if='same-scores' and measure='value-zeroing'"):
        attnscope.inspect("ab", measure="value-zeroing", **named)


@pytest.mark.parametrize("part", ["decoder", "cross"])
def test_layers_that_read_a_second_text_have_no_rollout(folders, part):
    with pytest.raises(UsageError, match="measure='rollout': is not defined under cross-attention"):
        run(
            folders("bart"),
            engine="transformers",
            part=part,
            context="water ran",
            measure="rollout",
        )
    assert (
        run(folders("bart"), engine="transformers", part="encoder", measure="rollout")
        .texts[0]
        .rollouts
    )


def test_a_stack_without_residual_has_no_rollout_with_one():
    with pytest.raises(
        UsageError, match="do not add their input to their output; use rollout-no-residual"
    ):
        attnscope.inspect("a b c", config="single-head-unscaled", measure="rollout")


def test_commands_files_and_python_give_the_same(folders, tmp_path, capsys):
    asked = [
        TEXTS[0],
        "--model",
        str(folders("bert")),
        "--measure",
        "value-zeroing",
        "--layer",
        "0-1",
    ]
    assert main(["run", *asked, "--format", "json", "--quiet"]) == 0
    out = capsys.readouterr().out.encode().rstrip(b"\n")
    report = attnscope.inspect(
        TEXTS[0], model=folders("bert"), measure="value-zeroing", layer=[0, 1]
    )
    assert report.to_json() == out
    assert to_json(from_json(out)) == out
    first, second = report.data.texts[0].rollouts
    path = tmp_path / "x.safetensors"
    report.save(path)
    from safetensors.numpy import load_file

    arrays = load_file(path)
    np.testing.assert_array_equal(arrays["rollouts.matrix"], [first.matrix, second.matrix])
    np.testing.assert_array_equal(arrays["rollouts.keys"], [first.keys, second.keys])
    np.testing.assert_array_equal(arrays["rollouts.values"], [first.values, second.values])
    assert main(["run", *asked, "--quiet"]) == 0
    shown = capsys.readouterr().out
    assert "L1 value-zeroing" in shown
    assert f"{second.matrix[2, 1]:.2f}" in shown
    assert f"{second.values[2, 0]:.3f}" in shown
    assert main(["run", *asked, "--quiet", "--format", "heat"]) == 0
    saved = tmp_path / "a.json"
    saved.write_bytes(out)
    assert main(["compare", str(saved), str(saved)]) == 1
    assert "holds value-zeroing, not the weights of heads" in capsys.readouterr().err


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_a_measure_is_no_table_of_heads(ending, tmp_path, capsys):
    path = tmp_path / f"a{ending}"
    assert main(["run", TEXTS[0], "--measure", "rollout", "-o", str(path)]) == 2
    said = f"--measure rollout: is a matrix over layers, which cannot be written as {ending}; use .json"
    assert said in capsys.readouterr().err
    assert not path.exists()


def test_one_row_is_a_list_of_keys(capsys):
    text = "the bank " * 20
    every = attnscope.inspect(text, measure="rollout").data.texts[0].rollouts[0].matrix
    asked = ["run", text, "--measure", "rollout", "--top", "0", "--query"]
    assert main([*asked, "3"]) == 0
    screen = capsys.readouterr().out
    assert "the 32 keys with the largest shares; --key selects others" in screen
    assert "of each token before layer 0 in this token after layer 3; all sum to 1" in " ".join(
        screen.split()
    )
    listed = {
        int(key): float(share)
        for key, share in re.findall(r"\b(\d+) (?:the|bank) +(\d\.\d+)", screen)
    }
    assert sorted(listed) == sorted(np.argsort(-every[3], kind="stable")[:32])
    assert list(listed.values()) == pytest.approx(every[3][list(listed)], abs=0.006)
    others = re.search(r"\b8 others +(\d\.\d+)", screen)
    assert others is not None and float(others[1]) == pytest.approx(
        np.delete(every[3], list(listed)).sum(), abs=0.006
    )
    assert main([*asked, "3,4"]) == 0
    assert "key →" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (lambda rollout: rollout["keys"][0].__setitem__(0, 9), "keys has a position of"),
        (lambda rollout: rollout["matrix"].pop(), "matrix has shape"),
        (lambda rollout: rollout["values"].pop(), "values has shape"),
        (lambda rollout: rollout.update(layers=[]), "layers is empty"),
    ],
)
def test_a_damaged_file_is_refused(folders, damage, error):
    report = json.loads(to_json(run(folders("bert"), texts=TEXTS[:1], measure="rollout")))
    damage(report["texts"][0]["rollouts"][0])
    with pytest.raises(AttnscopeError, match=error):
        from_json(json.dumps(report).encode())


def test_a_long_text_shows_its_first_rows_and_says_so(folders, capsys):
    text = " ".join(["water"] * 45)
    asked = [
        "run",
        text,
        "--config",
        "bidirectional",
        "--measure",
        "rollout-no-residual",
        "--top",
        "0",
    ]
    assert main(asked) == 0
    assert "rows 0–" not in capsys.readouterr().out
    asked[1] = " ".join(["water"] * 70)
    assert main(asked) == 0
    out = capsys.readouterr().out
    assert "rows 0–63 of 70 shown; --query selects others" in out
    assert "each row sums to 1 over all 70 tokens" in " ".join(out.split())


STACK = "d_model = 256\nn_heads = 8\nn_layers = 4\nd_mlp = 1024\nmask = 'causal'\npositions = 'sinusoidal'\n"


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="only Linux tells the peak of a process"
)
@pytest.mark.parametrize(
    ("measure", "words", "form"), [("value-zeroing", 80, "json"), ("rollout", 1000, "table")]
)
def test_a_measure_keeps_to_its_own_estimate(measure, words, form, tmp_path):
    (tmp_path / "stack.toml").write_text(STACK)
    text = " ".join(["the", "bank"] * (words // 2))
    given = requested(
        (TextInput(text),), config=str(tmp_path / "stack.toml"), measure=measure, threads=1
    )
    given = msgspec.structs.replace(given, window=PRINTED if form == "table" else None)
    limit = plan_rollout(given, open_source(given, given.texts)).plan.memory
    asked = [
        "run",
        text,
        "--config",
        given.config,
        "--measure",
        measure,
        "--format",
        form,
        "--threads",
        "1",
        "--quiet",
    ]
    taken = peak([*asked, "--max-memory", str(limit.estimate)])
    assert 1.0 <= limit.estimate / taken <= 2.0, (limit.estimate, taken)


def test_one_row_of_all_layers_is_one_table(monkeypatch, capsys):
    """A list for each layer was too long to compare layers."""
    monkeypatch.setenv("COLUMNS", "80")
    text = "The bank by the river"
    assert main(["run", text, "--measure", "value-zeroing", "--query", "bank", "--quiet"]) == 0
    out = capsys.readouterr().out
    rollouts = attnscope.inspect(text, measure="value-zeroing", query="bank").data.texts[0].rollouts
    heading, *lines = [line.split() for line in out[out.index("   key ") :].splitlines()[:6]]
    assert heading == ["key", "L0", "L1", "L2", "L3"]
    for key, (position, _, *cells) in enumerate(lines):
        assert int(position) == key
        for rollout, cell in zip(rollouts, cells, strict=False):
            value = rollout.matrix[0, key]
            assert value == 0 if cell == "·" else abs(float(cell) - value) <= 0.00501
    ranked = re.findall(r"(L\d) +← \d (\S+)", out)
    assert sorted(ranked) == [
        (f"L{n}", text.split()[rollout.keys[0, 0]]) for n, rollout in enumerate(rollouts)
    ]
