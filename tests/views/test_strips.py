"""q, k and their products as cells of colour: every cell in every view against numbers of the explanation."""

import re
from itertools import pairwise

import numpy as np
import pytest
from rich.text import Text

from attnscope.studies.registry import present
from attnscope.views import parts
from attnscope.views.page.container import Container
from attnscope.views.page.rendering import render
from tests.helpers.sample_explanations import explanation, residuals
from tests.helpers.screens import draw, read_number
from tests.views.test_figure import ORANGE_BLUE, grids, parsed, places

SHADES = "░▒▓█"


# The first 20 of 24 dimensions turn in pairs: 0 with 10, and so on.
ROTATED = {"rotated": 20, "width": 24}


def in_order(q, k, rotated=0):
    """q, k, their products and the running sum: pairs and single dimensions by falling size of what they add."""
    half = rotated // 2
    groups = [[i, i + half] for i in range(half)] + [[i] for i in range(rotated, len(q))]
    groups.sort(key=lambda dims: -abs(sum(q[dim] * k[dim] for dim in dims)))
    dims = [dim for group in groups for dim in group]
    return {
        "q": q[dims],
        "k": k[dims],
        "q × k": q[dims] * k[dims],
        "so far": np.cumsum(q[dims] * k[dims]),
    }


def expected(made, rotated=0):
    """What the strips of every explained cell show."""
    for cell in made.cells:
        q = np.array(made.query_steps[-1].values, dtype=np.float64)
        k = np.array(cell.key_steps[-1].values, dtype=np.float64)
        yield in_order(q, k, rotated)


def strips_of(made):
    return [part for part in present(made) if isinstance(part, parts.Strips)]


@pytest.mark.parametrize("rotated", [{}, ROTATED], ids=["plain", "rotated"])
def test_strips_are_products_of_query_and_key_and_end_with_the_score(rotated):
    made = explanation(**rotated)
    found = strips_of(made)[: len(made.cells)]
    assert len(found) == len(made.cells) > 0
    of_cells = expected(made, rotated.get("rotated", 0))
    for strips, cell, rows in zip(found, made.cells, of_cells, strict=True):
        assert [strip.name for strip in strips.strips] == list(rows)
        for strip in strips.strips:
            np.testing.assert_allclose(strip.values, rows[strip.name], rtol=1e-5, atol=1e-6)
        assert strips.strips[-1].values[-1] == pytest.approx(cell.score, abs=1e-4)
        assert read_number(strips.strips[-1].end[0].text) == pytest.approx(cell.score, abs=0.006)


@pytest.mark.parametrize("rotated", [{}, ROTATED], ids=["plain", "rotated"])
def test_a_caption_has_the_numbers_at_the_ends_of_every_line(rotated):
    made = explanation(**rotated)
    said = " ".join(draw(made, 200).split())
    (rows,) = list(expected(made, rotated.get("rotated", 0)))[:1]
    ends = re.findall(r"(q|k|q × k|so far) ±([\d.]+)", said)
    assert [name for name, _ in ends[:4]] == list(rows)
    for (name, end), values in zip(ends[:4], rows.values(), strict=True):
        assert float(end) == pytest.approx(np.abs(values).max(), abs=0.006), name
    assert len(ends) == (8 if rotated else 4)


@pytest.mark.parametrize("width", [100, 160, 200])
def test_the_way_to_the_weight_uses_the_width(width):
    """A line ends where its next item would not fit."""
    lines = draw(explanation(inputs=residuals(12), layer=12), width, precision=4).split("\n")
    for before, after in pairwise(lines):
        listed = re.search(r"; |, after layer", before) and re.match(
            r" {14}(\S.*?)(?:;|, after|$)", after
        )
        if listed and before.endswith((";", ",")):
            assert len(before) + 1 + len(listed[1]) + 1 > width, before


def test_q_and_k_before_the_rotation_are_in_the_order_of_those_after_it():
    made = explanation(**ROTATED)
    (cell,) = made.cells
    after, before = strips_of(made)
    dims = [int(name.removeprefix("dim ")) for name in after.cells]
    assert list(before.cells) == list(after.cells) and sorted(dims) == list(range(24))
    for strip, steps in zip(before.strips, (made.query_steps, cell.key_steps), strict=False):
        np.testing.assert_allclose(strip.values, np.array(steps[0].values)[dims], rtol=1e-6)
    q, k, products, sums = (strip.values for strip in before.strips)
    np.testing.assert_allclose(products, np.multiply(q, k))
    np.testing.assert_allclose(sums, np.cumsum(products))
    assert q != after.strips[0].values
    assert len(strips_of(explanation())) == 1


