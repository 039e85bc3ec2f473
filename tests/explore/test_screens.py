"""What a walk shows: random walks against the Report, painted screens, actions that need the model."""

import asyncio
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("textual", reason="textual is not installed")

from textual import events
from textual.keys import _character_to_key

import attnscope
from attnscope.batch.reports import write_report
from attnscope.cli import main
from attnscope.studies.explore.saved import report_source
from attnscope.views.explore.app import ExploreApp, copied, find
from attnscope.views.explore.state import WalkState
from attnscope.views.walk.keys import ACTIONS, groups, spell_keys
from attnscope.views.walk.scene import STAGES
from tests.explore import proof, subjects
from tests.explore.headless import walk_without_terminal
from tests.explore.proof import region_text, settled
from tests.test_docs import REWRITE

ROOT = Path(__file__).parent.parent.parent


# A step of CI walks 500 keys each, through SmolLM2 as well, whose truth alone takes ten seconds
# The first size of a terminal is 120 × 40, the second 200 × 60, whose painted screens take six times as long.
ORDINARY = [name for name in subjects.SUBJECTS if name not in ("MiniLM", "SmolLM2")]
WALKS = [(name, seed, keys) for name in ORDINARY for seed, keys in ((1, 40), (2, 20))]
WALKS += [("MiniLM", 3, 20), ("comparison", 4, 60)]


@pytest.mark.parametrize(("name", "seed", "keys"), WALKS)
def test_every_number_on_the_screen_is_that_of_the_report(name, seed, keys):
    source, truth = subjects.SUBJECTS[name]()
    assert (
        asyncio.run(proof.walk(source, truth, keys, seed, proof.SIZES[seed], painted_every=10)) > 50
    )


@pytest.mark.parametrize(("width", "announced"), [(60, True), (80, False)])
def test_a_narrow_terminal_says_how_to_get_help_and_wraps_it(width, announced):
    source, _ = subjects.SUBJECTS[ORDINARY[0]]()
    app = ExploreApp(source)

    async def walk():
        async with app.run_test(size=(width, 24)) as pilot:
            await settled(app, pilot)
            assert ("? lists all keys" in region_text(app, "title")[0]) == announced
            await pilot.press("?")
            return app.screen._text.plain

    lines = asyncio.run(walk()).split("\n")
    assert max(map(len, lines)) <= width - 4
    assert " ".join(" ".join(lines).split()).count("in the panel of heads, by one layer.") == 2


def test_the_command_prints_what_shows_the_same_place(monkeypatch, capsys):
    screens = walk_without_terminal(monkeypatch, "]", "}", "up")
    assert main(["explore", "The bank by the river", "--layer", "1", "--head", "2"]) == 0
    said = capsys.readouterr().out
    assert said == "attnscope run 'The bank by the river' --layer 2 --head 3 --query 3 --key 3\n"
    assert "L2H3" in screens[0][0]
    assert main(shlex.split(said)[1:]) == 0
    assert "L2H3" in capsys.readouterr().out


def test_keys_of_the_page_are_those_of_the_code():
    page = ROOT / "docs" / "explore.md"
    text = page.read_text()
    lines = []
    for heading, actions in groups():
        lines += [f"### {heading}", "", "| key | what it does | name |", "|---|---|---|"]
        for action in actions:
            keys = " ".join(f"`{key}`" for key in spell_keys(action, "\n").split("\n"))
            lines.append(f"| {keys} | {action.help} | `{action.name}` |".replace("`|`", "`\\|`"))
        lines.append("")
    table = "\n".join(["", *lines])
    start, end = re.search(r"<!-- keys: .*? -->\n", text).end(), text.index("<!-- end of keys -->")
    if REWRITE:
        page.write_text(text[:start] + table + text[end:])
    else:
        assert text[start:end] == table


def test_copies_are_exact():
    report = attnscope.inspect("The bank by the river", layer="all", head="all", stages=STAGES)
    state = WalkState(report_source(report.data))
    state.settle()
    spot = state.place.spot
    weights = report[spot.layer, spot.head].weights
    query, key, value = copied(state, "cell").rstrip("\n").split("\t")
    assert (query, key) == ("river", "The bank by the river".split()[state.key])
    assert float(value) == pytest.approx(float(weights[spot.query, state.key]), rel=1e-7)
    rows = [line.split("\t") for line in copied(state, "matrix").splitlines()]
    assert rows[0] == ["weights", "The", "bank", "by", "the", "river"] and len(rows) == 6
    assert [[type(weights[0, 0])(cell) for cell in row[1:]] for row in rows[1:]] == weights.tolist()


