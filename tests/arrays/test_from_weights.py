"""Given weights: they are shown to the bit, with the statistics that follow from them, and marked as given."""

import json

import numpy as np
import pytest
import torch

import attnscope
from attnscope.cli import main
from tests.helpers.row_statistics import row_statistics
from tests.page.reading import read_page

WORDS = "The bank , by the wide river".split()


def drawn(layers=2, heads=3, tokens=7, lost=0.0, seed=0):
    """Causal weights, of which a share is lost as to a sink."""
    scores = torch.randn(
        layers, heads, tokens, tokens, generator=torch.Generator().manual_seed(seed)
    )
    weights = scores.masked_fill(~torch.ones(tokens, tokens).tril().bool(), -torch.inf).softmax(-1)
    return weights * (1 - lost)


@pytest.mark.parametrize("lost", [0.0, 0.25])
def test_weights_are_shown_to_the_bit_with_their_statistics(lost):
    weights = drawn(lost=lost)
    report = attnscope.from_weights(weights, WORDS)
    np.testing.assert_array_equal(report.weights, weights)
    assert (
        report.provenance.weights == "given" and "given, not computed" in report.provenance.notes[0]
    )
    none = np.zeros(7, bool)
    comma = np.array([word == "," for word in WORDS])
    for layer in range(2):
        for head in range(3):
            given, shown = weights[layer, head].double().numpy(), report[layer, head]
            for name, values in row_statistics(given, none, comma).items():
                np.testing.assert_allclose(
                    getattr(shown.rows, name), values, atol=1e-5, err_msg=name
                )
            assert np.isnan(shown.rows.max_score).all(), "there are no scores"
            if lost:
                np.testing.assert_allclose(shown.rows.sink, lost, atol=1e-6)
            else:
                assert shown.rows.sink is None
            best = shown.top(6, 2)
            assert [source.position for source in best] == np.argsort(-given[6], kind="stable")[
                :2
            ].tolist()
            assert all(np.isnan(source.value) for source in best)
    mean = report.inspect(layer="all", head="mean", stages="weights")
    np.testing.assert_allclose(mean.weights[:, 0], weights.mean(1), atol=1e-6)
    assert np.isnan(mean[0, "mean"].rows.max_score).all()


def test_the_forms_that_programs_return():
    weights = drawn(layers=3)
    expected = attnscope.from_weights(weights, WORDS).weights
    outputs = tuple(layer[None] for layer in weights)  # as output_attentions=True
    for form in (
        outputs,
        list(weights),
        dict(enumerate(weights)),
        weights.numpy(),
        weights.double().numpy(),
    ):
        np.testing.assert_array_equal(attnscope.from_weights(form, WORDS).weights, expected)
    one = attnscope.from_weights(weights[1, 2], WORDS)
    np.testing.assert_array_equal(one.weights[0, 0], weights[1, 2])
    assert attnscope.from_weights(weights[1], WORDS, layers=5)[5, 0].layer == 5
    padded = torch.zeros(2, 3, 7, 7)
    padded[0], padded[1, :, :4, :4] = weights[0], drawn(1, 3, 4)[0]
    both = attnscope.from_weights([padded], [WORDS, WORDS[:4]], lengths=[7, 4])
    np.testing.assert_array_equal(both.texts[1].weights[0], padded[1, :, :4, :4])
    assert [len(text.tokens) for text in both.texts] == [7, 4]


def test_a_row_that_sees_nothing_is_fully_masked():
    weights = drawn()
    for empty in (0.0, torch.nan):
        weights[:, :, 2] = empty
        head = attnscope.from_weights(weights, WORDS)[0, 0]
        assert np.isnan(head.weights[2]).all() and head.data.texts[0].heads[0].fully_masked == [2]
        assert np.isnan(head.rows.entropy[2]) and np.isfinite(head.rows.entropy[[1, 3]]).all()


def test_weights_of_a_report_survive_files_and_screens(tmp_path):
    report = attnscope.from_weights(drawn(), WORDS)
    assert report.text().startswith(" GIVEN, NOT COMPUTED ") and "softmax" not in report.text()
    assert "α·‖v‖" not in report.text() and "nan" not in report.text()
    for ending in ("json", "npz", "safetensors"):
        report.save(tmp_path / f"r.{ending}")
        assert attnscope.load(tmp_path / f"r.{ending}").to_json() == report.to_json()
    for ending in ("svg", "txt"):
        report.save(tmp_path / f"r.{ending}")
        assert "GIVEN, NOT COMPUTED" in (tmp_path / f"r.{ending}").read_text()
    np.savez(tmp_path / "w.npz", **{"layer.0.weights": drawn()[0].numpy()}, tokens=WORDS)
    assert main(["run", "--qkv", str(tmp_path / "w.npz"), "-o", str(tmp_path / "w.html")]) == 0
    report.save(tmp_path / "r.html")
    for name in ("w.html", "r.html"):
        assert "GIVEN, NOT COMPUTED" in json.dumps(read_page(tmp_path / name).nodes)
    values = report.measure_heads(measure="entropy").values
    np.testing.assert_allclose(values[1, 2], report[1, 2].rows.entropy.mean(), atol=1e-5)
    computed = attnscope.from_qkv(*torch.randn(2, 2, 3, 7, 4), tokens=WORDS)
    assert attnscope.compare(report, computed).changes[0].heads[0].total_variation.max() > 0
