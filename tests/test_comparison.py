import json
from itertools import pairwise

import jsonschema
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnscope import alignment
from attnscope.alignment import align
from attnscope.comparison import compare, jensen_shannon
from attnscope.config import RunConfig, TextInput
from attnscope.errors import AttnscopeError
from attnscope.pipeline import inspect
from attnscope.report import STAGES, Token, to_json
from attnscope.report.__main__ import schema_file
from attnscope.report.compare import Side
from attnscope.sides import beyond, compare_files, compare_runs
from tests.views.reports import report, text_report, tokens

TEXT = "The bank by the river was eroded"


def config(text=TEXT, **options):
    kept = {"config": "bidirectional", "layer": "all", "head": "all", "stages": STAGES} | options
    return RunConfig(texts=(TextInput(text),), **kept)


def masks(what_if="stack", **options):
    runs = [(mask, config(mask=mask, what_if=what_if, **options)) for mask in ("causal", "bidirectional")]
    return compare_runs("mask", runs, None, None)


def by_layer(comparison):
    return {(h.first): h for h in comparison.changes[0].heads}


def test_a_report_compared_with_itself_is_exactly_nothing():
    report = inspect(config())
    found = compare("report", [Side("a", report), Side("b", report)])
    for head in found.changes[0].heads:
        for values in (head.difference, head.total_variation, head.jensen_shannon, head.gain, head.loss):
            assert not values.any()
        assert head.gained == head.lost == [-1] * 7
        assert not any(head.entered)
        assert not any(head.left)
        assert all(cell.difference == 0 for cell in head.worst)
    assert beyond(found, 0.0) is None


def test_what_a_sink_takes_has_moved_too():
    words = tokens(["a", "b", "c"])
    drained, whole = (report(text_report(words, sink=sink)) for sink in (1.5, None))
    (head,) = compare("report", [Side("a", drained), Side("b", whole)]).changes[0].heads
    np.testing.assert_allclose(head.total_variation, drained.texts[0].heads[0].sink, rtol=1e-6)
    (same,) = compare("report", [Side("a", drained), Side("b", drained)]).changes[0].heads
    assert not same.total_variation.any()
    assert not same.jensen_shannon.any()


def test_causal_against_bidirectional():
    for head in by_layer(masks()).values():
        assert (head.future[0] == 0).all(), "a causal mask lets nothing come from the future"
        assert (head.future[1, :-1] > 0).all()
        assert head.future[1, -1] == 0
        assert head.total_variation[0] == pytest.approx(head.future[1, 0], abs=1e-6), (
            "the first row moves all but itself"
        )


def test_the_measures_are_those_of_the_rows_themselves():
    found = masks()
    one, other = (side.report.texts[0].heads for side in found.sides)
    for head, a, b in zip(found.changes[0].heads, one, other, strict=True):
        p, q = a.stages["weights"].astype(float), b.stages["weights"].astype(float)
        np.testing.assert_allclose(head.difference, q - p, atol=1e-7)
        np.testing.assert_allclose(head.total_variation, np.abs(q - p).sum(-1) / 2, atol=1e-6)
        for row in range(7):
            m = (p[row] + q[row]) / 2
            bits = sum(0.5 * x * np.log2(x / y) for side in (p, q) for x, y in zip(side[row], m, strict=True) if x > 0)
            assert head.jensen_shannon[row] == pytest.approx(bits, abs=1e-6)
            assert head.gain[row] == pytest.approx((q - p)[row].max(), abs=1e-6)
            gains = (q - p)[row].max() > 0
            assert head.gained[row] == ((q - p)[row].argmax() if gains else -1)
        np.testing.assert_array_equal(head.entropy, [a.rows.entropy, b.rows.entropy])


def test_same_scores_and_stack_agree_exactly_in_layer_0_and_differ_later():
    stack, same = by_layer(masks("stack")), by_layer(masks("same-scores"))
    for name in stack:
        equal = np.array_equal(stack[name].difference, same[name].difference)
        assert equal == name.startswith("L0"), name


