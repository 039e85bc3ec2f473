"""Texts of different lengths in one call: each has the numbers that it has alone, recomputed from its own weights."""

import json
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from attnscope.cli import main
from attnscope.findings.codec import from_json
from attnscope.findings.run import Report, TextReport
from attnscope.request.run_config import TextInput
from attnscope.request.selection import PRINTED
from attnscope.run.session import inspect
from tests.helpers.requests import requested
from tests.helpers.row_statistics import group_means, row_statistics, runs

LONG = " ".join(f"word{i % 11}" for i in range(70))
PAIRS = {
    "two lengths under --pool": ("the bank by the river", "a bank", "--pool", "3"),
    "one text over 64 tokens": (LONG, "a bank by the river"),
    "both over 64 tokens": (LONG, LONG + " and six more words than that"),
    "fewer tokens than runs": ("the bank by the river was old", "a", "--pool", "4"),
    "a mean of heads": (
        "the bank by the river",
        "a bank",
        "--pool",
        "2",
        "--layer",
        "mean",
        "--head",
        "mean",
    ),
}


def output(tmp_path: Path, texts: list[str], *options: str) -> Report:
    file = tmp_path / f"{len(texts)}-{len(texts[0])}.txt"
    file.write_text("\n".join(texts) + "\n")
    target = tmp_path / f"{file.stem}.json"
    assert (
        main(["run", "--file", str(file), *options, "--output", str(target), "--quiet", "--force"])
        == 0
    )
    return from_json(target.read_bytes())


def weights(tmp_path: Path, text: str, *options: str) -> np.ndarray:
    """The whole matrices of one text alone, (units, queries, keys)."""
    report = output(tmp_path, [text], *options, "--query", ":", "--key", ":")
    return np.array([head.stages["weights"] for head in report.texts[0].heads], dtype=np.float64)


def check(found: TextReport, exact: np.ndarray) -> None:
    """Map, mass and averages of a text against its own matrices."""
    n = len(found.tokens)
    words = [i for i, token in enumerate(found.tokens) if not token.special] or list(range(n))
    for head, matrix in zip(found.heads, exact, strict=True):
        assert head.pooled is not None and head.columns is not None and head.means is not None
        groups = runs(n, len(head.pooled.weights))
        starts = [*np.flatnonzero(np.diff(groups, prepend=-1)), n]
        assert head.pooled.queries == head.pooled.keys == starts
        expected = group_means(matrix, groups, groups)
        np.testing.assert_allclose(head.pooled.weights, expected, atol=2e-6)
        np.testing.assert_allclose(head.columns, matrix.sum(0), atol=2e-5)
        none = np.zeros(n, bool)
        of_rows = row_statistics(matrix[words], none, none, queries=words)
        assert head.means.self == pytest.approx(of_rows["self"].mean(), abs=2e-6)
        assert head.means.distance == pytest.approx(of_rows["distance"].mean(), abs=2e-4)


@pytest.mark.parametrize(
    "stack", [["--config", "causal"], ["--model", "riverbank"]], ids=["causal", "riverbank"]
)
@pytest.mark.parametrize("case", [name for name in PAIRS if "64" not in name])
def test_maps_of_texts_of_different_lengths(tmp_path: Path, case: str, stack: list[str]) -> None:
    one, other, *options = PAIRS[case]
    options = [*stack, "--layer", "0", "--head", "all", *options]
    together = output(tmp_path, [one, other], *options)
    alone = [
        options[i] for i in range(len(options)) if "--pool" not in options[max(0, i - 1) : i + 1]
    ]
    for text in together.texts:
        if stack[0] == "--model":  # the words of a stack in TOML depend on both texts
            check(text, weights(tmp_path, text.text, *alone))
    swapped = output(tmp_path, [other, one], *options)
    for text in together.texts:
        twin = swapped.texts[1 - text.index]
        for head, same in zip(text.heads, twin.heads, strict=True):
            assert head.pooled is not None and same.pooled is not None
            assert head.pooled.queries == same.pooled.queries
            np.testing.assert_allclose(head.pooled.weights, same.pooled.weights, atol=1e-6)
            assert head.means is not None and same.means is not None
            # A map keeps no complete rows of a mean over layers, whose entropy is therefore not known.
            assert (head.means.entropy is None) == ("mean" in options)
            assert head.means.entropy == pytest.approx(same.means.entropy, abs=1e-5)
            assert head.means.first == pytest.approx(same.means.first, abs=1e-5)


