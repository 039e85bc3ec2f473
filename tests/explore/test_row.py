"""The panel of a row: all of its weight is accounted for, also beside what cuts change."""

import re
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("textual", reason="textual is not installed")

import attnscope
from attnscope.cli.explore import SessionOpener
from attnscope.request.run_config import RunConfig, TextInput
from attnscope.request.selection import IndexSelection
from attnscope.studies.explore.live import LiveSource
from attnscope.studies.explore.saved import comparison_source, report_source
from attnscope.views.explore.head_panel import _below_lens
from attnscope.views.walk.cell import CellNumbers, sum_text
from tests.explore.proof import lines_of, region_text
from tests.explore.test_live import live, walk

ANIMAL = "The animal did not cross the street because it was too"
BANK = "The bank by the river"


def row_lines(app):
    return [line.strip("│ ") for line in region_text(app, "row")]


def listed(lines):
    """Return the weights of the named sources by their position, and the number and the weight of the others."""
    sources = {}
    others = 0, 0.0
    for line in lines:
        if found := re.match(r"← (\d+) .*? (\d\.\d{3})\b", line):
            sources[int(found[1])] = float(found[2])
        elif found := re.match(r"(\d+) more(?:, \d+ larger)? +(\d\.\d{3})$", line):
            others = int(found[1]), float(found[2])
    return sources, others


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
def test_a_row_keeps_the_weight_of_the_sources_that_predictions_leave_no_room_for(size, smollm2):
    """Eighteen percent of a row were missing without a word."""
    texts = (TextInput(ANIMAL),)
    source = LiveSource(RunConfig(texts, model=str(smollm2)), SessionOpener(texts).open)

    async def act(app, press, _pilot):
        await press("/", *"it", "enter")
        shown = []
        for key in ("p", "1", "x", "X"):
            await press(key)
            head = app.state.head
            shown.append((row_lines(app), head.row("weights", app.state.place.spot.query)))
        return shown

    for lines, weights in walk(act, source, size):
        sources, (count, rest) = listed(lines)
        assert sources and count == (weights > 0).sum() - len(sources)
        assert sum(sources.values()) + rest == pytest.approx(1, abs=0.0051)
        assert rest == pytest.approx(1 - sum(weights[key] for key in sources), abs=6e-4)


def rounding(written):
    """Return half a unit of the last digit of a number."""
    return 0.51 * 10.0 ** -len(written.partition(".")[2])


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
def test_the_change_of_every_token_is_there_or_counted_and_its_reason_is_the_true_one(size):
    async def act(app, press, _pilot):
        await press("1", "x")
        cut = row_lines(app), app.state.place.cuts[0].written
        await press("X", "p")
        return *cut, row_lines(app)

    lines, cut, without = walk(act, live(BANK), size)
    effect = attnscope.ablate(BANK, cut=cut).data
    shares = effect.effects[0].change.astype(np.float64) / effect.norms
    found = [re.match(r"(\d) (?!more)(\w+) .*?([\d.]+) %$", line) for line in lines]
    changes = {int(m[1]): (m[2], m[3]) for m in found if m}
    order = np.argsort(-shares).tolist()
    assert [*changes] == order[: len(changes)] and changes
    for position, (name, size) in changes.items():
        assert name == BANK.split()[position]
        assert float(size) == pytest.approx(100 * shares[position], abs=rounding(size))
    more = [m for line in lines if (m := re.match(r"(\d) more, each at most ([\d.]+) %$", line))]
    assert sum(int(m[1]) for m in more) == len(order) - len(changes)
    for m in more:
        assert float(m[2]) >= 100 * shares[order[len(changes) :]].max() - rounding(m[2])
    reason = "no predictions: the model predicts at [MASK], which the text does not have"
    assert reason in " ".join(lines) and reason in " ".join(without)


def test_the_source_under_the_cursor_is_listed_even_if_others_are_stronger():
    text = " ".join([BANK, "was not the bank that lent us money and the stones moved slowly"])

    async def act(app, press, _pilot):
        await press("G", "space")
        row = app.state.head.row("weights", app.state.place.spot.query)
        weakest = int(np.argmin(np.where(row > 0, row, np.inf)))
        await press("home", *["right"] * weakest)
        return row, weakest, row_lines(app)

    row, weakest, lines = walk(act, live(text), (80, 24))
    sources, (count, rest) = listed(lines)
    assert len(sources) < len(row) and [*sources][-1] == weakest
    assert count == len(row) - len(sources)
    assert rest == pytest.approx(1 - sum(row[key] for key in sources), abs=6e-4)


