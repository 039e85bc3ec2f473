"""What the panel of heads names, scrolls to and leaves blank, and what a menu begins at."""

import asyncio
import re

import numpy as np
import pytest

pytest.importorskip("textual", reason="textual is not installed")

import attnscope
from attnscope.cli.explore import SessionOpener
from attnscope.request.run_config import RunConfig, TextInput
from attnscope.studies.explore.live import LiveSource
from attnscope.studies.explore.saved import comparison_source
from attnscope.views.explore.app import ExploreApp
from attnscope.views.explore.overlays import Menu, displays_of
from attnscope.views.walk.place import Action, Bounds, Place, Spot, apply
from tests.explore.proof import lines_of, region_text, settled
from tests.explore.test_live import live, walk

ANIMAL = "The animal did not cross the street because it was too"


def of_model(path):
    texts = (TextInput(ANIMAL),)
    return LiveSource(RunConfig(texts, model=str(path)), SessionOpener(texts).open)


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
def test_a_cut_leaves_the_head_with_the_largest_effect_and_blanks_are_explained(size, smollm2):
    async def act(app, press, _pilot):
        await press("/", *"it", "enter", "1", "x", "E")
        lines = [line.strip("│ ") for line in lines_of(app, "heads", True)]
        (number,) = (n for n in app.state.scene.numbers if n.name == "effect")
        panel = app._panels["heads"]._last
        return region_text(app, "title")[0], lines, number.values, panel[0]

    title, lines, effects, layers = walk(act, of_model(smollm2), size)
    assert title.strip().endswith("effects after 10 too, if one head is cut to 0; E: after 8 it")
    # what the panel of the row says of the cut, too, goes before the name of the model
    assert title.split()[0] == "attnscope" or title.startswith("SmolLM2")
    if len(layers) == 30:
        assert "rank ≤ 99 after 10 too" in lines[0]
    else:
        assert f"L{layers[0]}–{layers[-1]}/30  rank ≤ 99" in lines[0]
    (strongest,) = re.findall(r"strongest: L(\d+)H(\d+) ([\d.]+)", " ".join(lines))
    best = np.unravel_index(effects.argmax(), effects.shape)
    assert tuple(map(int, strongest[:2])) == best
    assert float(strongest[2]) == pytest.approx(effects.max(), rel=0.01)
    order = np.argsort(-effects, axis=None)
    ranks = np.empty(order.size, int)
    ranks[order] = np.arange(1, order.size + 1)
    shown = [line for line in lines if re.match(r"▸?L\d+\b(?!H)", line)]
    for layer, line in zip(layers, shown, strict=True):
        written = {int(text) for text in re.sub("[▸◂×]", " ", line).split()[1:]}
        of_layer = {int(rank) for rank in ranks.reshape(effects.shape)[layer] if rank < 100}
        assert written <= of_layer and len(of_layer - written) <= ("×" in line)


def test_the_lens_scrolls_to_the_strongest_head_until_the_next_key(smollm2):
    async def act(app, press, _pilot):
        await press("/", *"it", "enter", "g", "a")
        seen = app._panels["heads"]._last[0], app.state.lens(), app.state.place.spot.layer
        await press("escape")
        return *seen, app._panels["heads"]._last[0]

    during, lens, layer, after = walk(act, of_model(smollm2), (80, 24))
    assert np.unravel_index(np.nanargmax(lens), lens.shape)[0] in during
    assert layer in after


def test_the_menu_of_heads_begins_at_what_is_shown_and_names_it(smollm2):
    async def act(app, press, _pilot):
        found = []
        for keys in ("v", "escape", "a", "v", "escape"):
            await press(keys)
            if isinstance(app.screen, Menu):
                menu = app.screen
                found.append(menu.found[menu._chosen].title)
        return found, [line.title for line in displays_of(app)], lines_of(app, "heads", True)[0]

    found, titles, _ = walk(act, of_model(smollm2), (120, 40))
    assert found == ["top non-sink", "lens"] and "thumbnails" not in titles
    assert walk(act, live(), (120, 40))[0] == ["thumbnails", "lens"]


def test_a_step_by_hand_to_another_row_or_head_ends_the_trail():
    bounds = Bounds(layers=4, heads=4, queries=8, keys=8)
    start = Place(Spot(layer=3, head=1, query=5, key=2))
    followed = apply(start, Action("follow", Spot(layer=2, head=0, query=2, key=1)), bounds)
    assert followed.trail == (start.spot,)
    for name in ("next_head", "previous_head", "next_layer", "up", "down", "mask", "last_query"):
        there = apply(followed, Action(name), Bounds(1, 2, 4, 4, 8, 8))
        assert there.spot != followed.spot and there.trail == (), name
        assert there.history == followed.history
    for name in ("left", "right", "strongest"):
        assert apply(followed, Action(name), bounds).trail == followed.trail, name


def test_cells_that_both_masks_forbid_are_no_zeros_of_a_difference(smollm2):
    async def act(app, press, _pilot):
        await press("c", "]")
        lines = lines_of(app, "matrix", True)
        return [line.strip("│ ") for line in lines if re.match(r"\W*\d+ \w+ +\S*[\d·]", line)]

    lines = walk(act, of_model(smollm2), (120, 40))
    rows = [line for line in lines if line.split()[0].strip("▸").isdigit()]
    forbidden = [line.count("·") for line in rows]
    assert forbidden == [*range(10, -1, -1)]


