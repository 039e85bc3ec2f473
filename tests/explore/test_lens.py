"""The lens of explore, its menu of what heads show, and the scale of weights."""

import asyncio
import re

import numpy as np
import pytest
from rich.color import Color

pytest.importorskip("textual", reason="textual is not installed")

import attnscope
from attnscope.studies.explore.saved import report_source
from attnscope.views.explore.app import ExploreApp
from attnscope.views.explore.ink import Ink, steps
from attnscope.views.palette import surface_on
from attnscope.views.walk.place import Begin
from tests.explore.proof import lines_of, region_text, settled

TEXT = "She sat by the [MASK] of the river"
ANIMAL = "The animal did not cross the street because it was too"


@pytest.fixture(scope="module")
def report():
    return attnscope.inspect(TEXT, layer="all", head="all", stages="scores,masked,weights").data


def walk(report, *keys, size=(120, 40), then=lambda app: None):
    """Press some keys; return the app and what it shows."""
    app = ExploreApp(report_source(report))

    async def run():
        async with app.run_test(size=size) as pilot:
            await settled(app, pilot)
            for key in keys:
                await pilot.press(*([key] if isinstance(key, str) else key))
                await pilot.pause()
            await settled(app, pilot)
            shown = {name: lines_of(app, name, True) for name in ("heads", "matrix")}
            return shown | {
                "title": region_text(app, "title"),
                "footer": region_text(app, "footer"),
            }

    return app, asyncio.run(run())


def listed_heads(lines):
    """The heads that the lens names, in their order: the digit before each, its name, and its weight."""
    said = " ".join(" ".join(line.strip("│ ") for line in lines).split())
    found = re.findall(r"\b(?:(\d) )?(L\d+H\d+)\b([^·]*?) (\d\.\d\d)\b", said)
    # the first is the answer, in a sentence if there is a line for it
    assert all(not words for _, _, words, _ in found[1:]), said
    return [(digit, name, float(weight)) for digit, name, _, weight in found]


@pytest.mark.parametrize("size", [(120, 40), (200, 60), (80, 24)])
def test_the_lens_shows_the_cell_in_every_head(report, size):
    app, shown = walk(report, "g", "down", "home", "right", "right", "a", size=size)
    spot = app.state.place.spot
    assert (spot.query, app.state.key) == (1, 2)
    weights = np.array([head.stages["weights"][1, 2] for head in report.texts[0].heads]).reshape(
        4, 4
    )
    title, _, *lines = shown["heads"]
    assert "sat ← by" in title
    percent = ", %" in title
    rows = [line for line in lines if re.match(r"\W*L\d ", line)][:4]
    for layer, line in enumerate(rows):
        texts = line.split(f"L{layer}", 1)[1].replace("◂", " ").replace("│", " ").split()
        # a weight that rounds to zero is not a missing one
        for text, weight in zip(texts, weights[layer], strict=True):
            assert float(text) / (100 if percent else 1) == pytest.approx(
                min(weight, 0.99 if percent else 1), abs=0.0051
            )
    listed = listed_heads(lines)
    order = np.argsort(-weights, axis=None)
    for rank, (digit, name, weight) in enumerate(listed):
        layer, head = divmod(int(order[rank]), 4)
        assert (digit, name) == ("56789    "[rank].strip(), f"L{layer}H{head}")
        assert weight == pytest.approx(weights[layer, head], abs=0.0051)
    assert len(listed) >= 2


def test_a_digit_after_the_key_of_the_lens_goes_to_a_strong_head(report):
    weights = np.array([head.stages["weights"][1, 2] for head in report.texts[0].heads])
    second = divmod(int(np.argsort(-weights)[1]), 4)
    cell = ("g", "down", "home", "right", "right")
    app, shown = walk(report, *cell, "a")
    listed = listed_heads(shown["heads"])
    assert f"5 to {min(9, 4 + len(listed))} go to" in shown["footer"][0] and len(listed) > 2
    app, _ = walk(report, *cell, "a", "6")
    spot = app.state.place.spot
    assert (spot.layer, spot.head, spot.query, spot.key) == (*second, 1, 2)
    # a panel has its own digit, and heads theirs as long as they are listed
    app, shown = walk(report, *cell, "a", "left", "2")
    assert app.state.place.panel == "matrix"
    (_, name, _) = listed_heads(shown["heads"])[1]
    app, _ = walk(report, *cell, "a", "left", "2", "6")
    assert name == f"L{app.state.place.spot.layer}H{app.state.place.spot.head}"
    app, _ = walk(report, *cell, "6")
    assert app.state.place.spot == walk(report, *cell)[0].state.place.spot


