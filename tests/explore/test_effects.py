"""E says how much each head matters: in a word, a number and a rank, where the model predicts and at the cursor's row."""

import asyncio
import math
import re
import threading

import numpy as np
import pytest

pytest.importorskip("textual", reason="textual is not installed")

import attnscope
from attnscope.cli.explore import SessionOpener
from attnscope.request.run_config import RunConfig, TextInput
from attnscope.views.explore.app import ExploreApp
from tests.explore.proof import lines_of, region_text, settled
from tests.explore.test_head_lists import of_model
from tests.explore.test_live import TEXT, live, walk


def word(bits):
    """Return the word for an effect, by the table of docs/ablation.md."""
    if bits >= 0.1:
        return "much"
    return "somewhat" if bits >= 0.02 else "little" if bits >= 0.002 else "hardly"


def written(bits):
    """Write an effect as pages do, with two digits that count."""
    return f"{bits:.{max(2, 1 - math.floor(math.log10(bits)))}f}"


def verdicts(lines):
    """The verdicts that the panel of heads has: word, bits, and rank."""
    found = re.findall(r"(not at all|\w+), ([\d.e-]+) bits, rank (\d+)", " ".join(lines))
    return [(said, bits, int(rank)) for said, bits, rank in found]


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
def test_effects_are_those_of_ablate_where_the_model_predicts_and_at_the_row(size):
    async def act(app, press, _pilot):
        found = []
        await press("2", "g", "down", "E")
        for keys in (("E",), ("down",), ("1", "right"), ("E",)):
            spot = app.state.place.spot
            title, lines = region_text(app, "title")[0], lines_of(app, "heads", True)
            found.append((spot, app.state.place.display, title, lines))
            await press(*keys)
        return found

    found = walk(act, live(), size)
    assert [display for _, display, _, _ in found] == ["effect", *["effect at this row"] * 3]
    for spot, display, _, lines in found:
        at = 4 if display == "effect" else spot.query
        effects = attnscope.ablate(TEXT, each="head", at=at).data.effects[0].kl
        own = effects[4 * spot.layer + spot.head]
        place = f"at {at} "
        assert place in lines[0] and "bits" in lines[0], lines[0]
        said, bits, rank = verdicts(lines)[0]
        assert said == word(own) and bits == written(own)
        assert rank == 1 + (effects > own).sum()
        strongest = re.search(r"strongest: L(\d)H(\d) ([\d.e-]+)", " ".join(lines))
        assert 4 * int(strongest[1]) + int(strongest[2]) == effects.argmax()
    assert "effects at 4 [MASK]" in found[0][2] and "E: at 1 " in found[0][2]
    assert "effects at 1 " in found[1][2] and "E: at 4 [MASK]" in found[1][2]


def test_both_places_have_a_verdict_if_there_is_room(smollm2):
    async def act(app, press, _pilot):
        await press("/", *"it", "enter", "1", "E")
        return app.state.place.spot, lines_of(app, "heads", True)

    spot, lines = walk(act, of_model(smollm2), (200, 60))
    text = " ".join(" ".join(lines).replace("│", " ").split())
    name = f"L{spot.layer}H{spot.head}"
    assert f"without {name} " in text
    for place, at in (("after 10 too", None), ("after 8 it", 8)):
        found = attnscope.ablate(of_model(smollm2).texts[0], model=str(smollm2), each="head", at=at)
        effects = found.data.effects[0].kl
        own = effects[9 * spot.layer + spot.head]
        rank = 1 + (effects > own).sum()
        assert f"{place}: {word(own)}, {written(own)} bits, rank {rank} of 270" in text, text[-400:]


def test_a_cut_says_in_a_word_whether_it_matters():
    async def act(app, press, _pilot):
        await press("/", *"river", "enter", "1", "x")
        return app.state.place.cuts[0].written, region_text(app, "row")

    cut, lines = walk(act, live())
    changes = attnscope.ablate(TEXT, cut=cut, at=range(8)).data.effects[0].predictions
    sizes = {written(change.kl): word(change.kl) for change in changes}
    text = " ".join(" ".join(line.strip("│ ") for line in lines).split())
    said = re.findall(rf"{cut} ([\w ]+?) (?:at|after) \d+ \S+ ([\d.e-]+) bits", text)
    assert len(said) == 2, text
    for sentence, bits in said:
        found = sizes[bits]
        assert sentence == ("hardly matters" if found == "hardly" else f"matters {found}")


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
def test_a_bar_after_a_cut_has_a_tick_where_it_ended_before(size):
    async def act(app, press, _pilot):
        await press("/", *"river", "enter", "1", "x")
        return region_text(app, "row")

    lines = walk(act, live(), size)
    assert "│ before" in " ".join(lines)
    found = [
        (line, match)
        for line in lines
        if (match := re.search(r" ( [ \d]\d\d?\.\d) → +([\d.]+) %", line))
    ]
    assert len(found) > 1
    start = min(line.index(mark) for line, _ in found for mark in "█│" if mark in line)
    for line, numbers in found:
        drawn = line[start : numbers.start()]
        before, after = (float(number) / 100 * len(drawn) for number in numbers.groups())
        assert drawn.index("│") == pytest.approx(min(len(drawn) - 1, before), abs=0.51), line
        assert len(drawn[: int(after)].strip("█│")) == 0, line


