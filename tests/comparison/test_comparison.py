import json
import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from attnscope.base.errors import AttnscopeError, UsageError
from attnscope.findings.codec import to_json
from attnscope.findings.compare import Cell, Side
from attnscope.findings.heads import STAGES
from attnscope.findings.tokens import Token
from attnscope.request.run_config import TextInput
from attnscope.request.selection import parse_positions
from attnscope.run.plan import make_plan
from attnscope.run.session import Session, inspect
from attnscope.studies.compare import alignment
from attnscope.studies.compare import runs as comparing
from attnscope.studies.compare.alignment import align, align_characters, pair_replaced
from attnscope.studies.compare.reports import compare_sides, jensen_shannon, pooled_change
from attnscope.studies.compare.runs import (
    ReportSelection,
    compare_reports,
    compare_runs,
    read_report,
)
from attnscope.studies.compare.tolerance import Tolerance, failure
from attnscope.studies.registry import present
from attnscope.views.parts import Matrices
from attnscope.views.terminal import as_text
from benchmarks.memory import required_memory
from tests.helpers.requests import changed, parsed, requested
from tests.helpers.sample_reports import report, text_report, tokens
from tests.helpers.schemas import validate

TEXT = "The bank by the river was eroded"


def config(text=TEXT, **options):
    kept = {"config": "bidirectional", "layer": "all", "head": "all", "stages": STAGES} | options
    return requested(texts=(TextInput(text),), **kept)


def masks(what_if="stack", tolerance=None, **options):
    runs = [
        (mask, config(mask=mask, what_if=what_if, **options))
        for mask in ("causal", "bidirectional")
    ]
    return compare_runs("mask", runs, None, tolerance=tolerance)


def compare_files(paths, *options, **named):
    return compare_reports([(str(path), read_report(path)) for path in paths], *options, **named)


def by_layer(comparison):
    return {(h.first): h for h in comparison.changes[0].heads}


def test_rows_that_move_a_little_have_digits_that_tell_them_apart():
    """Rows that moved by 0.0014 to 0.0034 said 0.00, and not where to."""
    runs = [(dtype, config(dtype=dtype)) for dtype in ("float32", "bfloat16")]
    found = compare_runs("dtype", runs, None)
    shown = as_text(present(found), 100)
    layer, head = map(int, re.search(r"^L(\d+)H(\d+)  float32", shown, re.MULTILINE).groups())
    change = by_layer(found)[(layer, head)]
    assert 0.005 <= change.total_variation.max() < 0.1
    digits = 4 if change.total_variation.max() < 0.01 else 3
    rows = shown.split("what moved in each row")[1].split("\n\n")[0].splitlines()[2:]
    moved = [float(row.split()[2]) for row in rows]
    assert moved == pytest.approx(change.total_variation.tolist(), abs=0.51 * 10**-digits)
    for row, gain, loss in zip(rows, change.gain.tolist(), change.loss.tolist(), strict=True):
        said = [float(number) for number in re.findall(r"[+−](0\.\d+)", row)]
        assert said == pytest.approx([gain, loss], abs=0.51 * 10**-digits)


def test_a_report_compared_with_itself_is_exactly_nothing():
    report = inspect(config())
    found = compare_sides("report", [Side("a", report), Side("b", report)], tolerance=Tolerance())
    for head in found.changes[0].heads:
        for values in (
            head.difference,
            head.total_variation,
            head.jensen_shannon,
            head.gain,
            head.loss,
        ):
            assert not values.any()
        assert head.gained == head.lost == [-1] * 7
        assert not any(head.entered)
        assert not any(head.left)
        assert all(cell.difference == 0 for cell in head.worst)
    assert found.verdict.passed
    assert failure(found) is None