@pytest.mark.parametrize("size", [(80, 24), (99, 40)])
def test_only_digits_that_stand_in_the_list_go_to_heads(report, size):
    """Help and the last line promised 1 to 9 where fewer heads were listed, and the others went there all the same."""
    cell = ("g", "down", "home", "right", "right")
    before, shown = walk(report, *cell, "a", size=size)
    listed = [digit for digit, _, _ in listed_heads(shown["heads"])]
    listed = [digit for digit in listed if digit]
    assert listed == [str(n) for n in range(5, len(listed) + 5)] and 1 < len(listed) <= 5
    last, _ = walk(report, *cell, "a", listed[-1], size=size)
    rank = len(listed) - 1
    layer, head, _ = before.state.strongest_heads()[rank]
    assert (last.state.place.spot.layer, last.state.place.spot.head) == (layer, head)
    beyond, _ = walk(report, *cell, "a", str(len(listed) + 5), size=size)
    assert len(listed) == 5 or beyond.state.place.spot == before.state.place.spot


@pytest.mark.parametrize("key", ["left", "1", "2", "y"])
def test_heads_of_the_lens_have_digits_as_long_as_they_are_listed(report, key):
    """A digit was that of a head right after the key of the lens, and then that of a panel."""
    cell = ("g", "down", "home", "right", "right", "a")
    _, before = walk(report, *cell)
    app, after = walk(report, *cell, key)
    assert len(listed_heads(before["heads"])) > 2
    listed = listed_heads(after["heads"])
    assert app.state.place.display == "lens"
    for heads in (listed_heads(before["heads"]), listed):
        assert [digit for digit, _, _ in heads[:5]] == [*"56789"][: len(heads)]
    # the list is there, of the cell that the cursor is on now
    strongest = app.state.strongest_heads()[:2]
    assert [name for _, name, _ in listed[:2]] == [
        f"L{layer}H{head}" for layer, head, _ in strongest
    ]


def test_the_lens_follows_every_move_of_the_cursor(report):
    """Map, title and list of the heads are those of the cell under the cursor after each key, whatever moved it."""
    weights = np.array([head.stages["weights"] for head in report.texts[0].heads])
    app = ExploreApp(report_source(report))
    moves = ["a", "down", "left", "up", "right", "home", "end", "G", "space", "enter", "]", "}"]

    async def run():
        async with app.run_test(size=(120, 40)) as pilot:
            await settled(app, pilot)
            for key in ["g", "down", "down", *moves]:
                await pilot.press(key)
                await pilot.pause()
                if app.state.place.display != "lens":
                    continue
                spot = app.state.place.spot
                title, _, *lines = lines_of(app, "heads", True)
                names = [token.text.strip() for token in report.texts[0].tokens]
                assert f"{names[spot.query]} ← {names[app.state.key]}" in title, key
                of_cell = weights[:, spot.query, app.state.key]
                best = int(of_cell.argmax())
                said = " ".join(line.strip("│ ") for line in lines)
                key_name = re.escape(f'"{names[app.state.key]}"')
                name = f"L{best // 4}H{best % 4}"
                weight = f"{of_cell[best]:.2f}"
                query_name = re.escape(f'"{names[spot.query]}"')
                answer = rf"{name}(: {query_name} reads {key_name} most,| reads {key_name} most:) {weight}"
                assert re.search(rf"\b{answer}", said), (key, said)
                # the title of the matrix says so, too, if it shows another head that reads it less
                shows_less = of_cell[4 * spot.layer + spot.head] < of_cell[best]
                title, *_ = lines_of(app, "matrix", True)
                assert (f" more in {name}" in title) == shows_less, (key, title)

    asyncio.run(run())


