"""Screens of explore can be read on black and on white, in every number of colours, and at every size."""

import asyncio
import re
import threading
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

pytest.importorskip("textual", reason="textual is not installed")

from rich.cells import cell_len

import attnscope
from attnscope.studies.explore.saved import report_source
from attnscope.views.explore.app import ExploreApp
from attnscope.views.explore.ink import ended, whole_clauses, wrapped
from attnscope.views.scales import luminance
from attnscope.views.walk.glossary import phrase_of
from tests.explore import subjects
from tests.explore.proof import lines_of, region_text, settled
from tests.explore.test_live import live
from tests.explore.test_live import walk as walk_live

TEXT = "The animal did not cross the street because it was too"
BLACK, WHITE = (0, 0, 0), (255, 255, 255)
# xterm's: the first eight, and the bright ones
NAMED = """000000 cd0000 00cd00 cdcd00 0000ee cd00cd 00cdcd e5e5e5
           7f7f7f ff0000 00ff00 ffff00 5c5cff ff00ff 00ffff ffffff""".split()
BORDERS = set("╭╮╰╯─│")
# Dim letters are drawn at about this share of their colour.
DIM = 0.62
# Roles of decoders; those of heads between two texts follow.
_ROLES = 12


@pytest.fixture(scope="module")
def report():
    return attnscope.inspect(
        "She sat by the [MASK] of the river", layer="all", head="all", stages="scores,weights"
    ).data


def painted(source, keys, size=(120, 40), **screen):
    """Press some keys; return the app, the lines of the screen, and its segments."""

    async def run():
        app = ExploreApp(source, **screen)
        async with app.run_test(size=size) as pilot:
            await settled(app, pilot)
            for key in keys:
                await pilot.press(key)
                await settled(app, pilot)
            strips = app.screen._compositor.render_strips()
            panels = {name: lines_of(app, name, True) for name in ("heads", "matrix", "row")}
            panels["wide"] = app.panes["matrix"].size.width - 2
            panels["screens"] = len(app.screen_stack)
            panels["found"] = getattr(app.screen, "found", [])
            return app, panels, [strip._segments for strip in strips]

    return asyncio.run(run())


def rgb(color, default):
    if color is None or color.is_default:
        return default
    if color.triplet is not None:
        return tuple(color.triplet)
    return tuple(bytes.fromhex(NAMED[color.number]) if color.number < 16 else color.get_truecolor())


