"""Mask expressions: drawn ones against truth tables, what is refused, documents of a text, and masks of each head."""

import json
from pathlib import Path
from random import Random

import numpy as np
import pytest

import attnscope
from attnscope.base.errors import UsageError
from attnscope.cli.completion import masks as complete
from attnscope.request.masks.expression import mask_files, parse_mask, spell_mask
from attnscope.request.masks.terms import AnyOf, Causal, FirstKeys, MatrixFile, SlidingWindow
from tests.helpers.draws import drawn
from tests.masks.drawn import check, check_as_function, check_function, draw, draw_function

TEXT = "The bank by the river was closed"


@pytest.mark.parametrize("part", range(3))
def test_a_drawn_expression_allows_what_its_truth_table_does(part: int) -> None:
    for number in range(part, drawn(75), 3):
        random = Random(f"suite:{number}")
        expression, n = draw(random)
        check(expression, n, random)
        check_as_function(expression, n)
        check_function(*draw_function(random), random)


@pytest.mark.parametrize(
    "expression",
    ["own", "causal", "bidirectional", "docs:2,1,4", "docs:7"]
    + [f"{word}:{size}" for word in ("window", "prefix", "block", "sink") for size in (1, 3, 7)],
)
def test_every_term_allows_what_its_truth_table_does(expression: str) -> None:
    check(expression, 7, Random(expression))


def test_plus_binds_more_tightly_than_or() -> None:
    union = AnyOf(((FirstKeys(4),), (SlidingWindow(1024),)))
    assert parse_mask("causal+(sink:4|window:1024)") == (Causal(), union)
    assert parse_mask(" sink:4 | causal + window:2 ") == (
        AnyOf(((FirstKeys(4),), (Causal(), SlidingWindow(2)))),
    )
    assert parse_mask("((causal))|causal") == (Causal(),)


def test_a_path_may_contain_marks_behind_a_slash() -> None:
    typed = "(causal|./a(1)|b+c.npy)+/tmp/x+y.json"
    assert mask_files(parse_mask(typed)) == ["./a(1)|b+c.npy", "/tmp/x+y.json"]
    assert parse_mask(spell_mask(parse_mask(typed))) == parse_mask(typed)
    assert parse_mask("a.npy|b.npy") == (AnyOf(((MatrixFile("a.npy"),), (MatrixFile("b.npy"),))),)


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("causal+(sink:4|window:8", "has '(' without ')'"),
        ("causal)", "has ')' without '('"),
        ("(causal)own", "has no + or | after ')'"),
        ("causal||own", "nothing stands where a mask is expected"),
        ("", "nothing stands where a mask is expected"),
        ("(" * 10_000, "has more than 32 parentheses inside each other"),
        ("docs", "'docs' needs the lengths of the documents, or eos"),
        ("docs:3,,4", "'docs:3,,4' needs the lengths of the documents, or eos"),
        ("docs:3,0", "'docs:3,0' needs the lengths of the documents, or eos"),
        ("sink", "'sink' needs a size of 1 or more"),
        ("docs:1" + "0" * 18, "is too large"),
    ],
)
def test_what_is_no_expression_is_refused(typed: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_mask(typed)
    assert message in error.value.parts.message


def test_ten_thousand_terms_take_no_time() -> None:
    assert len(parse_mask("+".join(["causal", "(sink:1|window:2)"] * 5000))) == 10_000


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("causal+(si", ["causal+(sink:"]),
        ("sink:4|win", ["sink:4|window:"]),
        ("doc", ["docs:", "docs:eos"]),
    ],
)
def test_completion_goes_on_behind_every_mark(
    typed: str, completed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert complete(typed) == completed


def test_documents_have_to_be_those_of_the_text() -> None:
    with pytest.raises(
        attnscope.AttnscopeError, match="the documents have 5 tokens, but the text has 7"
    ):
        attnscope.inspect(TEXT, mask="docs:2,3")
    with pytest.raises(attnscope.AttnscopeError, match="documents are parts of one text"):
        attnscope.inspect(
            "Life is", config="life-is-short-cross", context="short eat", mask="docs:1,1"
        )


def test_documents_are_seen_apart() -> None:
    together = np.asarray(attnscope.inspect(TEXT, layer=[2], head="all", mask="docs:3,4").weights)[
        0
    ]
    apart = np.asarray(attnscope.inspect("The bank by", layer=[2], head="all").weights)[0]
    assert not together[:, :3, 3:].any()
    assert not together[:, 3:, :3].any()
    assert np.allclose(together[:, :3, :3], apart, atol=1e-6)


@pytest.mark.parametrize("engine", ["native", "transformers"])
@pytest.mark.parametrize("kind", ["array", ".npy", ".json"])
def test_every_head_may_have_a_mask_of_its_own(kind: str, engine: str, tmp_path: Path) -> None:
    cells = np.random.default_rng(5).random((4, 7, 7)) < 0.6
    cells[1, 2] = False
    given: np.ndarray | str = cells
    if kind != "array":
        path = tmp_path / f"heads{kind}"
        path.write_text(json.dumps(cells.tolist())) if kind == ".json" else np.save(path, cells)
        given = str(path)
    report = attnscope.inspect(TEXT, layer=[0, 3], head="all", mask=given, engine=engine)
    masked, weights = np.asarray(report.masked), np.asarray(report.weights)  # (2, 4, 7, 7)
    scaled = np.asarray(attnscope.inspect(TEXT, layer=[0], head="all", stages="scaled").scaled)
    for head in range(4):
        for layer in range(2):
            assert np.array_equal(np.isfinite(masked[layer, head]), cells[head])
        expected = np.where(cells[head], np.exp(scaled[0, head]), 0.0)
        with np.errstate(invalid="ignore"):
            expected /= expected.sum(-1, keepdims=True)
        assert np.allclose(weights[0, head], expected, atol=1e-5, equal_nan=True)
    assert np.isnan(weights[0, 1, 2]).all()
    assert not np.isnan(weights[0, 0]).any()


def test_a_mask_has_a_matrix_for_every_head_or_one() -> None:
    with pytest.raises(
        attnscope.AttnscopeError, match="there are 3 matrices, but the model has 4 heads"
    ):
        attnscope.inspect(TEXT, mask=np.ones((3, 7, 7), bool))