def test_colours_follow_the_shape_and_leave_sinks_out(report):
    """Every colour of the matrix is computed again from the weights of its cells."""
    head = next(head for head in report.texts[0].heads if (head.layer, head.head) == (2, 0))
    weights = head.stages["weights"]
    ticks = {
        "sqrt": np.sqrt,
        "linear": lambda w: w,
        "log": lambda w: np.maximum(0, 1 + np.log10(np.maximum(w, 1e-30)) / 3),
    }
    for presses, shape in enumerate(("sqrt", "linear", "log", "sqrt")):
        for sinks in (True, False):
            app, shown = walk(report, *["L"] * presses, *([] if sinks else ["z"]))
            state = app.state
            assert (state.place.shape, state.place.sinks) == (shape, sinks)
            drawn = state.drawn.stages["weights"]
            high = 1.0 if sinks else drawn[:, 1:].max()
            scale = state.scale("exact")
            expected = ticks[shape](np.clip(drawn / high, 0, 1))
            np.testing.assert_allclose(steps(drawn, scale) / 64, expected, atol=0.009)
            assert f"{high:.2f}" in " ".join(shown["matrix"]) or sinks
    assert weights.shape == (len(TEXT.split()),) * 2
    _, shown = walk(report, "L")
    assert "colours follow weights" in shown["title"][0]
    _, shown = walk(report, "z")
    assert "sinks are out of the scale" in shown["title"][0]


def test_what_heads_show_is_a_menu_with_words(report):
    app, _ = walk(report, "v", "down", "enter")
    assert app.state.place.display == "lens"
    app, _ = walk(report, "v", *"entropy", "enter")
    assert app.state.place.display == "entropy"
    from attnscope.views.explore.overlays import displays_of

    numbers = app.state.scene.numbers
    vary = [number.name for number in numbers if np.ptp(number.values) > 1e-4]
    assert len(vary) < len(numbers)  # shares within 16 tokens are 1 in a text of eight
    shown = [command.name for command in displays_of(app)]
    # roles take the model
    assert shown[:2] == ["thumbnails", "lens"] and "roles" not in shown
    on_self = vary.index("self")
    assert len(shown) == 2 + len(vary) and shown[2 + on_self] == "weight on itself"
    assert not re.search("_", " ".join(shown)) and "largest score" in shown
    app, screen = walk(report, "r")
    assert app.state.place.display == "thumbnails" and "roles take the model" in screen["title"][0]


def test_small_thumbnails_give_way_to_the_strongest_source_of_the_row(smollm2):
    text = "The animal did not cross the street because it was too"
    found = attnscope.inspect(
        text, model=str(smollm2), layer="all", head="all", stages="weights"
    ).data
    app, shown = walk(found, "g", *["down"] * 8)
    assert app.state.place.display == "thumbnails" and app.state.place.spot.query == 8
    title, _, *lines = shown["heads"]
    assert "it ← top non-sink, %" in title
    # past the first token and "it" itself
    expected = np.array(
        [head.stages["weights"][8, 1:8].max() for head in found.texts[0].heads]
    ).reshape(30, 9)
    for layer in range(30):
        (line,) = (line for line in lines if re.match(rf"\W?L{layer} ", line))
        for head in range(9):
            number = line[5 + 3 * head : 7 + 3 * head].strip()
            assert int(number) == pytest.approx(min(100 * expected[layer, head], 99), abs=0.51)
    best = np.unravel_index(expected.argmax(), expected.shape)
    assert f"strongest: L{best[0]}H{best[1]} ← because {expected.max():.2f}" in " ".join(
        " ".join(lines).split()
    )


def test_numbers_of_heads_have_words_and_all_heads_are_in_sight(minilm):
    """A number of six columns has no room for twelve heads: their colours stay, and its value below."""
    from attnscope.cli.explore import SessionOpener
    from attnscope.request.run_config import RunConfig, TextInput
    from attnscope.studies.explore.live import LiveSource

    texts = (TextInput("The bank by the river was not the bank that lent us money"),)
    source = LiveSource(RunConfig(texts, model=str(minilm)), SessionOpener(texts).open)

    async def run():
        app = ExploreApp(source)
        async with app.run_test(size=(80, 24)) as pilot:
            await settled(app, pilot)
            app.do("display", "max_score")
            await pilot.pause()
            return app, lines_of(app, "heads", True)

    app, lines = asyncio.run(run())
    spot = app.state.place.spot
    (number,) = (number for number in app.state.scene.numbers if number.name == "max_score")
    assert "largest score" in lines[0] and "0" in lines[1] and "11" in lines[1]
    (value,) = re.findall(r"largest score ([\d.]+)", " ".join(lines[2:]))
    assert float(value) == pytest.approx(float(number.values[spot.layer, spot.head]), abs=0.006)


