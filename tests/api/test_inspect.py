"""Whatever is asked from Python is what the command line gives for the same: one RunConfig, one Report."""

import importlib
import json
import os
import random
from pathlib import Path

import numpy as np
import pytest

import attnscope
import attnscope.model
from attnscope.cli import main
from tests.helpers.draws import drawn
from tests.helpers.heads import heads_of

TEXT = "The bank by the river was eroded"
STAGES = ("scores", "scaled", "masked", "weights", "output")


def typed(capfdbinary, command, *args):
    """What a command prints as JSON, as bytes."""
    assert main([command, *args, "--format", "json", "--quiet"]) == 0, capfdbinary.readouterr().err
    return capfdbinary.readouterr().out.rstrip(b"\n")


# Every argument with values in both languages: Python, and the options that mean the same.
VALUES = {
    "layer": [(0, "0"), ([0, 2], "0,2"), (slice(1, 3), "1,2"), (range(1, 4), "1-3"), ("all", "all"), (-1, "-1"),
              ("mean", "mean"), ("auto", "auto"), (np.int64(3), "3"), (slice(None, None, 2), "0,2"), ((3, 0), "3,0")],
    "head": [(0, "0"), ([3, 1], "3,1"), (slice(-2, None), "2,3"), ("all", "all"), ("mean", "mean"), ("auto", "auto"),
             (np.arange(2), "0,1"), ("L2H1", "L2H1"), (["L0H3", "L2H1"], "L0H3,L2H1")],
    "query": [(None, None), (1, "1"), (-1, "-1"), ("bank", '"bank"'), ([0, "river"], '0,"river"'), (slice(1, 3), "1:3"),
              ([slice(2), "eroded", 4], ':2,"eroded",4'), ("The bank", "The bank"), (range(0, 6, 2), "0,2,4")],
    "key": [(None, None), ("the", "the"), ([slice(-3, None)], "-3:"), (np.int32(2), "2"), (slice(None), ":")],
    "mask": [("own", "own"), ("causal", "causal"), ("causal+window:2", "causal+window:2"), ("block:3", "block:3")],
    "hide": [(None, None), (None, "none"), (0, "0"), (["bank", -1], '"bank",-1')],
    "what_if": [("stack", "stack"), ("same-scores", "same-scores")],
    "scale": [("none", "none"), (0.25, "0.25")],
    "stages": [(STAGES, ",".join(STAGES)), ("weights", "weights"), ([], "none"),
               (["output", "scores"], "scores,output")],
    "top": [(0, "0"), (2, "2"), (7, "7")],
    "by": [("weight", "weight"), ("value", "value"), ("projected", "projected")],
    "special": [(True, None), (False, "")],
    "pool": [(None, None), (3, "3")],
    "predict": [(None, None), (False, "")],
    "generate": [(0, None), (0, "0")],
    "show_padding": [(False, None), (True, "")],
    "words": [(False, None), (True, "")],
    "least": [(0, None), (3, "3")],
    "dtype": [("float32", "float32"), ("bfloat16", "bfloat16")],
    "max_memory": [(None, None), (2 << 30, "2G")],
    "threads": [(None, None), (1, "1"), (2, "2")],
    "config": [(None, None), (None, None), ("causal", "causal"), ("multi-head", "multi-head")],
    "device": [("cpu", "cpu"), ("auto", "auto")],
    "hash_weights": [(False, None), (True, "")],
}  # fmt: skip
OPTIONS = {"stages": "--stage", "special": "--no-special", "predict": "--no-predict"}


def options(arguments):
    """The command line's options for what is drawn of VALUES."""
    found = []
    for name, (_, words) in arguments.items():
        if words is not None:
            found += [OPTIONS.get(name, f"--{name.replace('_', '-')}"), *([words] if words else [])]
    return found


@pytest.mark.parametrize("seed", range(drawn(15)))
def test_every_call_gives_what_the_same_command_gives(seed, capfdbinary):
    rng = random.Random(seed)
    drawn = {
        name: rng.choice(VALUES[name]) for name in rng.sample(sorted(VALUES), rng.randint(1, 8))
    }
    # of one layer and several heads, or without weights to hash
    if drawn.get("config", (None, None))[0] is not None:
        drawn = {
            name: value
            for name, value in drawn.items()
            if name not in ("layer", "head", "hash_weights")
        }
    if drawn.get("mask", ("own",))[0] == "own" and drawn.get("hide", (None,))[0] is None:
        drawn.pop("what_if", None)  # which the command line refuses under the model's own mask
    expected = typed(capfdbinary, "run", TEXT, *options(drawn))
    assert (
        attnscope.inspect(TEXT, **{name: value for name, (value, _) in drawn.items()}).to_json()
        == expected
    )


