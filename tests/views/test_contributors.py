import re

import numpy as np
import pytest
from msgspec import structs

import attnscope
from attnscope.findings.attribution import Attribution, LogitEdge, TargetToken
from attnscope.findings.heads import Top
from attnscope.findings.predictions import PredictedToken, Prediction
from attnscope.studies.registry import present
from attnscope.views import parts
from attnscope.views.numbers import Digits
from attnscope.views.parts import Bar, Remainder
from attnscope.views.spans import ours
from attnscope.views.terminal import as_text
from attnscope.views.terminal.bars import bar_text
from tests.helpers.sample_reports import causal, report, sized, text_report, tokens
from tests.helpers.screens import contributors, draw

TEXT = "The bank by the river"
MORE_WEIGHT, MORE_CONTENT = "high weight, small value", "low weight, large value"


def with_top(keys, weight, value, *, by="weight", left_out=()):
    """A report of one query whose contributors are given."""
    made = report(text_report(tokens([f"w{i}" for i in range(4)]), queries=[3]))
    text = made.texts[0]
    arrays = [np.array([[row]], dtype=np.float32) for row in (weight, value)]
    top = Top(np.array([[keys]]), *arrays, by=by, left_out=list(left_out))
    text = structs.replace(text, heads=structs.replace(text.heads, top=top))
    return structs.replace(made, texts=[text])


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("by", ["weight", "value", "projected"])
def test_every_source_of_every_query_stands_with_its_numbers(by, width):
    made = sized(12, projected=True, by=by, top=4)
    shown = contributors(draw(made, width))
    top = made.texts[0].heads[0].top
    found = re.findall(r"← (\d+) .*?(\d\.\d+) (\d+\.\d+) (\d+\.\d+)", " ".join(shown.split()))
    expected = [(r, k) for r in range(12) for k in range(4) if top.keys[r, k] >= 0]
    assert len(found) == len(expected)
    for (r, k), (key, *numbers) in zip(expected, found, strict=True):
        assert int(key) == top.keys[r, k]
        for number, matrix in zip(numbers, (top.weight, top.value, top.projected), strict=True):
            assert abs(float(number) - matrix[r, k]) <= 0.5001 * 10.0 ** -len(number.split(".")[1])


@pytest.mark.parametrize("format", ["table", "heat"])
def test_a_query_that_may_attend_to_nothing_is_masked(format):
    made = report(text_report(tokens(["a", "b"]), allowed=lambda query, key: query == 0))
    assert re.search(r"^1 b +masked$", contributors(draw(made, 80, format=format)), re.MULTILINE)


@pytest.mark.parametrize("width", [60, 80, 120, 200])
@pytest.mark.parametrize("size", [5, 12])
def test_every_row_says_what_it_leaves_out(size, width):
    """Rows were silent below a tenth of their weight, and where a line had no room, and so seemed complete."""
    made = sized(size, top=3, allowed=causal)
    (head,) = made.texts[0].heads
    weights = head.stages["weights"].astype(np.float64)
    (ranking,) = (part for part in present(made) if isinstance(part, parts.Bars))
    for compact in (False, True):
        shown = as_text([structs.replace(ranking, compact=compact, brief=compact)], width)
        said = [
            (int(count), float(rest))
            for count, rest in re.findall(r"(\d+) more:?\s+<?(\d\.\d+)", shown)
        ]
        expected = []
        for row in weights:
            left = np.sort(row[row > 0])[::-1]
            left = [weight for n, weight in enumerate(left) if n > 2 or weight < 0.005]
            if left:
                expected.append((len(left), sum(left)))
        assert [count for count, _ in said] == [count for count, _ in expected]
        assert len(said) >= size - 3
        np.testing.assert_allclose(
            [rest for _, rest in said], [rest for _, rest in expected], atol=0.00051
        )


@pytest.mark.parametrize(
    ("width", "is_aligned"), [(50, False), (80, False), (100, True), (120, True)]
)
def test_sources_of_a_line_stand_below_those_of_the_lines_above(width, is_aligned):
    names = ["a", "animal", "is", "in", "the", "street", "of", "a", "town", "there", "was", "it"]
    made = report(text_report(tokens(names), allowed=causal, size=5.0))
    (ranking,) = (part for part in present(made) if isinstance(part, parts.Bars))
    shown = as_text([structs.replace(ranking, compact=True, brief=True)], width)
    starts = [
        [found.start() for found in re.finditer(r"← |\b0\.\d+", line)]
        for line in shown.splitlines()
        if line.count("← ") == 3
    ]
    assert len(starts) > 5 or not is_aligned
    columns = {places[:6] for places in map(tuple, starts)}
    assert (len(columns) == 1) == is_aligned