def test_cut_and_pinned_heads_are_marked_where_all_heads_are():
    from tests.explore.test_live import live
    from tests.explore.test_live import walk as walk_live

    async def act(app, press, _pilot):
        await press("1", "x", "c", "right")
        return app.state.place.spot, lines_of(app, "heads", True)

    spot, lines = walk_live(act, live())
    (line,) = (line for line in lines if re.match(rf"\W*L{spot.layer} ", line))
    assert line.count("×") == 1 and line.count("•") == 1 and line.count("◂") == 1
    assert line.index("×") < line.index("•") < line.index("◂")
    assert any("× cut; • pinned" in line for line in lines)


def test_a_cut_head_is_neither_listed_nor_followed():
    from tests.explore.test_live import live
    from tests.explore.test_live import walk as walk_live

    def listed(app):
        return [name for _, name, _ in listed_heads(lines_of(app, "heads", True))]

    async def act(app, press, _pilot):
        await press("a")
        before = listed(app)
        await press("5", "1", "x")
        shown = region_text(app, "matrix"), region_text(app, "row")
        titles = [text[0] for text in shown]
        heads = lines_of(app, "heads", True)
        await press("a")
        (footer,) = region_text(app, "footer")
        return before, listed(app), app.state.place, titles, app.state.lens(), heads, footer

    before, after, place, (matrix, row), lens, heads, footer = walk_live(act, live())
    # the head that x puts back is not one of those that are listed
    assert f"x put L{place.spot.layer}H{place.spot.head} back " in footer
    (cut,) = place.cuts
    assert cut.written == before[0] and cut.written not in after and after
    # what it reads is known, and stays in the grid, beside its sign
    own = float(lens[place.spot.layer, place.spot.head])
    assert own == lens.max()
    (line,) = (line for line in heads if re.match(rf"\W*L{place.spot.layer} ", line))
    assert re.search(rf"{own:.2f} *×"[1:], line), line
    assert "cut: its output is 0, what it reads has no effect" in matrix and "4 [MASK]" in row


def test_after_a_cut_its_number_is_plain_and_the_layers_above_are_in_sight():
    """The head kept the colour of its weight, and where some layers have room, it was the last of them."""
    from tests.explore.test_live import live
    from tests.explore.test_live import walk as walk_live

    async def act(app, press, _pilot):
        panel = app._panels["heads"]
        found = []
        await press("a", "5", "1", "{", "{", "{", "}")
        for keys in ("x", "right"):
            await press(keys)
            lines = panel.draw(app.state, 60, 5)
            found.append(
                (
                    lines,
                    panel._last[0],
                    region_text(app, "footer")[0],
                    panel.draw(app.state, 60, 20),
                )
            )
        return found, app.state.place.cuts[0].written

    ((_, layers, footer, _), (_, _, other_footer, lines)), cut = walk_live(act, live())
    assert layers[0] == 1 and len(layers) < 4
    assert " x put head back " in footer and " x cut head " in other_footer
    (row,) = (line for line in lines if line and line[0].text.strip("▸ ") == "L1")
    cells = [segment for segment in row if re.search(r"\d\.\d\d", segment.text)]
    head = int(cut.partition("H")[2])
    assert cells[head].style.bgcolor is None and cells[head].style.dim


def test_the_list_of_the_strongest_heads_ends_with_a_whole_entry(report):
    for size in ((80, 24), (99, 40), (120, 40)):
        _, shown = walk(report, "a", size=size)
        lines = " ".join(line.strip("│ ") for line in shown["heads"])
        entries = re.search(r"5 L\dH\d.*", lines)[0].replace(" · ", " ").split("╰")[0].strip()
        answer = r"5 L\dH\d(:?( \S+)? reads \S+ most[,:])? \d\.\d\d ?"
        assert re.fullmatch(rf"{answer}((\d )?L\dH\d \d\.\d\d ?)+", entries), entries


def test_weights_in_cells_of_four_columns_have_numbers(minilm):
    """15 tokens at 120 × 40: a cell of four columns has a number without the 0 before its point."""
    text = "The quick brown fox jumped over the lazy dog by the river bank"
    found = attnscope.inspect(text, model=str(minilm), layer=2, head=8, stages="weights").data
    app, shown = walk(found, "g")
    weights = found.texts[0].heads[0].stages["weights"]
    (line,) = (line for line in shown["matrix"] if re.search(r"\W1 The ", line))
    numbers = re.findall(r"\d?\.\d\d", line)
    assert [float(number) for number in numbers] == pytest.approx(weights[1], abs=0.0051)
    assert app.state.drawn_stage == "weights" and len(numbers) == 15