def test_what_a_sink_takes_has_moved_too():
    words = tokens(["a", "b", "c"])
    drained, whole = (report(text_report(words, sink=sink)) for sink in (1.5, None))
    (head,) = compare_sides("report", [Side("a", drained), Side("b", whole)]).changes[0].heads
    np.testing.assert_allclose(head.total_variation, drained.texts[0].heads[0].rows.sink, rtol=1e-6)
    (same,) = compare_sides("report", [Side("a", drained), Side("b", drained)]).changes[0].heads
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
            bits = sum(
                0.5 * x * np.log2(x / y)
                for side in (p, q)
                for x, y in zip(side[row], m, strict=True)
                if x > 0
            )
            assert head.jensen_shannon[row] == pytest.approx(bits, abs=1e-6)
            assert head.gain[row] == pytest.approx((q - p)[row].max(), abs=1e-6)
            gains = (q - p)[row].max() > 0
            assert head.gained[row] == ((q - p)[row].argmax() if gains else -1)
        np.testing.assert_array_equal(head.entropy, [a.rows.entropy, b.rows.entropy])


def test_same_scores_and_stack_agree_exactly_in_layer_0_and_differ_later():
    stack, same = by_layer(masks("stack")), by_layer(masks("same-scores"))
    for name in stack:
        equal = np.array_equal(stack[name].difference, same[name].difference)
        assert equal == (name.layer == 0), name


def test_both_sides_are_drawn_on_the_one_scale_of_weights():
    asked = {"config": "bidirectional", "layer": "0", "head": "0"}
    runs = [(mask, config("the old river", mask=mask, **asked)) for mask in ("own", "window:2")]
    found = compare_runs("mask", runs, None)
    largest = {float(side.report.texts[0].heads[0].stages["weights"].max()) for side in found.sides}
    assert len(largest) == 2  # on scales of their data, they would differ
    (drawn,) = (part for part in present(found) if isinstance(part, Matrices))
    scales = [(panel.scale.low, panel.scale.high) for panel in drawn.panels[:2]]
    assert scales == [(0, 1)] * 2


def test_texts_align_on_what_they_share():
    runs = [
        (text, config(text, config="causal"))
        for text in ("the old river bank", "the river was a bank")
    ]
    head = compare_runs("text", runs, None).changes[0].heads[0]
    assert head.queries == [(0, 0), (2, 1), (3, 4)]
    assert head.only_first == [1]
    assert head.only_second == [2, 3]
    assert head.difference.shape == (3, 3)
    assert (head.total_variation <= 1 + 1e-6).all()


def test_weight_on_tokens_without_counterpart_counts_as_moved():
    runs = [(text, config(text, config="causal", layer="0", head="0")) for text in ("a d b", "c b")]
    found = compare_runs("text", runs, None)
    (head,) = found.changes[0].heads
    assert (head.only_first, head.only_second) == ([0, 1], [0])
    first, second = (side.report.texts[0].heads[0].stages["weights"][-1] for side in found.sides)
    expected = 0.5 * (abs(second[1] - first[2]) + first[0] + first[1] + second[0])
    assert head.total_variation[0] == pytest.approx(expected, abs=1e-6)
    assert head.gain[0] == pytest.approx(max(second[0], second[1] - first[2]), abs=1e-6)
    assert head.loss[0] == pytest.approx(max(first[0], first[1], first[2] - second[1]), abs=1e-6)
    assert found.notes == [
        "the weight of a token that only one side has (a/– or –/b) counts as moved"
    ]


def test_a_replaced_word_is_compared_with_the_one_in_its_place():
    runs = [
        (text, config(text, config="causal", layer="0", head="0")) for text in ("a d b", "a c b")
    ]
    found = compare_runs("text", runs, None)
    (head,) = found.changes[0].heads
    assert head.queries == head.keys == [(0, 0), (1, 1), (2, 2)]
    assert head.only_first == head.only_second == []
    first, second = (side.report.texts[0].heads[0].stages["weights"] for side in found.sides)
    np.testing.assert_allclose(head.difference, second.astype(float) - first, atol=1e-6)
    np.testing.assert_allclose(head.total_variation, np.abs(second - first).sum(1) / 2, atol=1e-6)
    assert found.notes == ["a token that replaces another token is compared with that token"]
    assert not {cell.key for cell in head.worst} & {1}, "a tolerance judges what both texts have"


def spelled(*pieces, special=()):
    """Tokens of a text: a piece that starts with a blank follows a blank."""
    found, at = [], 0
    for i, piece in enumerate(pieces):
        at += piece.startswith(" ")
        word = piece.strip()
        place = (None, None) if i in special else (at, at + len(word))
        found.append(Token(i, word, word, *place, special=i in special))
        at += len(word)
    return found