def test_every_argument_is_drawn():
    """Or a new one would have no test; those that are left have tests of their own."""
    from attnscope.request.run_config import InspectArguments

    others = (
        "model adapter tokenizer engine part pair context truncate measure progress ignore_key trust_config target cut "
        "image audio spans messages qkv score_mod input_ids attention_mask position_ids token_type_ids"
    )
    assert set(InspectArguments.__annotations__) == {*VALUES, *others.split()}


def test_arrays_are_the_numbers_of_the_json(capfdbinary):
    named = {"layer": "all", "head": [0, 3], "stages": STAGES, "mask": "causal"}
    report = attnscope.inspect(TEXT, **named)
    expected = json.loads(
        typed(
            capfdbinary,
            "run",
            TEXT,
            "--layer",
            "all",
            "--head",
            "0,3",
            "--stage",
            ",".join(STAGES),
            "--mask",
            "causal",
        )
    )
    heads = heads_of(expected["texts"][0])
    assert report.layers == [0, 1, 2, 3]
    assert report.heads == [[0, 3]] * 4
    assert [[h["layer"], h["head"]] for h in heads] == [
        [layer, head] for layer in range(4) for head in (0, 3)
    ]
    assert (
        report.query_tokens
        == report.key_tokens
        == [token["text"] for token in expected["texts"][0]["tokens"]]
    )
    assert report.queries == report.keys == list(range(8))
    for stage in STAGES:
        matrices = [h["stages"][stage] for h in heads]
        theirs = np.array(
            [[[np.nan if x is None else x for x in row] for row in m] for m in matrices], np.float32
        )
        ours = getattr(report, stage)
        assert ours.dtype == np.float32
        assert ours.shape == (4, 2, 8, 48 if stage == "output" else 8)
        if stage == "masked":
            assert np.isneginf(ours[:, :, 0, 1:]).all()
        np.testing.assert_array_equal(
            np.where(np.isneginf(ours), np.nan, ours), theirs.reshape(ours.shape)
        )
        for n, (layer, head) in enumerate((layer, head) for layer in range(4) for head in (0, 3)):
            np.testing.assert_array_equal(getattr(report[layer, head], stage), ours[n // 2, n % 2])
    np.testing.assert_array_equal(report[-1, -1].weights, report[3, 3].weights)
    assert [(one.layer, one.head) for one in report] == [(h["layer"], h["head"]) for h in heads]


def test_rows_and_columns_are_labelled_where_some_are_chosen():
    report = attnscope.inspect(TEXT, layer=1, head=2, query=["river", 0], key=slice(1, 4))
    whole = attnscope.inspect(TEXT, layer=1, head=2)
    assert (report.query_tokens, report.key_tokens) == (["The", "river"], ["bank", "by", "the"])
    assert (report[1, 2].query_tokens, report[1, 2].key_tokens) == (
        ["The", "river"],
        ["bank", "by", "the"],
    )
    np.testing.assert_allclose(report.weights[0, 0], whole.weights[0, 0][[0, 4]][:, 1:4], rtol=1e-5)


def test_contributors_are_the_heaviest_keys_of_the_row():
    head = attnscope.inspect(TEXT, layer=2, head=1, top=8, by="projected")[2, 1]
    for query in (3, "river", -1):
        row = {3: 3, "river": 4, -1: 7}[query]
        found = head.top(query)
        assert [one.token for one in found] == [head.key_tokens[one.position] for one in found]
        np.testing.assert_array_equal(
            [one.weight for one in found], head.weights[row][[one.position for one in found]]
        )
        measured = [one.projected for one in found]
        assert measured == sorted(measured, reverse=True)
        assert head.top(query, k=2) == found[:2]
        assert head.top(query, k=0) == []
    by_weight = attnscope.inspect(TEXT, layer=2, head=1, top=8)[2, 1]
    assert [one.position for one in by_weight.top("bank")] == np.argsort(
        -by_weight.weights[1], kind="stable"
    ).tolist()
    assert by_weight.top("bank")[0].projected is None


def test_a_query_with_fewer_sources_has_fewer_contributors():
    head = attnscope.inspect(TEXT, layer=0, head=0, mask="causal", top=5)[0, 0]
    assert [len(head.top(query)) for query in range(8)] == [1, 2, 3, 4, 5, 5, 5, 5]


def test_several_texts_are_those_of_a_file(tmp_path, capfdbinary):
    texts = ["The bank by the river", "river", "the old bank and the bank by the river"]
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n")
    report = attnscope.inspect(texts, layer="all", head=1)
    assert report.to_json() == typed(
        capfdbinary, "run", "--file", str(tmp_path / "texts.txt"), "--layer", "all", "--head", "1"
    )
    assert [text.weights.shape for text in report.texts] == [
        (4, 1, 5, 5),
        (4, 1, 1, 1),
        (4, 1, 9, 9),
    ]
    assert report.texts[2].query_tokens == texts[2].split()
    np.testing.assert_array_equal(report.texts[2][3, 1].weights, report.texts[2].weights[3, 0])
    for name in (
        "weights",
        "output",
        "tokens",
        "layers",
        "heads",
        "queries",
        "keys",
        "query_tokens",
        "key_tokens",
    ):
        with pytest.raises(
            attnscope.AttnscopeError,
            match=r"the report holds 3 texts; choose one, such as report\.",
        ):
            getattr(report, name)
    with pytest.raises(attnscope.AttnscopeError, match="3 texts"):
        report[0, 1]
    assert "text 0" in repr(report) and "text 2" in repr(report)


def test_pairs_and_contexts(minilm: Path, capfdbinary):
    whole = {"model": minilm, "layer": 0, "head": [1, 2]}
    words = ("--model", str(minilm), "--layer", "0", "--head", "1,2")
    expected = typed(capfdbinary, "run", "Is it open?", "--pair", "It opens at nine.", *words)
    assert attnscope.inspect("Is it open?", pair="It opens at nine.", **whole).to_json() == expected
    both = attnscope.inspect(["Is it open?", "A bank"], pair=["It opens at nine.", None], **whole)
    assert (
        both.texts[0].query_tokens
        == attnscope.inspect("Is it open?", pair="It opens at nine.", **whole).query_tokens
    )
    np.testing.assert_allclose(
        both.texts[1].weights, attnscope.inspect("A bank", **whole).weights, atol=1e-6
    )
    crossed = attnscope.inspect("Life is", context="s0 s1 s2", config="life-is-short-cross")
    words = ("--context", "s0 s1 s2", "--config", "life-is-short-cross")
    assert crossed.to_json() == typed(capfdbinary, "run", "Life is", *words)
    assert (crossed.query_tokens, crossed.key_tokens) == (["Life", "is"], ["s0", "s1", "s2"])
    several = attnscope.inspect(["Life is", "short"], context="s0 s1", config="life-is-short-cross")
    assert several.texts[1].key_tokens == ["s0", "s1"]
    several = attnscope.inspect(
        ["Life is", "short"], context=["s0", "s3 s4"], config="life-is-short-cross"
    )
    assert [text.key_tokens for text in several.texts] == [["s0"], ["s3", "s4"]]


def test_the_other_engine_and_a_text_that_is_cut(capfdbinary):
    words = (
        "--engine",
        "transformers",
        "--truncate",
        "--head",
        "2",
        "--layer",
        "1",
        "--key",
        "0:3",
    )
    text = "river bank " * 70
    report = attnscope.inspect(
        text, engine="transformers", truncate=True, head=2, layer=1, key=slice(3)
    )
    assert len(report.tokens) == 128
    assert report.to_json() == typed(capfdbinary, "run", text, *words)


def test_the_environment_of_the_process_is_as_it_was(monkeypatch):
    """Programs that the caller starts later inherit none of our settings for torch; meanwhile they hold."""
    for name in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
        monkeypatch.delenv(name, raising=False)
    before, meanwhile = dict(os.environ), dict[str, str]()
    importlib.reload(attnscope.model)
    attnscope.inspect("A bank", progress=lambda *_: meanwhile.update(os.environ))
    assert dict(os.environ) == before
    assert meanwhile.items() - before.items() == {
        ("LRU_CACHE_CAPACITY", "1"),
        ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "32"),
    }


def test_progress_is_told():
    told: list[tuple[str, int, int]] = []
    attnscope.inspect(TEXT, progress=lambda *one: told.append(one))
    steps = {what.partition(" ·")[0] for what, _, _ in told}
    assert {"loading", "choosing a head", "attending"} <= steps
    assert all(0 <= done <= count for _, done, count in told)


def test_explain_compare_and_check_are_those_of_the_command_line(capfdbinary, tmp_path):
    explained = attnscope.explain(
        TEXT, query="bank", key=["river", 0], layer=1, head=2, mask="causal"
    )
    words = (
        "--query",
        "bank",
        "--key",
        "river,0",
        "--layer",
        "1",
        "--head",
        "2",
        "--mask",
        "causal",
    )
    assert explained.to_json() == typed(capfdbinary, "explain", TEXT, *words)
    assert attnscope.explain(TEXT, query=3, top=2).to_json() == typed(
        capfdbinary, "explain", TEXT, "--query", "3", "--top", "2"
    )
    compared = attnscope.compare(TEXT, layer="all", head=1, key=slice(2, 4), top=1)
    words = ("--layer", "all", "--head", "1", "--key", "2:4", "--top", "1")
    assert compared.to_json() == typed(capfdbinary, "compare", TEXT, *words)
    assert attnscope.check().to_json() == typed(capfdbinary, "check")
    assert attnscope.check("a b", config="causal").to_json() == typed(
        capfdbinary, "check", "a b", "--config", "causal"
    )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"mask": ["own", "causal+window:2"], "what_if": "same-scores"},
         ["--mask", "own", "--mask", "causal+window:2", "--what-if", "same-scores"]),
        ({"layer": [0, 1], "head": "all"}, ["--layer", "0", "--layer", "1", "--head", "all"]),
        ({"layer": (0, 1), "head": [0, 2]}, ["--layer", "0,1", "--head", "0", "--head", "2"]),
        ({"dtype": ["float32", "bfloat16"], "tolerance": 10},
         ["--dtype", "float32", "--dtype", "bfloat16", "--tolerance", "10"]),
        ({"config": ["causal", "multi-head"]}, ["--config", "causal", "--config", "multi-head"]),
        ({"pool": 2, "relative": 1e9, "tolerance": 1}, ["--pool", "2", "--relative", "1e9", "--tolerance", "1"]),
    ],
)  # fmt: skip
def test_whatever_differs_between_sides(given, words, capfdbinary):
    assert attnscope.compare(TEXT, **given).to_json() == typed(capfdbinary, "compare", TEXT, *words)


