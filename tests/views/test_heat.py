import re
from itertools import pairwise

import numpy as np
import pytest

from attnscope.findings.heads import STAGES
from tests.helpers.sample_reports import causal, report, sized, text_report, tokens
from tests.helpers.screens import draw

SHADES = " ░▒▓█"


def picture(screen, count):
    """The rows of the last band of pictures, cut into two-character cells behind the labels."""
    lines = screen.split("\n")
    start = next(
        i
        for i, line in enumerate(lines)
        if re.match(r" *0 ", line) and any(s in line for s in "·░▒▓█")
    )
    heading = lines[start - 1]
    first = len(heading) - len(heading.lstrip()) - 1
    return [
        [line.ljust(first + 2 * count)[first + 2 * i : first + 2 * i + 2] for i in range(count)]
        for line in lines[start : start + count]
    ]


@pytest.mark.parametrize("count", [2, 5, 12, 40, 64])
def test_every_weight_is_one_cell_whose_shade_is_the_fifth_of_its_root(count):
    made = sized(count, stages=("weights",))
    weights = made.texts[0].heads[0].stages["weights"]
    cells = picture(draw(made, 200, format="heat"), count)
    for r in range(count):
        for c in range(count):
            fifth = min(4, int(float(weights[r, c]) ** 0.5 * 5))
            assert cells[r][c] == (" ·" if c > r else SHADES[fifth] * 2), (r, c)


@pytest.mark.parametrize(
    ("ramp", "place"),
    [("linear", lambda w: w), ("log", lambda w: 1 + np.log10(w) / 3 if w > 0.001 else 0)],
)
@pytest.mark.parametrize("sinks", [True, False])
def test_a_cell_is_the_fifth_that_the_ramp_says_of_the_largest_weight_off_the_first_token(
    ramp, place, sinks
):
    made = sized(12, stages=("weights",))
    weights = made.texts[0].heads[0].stages["weights"]
    largest = 1.0 if sinks else float(weights[:, 1:].max())
    cells = picture(draw(made, 200, format="heat", ramp=ramp, sinks=sinks), 12)
    for r, c in np.ndindex(weights.shape):
        fifth = min(4, int(place(min(1.0, float(weights[r, c]) / largest)) * 5))
        assert cells[r][c] == (" ·" if c > r else SHADES[fifth] * 2), (r, c)


@pytest.mark.parametrize("count", [5, 12])
def test_without_colour_only_zero_is_blank_and_other_numbers_have_their_sign(count):
    made = sized(count, stages=("scores",))
    scores = made.texts[0].heads[0].stages["scores"]
    scores[0, :3] = [0, np.abs(scores).max(), -np.abs(scores).max()]
    screen = draw(made, 200, format="heat")
    cells = picture(screen, count)
    assert cells[0][:3] == ["  ", "+█", "−█"]
    for value, cell in zip(
        scores.ravel().tolist(), [cell for row in cells for cell in row], strict=True
    ):
        shade = SHADES[1 + min(3, int(abs(value) / np.abs(scores).max() * 4))]
        assert cell == (("+" if value > 0 else "−") + shade if value else "  ")
    largest = np.abs(scores).max()
    bounds = [
        f"{sign}{largest * fourth / 4:.2f}"
        for sign, some in (("−", (4, 3, 2, 1)), ("", (0, 1, 2, 3, 4)))
        for fourth in some
    ]
    shades = ["−█", "−▓", "−▒", "−░", "+░", "+▒", "+▓", "+█"]
    legend = " ".join(f"{bound} [{shade}]" for bound, shade in zip(bounds, shades, strict=False))
    assert f"{legend} {bounds[-1]}" in screen


def test_the_columns_of_a_part_stand_behind_a_colon():
    assert "weights: 0–" in draw(sized(64, stages=("weights",)), 80, format="heat")


@pytest.mark.parametrize("count", [2, 5, 12])
def test_every_colour_is_that_of_its_value(count):
    made = sized(count, stages=("weights",))
    weights = made.texts[0].heads[0].stages["weights"]
    screen = draw(made, 200, colour="truecolor", format="heat")
    blues = [
        int(m[1]) for m in re.finditer(r"\x1b\[[0-9;]*48;2;\d+;(\d+);\d+m  \x1b", screen)
    ]  # green rises on a dark background
    values = [float(weights[r, c]) for r in range(count) for c in range(count) if c <= r]
    assert len(blues) == len(values)
    order = np.argsort(values)
    assert all(blues[a] <= blues[b] for a, b in pairwise(order))


