"""One query's row, as a list of keys."""

import re

import numpy as np
import pytest

from tests.helpers.sample_reports import sized
from tests.helpers.screens import draw, read_list, read_number


def lines_of(screen):
    """The lines of the list, each split at blanks."""
    lines = screen.split("\n")
    start = next(n for n, line in enumerate(lines) if re.match(r" +key +\w", line))
    return [line.split() for line in lines[start + 1 : lines.index("", start)]]


def test_a_long_row_lists_its_largest_weights_and_sums_the_others():
    report = sized(60, queries=[59], stages=("scores", "masked", "weights"))
    weights = report.texts[0].heads[0].stages["weights"][0].astype(np.float64)
    *listed, others = lines_of(draw(report, 100, brief=True))
    order = [int(line[0]) for line in listed]
    assert len(order) == 32
    assert weights[order].tolist() == sorted(weights.tolist(), reverse=True)[:32]
    assert others[:2] == ["28", "others"]
    assert read_number(others[2]) == pytest.approx(np.delete(weights, order).sum(), abs=0.006)


def test_every_key_is_listed_if_the_stages_were_chosen():
    report = sized(60, queries=[59], stages=("masked", "weights"))
    (block,) = read_list(draw(report, 80).split("\n"))["weights"]
    assert block.columns == list(range(60))


def test_a_long_list_stands_in_pieces_side_by_side_if_there_is_room():
    report = sized(60, queries=[59], stages=("masked", "weights"))
    narrow, wide = (lines_of(draw(report, width)) for width in (100, 160))
    # a bar of little is seen if it is long
    narrow, wide = (
        [[cell for cell in line if not set(cell) <= set("▏▎▍▌▋▊▉█")] for line in lines]
        for lines in (narrow, wide)
    )
    assert len(narrow) == 60 and len(wide) == 30
    assert wide == [[*left, *right] for left, right in zip(narrow[:30], narrow[30:], strict=True)]


@pytest.mark.parametrize("projected", [False, True])
def test_ranked_keys_have_their_contribution_in_their_line(projected):
    report = sized(9, queries=[4], stages=("weights",), projected=projected)
    top = report.texts[0].heads[0].top
    screen = draw(report, 120)
    measures = [top.value, *([top.projected] if projected else [])]
    for line in lines_of(screen):
        # The name of a token has no blank here, and a bar is no number.
        numbers = [read_number(cell) for cell in line[3:] if re.fullmatch(r"[−\d.e+-]+", cell)]
        if int(line[0]) in top.keys[0]:
            rank = top.keys[0].tolist().index(int(line[0]))
            assert numbers == pytest.approx([float(m[0, rank]) for m in measures], abs=0.006)
        else:
            assert numbers == []


def test_a_sink_has_a_weight_and_no_score():
    report = sized(5, queries=[3], stages=("masked", "weights"), sink=0.3)
    (sink,) = [line for line in lines_of(draw(report, 100)) if "(sink)" in line]
    assert read_number(sink[1]) == pytest.approx(
        float(report.texts[0].heads[0].rows.sink[0]), abs=0.006
    )
    assert len([cell for cell in sink[1:] if re.fullmatch(r"[−\d.]+", cell)]) == 1
