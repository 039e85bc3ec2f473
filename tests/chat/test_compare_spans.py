"""`compare` puts the spans of two texts side by side, paired by name."""

import numpy as np
import pytest

import attnscope
from attnscope.cli import main
from attnscope.studies.compare.span_screen import compare_spans
from attnscope.views.parts import Matrices
from attnscope.views.settings import DisplaySettings
from tests.chat import span_cuts

FIRST, SECOND = "the bank river was old sat day", "the river was old bank sat day"


def test_matrices_are_sums_of_the_weights_of_transformers(gpt2):
    """Documents in another order keep their names; the difference is that of equal names."""
    path, model = gpt2
    found = attnscope.compare(FIRST, SECOND, model=path, spans="bank,river,sat")
    (panels,) = (
        part.panels
        for part in compare_spans(found.data, DisplaySettings(2))
        if isinstance(part, Matrices)
    )
    matrices = []
    for panel, side in zip(panels, found.data.sides, strict=False):
        text = side.report.texts[0]
        _, _, weights = span_cuts.ran(model, [token.id for token in text.tokens])
        names, of_token = text.spans.text.names, np.array(text.spans.text.of_token)
        shown = [name.text for name in panel.rows.names]
        assert {"bank", "river", "sat"} <= set(shown)
        expected = [
            [
                weights.mean((0, 1))[of_token == names.index(a)][:, of_token == names.index(b)]
                .sum(1)
                .mean()
                for b in shown
            ]
            for a in shown
        ]
        np.testing.assert_allclose(panel.matrix, expected, atol=1e-6)
        matrices.append(panel.matrix)
    np.testing.assert_allclose(panels[2].matrix, matrices[1] - matrices[0], atol=1e-7)


@pytest.mark.parametrize("format", ["table", "heat"])
def test_the_screen_names_spans_of_one_side_alone(gpt2, capsys, format):
    words = [
        "compare",
        "the bank river old",
        "the bank day old",
        "--model",
        str(gpt2[0]),
        "--format",
        format,
    ]
    assert main([*words, "--spans", "words"]) == 0
    out = capsys.readouterr().out
    assert "paired by name" in out
    assert "only in the bank river old: river" in out.replace("\n", " ")