@pytest.mark.parametrize(
    ("first", "second", "pairs"),
    [
        (
            spelled("the", " tired", " cat"),
            spelled("the", " wide", " cat"),
            [(0, 0), (1, 1), (2, 2)],
        ),
        (
            spelled("by", " river", " bank"),
            spelled("by", " saving", "s", " bank"),
            [(0, 0), (1, 1), (2, 3)],
        ),
        (spelled("a", " b", " c"), spelled("a", " x", " y", " c"), [(0, 0), (2, 3)]),
        (
            spelled("a", " b", " d", " c"),
            spelled("a", " x", " y", " c"),
            [(0, 0), (1, 1), (2, 2), (3, 3)],
        ),
        (spelled("a", " b"), spelled("a"), [(0, 0)]),
        (spelled("a", " b"), spelled("c", " d"), [(0, 0), (1, 1)]),
        (spelled("a", "b", special=(1,)), spelled("a", "c"), [(0, 0)]),
    ],
)
def test_tokens_of_aligned_texts_are_paired_where_one_replaces_another(first, second, pairs):
    assert pair_replaced(first, second, align(first, second)) == pairs


def test_tokens_of_two_tokenizers_are_paired_by_the_characters_that_they_cover():
    special = Token(9, "[CLS]", "[CLS]", special=True)
    first = [special, *spelled("the", " unbelievable", " cat", "s")]
    second = spelled("the", " unbeliev", "able", " cat", "s")
    second = [replace(token, piece=f"Ġ{token.piece}") for token in second]
    assert align(first, second) == []
    assert align_characters(first, second) == [(1, 0), (3, 3), (4, 4)]
    assert align_characters(first[:2], [special, *second]) == [(0, 0), (1, 1)]


def test_words_that_two_tokenizers_spell_differently_have_not_moved():
    """Weight on `cat` and `Ġcat` counted as moved, so that a model moved from itself."""
    report = inspect(config("the old river bank"))
    (text,) = report.texts
    respelled = [
        token if token.special else replace(token, piece=f"Ġ{token.piece}") for token in text.tokens
    ]
    other = replace(report, texts=[replace(text, tokens=respelled)])
    for axis in ("model", "report"):
        found = compare_sides(axis, [Side("a", report), Side("b", other)])
        for head in found.changes[0].heads:
            assert len(head.queries) == len(head.keys) == len(text.tokens)
            assert head.only_first == head.only_second == []
            assert not head.total_variation.any()
        assert found.notes == []


def test_words_that_two_tokenizers_cut_differently_are_told():
    report = inspect(config("the old river bank"))
    (text,) = report.texts
    word = text.tokens[1]
    shorter = replace(word, piece=word.piece[:1], end=word.end - 1)
    other = replace(
        report, texts=[replace(text, tokens=[text.tokens[0], shorter, *text.tokens[2:]])]
    )
    found = compare_sides("model", [Side("a", report), Side("b", other)])
    assert found.changes[0].heads[0].only_first == [1]
    assert "cut some words differently: --spans whole-words compares words" in found.notes[0]


def test_where_nothing_is_shared_no_cell_is_the_worst():
    runs = [(text, config(text, layer="0", head="0")) for text in ("a b", "c d")]
    (head,) = compare_runs("text", runs, None).changes[0].heads
    assert head.worst == [Cell(stage, -1, -1, None, None, 0.0) for stage in STAGES]


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


def test_texts_that_are_too_long_and_too_different_are_refused_and_a_common_part_costs_nothing(
    monkeypatch,
):
    monkeypatch.setattr(alignment, "MAX_CELLS", 12)
    same = [Token(0, str(i), str(i)) for i in range(100)]
    other = [*same[:40], Token(0, "x", "x"), *same[41:]]
    assert align(same, other) == [(i, i) for i in range(100) if i != 40]
    with pytest.raises(AttnscopeError, match="runs of 4 and 4 tokens differ, too many to align"):
        align(same[:4], same[50:54])


LONG = " ".join(f"w{i * i % 83}" for i in range(150))