def test_digits_are_numbers_that_cells_lack_and_leave_out_those_that_they_have(minilm):
    """Cells of 80 columns have colours alone, and those of 120 numbers as well."""
    text = "The bank by the river was not the bank that lent us money"
    found = attnscope.inspect(text, model=str(minilm), layer=0, head=4, stages="weights").data
    weights = found.texts[0].heads[0].stages["weights"]
    for size, is_roomy in {(120, 40): True, (80, 24): False}.items():
        for keys in ("", "d", "dd"):
            _, shown = walk(found, "g", "home", *keys, size=size)
            (row,) = (line for line in shown["matrix"] if re.search(r"\W2 bank ", line))
            numbers = [float(number) for number in re.findall(r"\d?\.\d\d", row)]
            assert len(numbers) == (15 if is_roomy else 5) * (is_roomy == (keys != "d"))
            assert numbers == pytest.approx(weights[2][: len(numbers)], abs=0.0051)
            has_all_columns = is_roomy or keys != "d"
            assert has_all_columns != any("keys 0–" in line for line in shown["matrix"])


def test_the_size_of_the_panel_does_not_change_whether_numbers_are_wanted(minilm):
    """Numbers that `d` had brought were gone in a panel with more room."""
    text = "The bank by the river was not the bank that lent us money"
    found = attnscope.inspect(text, model=str(minilm), layer=0, head=4, stages="weights").data
    weights = found.texts[0].heads[0].stages["weights"]
    # which keys, and how many numbers the row has then
    walks = (("d", 5), ("d+", 15), ("d+_", 5), ("+", 15), ("+d", 0), ("+d_", 0), ("+d_d", 5))
    for keys, count in (*walks, ("+d_d+", 15), ("d+d_", 0), ("dd+", 15)):
        _, shown = walk(found, "g", "home", *keys, size=(80, 24))
        (row,) = (line for line in shown["matrix"] if re.search(r"\W2 bank ", line))
        numbers = [float(number) for number in re.findall(r"\d?\.\d\d", row)]
        assert len(numbers) == count, keys
        assert numbers == pytest.approx(weights[2][:count], abs=0.0051)


def shade_of(weight):
    """The shade of a weight without colours: a ramp has 64 steps."""
    return " ░▒▓█"[min(4, int(round(64 * float(weight) ** 0.5) / 64 * 5))]


def test_without_colours_cells_fill_the_panel_and_the_cursor_keeps_the_shade(report):
    found = {}

    async def run(size):
        app = ExploreApp(report_source(report), colours=0)
        async with app.run_test(size=size) as pilot:
            await settled(app, pilot)
            await pilot.press("home", "g")
            await settled(app, pilot)
            found[size] = lines_of(app, "matrix", True), app.state.drawn.stages["weights"]

    for size, (wide, tall) in {(80, 24): (3, 1), (200, 60): (12, 6)}.items():
        asyncio.run(run(size))
        lines, weights = found[size]
        (row,) = (n for n, line in enumerate(lines) if re.search(r"\W1 sat ", line))
        start = lines[row].index("sat ") + len("[MASK] ")
        count = len(weights)
        for query in range(1, min(count, 5)):
            # the name of a row stands in the middle of its lines
            first = row + (query - 1) * tall - (tall - 1) // 2
            for n, line in enumerate(lines[first : first + tall]):
                for key in range(count):
                    cell = line[start + wide * key : start + wide * (key + 1)]
                    weight = weights[query, key]
                    shade = shade_of(weight)
                    if wide > 5 and n == (tall - 1) // 2 and weight > 0:
                        # with a number, where there is room
                        assert float(cell.strip("░▒▓█ ")) == pytest.approx(weight, abs=0.0051)
                        assert cell[0] == cell[-1] == shade
                    else:
                        assert cell.replace("·", " ") in (shade * wide, " " * wide)
                        assert cell.strip() or shade == " "
        first = row - tall - (tall - 1) // 2
        cursor = lines[first][start : start + wide]
        assert cursor == "‹" + shade_of(weights[0, 0]) * (wide - 2) + "›"


def test_all_twelve_heads_of_a_layer_are_in_sight_at_80_columns(minilm):
    found = attnscope.inspect("The bank", model=str(minilm), layer="all", head="all").data
    _, shown = walk(found, "a", size=(80, 24))
    assert "6 × 12" in shown["heads"][0] and "11" in shown["heads"][1].split()


