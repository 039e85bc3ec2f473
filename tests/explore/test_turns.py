"""What takes turns on a screen, what is left out of it, and keys that come before there is anything."""

import asyncio
import re

import numpy as np
import pytest

pytest.importorskip("textual", reason="textual is not installed")

from rich.segment import Segment
from textual import events

import attnscope
from attnscope.studies.explore.saved import report_source
from attnscope.views.explore.app import ExploreApp, WalkScreen
from attnscope.views.explore.ink import Ink, cut
from tests.explore.proof import lines_of, press, region_text, settled
from tests.explore.test_head_lists import of_model
from tests.explore.test_live import live, walk

TEXT = "She sat by the [MASK] of the river"


def number(text):
    return float(text.replace("−", "-"))


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
@pytest.mark.parametrize("back", ["X", "x"])
def test_predictions_leave_with_the_last_cut_unless_they_were_there_before(back, size):
    async def act(app, press, _pilot):
        shown = []
        for key in ("x", back, "p", "x", back):
            await press(key)
            shown.append(" ".join(region_text(app, "row")))
        return shown

    cut_once, put_back, asked, cut_again, asked_before = walk(act, size=size)
    # a cut is said to matter or not where there would be the prediction alone
    of_predictions = re.compile(r" prediction |\bmatters\b")
    for text in (cut_once, asked, cut_again, asked_before):
        assert of_predictions.search(text)
    # the cell, or the key that brings it
    assert ("q·k" in cut_once) != ("p: " in cut_once)
    assert not of_predictions.search(put_back) and "q·k" in put_back
    assert "→" in cut_again and not re.search(r"\d → +\d", asked_before)


def test_the_sum_of_a_row_is_also_that_of_explain():
    async def act(app, press, pilot):
        await press("g", "down", "home", "right")
        row = " ".join(" ".join(region_text(app, "row")).split())
        await press("e")
        text = str(app.screen._text)
        return row, " ".join(text.split()), app.state.head.row("masked", 1).astype(np.float64)

    row, explained, masked = walk(act, size=(120, 60))
    pattern = r"Σ ([\d.]+) = e\^([−\d.]+) \(row's largest\) × ([\d.]+)"
    total, largest, rest = map(number, re.search(pattern, row).groups())
    assert total == pytest.approx(np.exp(masked).sum(), rel=1e-3)
    assert largest == pytest.approx(masked.max(), abs=0.0051)
    assert rest == pytest.approx(np.exp(masked - masked.max()).sum(), rel=1e-3)
    said = r"− largest ([−\d.]+)\) = [\d.]+; / sum ([\d.]+)"
    in_explain = [*map(number, re.search(said, explained).groups())]
    assert in_explain == pytest.approx([largest, rest], abs=0.0051)


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
def test_every_row_of_the_output_has_a_name_and_its_columns_have_numbers(size, smollm2):
    async def act(app, press, _pilot):
        await press("s")
        layout = app._panels["matrix"]._last
        output = app.state.head.stages["output"][app.state.place.spot.query]
        return lines_of(app, "matrix", True), layout, output

    lines, layout, output = walk(act, of_model(smollm2), size)
    assert layout.rows_per_line == 1 and len(layout.rows) == 11
    named = [int(m[1]) for line in lines[3:] if (m := re.match(r"\W*(\d+) \w+", line))]
    assert named[: len(layout.rows)] == [*range(11)]
    (ticks,) = (line for line in lines if re.match(r"[│ ]*dim \d", line))
    start = ticks.index("dim ") + len("dim ")
    for found in re.finditer(r"\d+", ticks):
        if not ticks[found.end() :].startswith("…"):
            assert int(found[0]) == layout.columns.start + (found.start() - start) / layout.cell
    text = " ".join(" ".join(line.strip("│ ") for line in lines).split())
    largest = re.findall(r"dim (\d+) (−?[\d.]+)(?=,|$| …)", text.partition("largest of")[2])
    order = np.argsort(-np.abs(output), kind="stable")
    assert [int(dim) for dim, _ in largest] == order[: len(largest)].tolist()
    for dim, written in largest:
        assert number(written) == pytest.approx(output[int(dim)], abs=0.0051)
    assert len(largest) == 4 or size == (80, 24)


def test_scores_have_as_many_decimals_as_there_is_room_for(smollm2):
    async def act(app, press, _pilot):
        await press("s", "s")
        assert app.state.place.stage == "scores"
        return lines_of(app, "matrix", True), app.state.head.stages["scores"]

    for size, decimals in {(120, 40): 1, (200, 60): 2}.items():
        lines, scores = walk(act, of_model(smollm2), size)
        for row, scores_of_row in enumerate(scores):
            (line,) = (each for each in lines if re.match(rf"[^\w▼]*{row} [A-Za-z]+ ", each))
            numbers = re.findall(r"−?\d+\.\d+", line)
            assert {len(text.partition(".")[2]) for text in numbers} == {decimals}
            assert [*map(number, numbers)] == pytest.approx(
                scores_of_row.tolist(), abs=0.51 * 10.0**-decimals
            )