@pytest.mark.parametrize("saved", [False, True])
def test_a_list_says_how_many_larger_sources_it_leaves_out(saved):
    """Of 19 sources, one of 0.004 stood right below one of 0.279."""
    text = " ".join([BANK, "was not the bank that lent us money and the stones moved slowly"])
    # all are listed in the report, in a panel that has room for fewer
    kept = {"stages": "scores,masked", "top": 30} if saved else {"stages": "weights"}
    report = attnscope.inspect(text, layer=2, head=0, **kept).data
    whole = attnscope.inspect(text, layer=2, head=0, stages="weights").data
    row = whole.texts[0].heads[0].stages["weights"][-1]

    async def act(app, press, _pilot):
        await press("3", "G", "space", "home")
        shown = []
        for _ in row:
            shown.append((app.state.key, row_lines(app)))
            await press("right")
        return shown

    counts = []
    for key, lines in walk(act, report_source(report), (80, 24)):
        listed_keys = [*listed(lines)[0]]
        assert key in listed_keys
        weakest = row[listed_keys].min()
        said = [int(m[1]) for line in lines if (m := re.search(r", (\d+) larger ", line))]
        counts.append((row > weakest).sum() - (row[listed_keys] > weakest).sum())
        assert said == [counts[-1]] * bool(counts[-1]), lines
    assert min(counts) == 0 and max(counts) > 3


def test_of_sources_that_were_not_saved_a_value_is_not_known_and_sums_are_no_powers_of_ten():
    async def act(app, _press, _pilot):
        return row_lines(app)

    saved = attnscope.inspect(BANK, layer=2, head=0, stages="scores,masked,weights", top=2).data
    lines = [line for line in walk(act, report_source(saved)) if line.startswith("←")]
    assert [line.split()[-1] == "?" for line in lines] == [False, False, *[True] * (len(lines) - 2)]
    assert len(lines) > 2
    cell = CellNumbers({}, True, False, 10.8285, 10.65, None, None, True, None)
    assert sum_text(cell, is_long=True) == "50438 = e^10.65 (row's largest) × 1.195"
    assert sum_text(replace(cell, log_sum=2.0), is_long=False) == "7.389"
    assert sum_text(replace(cell, log_sum=40.0), is_long=False) == "e^40.00"
    assert sum_text(replace(cell, log_sum=-40.0), is_long=False) == "e^−40.00"


@pytest.mark.parametrize(("panel", "named"), [("2", "this edge"), ("1", "L2H1")])
def test_a_verdict_names_what_is_taken_out(panel, named):
    async def act(app, press, _pilot):
        await press(panel, "x", "E")
        shown = row_lines(app), lines_of(app, "heads", True)
        await press("1", "+")
        return *shown, lines_of(app, "heads", True)

    start = {"layer": IndexSelection.of([2]), "head": IndexSelection.of([1])}
    row, heads, enlarged = walk(act, live(**start), (200, 60))
    word = r"(hardly matters|matters \w+)"
    assert re.search(rf"{named} {word} at 4 \[MASK\] +[\d.e-]+ bits", " ".join(row)), row
    assert re.search(r"L2H1( at 4 \S+)?: (not at all|\w+), ", " ".join(heads)), heads
    # with the place, and what is taken out, where there is room for both
    assert "without L2H1 at 4 [MASK]: " in " ".join(enlarged), enlarged


def test_a_list_of_heads_that_are_still_computed_says_so():
    def answer(app, weights):
        lines, _ = _below_lens(app.state, app.state.scene, weights, 60, 3)
        return lines[0][0].text

    async def act(app, press, _pilot):
        await press("a")
        weights = app.state.lens()
        whole = answer(app, weights)
        weights[-1] = np.nan
        saved = answer(app, weights)
        app.state.lens = lambda: weights
        panels = []
        for status in ("attending …", ""):
            app.state.status = status
            lines = app._panels["heads"].draw(app.state, 60, 20)
            panels.append("\n".join("".join(segment.text for segment in line) for line in lines))
        app.state.status = "attending …"
        running = answer(app, weights)
        return whole, saved, running, panels

    whole, saved, running, panels = walk(act, live())
    # what is drawn is drawn anew when nothing is computed any more
    assert [" most so far, " in panel for panel in panels] == [True, False]
    assert " most, " in whole and " most, " in saved
    assert " most so far, " in running


