"""Titles drop what matters least, whole: no word and no unit is cut; and signs have their meaning beside them."""

import asyncio
import random
import re

import numpy as np
import pytest

pytest.importorskip("textual", reason="textual is not installed")

from rich.cells import cell_len

import attnscope
from attnscope.studies.explore.saved import comparison_source, report_source
from attnscope.views.explore.app import ExploreApp
from attnscope.views.explore.headings import BETWEEN, TitlePart, model_forms, shortened
from attnscope.views.explore.ink import PLAIN
from tests.explore.proof import lines_of, region_text, resize, settled
from tests.explore.test_head_lists import of_model
from tests.explore.test_lens import listed_heads, shade_of
from tests.explore.test_live import walk
from tests.explore.test_readable import painted

TEXT = "The unbelievable animal did not extraordinarily cross the street"


@pytest.fixture(scope="module")
def report(smollm2):
    options = {"model": str(smollm2), "layer": "all", "head": "all", "stages": "weights"}
    return attnscope.inspect(TEXT, **options)


def test_parts_are_shortened_in_their_order_and_never_cut():
    chance = random.Random(5)
    for _ in range(300):
        parts = [
            TitlePart(["x" * n for n in sorted(chance.sample(range(1, 30), 3), reverse=True)])
            for _ in range(4)
        ]
        parts[1] = TitlePart.of(*parts[1].forms)
        order = chance.sample(range(4), 3)
        width = chance.randrange(10, 90)
        texts = [text for text, _ in shortened(parts, width, order)]
        forms = {form for part in parts for form in part.forms}
        assert set(texts) <= forms
        size = cell_len(BETWEEN.join(texts))
        least = [part.forms[-1] if n in order else part.forms[0] for n, part in enumerate(parts)]
        assert size <= max(width, cell_len(BETWEEN.join(filter(None, least))))
    first, second = (TitlePart.of("a long name", "name"), TitlePart.of("a long mask", "mask"))
    twice = {width: [t for t, _ in shortened([first, second], width, [1, 0, 1])] for width in (24, 19, 10, 9)}  # fmt: skip
    assert [*twice.values()] == [
        ["a long name", "a long mask"], ["a long name", "mask"], ["name", "mask"], ["mask"]
    ]  # fmt: skip


def test_a_name_of_a_model_is_shortened_at_its_words():
    forms = model_forms("/home/me/models/SmolLM2-135M-Instruct.Q4_1.gguf")
    assert forms[0] == "SmolLM2-135M-Instruct.Q4_1.gguf" and forms[-1] == "SmolLM2…"
    assert [len(form) for form in forms] == sorted(map(len, forms), reverse=True)
    assert model_forms("/opt/all_minilm_l6_v2/model")[-2:] == ["all_minilm_l6…", "all_minilm…"]


@pytest.mark.parametrize("size", [(80, 24), (96, 30), (100, 30), (110, 30), (120, 40)])
def test_the_title_of_heads_keeps_its_unit_and_the_range_of_its_layers(size, report):
    for keys in ("", "a", "ghh", "gjjjjja", "jjjjjjja"):
        app, panels, _ = painted(report_source(report.data), keys, size)
        title = panels["heads"][0].strip("1 ─")
        scene, spot = app.state.scene, app.state.place.spot
        query, key = (
            scene.queries.names[spot.query].text.strip(),
            scene.keys.names[app.state.key].text.strip(),
        )
        of_row = [f"{query} ← top non-sink, %", "top non-sink, %", "non-sink, %"]
        if spot.query < 2:
            # it reads nothing but the first token and itself
            of_row = [f"{query} ← strongest{source}, %" for source in (" source", "")]
            of_row += ["strongest source, %", "strongest, %"]
        of_cell = [f"{query} ← {key}, %", f"← {key}, %", "this cell, %"]
        forms = of_cell if app.state.place.display == "lens" else of_row
        assert title.removeprefix("heads").split("  ")[-1].strip() in forms, title
        layers = app._panels["heads"]._last[0]
        first, last = layers[0], layers[-1]
        assert len(layers) == 30 or f"L{first}–{last}/30  " in title, title
        assert keys or any(re.search(r"L\d+ .* \d\d ", line) for line in panels["heads"])


