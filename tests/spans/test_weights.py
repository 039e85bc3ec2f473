"""Weights between spans are sums of the whole matrices; more cases: `python -m tests.spans.proof`."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attnscope
from attnscope.model.recorders import SpanRecorder
from tests.helpers.architectures import TWO_PARTS, make, save
from tests.helpers.draws import drawn
from tests.helpers.row_statistics import group_means
from tests.referee.models import Models
from tests.spans import proof

CASES, PARTS = drawn(15), 3
TEXT = "The bank by the river was old. The money in the bank was new."


@pytest.mark.parametrize("part", range(PARTS))
def test_weights_between_spans_are_sums_of_matrices(models: Models, part: int) -> None:
    for number in range(part, CASES, PARTS):
        proof.check(*proof.draw(models, 0, number))


def test_a_row_too_many_is_found(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proof can fail: here rows that may see nothing are counted."""
    real = SpanRecorder.compute
    monkeypatch.setattr(SpanRecorder, "compute", lambda recorder: real(recorder) * (1 - 1e-4))
    with pytest.raises(AssertionError, match="off by"):
        proof.check(*proof.draw(models, 0, 0))


def test_every_layer_and_head_whichever_are_shown() -> None:
    spans = {"one": (0, 30), "two": (31, 61)}
    every = attnscope.inspect(TEXT, spans=spans, layer="all", head="all")
    for options in (
        {},
        {"layer": 0, "head": 1},
        {"layer": "mean", "head": "mean"},
        {"query": "two", "pool": 4},
    ):
        report = attnscope.inspect(TEXT, spans=spans, **options)
        np.testing.assert_allclose(report.span_weights, every.span_weights, atol=1e-6)
        assert report.spans == ["(first)", "one", "two"]


def test_the_only_span_takes_all() -> None:
    report = attnscope.inspect(TEXT, spans="lines")
    assert report.spans == ["(first)", "line 1"]
    np.testing.assert_allclose(report.span_weights.sum(-1), 1, atol=1e-6)


def test_no_spans_unless_asked_for() -> None:
    report = attnscope.inspect(TEXT)
    assert report.data.texts[0].spans is None
    with pytest.raises(attnscope.AttnscopeError, match="not divided into spans"):
        _ = report.spans


@pytest.mark.parametrize("part", ["encoder", "decoder"])
def test_each_part_of_an_encoder_decoder(tmp_path: Path, part: str) -> None:
    """Cross-attention has no spans: its keys are those of another text."""
    folder, text = save(tmp_path, make("bart", TWO_PARTS["bart"])), "the bank by the river was old"
    engine: dict[str, Any] = {"model": folder, "engine": "transformers", "spans": "words"}
    other = {"context": "the river"} if part == "decoder" else {}
    whole = attnscope.inspect(text, part=part, layer="all", head="all", **engine, **other)
    groups = whole.span_of_token
    expected = group_means(whole.weights.astype(np.float64), groups, groups)
    np.testing.assert_allclose(whole.span_weights, expected, atol=1e-6)
    with pytest.raises(
        attnscope.AttnscopeError, match=r"only to self-attention.* part='encoder' or part='decoder'"
    ):
        attnscope.inspect(text, part="cross", context="the river", **engine)