def contrast(style, background):
    """Return the contrast of letters in a style, whose defaults are those of the terminal."""
    ink = BLACK if background == WHITE else (229, 229, 229)
    letters, behind = ink, background
    if style is not None:
        letters, behind = rgb(style.color, ink), rgb(style.bgcolor, background)
        if style.dim:
            pairs = zip(letters, behind, strict=True)
            letters = tuple(b + (a - b) * DIM for a, b in pairs)
    low, high = sorted((luminance(letters), luminance(behind)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("background", [BLACK, WHITE], ids=["black", "white"])
@pytest.mark.parametrize("is_known", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize("colours", [1 << 24, 256, 16, 0])
def test_everything_can_be_read(report, colours, background, is_known):
    for keys in ("", "v", ":", "?", "d", "s", "a", "cz", "/x"):
        source = report_source(report)
        screen = {"colours": colours, "background": background if is_known else None}
        _, shown, lines = painted(source, keys, **screen)
        letters = 0
        for segment in (segment for line in lines for segment in line):
            marks = set(segment.text) - set(" ░▒▓█▀▄▏▎▍▌▋▊▉▇▆▅▃▂▁")
            if not marks or (segment.style is not None and segment.style.reverse):
                continue
            letters += len(marks)
            # of xterm's sixteen, black on bright blue has 4.43
            least = 3.0 if marks <= BORDERS else 4.4
            assert contrast(segment.style, background) >= least, (keys, segment)
        assert letters > 50
        assert shown["screens"] == (3 if keys and keys in "v:?" else 2)


@pytest.mark.parametrize("background", [BLACK, WHITE], ids=["black", "white"])
@pytest.mark.parametrize("is_known", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize("colours", [1 << 24, 256, 16])
def test_an_explanation_can_be_read(colours, background, is_known):
    """It was drawn for black where the terminal had said nothing, with letters that white hides."""
    screen = {"colours": colours, "background": background if is_known else None}
    _, shown, lines = painted(live(), "e", (120, 200), **screen)
    assert shown["screens"] == 3
    letters = 0
    coloured = 0
    for segment in (segment for line in lines for segment in line):
        coloured += bool(
            segment.style and segment.style.bgcolor and not segment.style.bgcolor.is_default
        )
        marks = set(segment.text) - set(" ▏▎▍▌▋▊▉█▀▄")
        if not marks:
            continue
        letters += len(marks)
        least = 3.0 if marks <= BORDERS else 3.6
        assert contrast(segment.style, background) >= least, segment
    assert letters > 200 and coloured > 10


@pytest.mark.parametrize("background", [BLACK, WHITE], ids=["black", "white"])
@pytest.mark.parametrize("is_known", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize("colours", [1 << 24, 256, 16])
def test_larger_weights_are_never_closer_to_the_colour_of_zero(
    report, colours, background, is_known
):
    """On white, where no terminal had said so, the largest weights were white, too."""
    screen = {"colours": colours, "background": background if is_known else None}
    app, _, lines = painted(report_source(report), "g", (200, 60), **screen)
    layout = app._panels["matrix"]._last
    panel_x, panel_y, *_ = app._arranged["matrix"]
    weights = app.state.drawn.stages["weights"]
    # the title of the screen is above the panel, and the left edge of its frame before the labels
    top = panel_y + 1 + layout.above
    left = panel_x + 1 + layout.label

    def behind(row, column):
        at = left + column * layout.cell
        styles = [style for text, style, _ in lines[top + row] for _ in text]
        style = styles[at]
        return luminance(rgb(None if style is None else style.bgcolor, background))

    assert layout.tall > 1 and layout.mode == "blocks"
    cells = [
        (float(weights[row, column]), behind(row * layout.tall, column))
        for row in range(1, len(weights))
        for column in range(len(weights))
    ]
    cells.sort(key=lambda cell: cell[0])
    distances = [abs(shown - cells[0][1]) for _, shown in cells]
    assert cells[0][0] < 0.005 and cells[-1][0] > 0.8
    assert distances == sorted(distances)
    # as far as black and white are, or nearly, and the smallest ones are not
    assert distances[-1] > 0.7 and distances[0] == 0
    assert len({*distances}) >= (3 if colours == 16 else 4)


@pytest.mark.parametrize(("key", "size"), list(product("v:", [(80, 24), (120, 40), (200, 60)])))
def test_menus_show_what_is_chosen_and_wrap_below_their_column(report, key, size):
    _, shown, lines = painted(report_source(report), key, size, colours=0)
    menu = [line for line in lines if any("│" in segment.text for segment in line)]
    reversed_rows = [
        "".join(segment.text for segment in line)
        for line in menu
        if any(s.style and s.style.reverse and len(s.text) > 20 for s in line)
    ]
    assert len(reversed_rows) == 1
    # without colours, thumbnails take more room than 80 or 120 columns have
    first_meaning = {True: "The weights of every head", False: "The row's strongest source"}
    meaning = first_meaning[size[0] == 200] if key == "v" else "This cell in all heads"
    assert meaning in reversed_rows[0]
    texts = ["".join(segment.text for segment in line) for line in lines]
    first = next(n for n, text in enumerate(texts) if "Enter chooses, Esc closes" in text)
    last = next(n for n, text in enumerate(texts) if n > first and "╰─" in text)
    rows = [text.strip(" │") and text for text in texts[first + 1 : last]]
    column = next(row.index(meaning) for row in rows if meaning in row)
    for row in rows:
        inside = row[row.index("│") + 1 :]
        start = row.index("│") + 1
        # what is left of the column is a title, and a blank is before the meaning
        assert row[column - 1] == " " and row[column] != " ", row
        assert inside and cell_len(row) <= size[0] and start < column
    if size[0] == 200 and key == "v":
        assert len(rows) == len(shown["found"])  # nothing is wrapped


def test_a_menu_finds_words_and_calls_what_is_chosen(report):
    _, shown, _ = painted(report_source(report), "ventropy")
    assert [command.name for command in shown["found"]] == ["entropy"]
    keys = ["v", *"weight", "space", *"on"]
    _, shown, _ = painted(report_source(report), keys)
    assert all(command.name.startswith("weight on") for command in shown["found"])
    second = shown["found"][1].name
    app, shown, _ = painted(report_source(report), [*keys, "down", "enter"])
    assert phrase_of(app.state.place.display) == second and shown["screens"] == 2
    _, shown, lines = painted(report_source(report), ["v", *"zzz", "enter", "backspace"])
    texts = ["".join(segment.text for segment in line) for line in lines]
    assert shown["screens"] == 3 and not shown["found"]
    assert any(re.search("│ zz .*nothing has these words", text) for text in texts)


def test_without_colours_the_legend_names_the_shades_of_the_cells(report):
    app, shown, lines = painted(report_source(report), "", colours=0)
    legend = next(line for line in shown["matrix"] if " from " in line)
    bounds = {mark: float(low) for mark, low in re.findall(r"([░▒▓█]) ([\d.]+)", legend)}
    assert list(bounds) == list("░▒▓█")
    weights = app.state.drawn.stages["weights"]
    ends = [0.0, *bounds.values(), 1.01]
    step = 1 / 64  # of the ramp
    for weight in weights.ravel().tolist():
        shade = app.state.ink.shade(round(64 * weight**0.5), signed=False)[0]
        n = " ░▒▓█".index(shade)
        assert ends[n] ** 0.5 - step <= weight**0.5 + 0.01
        assert weight**0.5 <= ends[n + 1] ** 0.5 + step + 0.01
    dim = [s for line in lines for s in line if "from ░" in s.text and s.style and s.style.dim]
    assert not dim
    # scores have signs, and digits no shades
    _, shown, _ = painted(report_source(report), "S", colours=0)
    (legend,) = (line for line in shown["matrix"] if "+/- from ░ " in line)
    largest = float(np.abs(app.state.drawn.stages["scores"]).max())
    bounds = [float(low) for low in re.findall(r"[░▒▓█] ([\d.]+)", legend)]
    assert bounds == pytest.approx([largest * n / 4 for n in range(4)], rel=0.06)
    _, shown, _ = painted(report_source(report), "d", (80, 24), colours=0)
    assert not any("from ░" in line for line in shown["matrix"])


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
def test_every_letter_of_a_role_has_its_meaning_beside_the_heads(size, smollm2):
    from attnscope.cli.explore import SessionOpener
    from attnscope.findings.head_roles import HEAD_ROLES
    from attnscope.request.run_config import RunConfig, TextInput
    from attnscope.studies.explore.live import LiveSource
    from attnscope.studies.explore.scenes import SceneRoles

    texts = (TextInput(TEXT),)
    source = LiveSource(RunConfig(texts, model=str(smollm2)), SessionOpener(texts).open)

    names = HEAD_ROLES[:_ROLES]

    def measure(_progress):
        """Give the heads every role in turn."""
        (known,) = source._known.values()
        shape = len(known.scene.layers), len(known.scene.heads)
        roles = SceneRoles(
            [role.name for role in names],
            [role.letter for role in names],
            [role.colour for role in names],
            [role.meaning for role in names],
            [role.clear for role in names],
            np.arange(shape[0] * shape[1]).reshape(shape) % len(names),
            np.full(shape, 0.5, dtype=np.float32),
            "",
        )
        known.scene = replace(known.scene, roles=roles)

    source.measure_roles = measure
    _, shown, _ = painted(source, "r", size)
    lines = shown["heads"]
    text = " ".join(" ".join(line.strip("│ ") for line in lines).split())
    missing = [role.name for role in names if f"{role.letter} {role.name}" not in text]
    assert not missing and sum(bool(re.match(r"\W*L\d+ ", line)) for line in lines) >= 3


def test_sentences_that_do_not_fit_end_at_a_word():
    sentence = "How much the predictions at 10 too change if this head alone is cut to 0, in bits."
    for width, count in product(range(14, 60), range(1, 4)):
        lines = ended(wrapped(sentence, width), width, count)
        assert len(lines) <= count and max(map(len, lines)) <= width
        said = " ".join(lines)
        if said != sentence:
            words = said.removesuffix(" …").split()
            assert said.endswith(" …") and words == sentence.split()[: len(words)]


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
def test_what_an_effect_is_is_said_beside_the_heads(size):
    async def act(app, press, _pilot):
        await press("E")
        return region_text(app, "title")[0], lines_of(app, "heads", True)

    title, lines = walk_live(act, live(), size)
    meaning = "Change at 4 [MASK] in bits (KL), this head alone cut to 0."
    assert "effects at 4 [MASK], if one head is cut to 0" in title
    beside = " ".join(" ".join(line.strip("│ ") for line in lines).split())
    _, start, rest = beside.partition("Change at")
    brief = "Change at 4 [MASK] in bits (KL)."
    assert not start or (start + rest).startswith((meaning, brief)) or rest.endswith(" …")


def test_a_key_that_has_to_wait_says_so():
    source = live()
    measured = threading.Event()
    source.measure_roles = lambda _progress: measured.wait(30)

    async def act(app, press, pilot):
        await press("e")
        assert len(app.screen_stack) == 3 and not app._notice
        await press("escape")
        await pilot.press("r", "e")
        await pilot.pause()
        waiting = region_text(app, "title")[0]
        measured.set()
        await settled(app, pilot)
        return waiting, len(app.screen_stack), app._notice

    waiting, screens, notice = walk_live(act, source)
    assert "explain: next, after what is computed now" in waiting
    assert screens == 3 and not notice


@pytest.mark.parametrize("size", [(120, 40), (200, 60)])
@pytest.mark.parametrize("colours", [1 << 24, 0])
def test_a_matrix_fills_its_panel(size, colours, smollm2):
    found = attnscope.inspect(TEXT, model=str(smollm2), layer=13, head="all").data
    app, shown, _ = painted(report_source(found), "", size, colours=colours)
    layout = app._panels["matrix"]._last
    width = shown["wide"]
    used = layout.label + layout.cell * layout.n_columns
    assert width - layout.n_columns < used <= width
    assert layout.form


def test_every_source_of_the_row_has_its_value(smollm2):
    """Of eleven sources, five had α·‖v‖, and the others a blank."""
    from attnscope.cli.explore import SessionOpener
    from attnscope.request.run_config import RunConfig, TextInput
    from attnscope.request.selection import IndexSelection
    from attnscope.studies.explore.live import LiveSource

    texts = (TextInput(TEXT),)
    at = {"layer": IndexSelection.of([13]), "head": IndexSelection.of([8])}
    source = LiveSource(RunConfig(texts, model=str(smollm2), **at), SessionOpener(texts).open)
    _, shown, _ = painted(source, "")
    top = attnscope.inspect(TEXT, model=str(smollm2), layer=13, head=8, top=100)
    measures = top.data.texts[0].heads[0].top.measures
    rows = [re.match(r"← (\d+) \S+ .*?(\d\.\d{3}) +(\d+\.\d\d)", line) for line in shown["row"]]
    values = [(float(row[2]), float(row[3])) for row in rows if row]
    assert len(values) >= 8
    expected = [*zip(measures["weight"][-1], measures["value"][-1], strict=True)]
    for (weight, value), (true_weight, true_value) in zip(values, expected, strict=False):
        assert weight == pytest.approx(true_weight, abs=0.00051)
        assert value == pytest.approx(true_value, abs=0.0051)


def test_a_weight_that_is_not_known_is_no_zero():
    """Of a brief dump, the three strongest sources of a row are known."""
    source, truth = subjects.brief_dump()
    app, _, _ = painted(source, "a")
    lens = app.state.lens()
    weights, _, _ = app.state.row_lens()
    spot = app.state.place.spot
    unknown = 0
    for layer, head in np.ndindex(*lens.shape):
        row = truth.weights[spot.text, spot.mask, layer, head][spot.query]
        strongest = set(np.argsort(-row)[:3].tolist())
        known = app.state.key in strongest
        assert np.isnan(lens[layer, head]) != known
        sinks = app.state.scene.keys.sinks
        others = [key for key in strongest if not sinks[key] and key != spot.query]
        assert np.isnan(weights[layer, head]) == (not others)
        unknown += not known
    assert 0 < unknown < lens.size


def test_numbers_of_one_width_are_written_in_one_way(report):
    """0.96 where there are four columns, .96 in three, 96 in two."""
    for size, form in (((200, 60), r"0\.\d\d"), ((80, 24), r"\.\d\d|0\.\d\d")):
        _, shown, _ = painted(report_source(report), "a", size)
        rows = [line for line in shown["heads"] if re.match(r"\W*L\d ", line)]
        texts = [text for row in rows for text in re.findall(r"\d?\.\d+", row)]
        assert texts and all(re.fullmatch(form, text) for text in texts)
        assert len({text.startswith("0") for text in texts}) == 1
    _, shown, _ = painted(report_source(report), "", (120, 40))
    row = next(line for line in shown["matrix"] if re.search(r"\W1 sat ", line))
    numbers = re.findall(r"\d?\.\d\d", row)
    assert len(numbers) >= 8 and len({number[0] for number in numbers}) == 1


@pytest.mark.parametrize("keys", ["v", ["v", "end"], ["v", *["down"] * 6]])
def test_every_sentence_of_a_menu_is_whole(report, keys):
    async def run():
        app = ExploreApp(report_source(report))
        async with app.run_test(size=(60, 16)) as pilot:
            await settled(app, pilot)
            await pilot.press(*keys)
            await settled(app, pilot)
            menu = app.screen
            box_lines = menu.query_one("MenuBox").lines
            lines = ["".join(segment.text for segment in line) for line in box_lines]
            return menu.found, menu._chosen, menu._rows, lines[2 : 2 + len(menu._rows)]

    found, chosen, rows, lines = asyncio.run(run())
    wide = max(len(command.title) for command in found)
    meanings = {}
    for row, line in zip(rows, lines, strict=True):
        meanings[row] = f"{meanings.get(row, '')} {line[wide + 4 : -1].strip()}".strip()
    assert chosen in meanings and 1 < len(meanings) < len(found)
    assert all(meaning == found[row].meaning for row, meaning in meanings.items()), meanings


def test_a_sentence_without_room_ends_with_a_whole_clause():
    sentence = "Change after 8 it in bits (KL, natural), this head alone cut to 0."
    assert whole_clauses(sentence, 80, 1) == [sentence]
    assert whole_clauses(sentence, 40, 1) == ["Change after 8 it in bits (KL, natural)."]
    assert whole_clauses(sentence, 20, 1) == ["Change after 8 it …"]


def test_a_long_overlay_says_how_to_see_the_rest(report):
    for size, is_long in (((80, 24), True), ((120, 160), False)):
        _, _, lines = painted(report_source(report), "?", size)
        text = "\n".join("".join(segment.text for segment in line) for line in lines)
        assert ("↓ and PgDn show the rest, Esc closes" in text) == is_long and "Esc closes" in text
        assert is_long or re.search(
            "Content weight.*is weight on other words", " ".join(text.split())
        )


def test_titles_say_which_columns_are_in_sight_and_what_is_left_out(report):
    text = " ".join([TEXT] * 3)
    for keys in ("", "d", "s", "g"):
        source = report_source(attnscope.inspect(text, stages="weights,output").data)
        app, shown, _ = painted(source, keys, (80, 24))
        layout, columns = app._panels["matrix"]._last, app.state.columns
        assert len(layout.columns) < len(columns.positions)
        what = "dims" if "s" in keys else "keys"
        span = f"{what} {layout.columns[0]}–{layout.columns[-1]}"
        assert span in shown["matrix"][0], shown["matrix"][0]
    _, shown, _ = painted(report_source(report), "1+", (120, 24), colours=0)
    assert "← strongest source past sinks and itself" in shown["heads"][0]
    app, shown, _ = painted(report_source(report), "", (120, 40))
    assert "keys" not in shown["matrix"][0]


def test_a_meaning_does_not_say_again_what_its_number_is_called(report):
    _, shown, _ = painted(report_source(report), "v", (200, 60))
    meanings = {command.title: command.meaning for command in shown["found"]}
    assert meanings["weight on the first token"] == "The mean of the rows."
    assert meanings["weight on the rest"].startswith("Not on the query itself, ")
    for title, meaning in meanings.items():
        assert not meaning.lower().startswith(title)