def test_a_model_without_predictions_has_a_verdict_in_percent():
    async def act(app, press, _pilot):
        await press("1", "x", "E")
        return (
            app.state.place.cuts[0].written,
            region_text(app, "row"),
            lines_of(app, "heads", True),
        )

    text = "The bank by the river"
    source = live(text)
    cut, row, heads = walk(act, source, (200, 60))
    effect = attnscope.ablate(text, cut=cut).data
    share = np.nanmean(effect.effects[0].change.astype(np.float64) / effect.norms)
    name = "much" if share >= 0.2 else "somewhat" if share >= 0.05 else "little"
    own = f"{100 * share:.1f} %" if share < 0.0995 else f"{100 * share:.0f} %"
    assert f"{cut} matters {name}: {own} on average" in " ".join(row)
    survey = attnscope.ablate(text, each="head").data.effects[0].hidden
    assert f"on average: {name}, {own}, rank" in " ".join(heads)
    rank = f"rank {1 + (survey > share * 1.001).sum()} of 16"
    assert rank in " ".join(heads) and rank in " ".join(row)
    # what changes at a token, and the strongest heads, have the unit of the verdict
    moved = np.sort(effect.effects[0].change.astype(np.float64) / effect.norms)[::-1]
    sizes = [float(size) for size in re.findall(r"█\S* +([\d.]+) %", " ".join(row))]
    assert sizes[:2] == pytest.approx(100 * moved[:2], rel=0.05)
    strongest = re.search(r"strongest: L\dH\d ([\d.]+) %", " ".join(heads))
    assert float(strongest[1]) == pytest.approx(100 * survey.max(), rel=0.05)


def test_what_is_cut_meanwhile_does_not_lose_the_effects():
    source = live()
    measure, may_end = source.measure_effects, threading.Event()

    def wait(variant, progress):
        may_end.wait(30)
        measure(variant, progress)

    source.measure_effects = wait

    async def run():
        app = ExploreApp(source)
        async with app.run_test(size=(120, 40)) as pilot:
            await settled(app, pilot)
            for key in "1Ex":
                await pilot.press(key)
            assert "after what is computed now" not in region_text(app, "title")[0]
            may_end.set()
            await settled(app, pilot)
            return app.state.place.display, len(app.state.place.cuts), lines_of(app, "heads", True)

    display, cuts, lines = asyncio.run(run())
    assert display == "effect" and cuts == 1 and "effect at 4 [MASK]" in lines[0]


def test_a_key_that_had_to_wait_does_not_say_so_once_it_is_computed():
    source = live()
    roles, effects = threading.Event(), threading.Event()
    source.measure_roles = lambda _progress: roles.wait(30)

    def measure(_variant, progress):
        progress("cutting each head", 1, 2)
        effects.wait(30)

    source.measure_effects = measure

    async def run():
        app = ExploreApp(source)
        async with app.run_test(size=(120, 40)) as pilot:
            await settled(app, pilot)
            await pilot.press("r", "E")
            titles = []
            for _ in range(200):
                await pilot.pause(0.02)
                titles.append(region_text(app, "title")[0])
                roles.set()
                if "cutting each head" in titles[-1]:
                    break
            effects.set()
            await settled(app, pilot)
            return titles

    first, *_, last = asyncio.run(run())
    assert "effects: next, after what is computed now" in first
    assert "cutting each head · 50 %" in last and "after what is computed now" not in last


def test_effects_of_a_long_text_are_those_where_the_model_predicts(monkeypatch):
    monkeypatch.setattr("attnscope.studies.explore.live._ROWS_MEASURED", 7)

    async def act(app, press, _pilot):
        await press("1", "E", "E")
        return app.state.place.display, region_text(app, "title")[0], app.state.scene

    display, title, scene = walk(act, live())
    assert display == "effect" and scene.effects.values is None and "E: " not in title
    effects = attnscope.ablate(TEXT, each="head").data.effects[0].kl
    (number,) = (number for number in scene.numbers if number.name == "effect")
    assert np.allclose(number.values.ravel(), effects, rtol=1e-4)