def test_a_footer_of_80_columns_names_the_cut_and_only_what_works():
    from tests.explore.test_live import live
    from tests.explore.test_live import walk as walk_live

    async def act(app, press, _pilot):
        shown = []
        for key in "213":
            await press(key)
            shown += region_text(app, "footer")
        # the lens asks what the cut answers
        await press("2", "a")
        shown += region_text(app, "footer")
        spot = app.state.place.spot
        await press("escape", "2", "x")
        return (
            shown,
            f"L{spot.layer}H{spot.head}",
            region_text(app, "title")[0],
            app.state.place.cuts,
        )

    lines, current, title, (cut,) = walk_live(act, live(), size=(80, 24))
    for line, what in zip(lines, ("edge", "head", "edge", current), strict=True):
        assert f" x cut {what} " in line, line
    head, _, tokens = cut.written.partition(": ")
    assert cut.edge and f"without edge {tokens} of {head}" in title
    saved = report_source(attnscope.inspect(TEXT, layer="all", head="all").data)

    async def act_saved(app, press, _pilot):
        shown = []
        for key in "213":
            await press(key)
            shown += region_text(app, "footer")
        return shown

    for line in walk_live(act_saved, saved, size=(200, 60)):
        assert "compare" in line and not re.search(r" (cut|explain|edit|roles|effect)\b", line)


def test_typing_a_token_finds_it_at_once_and_escape_goes_back(report):
    app, _ = walk(report, "g", "/", "r", "i")
    assert report.texts[0].tokens[app.state.place.spot.query].text.strip() == "river"
    app, _ = walk(report, "g", "/", "r", "i", "escape")
    assert app.state.place.spot.query == 0 and not app.state.place.history
    # what was searched before is not typed again
    app, _ = walk(report, "g", "/", *"river", "enter", "/", *"sat", "enter")
    assert report.texts[0].tokens[app.state.place.spot.query].text.strip() == "sat"


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
def test_a_walk_that_begins_at_a_cell_begins_with_it_in_all_heads(size, smollm2):
    """It showed the strongest source of the row in every head, and a list that digits do not go to."""
    begin = Begin(query="it", key="animal")

    async def run(*keys):
        found = attnscope.inspect(
            ANIMAL, model=str(smollm2), layer="all", head="all", stages="weights"
        ).data
        app = ExploreApp(report_source(found), begin=begin)
        async with app.run_test(size=size) as pilot:
            await settled(app, pilot)
            for key in keys:
                await pilot.press(key)
                await settled(app, pilot)
            names = ("heads", "footer")
            shown = {name: region_text(app, name) for name in names}
            return app, shown, found

    app, shown, found = asyncio.run(run())
    weights = np.array([head.stages["weights"][8, 1] for head in found.texts[0].heads])
    order = np.argsort(-weights, kind="stable")
    assert app.state.place.display == "lens" and "it ← animal" in shown["heads"][0]
    assert app.state.place.panel == "matrix"
    said = " ".join(line.strip("│ ") for line in shown["heads"])
    assert '5 L13H8 reads "animal" most: 0.70' in said
    listed = listed_heads(shown["heads"])
    assert len(listed) > 1
    for n, (digit, name, weight) in enumerate(listed):
        layer, head = divmod(int(order[n]), 9)
        assert digit == "56789    "[n].strip() and name == f"L{layer}H{head}"
        assert weight == pytest.approx(weights[order[n]], abs=0.0051)
    digits = {2: "5 or 6"}.get(len(listed), f"5 to {min(9, 4 + len(listed))}")
    go = "goes" if len(listed) == 2 else "go"
    assert f"{digits} {go} to one of the strongest" in shown["footer"][0]
    app, shown, _ = asyncio.run(run("6"))
    spot = app.state.place.spot
    assert (spot.layer, spot.head, spot.query, spot.key) == (*divmod(int(order[1]), 9), 8, 1)
    assert "to one of the strongest" not in shown["footer"][0]


