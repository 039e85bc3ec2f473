"""Weights between spans are sums of the whole matrices; more cases: `python -m tests.spans.proof`."""

import numpy as np
import pytest

import attnscope
from attnscope.model.recorders import SpanRecorder
from tests.referee.models import Models
from tests.spans import proof

CASES, PARTS = 30, 3
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
    for options in ({}, {"layer": 0, "head": 1}, {"layer": "mean", "head": "mean"}, {"query": "two", "pool": 4}):
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
