"""Weights between words in heads, ablate and batch: sums over the key's tokens, means over the query's."""

import json

import numpy as np
import pytest

import attnscope
from attnscope.cli import main
from attnscope.findings.tokens import group_words

TEXT = "The unbelievable bank by the river"
PIECE = "##iev"  # of unbelievable


@pytest.fixture(scope="module")
def exact():
    """The tokens of every word, and the weights between tokens of every head, in float64."""
    text = attnscope.inspect(TEXT, layer="all", head="all").data.texts[0]
    weights = np.array([head.stages["weights"] for head in text.heads], dtype=np.float64).reshape(
        4, 4, 9, 9
    )
    return group_words(text.tokens, range(9)), weights


def between(weights, query, key):
    return weights[..., query, :][..., key].sum(-1).mean(-1)


def test_a_row_of_run_is_the_whole_word(exact):
    words, weights = exact
    text = attnscope.inspect(TEXT, layer=1, head=2, query=PIECE, words=True).data.texts[0]
    assert text.queries == words[1] and text.words.query_names == ["unbelievable"]
    expected = [between(weights[1, 2], words[1], key) for key in words]
    np.testing.assert_allclose(text.heads[0].words.weights[0], expected, atol=1e-6)


@pytest.mark.parametrize(("query", "key"), [("bank", PIECE), (PIECE, "river"), (PIECE, PIECE)])
def test_heads_takes_whole_words(query, key, exact):
    words, weights = exact
    named = {"bank": words[2], "river": words[5], PIECE: words[1]}
    found = attnscope.heads(text=TEXT, query=query, key=key, words=True)
    np.testing.assert_allclose(found.values, between(weights, named[query], named[key]), atol=1e-6)
    pieces = attnscope.heads(text=TEXT, query=query, key=key)
    assert np.abs(pieces.values - found.values).max() > 1e-3


def test_heads_refuses_words_that_name_nothing(capsys):
    assert main(["heads", TEXT, "--words"]) == 2
    assert "--words: applies only to --key or --query; add --key" in capsys.readouterr().err


def test_edges_are_between_words_and_their_effect_is_that_of_the_phrase(exact, tmp_path, capsys):
    words, weights = exact
    found = attnscope.ablate(TEXT, each="edge", layer=0, head=1, words=True, at="bank")
    assert len(found.weights) == len(words) ** 2
    expected = [between(weights[0, 1], query, key) for query in words for key in words]
    np.testing.assert_allclose(found.weights, expected, atol=1e-6)
    for query, key, n in (("unbelievable", "bank", 8), ("bank", "unbelievable", 13)):
        alone = attnscope.ablate(TEXT, cut=f"L0H1: {query}←{key}", at="bank")
        assert found.effect[n] == pytest.approx(
            alone.data.effects[0].predictions[0].kl, rel=1e-3, abs=1e-7
        )
        piece = attnscope.ablate(
            TEXT, cut=f"L0H1: {query}←{key}".replace("unbelievable", PIECE), at="bank", words=True
        )
        assert piece.data.effects[0].predictions[0].kl == alone.data.effects[0].predictions[0].kl
    path = tmp_path / "edges.csv"
    each = [
        "ablate",
        TEXT,
        "--each",
        "edge",
        "--layer",
        "0",
        "--head",
        "1",
        "--words",
        "--at",
        "bank",
    ]
    assert main([*each, "-o", str(path), "--quiet"]) == 0
    assert "unbelievable" in path.read_text()
    assert main([*each, "--top", "36"]) == 0
    assert "1 unbelievable ← 5 bank" in " ".join(capsys.readouterr().out.split())
    assert main(["ablate", TEXT, "--each", "head", "--words"]) == 2
    assert "--words: applies only to edges" in capsys.readouterr().err


def test_a_dump_keeps_the_weights_between_words(exact, tmp_path, capsys):
    words, weights = exact
    source, dump = tmp_path / "texts.txt", tmp_path / "dump.jsonl"
    source.write_text(f"{TEXT}\n")
    assert main(["batch", str(source), "--words", "-o", str(dump), "--quiet"]) == 0
    record = json.loads(dump.read_text().splitlines()[1])
    assert record["divided"]["names"] == ["The", "unbelievable", "bank", "by", "the", "river"]
    found = np.array(record["spans"]["weights"]).reshape(4, 4, 6, 6)
    for q, k in np.ndindex(6, 6):
        np.testing.assert_allclose(
            found[:, :, q, k], between(weights, words[q], words[k]), atol=1e-6
        )
    assert main(["batch", str(source), "--words", "--spans", "lines", "-o", str(dump)]) == 2
    assert "--words and --spans lines cannot be used together" in capsys.readouterr().err