def test_digits_are_not_offered_where_cells_have_several_positions():
    text = " ".join(["bank river"] * 60)
    report = attnscope.inspect(text, layer=1, head=2, stages="weights", mask="causal").data

    async def run():
        app = ExploreApp(report_source(report))
        async with app.run_test(size=(120, 40)) as pilot:
            await settled(app, pilot)
            shown = []
            for key in ("-", "d", *"======", "d"):
                await pilot.press(key)
                await settled(app, pilot)
                shown.append(
                    [app.state.place.zoom, app.state.place.digits, region_text(app, "footer")[0]]
                )
            return shown

    zoomed_out, refused, *_, zoomed_in, digits = asyncio.run(run())
    assert zoomed_out[0] > 1 and not refused[1] and "d digits" not in refused[2]
    assert zoomed_in[0] == 1 and not zoomed_in[1] and "d digits" in zoomed_in[2]
    assert digits[1]


def test_keys_that_come_before_the_first_screen_are_kept_in_their_order(smollm2):
    source = of_model(smollm2)

    async def run():
        app = ExploreApp(source)
        async with app.run_test(size=(120, 40)) as pilot:
            assert app.state.scene is None
            for key in ("/", "i", "t", "enter", "1", "x"):
                press(app, key)
            (waiting,) = region_text(app, "title")
            await settled(app, pilot)
            await settled(app, pilot)
            place = app.state.place
            await pilot.press("X")
            await settled(app, pilot)
            return waiting, place, app.state.place

    waiting, place, after = asyncio.run(run())
    assert "loading; then / i t Enter 1 x" in waiting
    # keys go to the panels again, not to a prompt that is closed
    assert place.cuts and not after.cuts
    assert place.spot.query == 8 and place.panel == "heads"
    assert [cut.written for cut in place.cuts] == [f"L{place.spot.layer}H{place.spot.head}"]


def test_keys_after_a_menu_that_come_before_the_first_screen_are_those_of_the_panels(smollm2):
    source = of_model(smollm2)

    async def run():
        app = ExploreApp(source)
        async with app.run_test(size=(120, 40)) as pilot:
            for key, character in [("v", "v"), ("enter", "\r"), ("x", "x")]:
                app.key(events.Key(key, character))
            (waiting,) = region_text(app, "title")
            await settled(app, pilot)
            await settled(app, pilot)
            return waiting, app.state.place, app.screen_stack

    waiting, place, screens = asyncio.run(run())
    assert "loading; then v Enter x" in waiting
    assert isinstance(screens[-1], WalkScreen)
    (made,) = place.cuts
    assert made.written.startswith(f"L{place.spot.layer}H{place.spot.head}")


@pytest.mark.parametrize("colours", [16, 256])
def test_few_colours_have_the_numbers_from_which_they_are(colours):
    async def run():
        app = ExploreApp(live("The bank by the river"), colours=colours)
        async with app.run_test(size=(120, 40)) as pilot:
            await settled(app, pilot)
            row = app._panels["matrix"]
            lines = row.draw(app.state, 80, 36)
            return app.state, row._last, lines

    state, layout, lines = asyncio.run(run())
    legends = [line for line in lines if any("from " in segment.text for segment in line)]
    assert len(legends) == (colours == 16)
    for legend in legends:
        steps = [(s.style.bgcolor, float(s.text)) for s in legend if s.style and s.style.bgcolor]
        weights = state.head.stages["weights"]
        checked = 0
        for row in range(len(weights)):
            line = lines[layout.above + row * layout.tall + (layout.tall - 1) // 2]
            for segment in line:
                found = re.fullmatch(r"[ ‹]*(\d?\.\d\d)[ ›]*", segment.text)
                if found and segment.style.bgcolor and "bold" not in str(segment.style):
                    (low,) = (low for colour, low in steps if colour == segment.style.bgcolor)
                    higher = [other for _, other in steps if other > low]
                    assert low - 0.006 <= float(found[1]) <= min(higher, default=1) + 0.006
                    checked += 1
        assert checked > 5


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
def test_all_layers_are_in_sight_with_the_roles_that_have_room_and_letters_have_meanings(
    size, smollm2
):
    async def act(app, press, _pilot):
        shown = []
        for keys in ("r", "1x"):
            await press(*keys)
            shown.append((lines_of(app, "heads", True), app._panels["heads"]._last[0]))
        return shown, app.state.scene.roles

    shown, roles = walk(act, of_model(smollm2), size)
    for lines, layers in shown:
        text = " ".join(" ".join(line.strip("│ ") for line in lines).split())
        of_layers = roles.main[layers.start : layers.stop]
        for index in {int(index) for index in of_layers.ravel() if index >= 0}:
            assert f"{roles.letters[index]} {roles.names[index]}" in text
        assert ("? unclear" in text) == bool((of_layers < 0).any())
        assert len(layers) == 30 or size == (80, 24)
        assert len(layers) >= 2
        for line in lines:
            found = re.match(r"\W*L(\d+) +(?!H)", line)
            if found and ":" not in line:
                # a cut head keeps its letter, beside the sign × of the cut
                letters = re.findall("[A-Z?]", line[found.end() :])[:9]
                assert letters == [
                    roles.letters[index] if index >= 0 else "?"
                    for index in roles.main[int(found[1])]
                ]


def test_what_a_line_leaves_out_is_marked_also_where_a_segment_ends():
    whole = [Segment("ab"), Segment("cd"), Segment("  ")]
    for width, text in {6: "abcd  ", 4: "abcd", 3: "abc"[:2] + "…", 2: "a…", 1: "…", 0: ""}.items():
        assert "".join(segment.text for segment in cut(whole, width)) == text
    assert Ink().plain("…") == "…"