def test_the_legend_of_sixteen_colours_has_both_of_its_ends():
    import asyncio

    async def run():
        app = ExploreApp(live("The bank by the river"), colours=16)
        async with app.run_test(size=(80, 24)) as pilot:
            await settled(app, pilot)
            await pilot.press("s")
            await settled(app, pilot)
            assert app.state.place.stage == "output"
            high = app.state.scale("exact").high
            return high, [line.strip("│ ") for line in lines_of(app, "matrix", True)]

    high, lines = asyncio.run(run())
    (legend,) = (line for line in lines if re.match(r"−\d", line))
    numbers = [float(text.replace("−", "-")) for text in re.sub("from|to", "", legend).split()]
    assert numbers[0] == -numbers[-1] == pytest.approx(-high, abs=0.0051)
    assert 0 in numbers and numbers == sorted(numbers)


@pytest.mark.parametrize("size", [(120, 40), (200, 60)])
@pytest.mark.parametrize("text", ["The bank by", " ".join(["The bank by the river"] * 5)])
def test_signs_stand_right_behind_the_thumbnail_of_their_head(size, text):
    """Behind three columns of a small matrix, the sign stood beside the head after it."""

    async def act(app, press, _pilot):
        await press("1", "{", *["left"] * 4, "x", "right", "c", "right")
        tall = app._panels["heads"]._last[-1]
        return app.state.place, app.state.scene, lines_of(app, "heads", True), tall

    place, scene, lines, tall = walk(act, live(text), size)
    assert "weights" in lines[0] and place.pinned.head == 1 and place.spot.head == 2
    columns = [lines[1].index(f"H{head}") for head in range(4)]
    # a small matrix is as many times as large as there is room for, with the sign behind it
    room, n_keys = columns[1] - columns[0] - 1, len(scene.keys.positions)
    drawn = min(room, n_keys * max(1, min(room // n_keys, 2 * tall // n_keys)))
    (line,) = (line for line in lines if f"▸L{place.spot.layer}" in line)
    assert line.index("•") == columns[1] + drawn
    assert line.index("◂") == columns[2] + drawn
    assert line.index("×") == columns[0] + drawn - 1
    assert drawn % 3 == 0 and drawn > 3 if text == "The bank by" else drawn == room


@pytest.mark.parametrize("colours", [1 << 24, 0])
def test_what_moved_has_a_number_for_every_head_of_a_narrow_map(colours, minilm, smollm2):
    """Nine heads in forty columns had colours alone, although two digits and a sign fit."""
    for model, n_heads in ((smollm2, 9), (minilm, 12)):
        options = {"layer": "all", "head": "all", "model": str(model)}
        found = attnscope.compare("The bank by the river", **options).data
        app = ExploreApp(comparison_source(found), colours=colours)

        async def run(app=app):
            async with app.run_test(size=(80, 24)) as pilot:
                await settled(app, pilot)
                return lines_of(app, "heads", True)

        lines = asyncio.run(run())
        assert "moved, %" in lines[0]
        first, second = (
            np.array([head.stages["weights"] for head in side.report.texts[0].heads])
            for side in found.sides
        )
        moved = (np.abs(second.astype(np.float64) - first).sum(-1) / 2).max(-1)
        moved = moved.reshape(-1, n_heads)
        rows = [re.match(r"[▸ ]L(\d+) (.*)", line.strip("│")) for line in lines]
        numbers = {int(m[1]): re.findall(r"\d+", m[2]) for m in rows if m}
        assert len(numbers) > 3
        for layer, written in numbers.items():
            expected = np.minimum(99, 100 * moved[layer])
            assert [*map(float, written)] == pytest.approx(expected, abs=0.51)


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
@pytest.mark.parametrize("token", ["animal", "The"])
def test_a_row_of_sinks_and_itself_alone_shows_how_much_it_reads_them(size, token, smollm2):
    """All heads had the sign of a weight that the mask does not allow, and no head was said to read the row's source."""

    async def act(app, press, _pilot):
        await press("/", *token, "enter")
        return app._panels["heads"]._last, lines_of(app, "heads", True)

    grid, lines = walk(act, of_model(smollm2), size)
    found = attnscope.inspect(
        ANIMAL, model=str(smollm2), layer="all", head="all", stages="weights"
    ).data
    query = ANIMAL.split().index(token)
    rows = np.array([head.stages["weights"][query] for head in found.texts[0].heads])
    largest = rows.max(axis=1).reshape(30, 9)
    layers, heads, label, wide, _ = grid
    assert len(layers) > 3
    for n, layer in enumerate(layers):
        for head in heads:
            text = lines[2 + n][label + wide * head :][: wide - 1].strip()
            assert int(text) == pytest.approx(min(99, 100 * largest[layer, head]), abs=0.51)
    assert "strongest, %" in lines[0] or f"{token} ← strongest source, %" in lines[0]
    layer, head = np.unravel_index(largest.argmax(), largest.shape)
    key = ANIMAL.split()[rows[9 * layer + head].argmax()]
    kind = "a sink" if key == "The" else "itself"
    said = " ".join(" ".join(line.strip("│ ") for line in lines).split())
    assert f"strongest: L{layer}H{head} ← {key}, {kind}, {largest.max():.2f}" in said