def pooled(tolerance=None, **options):
    runs = [
        (mask, config(LONG, mask=mask, pool=8, stages=("weights",), **options))
        for mask in ("own", "causal")
    ]
    return compare_runs("mask", runs, None, tolerance=tolerance)


def test_maps_are_compared_where_no_row_was_named():
    found = pooled()
    for head, one, other in zip(
        found.changes[0].heads, *(side.report.texts[0].heads for side in found.sides), strict=True
    ):
        np.testing.assert_array_equal(head.mass, [one.columns, other.columns])
        (worst,) = head.worst
        size = np.abs(other.pooled.weights - one.pooled.weights)
        assert worst.difference == pytest.approx(float(size.max()))
        assert (
            size[one.pooled.queries.index(worst.query), one.pooled.keys.index(worst.key)]
            == size.max()
        )
    validate(json.loads(to_json(found)), "compare")
    assert "pooled, query" in str(failure(pooled(Tolerance(1e-3))))


def test_memory_is_estimated_for_all_sides_together():
    """Each side fitted alone, and both were kept."""
    text = " ".join(f"w{i % 83}" for i in range(300))
    run = config(text)
    plan = make_plan(run, Session(run.texts).source(run))
    limit = sum(required_memory(plan).values()) + (1 << 20)
    assert inspect(replace(run, max_memory=limit)).texts
    runs = [(mask, changed(run, mask=mask, max_memory=limit)) for mask in ("own", "causal")]
    with pytest.raises(
        AttnscopeError, match=r"needs about .* other sides .*; use pool=64 .*layer, head"
    ):
        compare_runs("mask", runs, None)
    small = [(label, changed(one, layer="0", head="0")) for label, one in runs]
    assert compare_runs("mask", small, None).changes


def test_maps_of_different_texts_do_not_go_together():
    one, other = (inspect(config(text, pool=8)) for text in (LONG, LONG.replace("w4", "x")))
    with pytest.raises(
        AttnscopeError, match="maps of different tokens or runs cannot be compared; select rows"
    ):
        compare_sides("report", [Side("a", one), Side("b", other)])
    with pytest.raises(AttnscopeError, match="only one side has a map"):
        compare_sides("report", [Side("a", one), Side("b", inspect(config(LONG)))])


@given(
    st.lists(st.floats(0, 1), min_size=3, max_size=3),
    st.lists(st.floats(0, 1), min_size=3, max_size=3),
)
def test_jensen_shannon_is_symmetric_and_between_0_and_1_bit(a, b):
    p, q = (np.array([x]) / sum(x) if sum(x) else np.array([[1.0, 0, 0]]) for x in (a, b))
    assert jensen_shannon(p, q)[0] == pytest.approx(jensen_shannon(q, p)[0])
    assert 0 <= jensen_shannon(p, q)[0] <= 1 + 1e-9
    assert jensen_shannon(p, p)[0] == 0
    assert jensen_shannon(np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]]))[0] == 1


def test_every_head_is_compared_unless_some_are_selected():
    found = masks(layer="auto", head="auto")
    sizes = found.sides[0].report.provenance
    assert len(found.changes[0].heads) == sizes.n_layers * sizes.n_heads
    assert {head.first.layer for head in masks(layer="1", head="auto").changes[0].heads} == {1}
    assert not any("too long" in note for note in found.notes)


def test_of_too_many_heads_the_same_one_is_compared_on_every_side(monkeypatch):
    monkeypatch.setattr(comparing, "_MOST_CELLS", 0)
    found = masks(layer="auto", head="auto")
    causal, own = (side.report.texts[0].heads for side in found.sides)
    assert [(h.layer, h.head) for h in causal] == [(h.layer, h.head) for h in own]
    alone = inspect(config(layer="auto", head="auto")).texts[0].heads[0]
    assert (alone.layer, alone.head) == (own[0].layer, own[0].head), "that of the model's own mask"
    assert any("too long" in note for note in found.notes)


def test_a_head_left_to_auto_on_request_says_nothing_of_long_texts():
    runs = [
        (mask, config("the bank", mask=mask, layer="auto", head="auto"))
        for mask in ("causal", "bidirectional")
    ]
    found = compare_runs("mask", runs, None, selected=["layer", "head"])
    assert len(found.changes[0].heads) == 1
    assert not any("too long" in note for note in found.notes)