def test_texts_align_on_what_they_share():
    runs = [(text, config(text, config="causal")) for text in ("the old river bank", "the river was a bank")]
    head = compare_runs("text", runs, None, None).changes[0].heads[0]
    assert head.queries == [(0, 0), (2, 1), (3, 4)]
    assert head.only_first == [1]
    assert head.only_second == [2, 3]
    assert head.difference.shape == (3, 3)
    assert (head.total_variation <= 1 + 1e-6).all()


def test_weight_on_tokens_without_counterpart_counts_as_moved():
    runs = [(text, config(text, config="causal", layer="0", head="0")) for text in ("a b", "c b")]
    found = compare_runs("text", runs, None, None)
    head = found.changes[0].heads[0]
    rows = [side.report.texts[0].heads[0].stages["weights"][1] for side in found.sides]
    expected = 0.5 * (abs(rows[1][1] - rows[0][1]) + rows[0][0] + rows[1][0])
    assert head.total_variation[0] == pytest.approx(expected, abs=1e-6)
    gain, loss = rows[1][0], max(rows[0][0], rows[0][1] - rows[1][1])
    assert head.gain[0] == pytest.approx(max(gain, rows[1][1] - rows[0][1]), abs=1e-6)
    assert head.loss[0] == pytest.approx(loss, abs=1e-6)
    assert found.notes == ["tokens that only one side has are not in the matrix; their weight counts as moved"]


pieces = st.lists(st.sampled_from("abc"), max_size=9)


@given(pieces, pieces)
def test_alignment_is_a_longest_common_subsequence(a, b):
    def longest(x, y):
        if not x or not y:
            return 0
        if x[0] == y[0]:
            return 1 + longest(x[1:], y[1:])
        return max(longest(x[1:], y), longest(x, y[1:]))

    a, b = a[:7], b[:7]
    pairs = align([Token(0, p, p) for p in a], [Token(0, p, p) for p in b])
    assert len(pairs) == longest(tuple(a), tuple(b))
    assert all(a[i] == b[j] for i, j in pairs)
    assert all(x[0] < y[0] and x[1] < y[1] for x, y in pairwise(pairs))


def test_texts_that_are_too_long_and_too_different_are_refused_and_a_common_part_costs_nothing(monkeypatch):
    monkeypatch.setattr(alignment, "CELLS", 12)
    same = [Token(0, str(i), str(i)) for i in range(100)]
    other = [*same[:40], Token(0, "x", "x"), *same[41:]]
    assert align(same, other) == [(i, i) for i in range(100) if i != 40]
    with pytest.raises(AttnscopeError, match="stretches of 4 and 4 tokens differ, which is too much to align"):
        align(same[:4], same[50:54])


LONG = " ".join(f"w{i * i % 83}" for i in range(150))


def pooled(**options):
    runs = [(mask, config(LONG, mask=mask, pool=8, stages=("weights",), **options)) for mask in ("own", "causal")]
    return compare_runs("mask", runs, None, 64)


def test_maps_are_compared_where_no_row_was_named():
    found = pooled()
    for head, one, other in zip(
        found.changes[0].heads, *(side.report.texts[0].heads for side in found.sides), strict=True
    ):
        np.testing.assert_array_equal(head.mass, [one.columns.mass, other.columns.mass])
        (worst,) = head.worst
        size = np.abs(other.pooled.weights - one.pooled.weights)
        assert worst.difference == pytest.approx(float(size.max()))
        assert size[one.pooled.queries.index(worst.query), one.pooled.keys.index(worst.key)] == size.max()
    jsonschema.validate(json.loads(to_json(found)), json.loads(schema_file("compare").read_text()))
    assert "pooled, query" in str(beyond(found, 1e-3))


def test_maps_of_different_texts_do_not_go_together():
    one, other = (inspect(config(text, pool=8)) for text in (LONG, LONG.replace("w4", "x")))
    with pytest.raises(AttnscopeError, match="maps of different tokens or runs cannot be compared; name rows"):
        compare("report", [Side("a", one), Side("b", other)])
    with pytest.raises(AttnscopeError, match="only one side has a map"):
        compare("report", [Side("a", one), Side("b", inspect(config(LONG)))])