def test_a_view_that_draws_fewer_sources_adds_them_to_the_rest():
    digits = Digits(3)
    rows = [[Bar(n, weight, [""]) for n, weight in enumerate((0.5, 0.3, 0.15))], None]
    axis = parts.Axis("key", range(3), [], [False] * 3, 3)
    for rest, said in (
        (Remainder(2, 0.05, digits), ("4 more", "0.500")),
        (Remainder(0, 0.0, digits), ("2 more", "0.450")),
        (Remainder(None, 0.05, digits), ("others", "0.500")),
    ):
        bars = parts.Bars(axis, ["weight"], rows, remainders=[rest, None])
        assert bars.row_remainders(1) == [said, None]
        assert (bars.row_remainders()[0] is None) is (rest.weight == 0)
    tiny = parts.Bars(axis, ["weight"], rows[:1], remainders=[Remainder(7, 1e-5, digits)])
    assert tiny.row_remainders() == [("7 more", "<0.001")]


@pytest.mark.parametrize(("width", "cells"), [(60, 10), (80, 10), (110, 20), (140, 30), (200, 40)])
def test_bars_take_a_third_of_what_is_wider_than_a_small_screen(width, cells):
    numbers = parts.Column("number", ["1.000", "0.500"])
    table = parts.Table("head", [numbers], labels=[ours("a"), ours("b")], bars=[1.0, 0.5])
    lines = as_text([table], width).splitlines()
    assert [line.count("█") for line in lines] == [0, cells, cells // 2]
    assert [line.index(".") for line in lines[1:]] == [lines[1].index(".")] * 2
    rows = [[Bar(0, 1.0, ["1.000"]), Bar(1, 0.5, ["0.500"])]]
    axis = parts.Axis("key", range(2), [], [False] * 2, 2)
    lines = as_text([parts.Bars(axis, ["weight"], rows, axis)], width).splitlines()
    assert [line.count("█") for line in lines if "█" in line] == [cells, cells // 2]


def test_a_query_whose_every_source_is_left_out_says_so():
    shown = contributors(
        draw(with_top([-1, -1], [np.nan] * 2, [np.nan] * 2, left_out=["special tokens"]), 80)
    )
    assert "by weight, without special tokens" in shown
    assert re.search(r"^3 w3 +nothing to rank$", shown, re.MULTILINE)
    assert "nan" not in shown


@pytest.mark.parametrize(
    ("weight", "value", "remarks"),
    [
        ([0.6, 0.3, 0.1], [1.2, 0.6, 0.2], [None, None, None]),
        ([0.6, 0.3, 0.1], [0.05, 0.6, 0.2], [MORE_WEIGHT, None, None]),
        ([0.6, 0.3, 0.1], [1.2, 0.12, 0.01], [None, None, None]),
        ([0.9, 0.05, 0.01], [0.9, 0.8, 0.01], [None, None, None]),
        ([0.9, 0.05, 0.01], [0.7, 0.8, 0.01], [None, MORE_CONTENT, None]),
        ([0.9, 0.02, 0.01], [0.9, 0.001, 0.02], [None, None, None]),
        ([0.6, 0.3, np.nan], [0.1, 2.0, np.nan], [MORE_WEIGHT, None, None]),
        ([0.6, np.nan, np.nan], [0.0, np.nan, np.nan], [None, None, None]),
    ],
)
def test_a_remark_stands_where_rank_by_weight_and_by_content_disagree_sharply(
    weight, value, remarks
):
    keys = [-1 if np.isnan(w) else k for k, w in enumerate(weight)]
    lines = [
        line
        for line in contributors(draw(with_top(keys, weight, value), 120)).split("\n")
        if " ← " in line
    ][1:]
    said = [
        next((r for r in (MORE_WEIGHT, MORE_CONTENT) if line.endswith(r)), None) for line in lines
    ]
    assert said == remarks[: len(said)]
    assert len(said) == sum(k >= 0 for k in keys)


def test_where_remarks_do_not_fit_they_become_marks_that_are_explained():
    shown = contributors(draw(with_top([0, 1], [0.6, 0.3], [0.05, 0.6]), 40))
    assert re.search(r"0\.600 +0\.05 ▾$", shown, re.MULTILINE)
    assert f"▾ {MORE_WEIGHT}" in shown


def test_a_source_that_is_no_column_is_still_named():
    made = sized(12, queries=[11], keys=[0, 1], allowed=causal)
    for key in made.texts[0].heads[0].top.keys[0]:
        assert re.search(
            rf"← +{key} {made.texts[0].tokens[key].text}\b", contributors(draw(made, 120))
        )


@pytest.mark.parametrize(
    ("share", "cells", "bar"),
    [
        (0.0, 10, ""),
        (1.0, 10, "█" * 10),
        (0.602, 10, "██████"),
        (0.61, 10, "██████▏"),
        (2.0, 3, "███"),
        (0.05, 10, "▌"),
    ],
)
def test_a_bar_is_as_long_as_its_share(share, cells, bar):
    assert bar_text(share, cells) == bar


def test_a_bar_of_nothing_known_is_empty():
    assert bar_text(float("nan"), 10) == ""


@pytest.mark.parametrize("by", ["weight", "value"])
def test_the_sources_of_generated_tokens_have_a_legend_of_their_own(by):
    """A ranking by α·‖v‖ names it in the title, and so defines it with a colon; this title names no measure."""
    made = sized(4, by=by)
    token = PredictedToken(7, "w", " w", 0.5, 1.0)
    text = structs.replace(made.texts[0], generated=[Prediction("next", 2, [token])])
    shown = draw(structs.replace(made, texts=[text]), 200)
    (title,) = re.findall(r"^generated tokens.*$", shown, re.MULTILINE)
    assert title.endswith("predicted it; α·‖v‖: weight × norm of the source's value")


def test_the_strongest_heads_of_a_logit_are_those_that_add_or_take_away_most():
    heads = np.zeros((4, 4), np.float32)
    heads[0, 1], heads[1, 2], heads[3, 3] = 0.5, -2.0, 1.0
    heads.flat[[0, 4, 5, 7, 8, 9, 10, 11, 12]] = 0.1
    nothing, mlps = np.zeros(4, np.float32), np.ones(4, np.float32)
    target = TargetToken(7, "Ġx", " x", 1.5)
    added = Attribution(
        3, target, None, 1.5, 0.1, heads, nothing, mlps, 0.2, mlps, [LogitEdge(0, 1, 2, -0.5)]
    )
    made = sized(4)
    shown = draw(
        structs.replace(made, texts=[structs.replace(made.texts[0], attribution=added)]), 80
    )
    (line,) = [line for line in shown.splitlines() if line.startswith("strongest")]
    assert line.split()[1:7] == ["L1H2", "−2.00", "L3H3", "1.00", "L0H1", "0.50"]
    bars = {
        line.split()[0]: line.partition("0  ")[2]
        for line in shown.splitlines()
        if "│" in line and "H" in line
    }
    zero = bars["L1H2"].index("│")
    assert bars["L1H2"] == f"{'█' * 8:>{zero}}│"  # what it takes away is on the left of the line
    assert bars["L3H3"] == f"{'':>{zero}}│███▉"
    assert bars["L0H1"] == f"{'':>{zero}}│█▉"
    one_more = structs.replace(added, sources=np.ones(9, np.float32))
    text = structs.replace(sized(9).texts[0], attribution=one_more)
    assert "1 other token " in draw(structs.replace(made, texts=[text]), 200)


def test_with_one_key_asked_for_a_row_says_what_all_other_sources_have():
    found = attnscope.inspect(TEXT, query="river", key="bank", top=2)
    (head,) = found.data.texts[0].heads
    whole = attnscope.inspect(TEXT, layer=head.layer, head=head.head, query="river")
    row = whole[head.layer, head.head].weights[0]
    left = row.sum() - np.sort(row)[-2:].sum()
    (others,) = re.findall(r"others +([\d.]+)", draw(found.data, 80))
    assert float(others) == pytest.approx(left, abs=5e-4)