@pytest.mark.parametrize("order", [("causal", "bidirectional"), ("bidirectional", "causal")])
def test_a_head_that_is_chosen_for_every_layer_is_the_same_on_every_side(order, monkeypatch):
    monkeypatch.setattr(comparing, "_MOST_CELLS", 0)
    runs = [
        (mask, config("the bank by the river was old", mask=mask, layer="all", head="auto"))
        for mask in order
    ]
    units = [
        [(h.layer, h.head) for h in side.report.texts[0].heads]
        for side in compare_runs("mask", runs, None).sides
    ]
    assert units[0] == units[1]
    assert len({head for _, head in units[0]}) == len(units[0]) == 2, (
        "each layer has a head of its own"
    )


def test_layers_are_compared_by_the_heads_that_the_first_side_chose():
    text = "the cat sat because it was tired"
    runs = [
        (layer, config(text, layer=layer, head="auto", config=None)) for layer in ("0,1", "2-3")
    ]
    first, second = (
        [(h.layer, h.head) for h in side.report.texts[0].heads]
        for side in compare_runs("layer", runs, None).sides
    )
    assert second == [(layer + 2, head) for layer, head in first]
    runs = [(head, config(text, layer="auto", head=head, config=None)) for head in ("0", "1")]
    (head,) = compare_runs("head", runs, None).changes[0].heads
    assert (head.first.layer, head.first.head, head.second.head) == (head.second.layer, 0, 1)


def test_layers_and_heads_are_paired_in_order():
    runs = [(f"L{n}", config(layer=str(n), head="all")) for n in (0, 1)]
    assert [(h.first, h.second) for h in compare_runs("layer", runs, None).changes[0].heads] == [
        ((0, n), (1, n)) for n in range(4)
    ]


def test_the_difference_shows_the_columns_asked_for_and_measures_all():
    runs = [(mask, config(mask=mask, layer="0", head="0")) for mask in ("causal", "bidirectional")]
    part = compare_runs("mask", runs, parse_positions("river,0")).changes[0].heads[0]
    whole = compare_runs("mask", runs, None).changes[0].heads[0]
    assert part.keys == [(0, 0), (4, 4)]
    np.testing.assert_array_equal(part.difference, whole.difference[:, [0, 4]])
    np.testing.assert_array_equal(part.total_variation, whole.total_variation)


def test_real_output_keeps_to_the_published_schema():
    validate(json.loads(to_json(masks())), "compare")


@pytest.fixture
def saved(tmp_path):
    report = inspect(config())
    (tmp_path / "a.json").write_bytes(to_json(report))
    row = report.texts[0].heads[5].stages["weights"][2]
    before = row[4]
    row *= (0.75 - before) / (1 - before)
    row[4] = before + 0.25
    (tmp_path / "b.json").write_bytes(to_json(report))
    return [tmp_path / "a.json", tmp_path / "b.json"]


def test_saved_reports_compare_without_a_model_and_the_worst_cell_is_named(saved):
    assert failure(compare_files(saved)) is None
    assert failure(compare_files(saved, tolerance=Tolerance(0.3))) is None
    said = str(failure(compare_files(saved, tolerance=Tolerance(1e-6))))
    assert said.startswith("text 0, L1H1, weights, query 2 'by', key 4 'river': ")
    assert "the difference 0.25 exceeds --tolerance 1e-6" in said


def test_a_mask_that_differs_is_forgiven_by_no_tolerance():
    said = str(failure(masks(layer="0", head="0", tolerance=Tolerance(1e9))))
    assert "masked, query 0" in said
    assert "masked against " in said
    assert "which fails at any tolerance" in said
    assert "None" not in said
    assert "inf" not in said


def both(saved):
    """The two saved reports as one reads JSON, of which tests compute again what a comparison says."""
    return [json.loads(path.read_text())["texts"][0] for path in saved]


