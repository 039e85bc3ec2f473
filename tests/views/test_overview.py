"""The picture of a long text: every run of the map is where its position says, in the shade that its weight has."""

import re
from itertools import pairwise
from math import log

import numpy as np
import pytest
from msgspec.structs import replace
from rich.cells import cell_len

from tests.helpers.sample_overviews import overview, weights_of
from tests.helpers.sample_reports import HOSTILE
from tests.helpers.screens import draw

SHADES = "░▒▓█"


def rows_of(screen):
    """Position of the first query of every line of the picture, and the line behind its label."""
    lines = screen.split("\n")
    first = lines.index("query ↓") + 1
    start = lines[first - 2].index("→") + 2
    last = next(n for n in range(first, len(lines)) if not re.match(r" *\d+(?: |$)", lines[n]))
    return [(int(line[:start].split()[0]), line[start:]) for line in lines[first:last]], lines[
        first - 2
    ][start:]


def merged(pooled, queries, keys):
    """The map with neighbours taken together: mean over queries, sum over keys."""
    sizes = np.diff(pooled.queries)[:, None]
    cuts = np.arange(0, len(sizes), queries)
    total = np.add.reduceat(pooled.weights * sizes, cuts) / np.add.reduceat(sizes, cuts)
    return np.add.reduceat(total, np.arange(0, total.shape[1], keys), axis=1)


def shade(value, low, high):
    return (
        SHADES[min(3, int(log(max(value, low) / low) / log(high / low) * 4))] if value > 0 else " "
    )