@pytest.mark.parametrize("width", [60, 72, 80, 100, 140])
def test_the_title_has_the_model_whatever_it_says(width, report):
    async def run():
        app = ExploreApp(report_source(report.data))
        async with app.run_test(size=(width, 30)) as pilot:
            await settled(app, pilot)
            seen = []
            for message in ("", "copied the row", "colours follow the logarithm of the weights"):
                app._notice = message
                app.redraw()
                seen.append((message, region_text(app, "title")[0].strip()))
            return app, seen

    app, seen = asyncio.run(run())
    forms = model_forms(app.state.scene.model)
    for message, title in seen:
        parts = [part for part in re.split(r"  +", title) if part]
        assert any(form in parts for form in forms), title
        assert not message or message in parts
        assert set(parts) - {*forms, message} <= {"attnscope", app.state.head.name, "mask causal"}  # fmt: skip
    (_, alone), *_ = seen
    assert "attnscope" in alone and (width < 72 or forms[0] in alone)


def test_a_difference_of_two_masks_names_them_where_both_names_do_not_fit():
    found = attnscope.compare("The bank by the river", layer="all", head="all").data
    titles = {}
    for size in ((80, 24), (160, 40)):
        app, panels, _ = painted(comparison_source(found), "", size)
        titles[size] = " ".join(panels["matrix"][0].strip("2 ─").split())
    sides = app.state.source.masks
    head = app.state.head.name
    assert titles[80, 24].startswith(f"{sides[1]} − {sides[0]} weights"), titles
    assert titles[160, 40].startswith(f"{head} {sides[1]} − {head} {sides[0]} weights"), titles


def test_without_colours_the_words_that_have_a_shade_are_bold_and_the_title_says_so(report):
    app, _, _ = painted(report_source(report.data), "", (80, 24), colours=0)
    title, line = app.panes["text"].lines[0][1:], app.panes["text"].lines[1]
    (least,) = re.findall(r"bold: \S+ .*?(\.\d+) or more", "".join(s.text for s in title))
    spot, scene = app.state.place.spot, app.state.scene
    row = report[spot.layer, spot.head].weights[spot.query]
    styled = [(s.text, s.style) for s in line if s.style and s.style.bold and not s.style.reverse]
    bold = "".join(text for text, _ in styled)
    names = [span.text.strip("# ") for span in scene.keys.names]
    for key, weight in enumerate(row.tolist()):
        if key != spot.query and abs(weight - float(least)) > 0.004:
            assert (names[key] in bold) == (weight > float(least)), (names[key], weight)
    assert bold and not all(name in bold for name in names)
    _, _, lines = painted(report_source(report.data), "?", (80, 40), colours=0)
    said = " ".join("".join(segment.text for segment in line).strip(" │") for line in lines)
    assert "bold if the row reads them with a weight that has a shade" in " ".join(said.split())
    assert app.state.ink.style("") == PLAIN


def test_a_narrow_cell_under_the_cursor_keeps_its_shade_without_colours(report):
    """Of two columns, both or one were brackets, so that the cell that one stands on said nothing, or half."""
    app, shown, _ = painted(report_source(report.data), "", (80, 24), colours=0)
    spot = app.state.place.spot
    weight = report[spot.layer, spot.head].weights[spot.query, app.state.key]
    (row,) = (line for line in shown["matrix"] if "‹" in line)
    assert f"‹{2 * shade_of(weight)}›" in row and shade_of(weight) != " "
    # at both ends of the row, too
    for key in ("home", "end"):
        _, shown, _ = painted(report_source(report.data), [key], (80, 24), colours=0)
        (row,) = (line for line in shown["matrix"] if "‹" in line)
        weight = report[spot.layer, spot.head].weights[spot.query, 0 if key == "home" else -1]
        assert f"‹{2 * shade_of(weight)}›" in row, (key, row)