def test_texts_models_and_reports_are_compared(capfdbinary, tmp_path, minilm):
    texts = ["She sat by the river bank", "She sat by the savings bank"]
    expected = typed(capfdbinary, "compare", *texts, "--query", "bank")
    assert attnscope.compare(*texts, query="bank").to_json() == expected
    assert attnscope.compare(texts, query="bank").to_json() == expected
    with attnscope.open_model() as model:
        assert model.compare(*texts, query="bank").to_json() == expected
    models = attnscope.compare(TEXT, model=["riverbank", minilm], head=0, layer=0)
    words = ("--model", "riverbank", "--model", str(minilm), "--head", "0", "--layer", "0")
    assert models.to_json() == typed(capfdbinary, "compare", TEXT, *words)
    # None is the bundled sample
    named = attnscope.compare(TEXT, model=[None, Path(minilm)], head=0, layer=0)
    assert named.to_json() == models.to_json()
    reports = [
        attnscope.inspect(TEXT, layer=0, head="all", mask=mask) for mask in ("own", "causal")
    ]
    for name, report in zip("ab", reports, strict=True):
        report.save(tmp_path / f"{name}.json")
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    words = [*map(str, paths), "--head", "1", "--stage", "weights"]
    assert attnscope.compare(*paths, head=1, stages="weights").to_json() == typed(
        capfdbinary, "compare", *words
    )
    live = attnscope.compare(*reports, head=1, stages="weights")
    assert live.labels == ["report 0", "report 1"]
    assert attnscope.compare(reports, head=1, stages="weights").to_json() == live.to_json()
    assert [live.sides[n].to_json() for n in range(2)] == [
        attnscope.compare(*paths, head=1, stages="weights").sides[n].to_json() for n in range(2)
    ]
    np.testing.assert_array_equal(
        live.changes[0].heads[0].difference, reports[1][0, 1].weights - reports[0][0, 1].weights
    )


def test_a_number_is_a_position_and_a_str_is_a_word():
    text = 'a 7 b 2 , "c"'
    report = attnscope.inspect(text, config="causal", query=["7", 3, "2"], key=[",", slice(0, 1)])
    assert report.query_tokens == ["7", "2"]
    assert report.key_tokens == ["a", ","]
    assert attnscope.inspect(text, config="causal", query=2).query_tokens == ["b"]
    with pytest.raises(attnscope.AttnscopeError, match="query: '12' is not in the text"):
        attnscope.inspect("a 12 b", config="causal", query=12)
    with pytest.raises(attnscope.AttnscopeError, match="query: '0' is not in the text"):
        attnscope.inspect(text, config="causal", query="0")