@pytest.mark.parametrize(
    ("width", "queries", "keys", "cell"),
    [
        (80, 2, 1, 1),
        (150, 1, 1, 2),
        (142, 2, 1, 1),
        (143, 1, 1, 2),
        (60, 4, 2, 1),
        (44, 4, 2, 1),
        (40, 4, 2, 1),
    ],
)
def test_every_run_is_a_shade_of_its_weight(width, queries, keys, cell):
    made = overview(1000)
    pooled = made.texts[0].heads[0].pooled
    rows, ticks = rows_of(draw(made, width))
    expected = merged(pooled, queries, keys)
    high = expected.max()
    low = max(high / 1000, expected[expected > 0].min())
    assert [position for position, _ in rows] == pooled.queries[:-1:queries]
    for drawn, values in zip(rows, expected, strict=True):
        cells = [shade(v, low, high) * cell if v else "·".rjust(cell) for v in values]
        assert drawn[1] == "".join(cells).rstrip(" ")
    for match in re.finditer(r"\d+", ticks):
        assert int(match[0]) == pooled.keys[:-1:keys][match.start() // cell]


@pytest.mark.parametrize("width", [80, 150])
def test_tokens_stand_upright_above_the_columns_of_a_map_of_tokens(width):
    spelled = [f"token{n}" if n % 7 else f"w{n}" for n in range(60)]
    lines = draw(overview(60, spelled=spelled), width).split("\n")
    last = next(n for n, line in enumerate(lines) if line.startswith("query ↓"))
    start = lines[last - 6].index("→") + 2
    cell = 2 if width > 100 else 1
    assert all(len(line) <= width for line in lines[last - 5 : last + 1])
    for n, name in enumerate(spelled):
        column = start + n * cell
        letters = "".join(line.ljust(width)[column] for line in lines[last - 5 : last + 1]).strip()
        assert letters == (name if len(name) <= 6 else name[:5] + "…"), n


def halves(line):
    """The green of the upper and lower half of every character; 0 for the black background."""
    letters, ground = 0, 0
    for codes, text in re.findall(r"(?:\x1b\[([\d;]*)m)?([^\x1b]*)", line):
        if codes:
            found = {
                kind: int(green) for kind, green in re.findall(r"([34])8;2;\d+;(\d+);\d+", codes)
            }
            letters, ground = found.get("3", 0), found.get("4", 0)
        for character in text:
            yield {"▀": (letters, ground), "▄": (ground, letters)}.get(character, (ground, ground))


@pytest.mark.parametrize(("width", "lines"), [(80, 32), (150, 64)])
def test_colours_say_the_same_with_two_runs_in_a_line_where_it_is_narrow(width, lines):
    made = overview(640, bidirectional=True)
    weights = made.texts[0].heads[0].pooled.weights
    greens = {}  # green rises on a dark background
    screen = draw(made, width, colour="truecolor").split("logarithmic")[0].split("\n")
    rows = [line for line in screen if re.match(r"\x1b\[2m *\d+ \x1b\[0m[\w,… ]+", line)]
    assert len(rows) == lines
    cell = 2 if lines == 64 else 1
    label = max(len(list(halves(line))) for line in rows) - 64 * cell
    for n, line in enumerate(rows):
        drawn = [*halves(line), *[(0, 0)] * (64 * cell)][
            label : label + 64 * cell : cell
        ]  # zeros at the end are left out
        for column, (upper, lower) in enumerate(drawn):
            if lines == 64:
                assert upper == lower
                greens[weights[n, column]] = lower
            else:
                greens[weights[2 * n, column]], greens[weights[2 * n + 1, column]] = upper, lower
    assert len(greens) == weights.size
    assert all(greens[a] <= greens[b] for a, b in pairwise(sorted(greens)))


def test_the_legend_says_that_smaller_weights_have_the_lowest_colour():
    made = overview(200)
    weights = made.texts[0].heads[0].pooled.weights
    low = max(weights.max() / 1000, weights[weights > 0].min())
    below = "<" if (weights[weights > 0] < np.float32(low)).any() else ""
    coloured = re.sub(r"\x1b\[[0-9;]*m", "", draw(made, 200, colour="truecolor"))
    assert re.search(
        rf"^{below}{low:.2g} +{weights.max():.2g}  logarithmic", coloured, re.MULTILINE
    )
    assert re.search(r"^>0 \[░", draw(made, 200), re.MULTILINE)


def test_what_is_exactly_zero_has_a_sign_and_what_sees_nothing_is_said():
    made = overview(128, size=64, dead=(0, 1, 2, 3))
    rows, _ = rows_of(draw(made, 150))
    assert [bool(line) for _, line in rows[:3]] == [False, False, True]
    assert [row[0] for row in rows] == made.texts[0].heads[0].pooled.queries[:-1]
    assert len(rows[2][1].partition(" ·")[0]) == 6 and rows[2][1].count("·") == 61
    assert "logarithmic; · is exactly zero" in draw(made, 150)
    assert "2 of 64 rows are blank: their queries are fully masked" in draw(made, 150)
    assert "fully masked" not in draw(overview(128), 140)


def test_the_most_attended_are_listed_with_their_share_and_where_they_stand():
    made = overview(300, spelled=[f"w{i}" for i in range(300)])
    mass = weights_of(300).sum(0)
    screen = draw(made, 120)
    listed = re.findall(
        r"^ *(\d+) w\d+ +[█▉▊▋▌▍▎▏]+ +([\d.]+) +([\d.]+) %  (.*)$", screen, re.MULTILINE
    )
    assert [int(key) for key, *_ in listed] == np.argsort(-mass, kind="stable")[:10].tolist()
    for key, weight, share, where in listed:
        assert float(weight) == pytest.approx(mass[int(key)], abs=0.051)
        assert float(share) == pytest.approx(mass[int(key)] / 300 * 100, abs=0.051)
        assert f"[w{key}]" in where
    assert f"w{int(listed[1][0]) - 1} [w{listed[1][0]}] w{int(listed[1][0]) + 1}" in listed[1][3]
    assert f"the 10 below receive {sum(np.sort(mass)[-10:]) / 300:.0%}".replace("%", " %") in screen


def test_what_takes_no_part_in_rankings_is_not_listed_either():
    made = overview(100, special=(99,), left_out=["special tokens", "first token"])
    screen = draw(made, 80)
    assert "without special tokens and first token" in " ".join(screen.split())
    assert not re.search(r"^ *(0|99) \w+ +[█▉▊▋▌▍▎▏]+ +\d", screen, re.MULTILINE)
    assert re.search(r"^ *0 the +█+ +\d", draw(overview(100), 80), re.MULTILINE)


def test_averages_are_those_of_all_rows():
    said = "on average, a row has 0.12 of its weight on itself, 0.25 on the first token, 0.62 on the rest;"
    assert said in draw(overview(70), 120)


@pytest.mark.parametrize("colour", [None, "standard", "truecolor"])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize("size", [1, 64, 200])
def test_no_line_is_wider_than_the_console_and_ascii_stays_ascii(colour, encoding, size):
    made = overview(len(HOSTILE) * 12, spelled=HOSTILE * 12, size=size)
    for width in (20, 21, 40, 80, 200):
        screen = draw(made, width, colour=colour, encoding=encoding)
        assert encoding != "ascii" or screen.isascii()
        for line in re.sub(r"\x1b\[[0-9;]*m", "", screen).split("\n"):
            assert cell_len(line) <= width, (width, line)
            assert not re.search(r"[\x00-\x1f\x7f-\x9f\u200d\u202e]", line), line


def test_the_screen_names_no_options_that_show_nothing():
    screen = draw(overview(100), 200)
    assert "--query ROWS --key COLUMNS · --pool N" in screen
    assert "--top K" not in screen
    assert "top contributors" not in screen


def test_a_map_says_what_its_rows_sum_to():
    made = overview(70)
    assert "; each row sums to 1\n" in draw(made, 200)
    heads = made.texts[0].heads
    pooled = replace(heads.pooled, weights=heads.pooled.weights / 2)
    rows = replace(heads.rows, sink=heads.rows.entropy)
    for changed, sums in [
        (
            replace(heads, pooled=pooled),
            "each row sums to 1, less where all keys of a head are cut",
        ),
        (replace(heads, pooled=pooled, rows=rows), "each row with its sink sums to 1"),
    ]:
        text = replace(made.texts[0], heads=changed)
        assert f"; {sums} key →" in " ".join(draw(replace(made, texts=[text]), 200).split())


def test_a_map_of_one_weight_names_it_once():
    made = overview(70)
    heads = made.texts[0].heads
    same = np.where(heads.pooled.weights > 0, np.float32(0.25), np.float32(0))
    text = replace(made.texts[0], heads=replace(heads, pooled=replace(heads.pooled, weights=same)))
    assert "\n[██] 0.25  logarithmic" in draw(replace(made, texts=[text]), 200)