def test_a_cut_takes_no_head_from_the_list_of_the_strongest(smollm2):
    async def act(app, press, _pilot):
        await press("/", *"it", "enter", "home", "right", "a")
        before = lines_of(app, "heads", True)
        await press("1", "x")
        place = app.state.place.spot
        return app.state.lens(), (place.layer, place.head), before, lines_of(app, "heads", True)

    lens, cut, before, after = walk(act, of_model(smollm2), (120, 40))
    listed = [listed_heads(lines) for lines in (before, after)]
    assert len(listed[1]) == len(listed[0]) >= 3
    assert any("× cut" in line for line in after)
    lens[cut] = 0
    order = np.argsort(-lens, axis=None)[: len(listed[1])]
    expected = [f"L{n // lens.shape[1]}H{n % lens.shape[1]}" for n in order]
    assert [name for _, name, _ in listed[1]] == expected


@pytest.mark.parametrize(
    ("sides", "names"),
    [
        ({"text": ["the bank by the river", "the bank by the money"]}, ["the bank by the river", "the bank by the money"]),
        ({"text": "the bank by the river", "mask": ["causal", "window:2"]}, ["mask causal", "mask window:2"]),
    ],
)  # fmt: skip
def test_a_side_of_a_comparison_is_called_a_mask_only_if_masks_differ(sides, names):
    source = comparison_source(attnscope.compare(**sides, layer=0, head=0).data)
    assert source.compared
    found = set()
    for keys in ("", "m"):
        app, _, _ = painted(source, keys, (120, 40))
        found.add(app._title_parts(app.state.scene)["mask"].forms[0])
    assert found == set(names)


def test_the_pinned_side_of_a_comparison_is_named():
    source = comparison_source(attnscope.compare("The bank by the river", layer=2, head=1).data)
    for size in ((80, 24), (120, 40)):
        _, panels, _ = painted(source, "m", size)
        title = " ".join(panels["matrix"][0].strip("2 ─").split())
        assert "causal − itself" in title and "pinned" in title, title


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
@pytest.mark.parametrize("back", ["_", "escape"])
def test_an_enlarged_panel_has_a_way_back_in_the_footer(size, back):
    async def act(app, press, _pilot):
        seen = [(region_text(app, "footer")[0], app._arranged)]
        for key in ("+", back):
            await press(key)
            seen.append((region_text(app, "footer")[0], app._arranged))
        return seen

    (before, boxes), (enlarged, only), (after, restored) = walk(act, size=size)
    assert "_ all panels" in enlarged and "+ enlarge" not in enlarged
    assert "all panels" not in before + after
    assert restored == boxes and len(only) == 1


def test_a_terminal_for_one_panel_offers_neither_to_enlarge_it_nor_to_show_all():
    """70 × 20 offered `_ all panels`, which showed one panel as before."""

    async def act(app, press, pilot):
        seen = []
        for size, keys in (((70, 20), "+_"), ((160, 50), "+"), ((70, 20), "+_"), ((160, 50), "_")):
            await resize(app, pilot, size)
            for key in ("", *keys):
                await press(*key)
                footer_line, title = (region_text(app, name)[0] for name in ("footer", "title"))
                offered = ["+ enlarge" in footer_line, "_ all panels" in footer_line]
                seen.append((size, key, offered, len(app._arranged), "one panel" in title))
        return seen

    neither, larger, back = [False, False], [True, False], [False, True]
    small = [((70, 20), key, neither, 1, bool(key)) for key in ("", "+", "_")]
    large = [((160, 50), "", larger, 4, False), ((160, 50), "+", back, 1, False)]
    # it is enlarged as before when there is room again
    again = [((160, 50), "", back, 1, False), ((160, 50), "_", larger, 4, False)]
    assert walk(act, size=(120, 40)) == [*small, *large, *small, *again]


def test_the_sign_of_the_pinned_head_is_listed_only_if_it_is_drawn():
    source = comparison_source(attnscope.compare("The bank by the river", layer="all", head="all").data)  # fmt: skip
    for keys, is_drawn in (("", False), ("]", True)):
        _, panels, _ = painted(source, keys, (120, 40))
        text = "\n".join(panels["heads"])
        assert ("• pinned" in text) == is_drawn and (text.count("•") == 2) == is_drawn, text
