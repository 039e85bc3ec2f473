"""How panels share a screen: numbers where there is room for them, none of them cut, and the same words of one step."""

import asyncio
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("textual", reason="textual is not installed")

import attnscope
from attnscope.cli.explore import SessionOpener
from attnscope.request.run_config import RunConfig, TextInput
from attnscope.studies.explore.live import LiveSource
from attnscope.studies.explore.saved import report_source
from attnscope.views.explore.app import ExploreApp
from attnscope.views.explore.worker import Worker
from attnscope.views.walk.place import PANELS, Begin
from tests.explore.proof import region_text, settled
from tests.explore.test_live import live
from tests.explore.test_live import walk as walk_live
from tests.explore.test_readable import painted

WORDS = "The bank by the river was not the bank that lent us money and nobody noticed"
# Columns and lines of the title, the footer, and the numbers of the sample's layers and heads.
DEEP = 30, 9


@cache
def source(count):
    text = " ".join(WORDS.split()[:count])
    found = attnscope.inspect(text, layer="all", head="all", stages="scores,weights,output", top=5)
    return report_source(found.data)


def deep_app(count, colours=1 << 24):
    """Return an app that shows as many words in a model of many layers, before it draws."""
    app = ExploreApp(source(count), colours=colours)
    app.state.ink = replace(app.state.ink, colours=colours)
    app.state.settle()
    variant, scene = app.state._shown
    layers, heads = (range(n) for n in DEEP)
    app.state._shown = variant, replace(scene, layers=layers, heads=heads)
    return app


def matrix_lines(app, size):
    width, height = size
    _, _, across, down = app._boxes(width, height - 2)["matrix"]
    return app._panels["matrix"].draw(app.state, across - 2, down - 1), app._panels["matrix"]._last


def text_of(lines):
    return ["".join(segment.text for segment in line) for line in lines]


def test_a_matrix_has_numbers_where_the_row_may_stand_below_it_and_shows_every_row():
    """Fourteen tokens of a deep model had two columns each at 120 × 40, no number, and thirteen empty lines."""
    for count in (12, 14, 15):
        lines, layout = matrix_lines(deep_app(count), (120, 40))
        assert layout.form is not None, count
        assert len(layout.rows) == len(layout.columns) == layout.n_rows, count
        assert len(re.findall(r"\.\d\d|1\.0", "".join(text_of(lines)))) >= count, count


def test_a_matrix_between_two_panels_is_not_too_narrow_for_names_numbers_and_cells():
    """At 100 × 30 its cells had one column, names of rows were cut, and its legend had no number."""
    lines, layout = matrix_lines(deep_app(14), (100, 30))
    text = "\n".join(text_of(lines))
    assert layout.cell >= 2 and len(layout.rows) == layout.n_rows
    assert "…" not in text and re.search(r" 0 .*\.1 .*\.5 .* 1", text)


def test_no_number_is_cut_by_the_edge_of_a_narrow_matrix():
    """An output's dimensions lost their last digits, and columns of one cell had `…` for their numbers."""
    app = deep_app(14)
    for stage in ("weights", "scores", "output"):
        app.state.place = replace(app.state.place, stage=stage)
        for size in ((28, 6), (38, 9), (43, 17), (58, 17), (60, 24)):
            lines = app._panels["matrix"].draw(app.state, *size)
            found = re.findall(r"\d[.,]? ?….*|0123456789….*", "\n".join(text_of(lines)))
            assert not found, (stage, size, found)


def test_the_footer_of_a_small_terminal_leaves_out_steps_but_cuts_no_number():
    """It showed `→ e^2.3…`, which is no power of e."""
    app = deep_app(14)
    app._wide = False
    for width in (24, 30, 40, 60):
        (footer,) = text_of([app._footer(width)])
        assert "…" not in footer and re.search(r"(= |weight )[\d.e−-]+", footer), footer


def test_a_step_that_is_done_is_not_called_a_hundred_percent_while_its_numbers_are_sorted():
    said = []
    worker = Worker(lambda call: call(), lambda status, _: said.append(status))
    for done in (400, 1000):
        worker._progress("attending · layer 4 of 4", done, 1000)
    worker._progress("loading", 0, 1)
    of_layer = "attending · layer 4 of 4"
    assert said == [f"{of_layer} · 40 % …", f"{of_layer} …", "loading …"]