def test_ranges_of_words_are_numbered_as_their_labels():
    async def act(app, press, _pilot):
        await press("u", "2")
        layout = app._panels["matrix"]._last
        lines = [line.strip("│ ") for line in lines_of(app, "matrix", True)]
        return lines, layout.rows, app.state.scene

    lines, rows, scene = walk(act, live(" ".join(["The unbelievable bank"] * 10)), (80, 24))
    labels = [scene.tokens_of(row)[0] for row in (rows[0], rows[-1])]
    assert scene.unit == "words" and rows[-1] < labels[1]
    assert f"queries {labels[0]}–{labels[1]}, keys " in " ".join(lines), lines
    assert any(re.match(rf"▸?{labels[1]} ", line) for line in lines)


def test_a_saved_comparison_says_why_it_opens_on_its_head():
    found = attnscope.compare(BANK, layer="all", head="all").data

    async def act(app, press, _pilot):
        titles = [region_text(app, "title")[0]]
        await press("]")
        return [*titles, region_text(app, "title")[0]]

    first, other = walk(act, comparison_source(found))
    best = found.changes[0].most_moved(1)[0].second
    assert f"L{best.layer}H{best.head}, which moves most" in first and "moves most" not in other


def test_a_comparison_has_both_weights_and_their_difference_at_every_size():
    source = comparison_source(attnscope.compare(BANK, layer="all", head="all").data)

    async def act(app, press, _pilot):
        rows = []
        for key in ("g", "j", "j", "j", "j"):
            await press(key, "home")
            heads = app.state.head, app.state.pinned
            query, column = app.state.place.spot.query, app.state.key
            weights = [float(head.stages["weights"][query, column]) for head in heads]
            rows.append((row_lines(app), weights))
        return rows

    for size in ((80, 24), (120, 40), (200, 60)):
        for lines, (weight, pinned) in walk(act, source, size):
            said = re.search(r"Σ = (\S+).*pinned (\S+), difference (\S+)", " ".join(lines))
            assert said, lines
            numbers = [float(text.replace("−", "-")) for text in said.groups()]
            assert numbers == pytest.approx([weight, pinned, weight - pinned], abs=6e-3)


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
def test_the_row_of_a_comparison_lists_what_lost_its_weight_with_both_weights(size):
    """The source that lost all weight was one of `4 more`, of 0.000."""
    found = attnscope.compare("The bank by the river", layer="all", head="all").data

    async def act(app, press, _pilot):
        spot, heads = app.state.place.spot, region_text(app, "heads")
        before = spot, app.state.place.pinned, region_text(app, "row")
        await press("end")
        return before, region_text(app, "row"), heads

    (spot, pinned, lines), others, heads = walk(act, comparison_source(found), size)
    n_heads = 4
    sides = [
        side.report.texts[0].heads[n_heads * at.layer + at.head].stages["weights"][spot.query]
        for side, at in zip(found.sides, (pinned, spot), strict=True)
    ]
    before, after = (row.astype(np.float64) for row in sides)
    order = np.argsort(-np.maximum(before, after), kind="stable").tolist()
    assert before[order[:2]].max() > 0.99 and after[order[:2]].max() > 0.99
    assert re.search(r"weight +pinned", lines[0])
    listed = [
        (int(match[1]), float(match[2]), float(match[3]))
        for line in lines
        if (match := re.match(r"← (\d+) .*? (\d\.\d{3}) +(\d\.\d{3})", line))
    ]
    assert [key for key, *_ in listed] == order[: len(listed)] and len(listed) > 1
    for key, weight, pinned_weight in listed:
        assert weight == pytest.approx(after[key], abs=0.00051)
        assert pinned_weight == pytest.approx(before[key], abs=0.00051)
    (rest,) = (match for line in lines if (match := re.match(r" +(\d) more +(\S+) +(\S+)", line)))
    hidden = order[len(listed) :]
    assert int(rest[1]) == sum(np.maximum(before, after)[hidden] > 0)
    assert float(rest[2]) == pytest.approx(after[hidden].sum(), abs=0.00051)
    assert float(rest[3]) == pytest.approx(before[hidden].sum(), abs=0.00051)
    # the one under the cursor is listed wherever it ranks, and how many are larger
    assert any(re.match(r"← 4 river", line) for line in others)
    said = " ".join(heads)
    assert "Largest share of a row that moved" in " ".join(said.split()) and "…" not in said