@pytest.mark.parametrize(
    ("absolute", "relative"), [(0, 1e-3), (0, 0.5), (0.2, 0.01), (1e-6, 0), (0.26, 0), (10, 10)]
)
def test_a_verdict_counts_the_cells_that_numpy_counts(saved, absolute, relative):
    report = json.loads(saved[1].read_text())
    weights = report["texts"][0]["heads"]["stages"]["weights"][2]
    weights[0] = [value * 1.005 for value in weights[0]]
    saved[1].write_text(json.dumps(report))
    verdict = compare_files(saved, tolerance=Tolerance(absolute, relative)).verdict
    first, second = (
        {
            stage: np.array(text["heads"]["stages"][stage], dtype=np.float32).astype(float)
            for stage in STAGES
        }
        for text in both(saved)
    )
    assert [stage.stage for stage in verdict.stages] == list(STAGES)
    for found in verdict.stages:
        a, b = first[found.stage], second[found.stage]
        layers = np.abs(a.reshape(2, -1))  # four heads each
        largest = np.max(layers, axis=1, where=np.isfinite(layers), initial=1.0)
        scale = np.repeat([1.0, 1.0] if found.stage == "weights" else largest, 4)[:, None, None]
        far = ~np.isclose(b, a, rtol=relative, atol=absolute * scale, equal_nan=True)
        assert (found.compared, found.beyond) == (a.size, far.sum())
        excess = np.nan_to_num(np.abs(b - a) - relative * np.abs(a)) / scale
        heads = [(layer, head) for layer in (0, 1) for head in range(4)]
        at = heads.index(found.first), found.cell.query, found.cell.key
        assert excess[at] == pytest.approx(excess.max(), abs=1e-12)
        assert found.cell.difference == pytest.approx(np.nan_to_num(np.abs(b - a))[at])
    assert verdict.passed == (not any(stage.beyond for stage in verdict.stages))


def kept(tmp_path, name, **options):
    (tmp_path / name).write_bytes(to_json(inspect(config(**options))))
    return tmp_path / name


def test_reports_of_some_keys_are_measured_where_they_are_complete(tmp_path):
    """A whole run says what the saved keys leave out."""
    full = masks().changes[0].heads
    paths = [
        kept(tmp_path, f"{mask}.json", mask=mask, key=key)
        for mask, key in (("causal", "0,3"), ("bidirectional", "3:"))
    ]
    found = compare_files(paths)
    whole = [inspect(config(mask=mask)).texts[0].heads for mask in ("causal", "bidirectional")]
    for n, (head, known) in enumerate(zip(found.changes[0].heads, full, strict=True)):
        assert head.keys == [(3, 3)]
        np.testing.assert_array_equal(head.difference, known.difference[:, [3]])
        assert np.isnan([*head.total_variation, *head.jensen_shannon, *head.gain, *head.loss]).all()
        assert head.gained == head.lost == [-1] * 7
        assert (head.only_first, head.only_second) == ([], []), (
            "a key that was not saved has its counterpart"
        )
        np.testing.assert_array_equal(head.entropy, known.entropy)
        assert (head.entered, head.left) == (known.entered, known.left)
        assert (head.partial.keys, head.partial.of) == ((2, 4), (7, 7))
        for side, saved in enumerate(([0, 3], [3, 4, 5, 6])):
            weights = whole[side][n].stages["weights"].astype(float)
            outside = 1 - weights[:, saved].sum(-1)
            np.testing.assert_allclose(head.partial.outside[side], outside, atol=1e-6)
        assert np.isnan(head.future[0]).tolist() == [True] * 6 + [False]
        assert np.isnan(head.future[1]).tolist() == [True] * 2 + [False] * 5, (
            "from query 2 on, all later keys are saved"
        )
        np.testing.assert_allclose(head.future[1][2:], known.future[1][2:], atol=1e-7)
    assert found.notes[0].startswith(f"'{paths[0]}' has 2 of 7 keys: moved, JS, gains")
    validate(json.loads(to_json(found)), "compare")
    for draw in (as_text(present(found), width) for width in (40, 100)):
        assert "has 2 of 7 keys;" in " ".join(draw.split())
        assert "outside" in draw
        assert "moved: share of the weight" not in draw