def test_the_answer_has_the_weight_first_and_one_line_for_all_checks():
    shown = draw(explanation(**ROTATED), 100)
    weight = re.search(r"1 bank ← \d+ \w+: weight ([\d.]+)\n", shown)
    assert f"= weight {weight[1]};" in shown[weight.end() :]
    assert "check: all 9 hold, to 1.2e-07 or better\n" in shown[: shown.index("1  what enters")]
    broken = draw(explanation(broken="parts"), 100)
    assert "check: 1 of 8 broken: the parts' sum = q·k\n" in broken[: broken.index("1  what")]


def test_the_answer_is_above_the_steps():
    shown = draw(explanation(), 100)
    assert shown.index("= weight") < shown.index("so far") < shown.index("1  what enters")
    assert "in one line" not in shown


@pytest.mark.parametrize("rotated", [{}, ROTATED], ids=["plain", "rotated"])
def test_without_colours_a_cell_is_a_sign_and_a_shade(rotated):
    made = explanation(**rotated)
    lines = draw(made, 100).split("\n")
    (rows,) = list(expected(made, rotated.get("rotated", 0)))[:1]
    for name, values in rows.items():
        line = next(line for line in lines if line.strip().startswith(f"{name} "))
        cells = line[line.index(name) + len("so far  ") :]
        for n, value in enumerate(values):
            size = min(3, int(abs(value) / np.abs(values).max() * 4))
            # However small it is: only what is exactly 0 is blank.
            shaded = ("+" if value > 0 else "−") + SHADES[size] if value else "  "
            assert cells[2 * n : 2 * n + 2].ljust(2) == shaded, (name, n)


@pytest.mark.parametrize("colour", [None, "standard", "256", "truecolor"])
def test_strips_say_what_their_cells_stand_for(colour):
    lines = draw(explanation(), 100, colour=colour).split("\n")
    legend = Text.from_ansi(next(line for line in lines if "   scale   " in line))
    if colour is None:
        assert legend.plain == "   scale   −█−▓−▒−░ 0 +░+▒+▓+█"
        return
    assert legend.plain == f"   scale   −{' ' * 10}0{' ' * 10}+"
    zero = legend.plain.index("0")
    colours = [
        (span.start < zero, tuple(span.style.bgcolor.get_truecolor()))
        for span in legend.spans
        if span.style.bgcolor is not None
    ]
    for is_less, (red, _, blue) in colours:
        assert (red > blue) if is_less else (blue >= red)
    # of 16 colours, two steps on each side are told apart in every theme
    steps = 2 if colour == "standard" else 3
    assert [is_less for is_less, _ in colours].count(True) >= steps
    assert len(set(colours)) >= 2 * steps


def test_what_does_not_fit_is_counted():
    made = explanation(**ROTATED)
    line = next(line for line in draw(made, 40).split("\n") if "q × k" in line)
    cells, more = re.search(r"q × k +(.*?) … (\d+) more", line).groups()
    assert len(cells) <= 2 * (24 - int(more))
    assert len(line) <= 40


@pytest.mark.parametrize("rotated", [{}, ROTATED], ids=["plain", "rotated"])
def test_figures_and_pages_have_the_same_cells(rotated):
    made = explanation(**rotated)
    drawn = [grid for grid in grids(parsed(made)) if len(grid) == 1]
    titles = re.findall(
        r"'title': '(dim \d+): ([^']+)'", str(list(render(strips_of(made), Container())))
    )
    rows = [
        values for cell in expected(made, rotated.get("rotated", 0)) for values in cell.values()
    ]
    if rotated:
        before = (np.array(strip.values) for strip in strips_of(made)[-1].strips)
        rows += before
    assert len(drawn) == len(rows)
    for grid, values in zip(drawn, rows, strict=True):
        for colour, value in zip(grid[0], values, strict=True):
            assert places(colour, ORANGE_BLUE) == pytest.approx(
                (value / np.abs(values).max() + 1) / 2, abs=0.012
            )
    numbers = [value for values in rows for value in values]
    assert len(titles) == len(numbers)
    for (_, said), value in zip(titles, numbers, strict=True):
        assert read_number(said) == pytest.approx(value, rel=1e-3, abs=1e-4)


def test_the_answer_says_what_is_subtracted_before_the_exponential():
    made = explanation()
    answers = re.findall(
        r"exp\((\S+) − largest (\S+)\) = ([\d.]+); / sum ([\d.]+) = weight ([\d.]+)",
        " ".join(draw(made, 200).split()),
    )
    assert len(answers) == len(made.cells)
    for cell, said in zip(made.cells, answers, strict=True):
        masked, largest, exponential, total, weight = map(read_number, said)
        assert largest == pytest.approx(made.row.masked.max(), abs=6e-3)
        assert masked == pytest.approx(made.row.masked[made.keys.index(cell.key)], abs=6e-3)
        assert exponential == pytest.approx(np.exp(masked - largest), rel=1e-2)
        assert weight == pytest.approx(exponential / total, rel=1e-2)