def test_a_second_press_keeps_the_effects_that_are_computed_and_says_so():
    source = live()
    measure, measured, may_end = source.measure_effects, [], threading.Event()

    def wait(variant, progress):
        measured.append(variant)
        may_end.wait(30)
        progress("cutting each head", 1, 2)
        measure(variant, progress)

    source.measure_effects = wait

    async def run():
        app = ExploreApp(source)
        async with app.run_test(size=(120, 40)) as pilot:
            await settled(app, pilot)
            titles = []
            for key in "E1xE":
                await pilot.press(key)
                titles.append(region_text(app, "title")[0])
            may_end.set()
            await settled(app, pilot)
            return titles, region_text(app, "title")[0], app.state.place.display

    titles, last, display = asyncio.run(run())
    assert len(measured) == 1 and display == "effect"
    assert "effects: computed now; Esc drops it" in titles[-1] and "computed now" not in last


def test_effects_that_are_wanted_again_after_esc_are_computed():
    source = live()
    measure, began, may_end = source.measure_effects, threading.Event(), threading.Event()

    def wait(variant, progress):
        began.set()
        may_end.wait(30)
        progress("cutting each head", 1, 2)
        measure(variant, progress)

    source.measure_effects = wait

    async def run():
        app = ExploreApp(source)
        async with app.run_test(size=(120, 40)) as pilot:
            await settled(app, pilot)
            await pilot.press("E")
            began.wait(30)
            await pilot.press("escape", "E")
            may_end.set()
            await settled(app, pilot)
            return app.state.place.display

    assert asyncio.run(run()) == "effect"


def test_effects_that_are_wanted_at_once_come_after_the_weights_of_all_heads():
    """Lists of the lens were those of one head until all effects were measured."""
    source = live()
    measure, known = source.measure_effects, []

    def measured(variant, progress):
        heads = [source.token_head(variant, n // 4, n % 4) for n in range(16)]
        known.append([head is not None and head.holds("weights", 0, 7) for head in heads])
        measure(variant, progress)

    source.measure_effects = measured

    async def run():
        app = ExploreApp(source)
        async with app.run_test(size=(120, 40)) as pilot:
            # before there is a scene
            await pilot.press("E")
            while app.state.place.display != "effect":
                await settled(app, pilot)

    asyncio.run(asyncio.wait_for(run(), 60))
    assert known == [[True] * 16]


def test_effects_that_wait_for_the_weights_of_all_heads_say_so_and_are_dropped():
    source = live()
    compute, may_end = source.compute, threading.Event()

    def wait(*args):
        compute(*args)
        # the scene is there, and other heads are not
        may_end.wait(30)

    async def run(*last):
        may_end.clear()
        app = ExploreApp(source)
        async with app.run_test(size=(120, 40)) as pilot:
            await settled(app, pilot)
            source.compute = wait
            await pilot.press("m", "E", *last)
            title = region_text(app, "title")[0]
            may_end.set()
            await settled(app, pilot)
            source.compute = compute
            return title, app.state.place.display, app.state.scene.numbers

    title, display, _ = asyncio.run(run())
    assert "effects: next, after what is computed now" in title and display == "effect"
    source = live()
    compute = source.compute
    title, display, numbers = asyncio.run(run("escape"))
    assert "effects: dropped" in title and display != "effect"
    assert "effect" not in [number.name for number in numbers]


def test_progress_has_a_number_also_while_predictions_are_compared(monkeypatch):
    """All cuts ran in the first third of the time, and the rest of it was `cutting each head …`."""
    from attnscope.studies.ablate import uncut_states
    from attnscope.studies.ablate.plan import AblationOptions
    from attnscope.studies.ablate.run import survey_effects

    said, compared = [], []
    compare = uncut_states.UncutStates.compare_predictions

    def comparing(self, *args):
        before = len(said)
        found = compare(self, *args)
        compared.append(said[before:])
        return found

    # one state at a time
    monkeypatch.setattr(uncut_states, "LOGITS", 1)
    monkeypatch.setattr(uncut_states.UncutStates, "compare_predictions", comparing)
    texts = (TextInput(TEXT),)
    report = lambda what, done, total: said.append((what, done / total))  # noqa: E731
    with SessionOpener(texts).open(texts, report) as session:
        survey_effects(RunConfig(texts, model="riverbank"), AblationOptions(each="head"), session)
    shares = [share for what, share in said if what == "cutting heads"]
    assert shares == sorted(shares) and shares[-1] == 1 and shares.count(1) == 1
    # 16 heads at one [MASK]
    compared_shares = [share for calls in compared for _, share in calls]
    assert len(compared_shares) == 16 == len({*compared_shares})