def test_the_panel_of_roles_says_of_a_step_what_the_title_says():
    """It kept the words of the step during which it was drawn last."""
    app = deep_app(14)
    app.state.source.computes = True
    app.state.place = replace(app.state.place, display="roles")
    for status in ("attending · layer 4 of 6 …", "attending · layer 1 of 6 · 0 % …"):
        app.state.status = status
        lines = app._panels["heads"].draw(app.state, 44, 24)
        (title,) = text_of([app._title(120)])
        assert status in title and status in "\n".join(text_of(lines))


def test_panels_are_arranged_for_the_text_and_the_unit_that_are_shown():
    """A long text kept the one line that a short one before it had been given, and its narrow matrix."""
    texts = ["The bank", f"{WORDS} " * 7, "unbelievable extraordinarily " * 6]
    options = {"layer": "all", "head": "all", "stages": "weights", "top": 5}
    reports = attnscope.inspect(texts, **options).data

    async def run():
        app = ExploreApp(report_source(reports))
        seen = []
        async with app.run_test(size=(120, 40)) as pilot:
            for key in ("", ")", "(", ")", ")", "u"):
                await pilot.press(*key)
                await settled(app, pilot)
                regions = {name: app.panes[name].region for name in PANELS}
                boxes = app._boxes(120, 38)
                seen.append((boxes, {name: (r.x, r.y - 1, *r.size) for name, r in regions.items()}))
        return seen

    seen = asyncio.run(run())
    for boxes, shown in seen:
        assert boxes == shown
    heights = [boxes["text"][3] for boxes, _ in seen]
    assert heights[0] == heights[2] < heights[1]


def test_a_small_matrix_fills_a_large_panel():
    """Five tokens took half of its width, and less than six tenths of its height, at 200 × 60."""

    async def act(app, _press, _pilot):
        width, height = app._inside(*app.panes["matrix"].size)
        return app._panels["matrix"]._last, width, height

    layout, width, height = walk_live(act, live("The bank by the river"), (200, 60))
    assert len(layout.rows) == len(layout.columns) == 5
    assert layout.tall * 5 > 0.8 * height
    assert layout.label + layout.cell * 5 > 0.7 * width
    # cells stay about square: a line is as tall as two columns are wide
    assert layout.cell == 2 * layout.tall


def test_the_map_of_a_long_text_has_all_of_its_columns_and_its_line_is_whole(smollm2):
    """It began at key 80, and its line ended with `largest of …`, beside names of fourteen columns."""
    text = (Path(__file__).parents[2] / "LICENSE").read_text()[:3000]
    texts = (TextInput(text),)
    source = LiveSource(RunConfig(texts, model=str(smollm2)), SessionOpener(texts).open)

    async def act(app, press, _pilot):
        lines = region_text(app, "matrix")
        boxes.append(app._arranged)
        await press("=")
        boxes.append(app._arranged)
        return app._panels["matrix"]._last, lines, region_text(app, "matrix"), app.state.place.zoom

    boxes = []
    closer, lines, closer_lines, zoom = walk_live(act, source, (120, 40))
    # the lines that it leaves are the text's, 12 of them, and other panels have all lines then
    assert "largest of" in lines[-1]
    x, y, across, down = boxes[0]["matrix"]
    assert boxes[0]["text"] == (x, y + down, across, 38 - down) and down < 26
    assert {boxes[0][name][3] for name in ("heads", "row")} == {38}
    assert boxes[1]["text"][2] == 120 and boxes[1]["matrix"][3] == 38 - boxes[1]["text"][3]
    remarks = [line for line in lines if "largest of" in line]
    assert len(remarks) == 1 and re.search(r"largest of (\d+) × \1 *$", remarks[0])
    assert "keys" not in lines[0] and "keys" not in remarks[0]
    # where not all columns are in sight, the title says which
    assert zoom > 1 and len(closer.columns) < closer.n_columns and "keys" in closer_lines[0]
    (remark,) = (line for line in closer_lines if "largest of" in line)
    assert re.search(rf"largest of {zoom} × {zoom} *$", remark)