def test_numbers_of_some_columns_say_which_key_shows_more(smollm2):
    found = attnscope.inspect(
        ANIMAL, model=str(smollm2), layer="all", head="all", stages="weights"
    ).data
    app, shown = walk(found, "d", size=(80, 24))
    in_sight = len(app._panels["matrix"]._last.columns)
    assert 1 < in_sight < 11
    assert f"{in_sight} of 11 columns; + shows all" in shown["title"][0]
    app, shown = walk(found, "d", "+", size=(80, 24))
    assert len(app._panels["matrix"]._last.columns) == 11
    assert "columns" not in shown["title"][0]


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
def test_without_colours_no_shade_touches_the_next_number(minilm, size):
    found = attnscope.inspect(ANIMAL, model=str(minilm), layer="all", head="all", stages="weights")

    async def run():
        app = ExploreApp(report_source(found.data), colours=0)
        async with app.run_test(size=size) as pilot:
            await settled(app, pilot)
            await pilot.press("2", "a")
            await settled(app, pilot)
            return lines_of(app, "heads", True), lines_of(app, "matrix", True)

    heads, matrix = asyncio.run(run())
    grid = [line for line in heads if re.search(r"L\d ", line)]
    body = [line for line in matrix if re.search(r"\d \w+ ", line) and "from" not in line]
    assert len(grid) == 6 or size[0] == 80
    assert len(body) > 5
    for line in (*grid, *body):
        assert not re.search(r"\d[░▒▓█][\d.]|[░▒▓█]\.\d", line), line


@pytest.mark.parametrize("background", [(0, 0, 0), (255, 255, 255)])
def test_the_cursor_among_half_blocks_has_a_colour_that_no_weight_has(background):
    """Of 16 colours, the largest weights have that of letters."""
    ink = Ink(16, surface=surface_on(background))
    shades = np.array([[0, 16, 32, 64], [0, 16, 32, 64]])
    colours = []
    for cursor in (None, (0, 3)):
        (line,) = ink.halves(shades, signed=False, cursor=cursor)
        colours.append([{segment.style.color, segment.style.bgcolor} for segment in line])
    plain, under = colours
    of_weights = set().union(*plain) | {Color.parse("default")}
    assert len(under[-1] - of_weights) == 1


@pytest.mark.parametrize("colours", [0, 16, 256, 1 << 24])
def test_what_the_mask_forbids_has_its_sign_in_thumbnails_and_in_pooled_cells(colours):
    """Both had the terminal's background there, as the smallest weights have it."""
    words = "the bank by the river was not the bank that lent us money and the river rose".split()
    found = attnscope.inspect(
        " ".join(3 * words), mask="causal", layer="all", head="all", stages="weights"
    ).data
    count = len(found.texts[0].tokens)

    async def run():
        app = ExploreApp(report_source(found), colours=colours)
        async with app.run_test(size=(120, 40)) as pilot:
            await settled(app, pilot)
            await pilot.press("1", "+")
            await settled(app, pilot)
            heads = lines_of(app, "heads", True)
            await pilot.press("_", "-", "2", "+")
            await settled(app, pilot)
            return heads, lines_of(app, "matrix", True), app.state.place.zoom

    heads, matrix, zoom = asyncio.run(run())
    top = next(line for line in heads if "L0 " in line).partition("L0 ")[2]
    (thumbnail, *_) = re.findall(r"[^·]+·+", top)
    assert thumbnail.count("·") > 10
    lines = [line for line in matrix[1:] if re.match(r"[ ▸]{0,3}\d+ (?!from)\w", line)]
    dots = [line.count("·") for line in lines]
    assert zoom > 1 and len(lines) <= -(-count // zoom)
    assert dots == sorted(dots, reverse=True) and dots[0] > 10 and dots[-1] == 0


def test_without_colours_a_shade_stands_behind_its_number_also_under_the_cursor(smollm2):
    """In front of it, or without a blank behind, it touched the next number, and the cursor took it away."""
    found = attnscope.inspect(ANIMAL, model=str(smollm2), layer=13, head=8, stages="weights").data
    weights = found.texts[0].heads[0].stages["weights"][8, :9]

    async def run():
        app = ExploreApp(report_source(found), begin=Begin(query="it", key="animal"), colours=0)
        async with app.run_test(size=(112, 31)) as pilot:
            await settled(app, pilot)
            assert app._panels["matrix"]._last.cell == 5
            return lines_of(app, "matrix", True)

    (row,) = (line for line in asyncio.run(run()) if re.search(r"▸ *8 it ", line))
    cells = re.findall(r"(\.\d\d)(.)[ ›]", row)
    assert [float(number) for number, _ in cells] == pytest.approx(weights, abs=0.0051)
    assert [shade for _, shade in cells] == [shade_of(weight) for weight in weights]