def test_columns_are_named_by_their_tokens_and_those_without_a_name_by_their_position():
    """They had positions alone, which were read as numbers of the cells; many heads list their tokens."""
    spelled = ["the", "bank", "internationalization", "漢字", "by"]
    text = text_report(tokens(spelled), allowed=causal, stages=("weights", "output"), d_value=12)
    lines = draw(report(text), 120, format="heat").split("\n")
    end = next(n for n, line in enumerate(lines) if line.startswith("0 the"))
    names = [line.ljust(80) for line in lines[end - 6 : end]]
    first = names[-1].index("e")
    columns = ["".join(line[first + 2 * n] for line in names).strip() for n in range(5)]
    # six letters at most, and a letter that takes two columns has no room
    assert columns == ["the", "bank", "inter…", "3", "by"]
    rest = "".join(names[-1][first + 10 :].split())
    assert rest == "012345678901" and names[-2][first + 10 :].split() == ["1", "1"]


@pytest.mark.parametrize("width", [20, 40, 80, 120, 200])
@pytest.mark.parametrize("count", [1, 2, 7, 12, 13, 64])
def test_every_column_of_every_stage_is_drawn_once(count, width):
    screen = draw(sized(count, stages=STAGES, d_value=count), width, format="heat").split(
        "top contributors"
    )[0]
    lines = screen.split("\n")
    total = 0
    for n, line in enumerate(lines):
        # Names are read downwards: the last line of a heading has a letter for every column, and rows follow.
        if n + 1 < len(lines) and re.match(r" *0 the", lines[n + 1]):
            total += len(line.split())
    assert total == count * len(STAGES)


def test_stages_stand_side_by_side_where_there_is_room_and_below_each_other_where_not():
    made = sized(12)
    wide, narrow = (draw(made, width, format="heat") for width in (120, 40))
    assert re.search(r"scores +masked +weights", wide)
    assert not re.search(r"scores +masked", narrow)


def test_the_legend_holds_the_ends_of_the_scale():
    made = sized(5, stages=("weights",))
    said = "weights  0.00 [  ] 0.04 [░░] 0.16 [▒▒] 0.36 [▓▓] 0.64 [██] 1.00"  # squares of fifths
    assert said in draw(made, 120, format="heat")
    coloured = re.sub(r"\x1b\[[0-9;]*m", "", draw(made, 120, format="heat", colour="truecolor"))
    assert re.search(r"^weights  0 +\.01 +\.1 +\.5 +1  softmax", coloured, re.MULTILINE)


def test_columns_are_named_below_unless_rows_name_them_all():
    made = sized(12, queries=[1, 2], keys=[0, 1, 2, 8])
    assert "columns: 0 the · 1 river · 2 ran · 8 internationalization" in draw(
        made, 80, format="heat"
    )
    assert "columns:" not in draw(sized(12, queries=[1, 2, 8], keys=[1, 8]), 80, format="heat")
    crossed = report(text_report(tokens(["a", "b"]), context=tokens(["x", "y", "z"])))
    assert "context: 0 x · 1 y · 2 z" in draw(crossed, 80, format="heat")


def test_a_row_that_may_attend_to_nothing_says_so():
    made = report(
        text_report(
            tokens(["a", "b"]), allowed=lambda q, k: q == 0 and causal(q, k), stages=("weights",)
        )
    )
    assert re.search(r"^1 b +masked$", draw(made, 80, format="heat"), re.MULTILINE)


@pytest.mark.parametrize("colour", [None, "truecolor"])
def test_a_weight_beyond_the_scale_is_at_its_end(colour):
    """A report that was written by others may hold it; its picture was an internal error."""
    made = sized(3)
    made.texts[0].heads[0].stages["weights"][2] = [-40.0, 0.5, 0.5]
    shown = draw(made, 80, format="heat", **({"colour": colour} if colour else {}))
    assert "top contributors" in shown