def test_a_search_goes_round():
    scene = WalkState(report_source(attnscope.inspect("a bank or a bank").data)).scene
    assert (
        find(scene, "BANK", 4, 1) == 1
        and find(scene, "bank", 1, -1) == 4
        and find(scene, "x", 0, 1) is None
    )


def test_footer_and_help_name_every_key():
    app = ExploreApp(report_source(attnscope.inspect("a bank", layer="all", head="all").data))

    async def walk():
        async with app.run_test(size=(120, 40)) as pilot:
            app.animation_level = "none"  # a screen that still scrolls has not all of its lines
            await pilot.pause()
            await pilot.press("?")
            await pilot.pause()
            seen = ""
            for key in ("pagedown", "end"):
                seen += "\n".join(strip.text for strip in app.screen._compositor.render_strips())
                await pilot.press(key)
                await pilot.pause(
                    0.3
                )  # on a busy machine, a scroll is drawn after the key is handled
            return seen + "\n".join(strip.text for strip in app.screen._compositor.render_strips())

    shown = asyncio.run(walk())
    assert "╭─ keys ─" in shown and "Esc closes" in shown
    missing = [action.name for action in ACTIONS if action.help[:30] not in shown]
    assert not missing


def test_the_title_of_the_panel_that_keys_move_in_is_marked():
    app = ExploreApp(report_source(attnscope.inspect("a bank", layer="all", head="all").data))

    async def walk():
        marked = []
        async with app.run_test(size=(120, 40)) as pilot:
            for key in "1234":
                await pilot.press(key)
                await pilot.pause()
                titles = {
                    name: app.panes[name].lines[0] for name in ("heads", "matrix", "row", "text")
                }
                marked.append(
                    [
                        name
                        for name, line in titles.items()
                        if any(s.style and s.style.reverse for s in line)
                    ]
                )
        return marked

    assert asyncio.run(walk()) == [["heads"], ["matrix"], ["row"], ["text"]]


def test_writing_takes_the_head_to_a_new_file(tmp_path):
    saved = attnscope.inspect("a bank", layer="all", head="all")
    app = ExploreApp(report_source(saved.data))
    app.write = write_report

    async def walk(*names):
        titles = []
        async with app.run_test(size=(200, 40)) as pilot:
            await pilot.pause()
            for name in names:
                await pilot.press("w")
                app.screen.query_one("#prompt").value = str(tmp_path / name)
                await pilot.press("enter")
                await settled(app, pilot)
                titles.append(region_text(app, "title")[0])
            return titles, app.state.head

    (wrote, again, table, unknown), head = asyncio.run(walk("a.json", "a.json", "a.csv", "a.doc"))
    assert "wrote" in wrote and "exists; name another file" in again
    assert "wrote" in table and "unknown extension '.doc'" in unknown
    written = attnscope.load(tmp_path / "a.json")
    assert np.array_equal(written[head.layer, head.head].weights, head.stages["weights"])
    written.save(tmp_path / "b.csv")
    assert (tmp_path / "a.csv").read_text() == (tmp_path / "b.csv").read_text()


@pytest.mark.parametrize(("keys", "screens", "prompt"), [(":zo", 3, ""), ("/le n", 2, "le n")])
def test_keys_that_are_typed_before_the_screen_has_changed_do_no_harm(keys, screens, prompt):
    app = ExploreApp(report_source(attnscope.inspect("a bank", layer="all", head="all").data))

    async def walk():
        async with app.run_test(size=(120, 40)) as pilot:
            await pilot.pause()
            for key in keys:
                app.screen.post_message(events.Key(_character_to_key(key), key))
            await pilot.pause()
            return len(app.screen_stack), app.screen_stack[1].query_one("#prompt").value

    assert asyncio.run(walk()) == (screens, prompt) and not app.failure


def test_a_brief_dump_begins_with_a_number_of_every_head_because_it_has_no_thumbnails():
    app = ExploreApp(subjects.brief_dump()[0])

    async def walk():
        async with app.run_test(size=(120, 40)) as pilot:
            await settled(app, pilot)
            return app.state.place.display, region_text(app, "heads")[2]

    display, line = asyncio.run(walk())
    assert display == "entropy" and re.match(r"[▸ ]L0 +\d\.\d\d", line)
