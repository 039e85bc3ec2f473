"""What each generated token reads of every span, against the weights of transformers."""

import numpy as np
import pytest

import attnscope
from attnscope.cli import main
from tests.chat import span_cuts

TEXT = "the bank by the river was old and we sat on it"
SPANS = {"place": (0, 21), "time": (22, 33)}


@pytest.mark.parametrize("engine", ["native", "transformers"])
@pytest.mark.parametrize("query", [None, "time"])
def test_shares_are_sums_of_the_weights_before_each_token(gpt2, engine, query):
    path, model = gpt2
    report = attnscope.inspect(
        TEXT, model=path, spans=SPANS, generate=4, engine=engine, query=query, stages=()
    )
    text = report.data.texts[0]
    found = text.spans
    _, _, weights = span_cuts.ran(model, [token.id for token in text.tokens])
    of_token, count = np.array(found.text.of_token), len(found.text.names)
    mean = weights.mean((0, 1))  # (T, T)
    by_span = np.stack([mean[:, of_token == n].sum(1) for n in range(count)], axis=1)
    np.testing.assert_allclose(
        found.generated, by_span[[one.position for one in text.generated]], atol=1e-6
    )
    np.testing.assert_allclose(found.shares, by_span[found.rows], atol=1e-6)
    np.testing.assert_allclose(found.received, mean[found.rows].mean(0), atol=1e-6)
    np.testing.assert_allclose(found.generated.sum(1), 1, atol=1e-6)
    assert [token.made for token in text.tokens].count(True) == len(found.generated)


def test_nothing_is_generated_without_being_asked_for(gpt2):
    assert attnscope.inspect(TEXT, model=gpt2[0], spans=SPANS).data.texts[0].spans.generated is None


@pytest.mark.parametrize("columns", ["60", "80", "120"])
def test_the_screen_has_a_line_for_each_token(gpt2, capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    assert (
        main(
            [
                "run",
                TEXT,
                "--model",
                str(gpt2[0]),
                "--spans",
                "river,old",
                "--generate",
                "3",
                "--top",
                "0",
            ]
        )
        == 0
    )
    out = capsys.readouterr().out.split("the answer, token by token")[1]
    lines = [line for line in out.splitlines() if "█" in line or "▁" in line]
    assert len([line for line in lines if "mean" in line]) == 1
    assert "0 (first) · 1 river" in out
    assert max(map(len, out.splitlines())) <= int(columns)