@given(st.lists(st.floats(0, 1), min_size=3, max_size=3), st.lists(st.floats(0, 1), min_size=3, max_size=3))
def test_jensen_shannon_is_symmetric_and_between_0_and_1_bit(a, b):
    p, q = (np.array([x]) / sum(x) if sum(x) else np.array([[1.0, 0, 0]]) for x in (a, b))
    assert jensen_shannon(p, q)[0] == pytest.approx(jensen_shannon(q, p)[0])
    assert 0 <= jensen_shannon(p, q)[0] <= 1 + 1e-9
    assert jensen_shannon(p, p)[0] == 0
    assert jensen_shannon(np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]]))[0] == 1


def test_a_layer_or_head_that_is_left_to_us_is_the_same_on_every_side():
    found = masks(layer="auto", head="auto")
    causal, own = (side.report.texts[0].heads for side in found.sides)
    assert [(h.layer, h.head) for h in causal] == [(h.layer, h.head) for h in own]
    assert own[0].chosen.startswith("auto"), "the side with the model's own mask chooses, wherever it stands"
    alone = inspect(config(layer="auto", head="auto")).texts[0].heads[0]
    assert (alone.layer, alone.head) == (own[0].layer, own[0].head)


def test_layers_and_heads_are_paired_in_order():
    runs = [(f"L{n}", config(layer=str(n), head="all")) for n in (0, 1)]
    assert [(h.first, h.second) for h in compare_runs("layer", runs, None, None).changes[0].heads] == [
        (f"L0H{n}", f"L1H{n}") for n in range(4)
    ]


def test_the_difference_shows_the_columns_asked_for_and_measures_all():
    runs = [(mask, config(mask=mask, layer="0", head="0")) for mask in ("causal", "bidirectional")]
    part = compare_runs("mask", runs, "river,0", None).changes[0].heads[0]
    whole = compare_runs("mask", runs, None, None).changes[0].heads[0]
    assert part.keys == [(0, 0), (4, 4)]
    np.testing.assert_array_equal(part.difference, whole.difference[:, [0, 4]])
    np.testing.assert_array_equal(part.total_variation, whole.total_variation)


def test_real_output_keeps_to_the_published_schema():
    jsonschema.validate(json.loads(to_json(masks())), json.loads(schema_file("compare").read_text()))


@pytest.fixture
def saved(tmp_path):
    report = inspect(config())
    (tmp_path / "a.json").write_bytes(to_json(report))
    report.texts[0].heads[5].stages["weights"][2, 4] += 0.25
    (tmp_path / "b.json").write_bytes(to_json(report))
    return [tmp_path / "a.json", tmp_path / "b.json"]


def test_saved_reports_compare_without_a_model_and_the_worst_cell_is_named(saved):
    found = compare_files(saved)
    assert beyond(found, 0.3) is None
    said = str(beyond(found, 1e-6))
    assert said.startswith("text 0, L1H1, weights, query 2 'by', key 4 'river': ")
    assert "a difference of 0.25, the tolerance is 1e-06" in said


def test_a_mask_that_differs_is_forgiven_by_no_tolerance():
    assert "masked" in str(beyond(masks(layer="0", head="0"), 1e9))


def test_reports_that_do_not_go_together_are_refused(saved, tmp_path):
    (tmp_path / "c.json").write_bytes(to_json(inspect(config(layer="0"))))
    with pytest.raises(AttnscopeError, match=r"L1H0 is not in '.*c\.json'; compare reports of the same layers"):
        compare_files([saved[0], tmp_path / "c.json"])
    (tmp_path / "d.json").write_bytes(to_json(inspect(config(stages=("scores",)))))
    with pytest.raises(AttnscopeError, match=r"L0H0: the report holds no weights; save it with --stage"):
        compare_files([saved[0], tmp_path / "d.json"])
    (tmp_path / "e.json").write_text("{}")
    with pytest.raises(AttnscopeError, match=r"e\.json: not an attnscope report"):
        compare_files([saved[0], tmp_path / "e.json"])