def test_the_row_below_the_heads_of_a_deep_model_lists_every_source_on_a_large_terminal():
    """It listed five of 13 at 200 × 60, and eight at 120 × 40."""
    app = deep_app(13)
    count = len(app.state.scene.keys.positions)
    *_, width, height = app._boxes(200, 58)["row"]
    lines = app._panels["row"].draw(app.state, *app._inside(width, height))
    texts = ["".join(segment.text for segment in line) for line in lines]
    assert sum(text.startswith("← ") for text in texts) == count
    assert any("entropy" in text for text in texts) and any(" cell " in text for text in texts)


@pytest.mark.parametrize("size", [(200, 60), (120, 40)])
def test_heads_have_the_lines_that_a_short_row_leaves(size, minilm):
    """At 200 × 60, half of the panel of the row was blank, and heads were two lines high."""
    found = attnscope.inspect(
        "The animal did not cross the street because it was too",
        model=str(minilm),
        layer="all",
        head="all",
        stages="weights",
    ).data
    app, shown, _ = painted(report_source(found), "a", size, colours=1 << 24)
    panel = app._panels["heads"]
    layers, heads, label, wide, tall = panel._last
    assert len(layers) == 6 and len(heads) == 12
    if size == (200, 60):
        assert tall == 3
        row = [line.strip("│ ") for line in shown["row"]]
        assert len(row) - max(n for n, line in enumerate(row) if line) < 10
    lines = panel.draw(app.state, panel.width, panel.height)[2:]
    weights = app.state.lens()
    spot = app.state.place.spot
    for layer, head in np.ndindex(6, 12):
        x = label + head * wide
        cell = [cells_of(lines[layer * tall + n], x, wide - 1) for n in range(tall)]
        (text,) = (text.strip() for text, _ in cell if text.strip())
        assert float(text) / (100 if "." not in text else 1) == pytest.approx(
            weights[layer, head], abs=0.011
        )
        if (layer, head) != (spot.layer, spot.head):
            # its colour is on all lines but the one between layers
            grounds = [ground for _, ground in cell]
            assert len({*grounds[: max(1, tall - 1)]}) == 1
            assert (grounds[0] is not None) == (weights[layer, head] > 0.0002)
            assert tall == 1 or grounds[-1] is None


def cells_of(line, x, width):
    """Return the text of some columns of a line, and the colour behind the first."""
    cells = [
        (letter, segment.style.bgcolor if segment.style else None)
        for segment in line
        for letter in segment.text
    ]
    return "".join(letter for letter, _ in cells[x : x + width]), cells[x][1]


def test_columns_that_are_wide_name_the_start_of_a_long_token_in_a_line():
    found = attnscope.inspect(
        "the old transportation responsibilities of the bank",
        layer="all",
        head="all",
        stages="weights",
    )
    app = ExploreApp(report_source(found.data))
    app.state.settle()
    names = [name.text for name in app.state.columns.names]
    lines, _ = matrix_lines(app, (200, 60))
    (heading,) = (line for line in text_of(lines) if " old" in line and " bank" in line)
    for name in names:
        assert name in heading or name[:6] in heading
    assert any(name not in heading for name in names)


def test_spans_have_numbers_above_narrow_columns_and_names_above_wide_ones():
    found = attnscope.inspect(
        "The bank was old. The river was wide. The sea was far.",
        layer="all",
        head="all",
        spans="sentences",
    )
    for size, expected in (
        ((80, 24), ["0", "1", "2", "3"]),
        ((200, 60), ["(first)", "sentence 3"]),
    ):
        app = ExploreApp(report_source(found.data), begin=Begin(unit="spans"))
        app.state.settle()
        assert len(app.state.columns.names) == 4
        lines, layout = matrix_lines(app, size)
        assert layout.heading == 1
        heading = text_of(lines)[1]
        assert [name for name in expected if name in heading] == expected
        assert ("sentence" in heading) == ("sentence 3" in expected)