def test_a_row_s_sink_does_not_lie_outside(tmp_path):
    words = tokens(["a", "b", "c"])
    report_ = report(text_report(words, sink=1.5, keys=[0, 2]))
    (head,) = compare_sides("report", [Side("a", report_), Side("b", report_)]).changes[0].heads
    whole = report(text_report(words, sink=1.5)).texts[0].heads[0].stages["weights"]
    np.testing.assert_allclose(head.partial.outside, [whole[:, 1]] * 2, atol=1e-6)


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        ({"query": "0:2"}, {"query": "3:5"}, "has query 0–1, .* has 3–4, and none correspond"),
        ({"key": "0:2"}, {"key": "3"}, "has key 0–1, .* has 3, and none correspond"),
        ({"text": "a b"}, {"text": "c d e"}, "no query token of .* has a counterpart in"),
        ({"text": "a b c"}, {"text": "a b"}, "only '.*one.json' has the tokens 2 'c'$"),
    ],
)
def test_no_tolerance_forgives_what_cannot_be_compared(tmp_path, one, other, said):
    paths = [
        kept(tmp_path, name, **options)
        for name, options in (("one.json", one), ("other.json", other))
    ]
    found = compare_files(paths, tolerance=Tolerance(1e9))
    assert not found.verdict.passed
    error = failure(found)
    assert re.search(f"^text 0: .*{said}", error.message)
    assert error.code == 1


def test_texts_that_shall_differ_are_judged_where_they_are_the_same():
    runs = [
        (text, config(text, config="causal", layer="0", head="0"))
        for text in ("the old bank", "the bank")
    ]
    assert compare_runs("text", runs, None, tolerance=Tolerance(1e9)).verdict.passed
    runs = [(text, config(text, config="causal", layer="0", head="0")) for text in ("old", "bank")]
    found = compare_runs("text", runs, None, tolerance=Tolerance(1e9))
    assert "no query token of 'old' has a counterpart in 'bank'" in str(failure(found))


def test_saved_reports_are_narrowed_to_what_is_wanted(saved):
    whole = compare_files(saved).changes[0].heads
    wanted = ReportSelection(
        **parsed(
            dict(layer="-1", head="1,3", query="by,0", key="river,2", stages=("masked", "output"))
        )
    )
    found = compare_files(saved, wanted)
    assert [(h.first, h.second) for h in found.changes[0].heads] == [
        ((1, 1), (1, 1)),
        ((1, 3), (1, 3)),
    ]
    for head, known in zip(found.changes[0].heads, (whole[5], whole[7]), strict=True):
        assert head.queries == [(0, 0), (2, 2)]
        assert head.keys == [(2, 2), (4, 4)]
        np.testing.assert_array_equal(head.difference, known.difference[[0, 2]][:, [2, 4]])
        for name in ("total_variation", "jensen_shannon", "gain", "loss"):
            np.testing.assert_array_equal(getattr(head, name), getattr(known, name)[[0, 2]])
        np.testing.assert_array_equal(head.entropy, known.entropy[:, [0, 2]])
        assert head.entered == [known.entered[0], known.entered[2]]
        assert [cell.stage for cell in head.worst] == ["masked", "output"]
    assert found.sides[0].report.texts[0].queries == [0, 2]
    assert (
        failure(compare_files(saved, ReportSelection(**parsed(dict(query="0"))), Tolerance(1e-9)))
        is None
    ), "row 2 differs, row 0 does not"
    assert (
        failure(
            compare_files(
                saved, ReportSelection(**parsed(dict(stages=("scores",)))), Tolerance(1e-9)
            )
        )
        is None
    )


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"layer": "0"}, r"layer: '.*' has no layer 0; it has 1"),
        ({"layer": "9"}, r"layer: there is no layer 9"),
        ({"head": "mean"}, r"head: '.*' has no head mean; it has 0, 1, 2, 3"),
        ({"query": "0,3"}, r"query: '.*' has no query 0; it has 2–4"),
        ({"key": "river,0:3"}, r"key: '.*' has no key 0–1; it has 2, 4"),
        ({"stages": ("scaled",)}, r"stages: '.*' has no scaled; it has masked, weights"),
    ],
)
def test_what_is_wanted_and_not_saved_is_refused(tmp_path, wanted, said):
    options = {"layer": "1", "query": "2:5", "key": "2,4", "stages": ("masked", "weights")}
    path = kept(tmp_path, "a.json", **options)
    with pytest.raises(UsageError, match=said):
        compare_files([path, path], ReportSelection(**parsed(wanted)))


