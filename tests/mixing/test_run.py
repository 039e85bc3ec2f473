"""`attnscope run` of layers without softmax: numbers equal what transformers' own functions give for unit values."""

import csv
import inspect
import json
import re
from itertools import pairwise

import numpy as np
import pytest
import torch
import transformers as hf
from safetensors.numpy import load_file

import attnscope
from attnscope.base.errors import AttnscopeError, UsageError
from attnscope.cli import main
from attnscope.findings.codec import from_json
from tests.helpers import hybrids

TEXT = "the bank by the river was old"
SHORT = "the river was old"
# model_type → function of its modelling file, the argument with the values, and the layers without softmax
FUNCTIONS = {
    "qwen3_next": ("torch_chunk_gated_delta_rule", "value", [0, 2]),
    "kimi_linear": ("chunk_kimi_delta_attention", "value", [0, 2]),
    "granitemoehybrid": ("mamba2_chunk_scan", "hidden_states", [0, 2]),
    "falcon_h1": ("mamba2_chunk_scan", "hidden_states", [0, 1, 2, 3]),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("hybrids")

    def folder(model_type):
        path = root / model_type
        if not path.exists():
            hybrids.save_hybrid(
                path,
                hybrids.with_long_states(
                    hybrids.make_hybrid(model_type, max_position_embeddings=512)
                ),
            )
        return str(path)

    return folder


class Layer:
    """One call of transformers' function: its arguments, and M as its output for the unit vectors as values."""

    def __init__(self, function, name, bound):
        values = bound[name]
        length, heads = values.shape[1:3]
        unit = torch.eye(length).repeat(len(values), heads, 1, 1).transpose(1, 2)
        output = function(**bound | {name: unit})
        output = output[0] if isinstance(output, tuple) else output
        self.matrix = output.transpose(1, 2).numpy()  # (B, H, T, T)
        self.norms = values.float().norm(dim=-1).transpose(1, 2).numpy()
        if "g" in bound:
            log_decay = bound["g"] if bound["g"].ndim == 3 else bound["g"].mean(-1)
            self.write = bound["beta"].transpose(1, 2).numpy()
        else:
            self.write = (
                torch.nn.functional.softplus(bound["dt"] + bound["dt_bias"]).transpose(1, 2).numpy()
            )
            log_decay = bound["A"] * torch.tensor(self.write).transpose(1, 2)
        self.skip = bound["D"].numpy() if "D" in bound else None
        self.bound = bound
        self.half_life = -np.log(2) / log_decay.transpose(1, 2).numpy()

        self.delta = "g" in bound

    def vectors(self, head):
        """Queries, keys, logarithms of decays and write strengths of one head of the first text."""
        write = torch.tensor(self.write[0, head])
        if not self.delta:
            q, k = (self.bound[name][0, :, 0] for name in ("C", "B"))
            return q, k, write[:, None] * self.bound["A"][head], write
        q, k = (self.bound[name][0] for name in ("query", "key"))
        group = head // (self.write.shape[1] // q.shape[1])
        q, k = (x[:, group] / x[:, group].norm(dim=-1, keepdim=True) for x in (q, k))
        return q / q.shape[-1] ** 0.5, k, self.bound["g"][0, :, head].reshape(len(q), -1), write

    def direct(self, head, query):
        """q·k times decay and write strength, of one row of the first text, in float64."""
        if "g" in self.bound:
            q, k = (self.bound[name][0].double().numpy() for name in ("query", "key"))
            groups = self.write.shape[1] // q.shape[1]
            q, k = (
                x[:, head // groups] / np.linalg.norm(x[:, head // groups], axis=-1, keepdims=True)
                for x in (q, k)
            )
            q = q / np.sqrt(q.shape[-1])
            log_decay = self.bound["g"][0].double().numpy()[:, head].reshape(len(q), -1)
        else:
            q, k = (self.bound[name][0, :, 0].double().numpy() for name in ("C", "B"))
            log_decay = (self.write[0, head] * float(self.bound["A"][head]))[:, None].astype(
                np.float64
            )
        passed = np.cumsum(log_decay, 0)
        row = [
            (q[query] * k[key] * np.exp(passed[query] - passed[key])).sum()
            for key in range(query + 1)
        ]
        return np.pad(np.array(row) * self.write[0, head, : query + 1], (0, len(q) - query - 1))


def reference(folder, model_type, tokens):
    """What transformers computes in each layer without softmax, in texts of these token ids."""
    name, values, layers = FUNCTIONS[model_type]
    model = hf.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    file = inspect.getmodule(type(model))
    original = getattr(file, name)
    calls = []

    def spy(*args, **kwargs):
        calls.append(inspect.signature(original).bind(*args, **kwargs).arguments)
        return original(*args, **kwargs)

    setattr(file, name, spy)
    try:
        ids = torch.zeros(len(tokens), max(map(len, tokens)), dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, text in enumerate(tokens):
            ids[row, : len(text)] = torch.tensor(text)
            mask[row, : len(text)] = 1
        with torch.inference_mode():
            model(input_ids=ids, attention_mask=mask, use_cache=False)
            by_layer = [
                Layer(original, values, {**call.pop("kwargs", {}), **call}) for call in calls
            ]
    finally:
        setattr(file, name, original)
    return dict(zip(layers, by_layer, strict=True))


def run(folder, texts=TEXT, **options):
    return from_json(attnscope.inspect(texts, model=folder, **options).to_json())


def ids_of(report):
    return [[token.id for token in text.tokens] for text in report.texts]


def close(actual, expected):
    np.testing.assert_allclose(
        actual, expected, rtol=2e-4, atol=2e-5 * float(np.nanmax(np.abs(expected)))
    )


@pytest.mark.parametrize("model_type", FUNCTIONS)
def test_every_number_equals_what_transformers_gives_for_unit_values(folders, model_type):
    """Of several texts, layers and heads: the shorter text is padded."""
    folder = folders(model_type)
    layers = FUNCTIONS[model_type][2][:2]
    measure = {"measure": "mixing"} if model_type == "falcon_h1" else {}
    report = run(folder, [TEXT, SHORT], layer=layers, head="all", top=3, **measure)
    expected = reference(folder, model_type, ids_of(report))
    for number, text in enumerate(report.texts):
        assert not text.heads
        mixing = text.mixing
        n = len(text.tokens)
        assert [tuple(unit) for unit in mixing.units] == [
            (layer, head) for layer in layers for head in range(4)
        ]
        for unit, (layer, head) in enumerate(mixing.units):
            matrix = expected[layer].matrix[number, head, :n, :n]
            close(mixing.matrix[unit], matrix)
            close(mixing.row_sum[unit], matrix.sum(1))
            close(mixing.size[unit], np.abs(matrix).sum(1))
            close(mixing.write[unit], expected[layer].write[number, head, :n])
            close(mixing.half_life[unit], expected[layer].half_life[number, head, :n])
            for row in range(n):
                keys = [key for key in mixing.keys[unit, row] if key >= 0]
                sizes = np.abs(mixing.matrix[unit, row, : row + 1])
                assert keys == np.argsort(-sizes, kind="stable")[:3].tolist()
                np.testing.assert_array_equal(
                    mixing.mixing[unit, row, : len(keys)], mixing.matrix[unit, row, keys]
                )
                assert np.isnan(mixing.mixing[unit, row, len(keys) :]).all()
                close(mixing.share[unit, row, : len(keys)], sizes[keys] / sizes.sum())
                close(
                    mixing.value[unit, row, : len(keys)],
                    sizes[keys] * expected[layer].norms[number, head, keys],
                )


def test_lightning_attention_is_its_formula(folders):
    """Of MiniMax: q·k decayed by the slope of the head; no function of transformers gives it for other values."""
    folder = folders("minimax")
    report = run(folder, layer=2, head="all")
    model = hf.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").model
    attention = model.layers[2].self_attn
    inputs = []
    attention.qkv_proj.register_forward_hook(lambda module, args, output: inputs.append(output))
    with torch.inference_mode():
        model(input_ids=torch.tensor(ids_of(report)))
    q, k, _ = np.split(
        attention.act_fn(inputs[0])[0].numpy().astype(np.float64).reshape(-1, 4, 24), 3, -1
    )
    distance = np.arange(len(q))[:, None] - np.arange(len(q))
    for head in range(4):
        slope = float(attention.slope_rate[head])
        matrix = np.tril(q[:, head] @ k[:, head].T * np.exp(-slope * np.maximum(distance, 0)))
        close(report.texts[0].mixing.matrix[head], matrix)
        close(report.texts[0].mixing.half_life[head], np.full(len(q), np.log(2) / slope))
        assert np.isnan(report.texts[0].mixing.write).all()


def test_rows_and_columns_are_parts_of_the_whole_matrix(folders):
    folder = folders("qwen3_next")
    whole = run(folder, layer=0, head=2).texts[0]
    part = run(folder, layer=0, head=2, query="river", key=[0, 3]).texts[0]
    (row,) = part.queries
    np.testing.assert_allclose(
        part.mixing.matrix[0, 0], whole.mixing.matrix[0, row, [0, 3]], rtol=1e-6
    )
    np.testing.assert_array_equal(part.mixing.keys[0, 0], whole.mixing.keys[0, row])
    np.testing.assert_allclose(part.mixing.size[0, 0], whole.mixing.size[0, row], rtol=1e-6)


@pytest.mark.parametrize("model_type", ["qwen3_next", "kimi_linear", "granitemoehybrid"])
def test_one_row_is_the_sum_of_what_is_read_and_what_the_delta_rule_takes_away(
    folders, model_type, capsys
):
    """Decayed products, from the arguments of transformers' function; D of the own token is what Mamba adds."""
    folder = folders(model_type)
    report = run(folder, layer=0, head=2, query="river", top=2)
    (text,) = report.texts
    (query,) = text.queries
    layer = reference(folder, model_type, ids_of(report))[0]
    direct = text.mixing.direct[0, 0]
    close(direct, layer.direct(2, query))
    if model_type != "kimi_linear":
        factors = [
            getattr(text.mixing, name)[0, 0].astype(np.float64)
            for name in ("products", "decay", "key_write")
        ]
        close(np.prod(factors, axis=0), direct)
    else:
        assert np.isnan(text.mixing.products).all()  # every channel has a decay of its own
        assert np.isnan(text.mixing.decay).all()
    np.testing.assert_allclose(text.mixing.key_write[0, 0], layer.write[0, 2], rtol=2e-4)
    rest = text.mixing.matrix[0, 0] - direct
    if model_type == "granitemoehybrid":
        np.testing.assert_allclose(
            rest, np.where(np.arange(len(rest)) == query, layer.skip[2], 0), atol=1e-5
        )
    else:
        assert np.abs(rest[:query]).max() > 1e-3 * np.abs(direct).max()
        assert abs(rest[query]) < 1e-6
    assert (
        main(["run", TEXT, "--model", folder, "--layer", "0", "--head", "2", "--query", "river"])
        == 0
    )
    out = capsys.readouterr().out
    name = {"granitemoehybrid": "q·k Γ Δ", "qwen3_next": "q·k Γ β", "kimi_linear": "q·k Γ β"}[
        model_type
    ]
    assert f"M = {name} + {'skip' if 'granite' in model_type else 'delta rule'}" in " ".join(
        out.split()
    )
    rows = out.splitlines()
    (header,) = [line for line in rows if line.split()[:1] == ["key"] and name in line]
    # columns between the token and the product
    factors_before = len(header.partition(name)[0].split()) - 1
    at = rows.index(header)
    for line in rows[at + 1 : at + 2 + query]:
        _, token, *numbers = line.split()
        first, second, total = (
            float(n.replace("−", "-")) for n in numbers[factors_before : factors_before + 3]
        )
        assert total == pytest.approx(first + second, abs=0.02), token


@pytest.mark.parametrize("model_type", ["qwen3_next", "falcon_h1"])
def test_heads_by_key_are_weights_or_shares_of_the_matrix(folders, model_type, capsys):
    """Over the rows of two texts, of which the shorter is padded; in Falcon-H1 what is beside its attention."""
    folder = folders(model_type)
    measure = {"measure": "mixing"} if model_type == "falcon_h1" else {}
    texts = [TEXT, SHORT]
    found = attnscope.heads(folder, texts, query="was", key=["river", "the"], **measure).data
    ids = [[token.id for token in text.tokens] for text in found.texts]
    expected = reference(folder, model_type, ids)
    assert found.shares == dict.fromkeys(expected, 4)
    for layer, of_layer in expected.items():
        rows = []
        for number, text in enumerate(found.texts):
            ((row,), keys) = text.queries, text.keys
            matrix = np.abs(of_layer.matrix[number, :, row])
            rows.append(matrix[:, keys].sum(1) / matrix.sum(1))
        np.testing.assert_allclose(found.values[layer], np.mean(rows, 0), rtol=1e-3)
    contrast = attnscope.heads(
        folder, texts, query="was", key="river", against="the", **measure
    ).data
    np.testing.assert_allclose(
        contrast.contrast.keys + contrast.contrast.against, found.values, rtol=1e-5
    )
    if model_type == "qwen3_next":
        attention = attnscope.inspect(
            texts, model=folder, layer=[1, 3], head="all", stages=["weights"]
        ).data.texts
        weights = [[head.stages["weights"][text.queries[0], text.keys].sum() for head in report.heads]
                   for text, report in zip(found.texts, attention, strict=True)]  # fmt: skip
        np.testing.assert_allclose(found.values[[1, 3]].ravel(), np.mean(weights, 0), rtol=1e-4)
        changed = attnscope.heads(folder, TEXT, query="was", key="river", mask="window:3").data
        assert not changed.shares
        assert np.isnan(changed.values[[0, 2]]).all()
    command = [
        "heads",
        TEXT,
        "--model",
        folder,
        "--key",
        "river",
        *(["--measure", "mixing"] if measure else []),
    ]
    assert main(command) == 0
    out = capsys.readouterr().out
    letter = "M" if measure else "G"
    assert f"numbers in layers {letter} are of shares of |M|" in " ".join(out.split())
    assert f"L0 {letter}" in out


def test_what_stands_beside_attention_is_no_mlp(folders, capsys):
    assert main(["run", TEXT, "--model", folders("falcon_h1"), "--by", "logit"]) == 0
    out = capsys.readouterr().out
    assert "L1 rest" in out and "MLP" not in out
    assert main(["run", TEXT, "--model", folders("qwen3_next"), "--by", "logit"]) == 0
    out = capsys.readouterr().out
    assert "L0 (whole layer)" in out and "L1 MLP" in out


@pytest.mark.parametrize("model_type", ["qwen3_next", "kimi_linear", "granitemoehybrid"])
def test_explain_shows_what_every_dimension_of_a_key_gives(folders, model_type, capsys):
    """A dimension of the key is written to an empty state, which later tokens decay and take away from."""
    folder = folders(model_type)
    report = attnscope.explain(
        TEXT, model=folder, layer=0, head=2, query="was", key=["the", "river"]
    ).data
    (text,) = report.texts
    mixing = text.mixing
    (query,) = text.queries
    layer = reference(folder, model_type, ids_of(report))[0]
    q, k, log_decay, write = (of.double().numpy() for of in layer.vectors(2))
    assert [read.key for read in mixing.read_keys] == text.keys
    for column, read in enumerate(mixing.read_keys):
        n = k.shape[1]
        states = {
            "products": np.diag(k[read.key]),
            "decayed": np.diag(k[read.key]),
            "left": np.diag(k[read.key]),
        }
        for t in range(read.key + 1, query + 1):
            for name in ("decayed", "left"):
                states[name] = states[name] * np.exp(np.broadcast_to(log_decay[t], n))[:, None]
            if layer.delta:
                states["left"] -= write[t] * np.outer(k[t], k[t] @ states["left"])
        for name, state in states.items():
            close(np.array(getattr(read, name)), q[query] @ state)
        own = layer.skip[2] * (read.key == query) if layer.skip is not None else 0
        total = np.sum(read.left) * write[read.key] + own
        assert total == pytest.approx(float(mixing.matrix[0, 0, column]), rel=1e-3, abs=1e-6)
    assert (
        main(["explain", TEXT, "--model", folder, "--layer", "0", "--head", "2", "--query", "was"])
        == 0
    )
    out = capsys.readouterr().out
    assert re.search(r"5 was × \d \w+ ", out)
    assert f"{n} dimensions, the largest product first" in " ".join(out.split())
    assert ("delta rule  " in out) == layer.delta


def test_explain_is_the_row_of_run(folders, capsys):
    folder = folders("qwen3_next")
    row = run(folder, layer=0, head=2, query="river").texts[0].mixing
    explained = (
        attnscope.explain(TEXT, model=folder, layer=0, head=2, query="river").data.texts[0].mixing
    )
    for name in (
        "matrix",
        "direct",
        "products",
        "decay",
        "key_write",
        "half_life",
        "write",
        "gate",
    ):
        np.testing.assert_array_equal(getattr(explained, name), getattr(row, name))
    assert (
        main(
            ["explain", TEXT, "--model", folder, "--layer", "0", "--head", "2", "--query", "river"]
        )
        == 0
    )
    out = capsys.readouterr().out
    assert re.search(r"key +q·k +Γ +β +q·k Γ β +delta rule +M +share", out)
    assert "parts of the row" in out


def test_by_value_ranks_by_the_norm_of_what_is_read_and_special_tokens_may_be_left_out(folders):
    folder = folders("qwen3_next")
    by_weight = run(folder, layer=0, head=1, top=9).texts[0].mixing
    by_value = run(folder, layer=0, head=1, top=9, by="value").texts[0].mixing
    for row, values in enumerate(by_value.value[0]):
        known = values[np.isfinite(values)]
        assert (np.diff(known) <= 0).all()
        assert sorted(by_value.keys[0, row]) == sorted(by_weight.keys[0, row])
    words = run(folder, layer=0, head=1, top=9, special=False).texts[0].mixing
    assert words.left_out
    assert 0 not in words.keys
    assert (words.keys[0, 0] == -1).all()


def test_auto_takes_the_head_that_reads_most_from_other_tokens(folders):
    folder = folders("qwen3_next")
    every = run(folder, layer=0, head="all").texts[0]
    words = [row for row, token in enumerate(every.tokens) if not token.special]
    own = np.abs(np.diagonal(every.mixing.matrix, axis1=1, axis2=2))
    shares = (1 - own / every.mixing.size)[:, words].mean(1)
    chosen = run(folder, layer=0).texts[0].mixing
    assert [tuple(unit) for unit in chosen.units] == [(0, int(shares.argmax()))]
    assert chosen.chosen == [
        f"chosen automatically: largest share of |M| on other tokens ({shares.max():.2f})"
    ]
    on_bank = np.abs(every.mixing.matrix[:, :, 1]) / every.mixing.size
    of_key = run(folder, layer=0, key="bank").texts[0].mixing
    assert of_key.units[0][1] == int(on_bank[:, words].mean(1).argmax())


def test_a_long_text_is_a_map_of_shares_and_a_window_of_columns(folders, capsys):
    folder = folders("qwen3_next")
    rng = np.random.default_rng()
    long = " ".join(rng.choice(["the", "bank", "river", "was", "old", "by"], size=150))
    report = run(folder, long, layer=0, head=1, query=slice(0, 200))
    whole = np.abs(report.texts[0].mixing.matrix[0].astype(np.float64))
    shares = whole / whole.sum(1, keepdims=True)
    pooled = run(folder, long, layer=0, head=1, pool=7).texts[0].mixing.pooled
    starts = pooled.queries
    expected = [
        [shares[a:b, c:d].sum(1).mean() for c, d in pairwise(starts)] for a, b in pairwise(starts)
    ]
    np.testing.assert_allclose(pooled.weights[0], expected, atol=1e-5)
    np.testing.assert_allclose(pooled.weights[0].sum(1), 1, atol=1e-5)
    assert main(["run", long, "--model", folder, "--layer", "0", "--head", "1"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "share of |M|" in out
    assert "a cell is the share of |M| on a run of keys" in out
    assert "which includes every share of |M|, replaces the matrices" in out
    assert (
        main(
            [
                "run",
                long,
                "--model",
                folder,
                "--layer",
                "0",
                "--head",
                "1",
                "--query",
                "149",
                "--json",
            ]
        )
        == 0
    )
    narrowed = json.loads(capsys.readouterr().out)["texts"][0]
    assert narrowed["queries"] == [149]
    assert (
        main(["run", long, "--model", folder, "--layer", "0", "--head", "1", "--query", "149"]) == 0
    )
    out = " ".join(capsys.readouterr().out.split())
    assert "the 10 columns with most weight are shown" in out


def test_files_hold_the_same_numbers(folders, tmp_path):
    folder = folders("granitemoehybrid")
    result = attnscope.inspect(TEXT, model=folder, layer=0, head="all")
    matrix = result.data.texts[0].mixing.matrix
    for name in ("a.json", "a.npz", "a.safetensors"):
        result.save(tmp_path / name)
        again = attnscope.load(tmp_path / name).data.texts[0].mixing
        np.testing.assert_array_equal(again.matrix, matrix)
        np.testing.assert_array_equal(again.keys, result.data.texts[0].mixing.keys)
    assert load_file(tmp_path / "a.safetensors")["mixing.matrix"].shape == (1, *matrix.shape)
    result.save(tmp_path / "a.csv")
    rows = list(csv.DictReader((tmp_path / "a.csv").read_text().splitlines()))
    assert {row["stage"] for row in rows} == {"mixing"}
    cells = np.array([float(row["value"]) for row in rows], dtype=np.float32).reshape(matrix.shape)
    np.testing.assert_array_equal(cells, matrix)
    for name in ("a.html", "a.svg", "a.txt"):
        result.save(tmp_path / name)
        assert (tmp_path / name).stat().st_size > 1000
    with pytest.raises(AttnscopeError, match="holds mixing, not the weights of heads"):
        attnscope.compare(tmp_path / "a.json", tmp_path / "a.json")


def test_what_does_not_apply_is_refused_in_one_sentence(folders):
    folder = folders("qwen3_next")
    refused = {
        "no softmax that a mask could change": {"mask": "window:2"},
        "no softmax whose scores have a factor": {"scale": 2.0},
        "no softmax from which a token could be hidden": {"hide": "bank"},
        "no softmax, and so no stages": {"stages": ["scores"]},
        "no weights between spans": {"spans": "sentences"},
        "cuts are not made": {"cut": "L1H1"},
        "a norm and a gate stand before": {"by": "projected"},
        "does not take a logit apart": {"by": "logit"},
        "shows no predictions": {"predict": True},
        "continues no text": {"generate": 2},
        "a mean of signed matrices": {"head": "mean"},
        "no weights to merge": {"words": True},
        "no weights to receive": {"least": 2},
    }
    for message, options in refused.items():
        with pytest.raises(UsageError, match=message):
            attnscope.inspect(TEXT, model=folder, layer=0, **options)
    with pytest.raises(UsageError, match="heads 0 to 3"):
        attnscope.inspect(TEXT, model=folder, layer=0, head=4)
    with pytest.raises(UsageError, match="takes layers by their numbers, auto or all"):
        attnscope.inspect(TEXT, model=folder, measure="mixing", layer="mean")
    with pytest.raises(UsageError, match="layer 1 has no matrix without softmax"):
        attnscope.inspect(TEXT, model=folder, measure="mixing", layer=1)
    with pytest.raises(UsageError, match="no layer of this model has"):
        attnscope.inspect(TEXT, measure="mixing", layer=1)
    with pytest.raises(UsageError, match="has no attention over tokens") as error:
        attnscope.ablate(TEXT, model=folder, layer=0, each="head")
    assert "attnscope run shows a layer without softmax alone" in str(error.value)
    with pytest.raises(UsageError, match="no softmax that a mask could change"):
        attnscope.explain(TEXT, model=folder, layer=0, query="bank", mask="window:2")
    with pytest.raises(UsageError, match="explain needs one token"):
        attnscope.explain(TEXT, model=folder, layer=0)
    with pytest.raises(UsageError, match="has no attention over tokens"):
        attnscope.compare(TEXT, model=folder, layer=0, mask=["own", "window:2"])


def test_auto_stays_with_softmax_attention(folders):
    report = run(folders("qwen3_next"))
    assert report.texts[0].mixing is None
    assert report.texts[0].heads.units[0][0] in (1, 3)
    every = run(folders("qwen3_next"), layer="all", measure="mixing", head=0)
    assert [tuple(unit) for unit in every.texts[0].mixing.units] == [(0, 0), (2, 0)]


def test_a_layer_that_does_not_run_leaves_later_layers_alone(folders):
    """The pass ends with the last layer that is shown."""
    folder = folders("qwen3_next")
    model = hf.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    tokenizer = hf.PreTrainedTokenizerFast(tokenizer_file=f"{folder}/tokenizer.json")
    ran = []
    for index, layer in enumerate(model.model.layers):
        layer.register_forward_pre_hook(lambda module, args, index=index: ran.append(index))
    attnscope.inspect(TEXT, model=model, tokenizer=tokenizer, layer=0, head=0)
    assert ran[-1] == 0
    assert max(ran) == 3  # while the layers are found