@pytest.mark.parametrize("case", [name for name in PAIRS if "64" in name])
def test_a_screen_of_texts_of_which_some_are_too_long_to_print(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    """A long text has a map in place of matrices, a short one next to it the matrices that it always has."""
    lines = PAIRS[case]
    asked = requested(
        tuple(map(TextInput, lines)), config="grouped-query", layer="0", head="all", window=PRINTED
    )
    exact = inspect(replace(asked, window=None)).texts
    for text, whole in zip(inspect(asked).texts, exact, strict=True):
        matrices = np.array([head.stages["weights"] for head in whole.heads], dtype=np.float64)
        if len(text.tokens) > PRINTED:
            check(text, matrices)
        else:
            shown = np.array([head.stages["weights"] for head in text.heads])
            np.testing.assert_allclose(shown, matrices, atol=1e-6)
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(lines) + "\n")
    for command in ("run", "compare"):
        assert main([command, "--file", str(file), "--config", "grouped-query"]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        assert all(f"· {len(text.split())} tokens" in out for text in lines)


def test_comparison_of_a_file_of_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each text's rows are compared as they are alone."""
    file = tmp_path / "texts.txt"
    texts = ["the bank by the river", "a bank"]
    compare = ["compare", "--layer", "0", "--head", "1", "--format", "json", "--quiet"]
    found = []
    for lines in (texts, texts[:1], texts[1:]):
        file.write_text("\n".join(lines) + "\n")
        assert main([*compare, "--file", str(file)]) == 0, capsys.readouterr().err
        found.append(json.loads(capsys.readouterr().out)["changes"][0]["heads"])
    assert [head["text"] for head in found[0]] == [0, 1]
    for together, (alone,) in zip(found[0], found[1:], strict=True):
        for name in ("difference", "total_variation", "entropy", "future"):
            np.testing.assert_allclose(np.array(together[name]), np.array(alone[name]), atol=1e-5)


@pytest.mark.filterwarnings("default:.*skipped")
def test_a_line_that_lacks_the_word_is_named_and_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The others keep their numbers, and what is found in them is what is found in them alone."""
    file = tmp_path / "texts.txt"
    file.write_text("a river\nthe bank by the river\n\nthe old bank\n")
    argv = ["run", "--query", "bank", "--layer", "0", "--head", "0", "--format", "json", "--quiet"]
    assert main([*argv, "--file", str(file)]) == 0
    out, err = capsys.readouterr()
    assert err == f"attnscope: warning: {file}:1: skipped: --query 'bank' is not in the text\n"
    found = from_json(out.encode()).texts
    assert [(text.index, text.text) for text in found] == [
        (1, "the bank by the river"),
        (2, "the old bank"),
    ]
    for text in found:
        assert main([*argv, text.text]) == 0
        (alone,) = from_json(capsys.readouterr().out.encode()).texts
        assert alone.queries == text.queries
        np.testing.assert_allclose(
            alone.heads[0].stages["weights"], text.heads[0].stages["weights"], atol=1e-5
        )
    assert main(["run", "--file", str(file), "--query", "money"]) == 2
    where = f"attnscope: error: --query: 'money' is not in the text ({file}:1); "
    assert where in capsys.readouterr().err


def test_a_batch_goes_on_after_a_record_that_lacks_the_word(tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("a river\nthe bank\n")
    dump = tmp_path / "d.jsonl"
    argv = [
        "batch",
        str(tmp_path / "texts.txt"),
        "-o",
        str(dump),
        "--query",
        "bank",
        "--config",
        "causal",
        "--quiet",
    ]
    assert main(argv) == 3
    records = [json.loads(line) for line in dump.read_text().splitlines()[1:-1]]
    assert [record["status"] for record in records] == ["failed", "ok"]
    assert records[0]["error"].startswith("--query: 'bank' is not in the text")


@pytest.mark.parametrize(("stack", "noted"), [("causal", True), ("bidirectional", False)])
def test_a_pair_on_a_decoder_is_noted(stack: str, noted: bool) -> None:
    report = inspect(requested((TextInput("the bank", pair="a river"),), config=stack))
    (text,) = report.texts
    said = "--pair: the model is a decoder and was not trained on pairs; no token of the text attends to the pair"
    assert (said in report.provenance.notes) == noted
    if noted:
        assert np.count_nonzero(text.heads[0].stages["weights"][:2, 2:]) == 0