def test_contributors_of_other_numbers_and_rankings(tmp_path):
    """As many as both hold; none where they are ranked by different measures."""
    two, five = (kept(tmp_path, f"{top}.json", top=top) for top in (2, 5))
    for head in compare_files([two, five]).changes[0].heads:
        assert not any(head.entered)
        assert not any(head.left)
    other = compare_files([two, kept(tmp_path, "v.json", top=2, by="value")])
    assert not any(row for head in other.changes[0].heads for row in head.entered + head.left)
    assert "contributors are ranked by different measures" in other.notes[0]


def test_what_only_one_side_holds_is_told(tmp_path):
    paths = [
        kept(tmp_path, "a.json", layer="0", stages=("weights",)),
        kept(tmp_path, "b.json", query="0:3"),
    ]
    notes = compare_files(paths).notes
    assert f"only '{paths[1]}' has L1H0, L1H1, L1H2, L1H3" in notes
    assert f"only '{paths[1]}' has scores, scaled, masked, output" in notes
    assert f"only '{paths[0]}' has the rows of query 3–6" in notes


def test_reports_that_do_not_go_together_are_refused(saved, tmp_path):
    (tmp_path / "c.json").write_bytes(to_json(inspect(config(layer="0"))))
    with pytest.raises(
        AttnscopeError, match=r"L1H0 is not in '.*c\.json', which has L0H0.*; compare reports"
    ):
        compare_files([saved[0], tmp_path / "c.json"])
    (tmp_path / "d.json").write_bytes(to_json(inspect(config(stages=("scores",)))))
    with pytest.raises(
        AttnscopeError, match=r"L0H0: the report has no weights; save it with stages"
    ):
        compare_files([saved[0], tmp_path / "d.json"])
    (tmp_path / "e.json").write_text("{}")
    with pytest.raises(AttnscopeError, match=r"e\.json: not an attnscope report"):
        compare_files([saved[0], tmp_path / "e.json"])


def test_a_head_that_is_saved_of_another_layer_alone_is_refused(tmp_path):
    whole = inspect(config())
    units = whole.texts[0].heads.units
    heads = whole.texts[0].heads.only([units.index((0, 0)), units.index((1, 1))])
    path = tmp_path / "some.json"
    path.write_bytes(to_json(replace(whole, texts=[replace(whole.texts[0], heads=heads)])))
    assert (
        len(
            compare_files([path, path], ReportSelection(**parsed(dict(layer="1", head="1"))))
            .changes[0]
            .heads
        )
        == 1
    )
    with pytest.raises(UsageError, match=r"some\.json' has no such layer and head"):
        compare_files([path, path], ReportSelection(**parsed(dict(layer="0", head="1"))))


@pytest.mark.parametrize("lacking", ["pooled", "columns"])
@pytest.mark.parametrize("side", [0, 1])
def test_a_map_is_compared_with_a_map_alone(lacking, side):
    text = inspect(config(pool=3)).texts[0]
    heads = [text.heads[0]] * 2
    assert not pooled_change(0, (text, text), heads)[0].worst[0].difference
    heads[side] = replace(text.heads, **{lacking: None})[0]
    with pytest.raises(AttnscopeError, match="only one side has a map"):
        pooled_change(0, (text, text), heads)


@pytest.mark.parametrize("width", [80, 100])
def test_a_token_stays_beside_its_position_and_its_weights(width):
    """`4` ended a line, and `river/road` began the next."""
    texts = [
        ("text 0", config("The bank by the river")),
        ("text 1", config("The bank by the road")),
    ]
    found = compare_runs("text", texts, None)
    shown = as_text(present(found), width)
    assert "\u00a0" not in shown
    changes = shown.split("what moved in each row")[1].split("legend")[0]
    names = "0 The", "1 bank", "2 by", "3 the", "4 river/road"
    joined = " ".join(changes.split())
    assert sum(joined.count(name) for name in names) > 10
    for name in names:
        assert joined.count(name) == changes.count(name) > 0, name
    assert max(map(len, shown.splitlines())) <= width
