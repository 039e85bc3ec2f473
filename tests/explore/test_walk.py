"""The model of a walk, without a screen: places, keys, and the numbers of cells against NumPy on exact matrices."""

import re
import subprocess
import unicodedata
from dataclasses import replace

import numpy as np
import pytest

import attnscope
from attnscope.base.errors import AttnscopeError
from attnscope.studies.explore.saved import comparison_source, distinct, report_source
from attnscope.studies.explore.scenes import run_command
from attnscope.views.explore.state import WalkState
from attnscope.views.walk.cell import (
    arithmetic,
    cell_numbers,
    command,
    difference,
    query_word,
    strongest_key,
    strongest_writer,
)
from attnscope.views.walk.keys import ACTIONS, groups, read_keys, rebound, spell_keys
from attnscope.views.walk.place import Action, Begin, Bounds, Place, Spot, apply, fit
from attnscope.views.walk.scene import STAGES, RunCommand, Variant, WalkCut, WalkHead
from tests.explore import subjects
from tests.helpers.draws import drawn
from tests.helpers.row_statistics import entropy

TEXT = "The bank by the river was not the bank that lent us money"
OWN = Variant()


@pytest.fixture(scope="module")
def report():
    return attnscope.inspect(TEXT, layer="all", head="all", stages=STAGES, top=5)


@pytest.fixture(scope="module")
def source(report):
    return report_source(report.data)


def number(text):
    return float(text.replace("−", "-"))


def test_arithmetic_of_every_cell_is_that_of_numpy(report, source):
    scene, rng = source.scene(OWN), np.random.default_rng(5)
    scale, checked = 1 / np.sqrt(48), 0
    for layer, head, query, key in rng.integers(0, [4, 4, 14, 14], (200, 4)).tolist():
        shown = source.head(OWN, layer, head)
        line = " ".join(arithmetic(shown, cell_numbers(scene, shown, query, key)))
        scores = report[layer, head].scores.astype(np.float64)[query]
        scale = float(shown.scale)
        scaled = scores * scale
        weights = np.exp(scaled - scaled.max()) / np.exp(scaled - scaled.max()).sum()
        said = re.fullmatch(r"q·k (\S+) ÷ √(\d+) = (\S+) → e\^(\S+) / Σ = (\S+)", line)
        assert said, line
        q_k, width, product, exponent, weight = map(number, said.groups())
        assert q_k == pytest.approx(scores[key], abs=0.006) and width**-0.5 == pytest.approx(
            scale, rel=1e-6
        )
        assert product == exponent == pytest.approx(scaled[key], abs=0.006)
        assert weight == pytest.approx(
            weights[key], abs=0.0051 if weights[key] >= 0.01 else weights[key] / 15
        )
        total = np.exp(cell_numbers(scene, shown, query, key).log_sum)
        assert total == pytest.approx(np.exp(scaled).sum(), rel=1e-4)
        assert strongest_key(scene, shown, query) == weights.argmax()
        checked += 1
    assert checked == 200


def test_forbidden_cells_and_masked_rows_say_so():
    report = attnscope.inspect(TEXT, layer=1, head=2, mask="causal", stages=STAGES)
    source = report_source(report.data)
    scene, head = source.scene(OWN), source.head(OWN, 0, 0)
    assert (
        arithmetic(head, cell_numbers(scene, head, 2, 7))[-1]
        == "→ not allowed by the mask: weight 0"
    )
    hidden = replace(head, masked_rows=frozenset([2]))
    assert (
        arithmetic(hidden, cell_numbers(scene, hidden, 2, 7))[-1] == "→ masked: no key is allowed"
    )


def test_cells_beyond_the_listed_sources_have_a_bound(report, source):
    scene, head = source.scene(OWN), source.head(OWN, 2, 0)
    bare = replace(head, stages={})
    weights = report[2, 0].weights
    order = np.argsort(-weights[4])
    listed, unlisted = (cell_numbers(scene, bare, 4, int(order[n])) for n in (1, 7))
    assert listed.exact and listed.weight == pytest.approx(weights[4, order[1]])
    assert not unlisted.exact and unlisted.weight is None
    assert (
        unlisted.at_most == pytest.approx(weights[4, order[4]])
        and weights[4, order[7]] <= unlisted.at_most
    )
    assert "at most" in arithmetic(bare, unlisted)[-1]


def test_command_repeats_the_place(source):
    scene = source.scene(OWN)
    said = command(scene, Spot(layer=3, head=1, query=4))
    assert said == f"attnscope run '{TEXT}' --layer 3 --head 1 --query river"
    assert query_word(scene, 1) == "1"  # `bank` occurs twice
    assert command(scene, Spot(layer=3, head=1, query=4, key=1)) == f"{said} --key 1"
    assert command(scene, Spot(layer=3, head=1, query=4, key=2)) == f"{said} --key by"
    scene = replace(scene, command=RunCommand("x"))
    assert command(scene, Spot(query=0), "output", [WalkCut("L1H0", edge=False)]).endswith(
        " x --cut L1H0 --layer 0 --head 0 --query 0 --stage output"
    )


def test_sides_of_a_comparison_are_masks_and_differ_as_the_comparison_says():
    compared = attnscope.compare(TEXT, layer=0, head=3)
    source = comparison_source(compared.data)
    assert source.masks == ["causal", "bidirectional"]
    first, second = (source.head(Variant(mask=mask), 0, 0) for mask in source.masks)
    expected = compared.data.changes[0].heads[0].difference
    assert np.allclose(difference(second, first, "weights"), expected, atol=1e-7)
    masked = difference(second, first, "masked")
    assert np.isnan(masked[0, 1:]).all() and np.isfinite(masked[:, 0]).all()


def test_a_saved_comparison_opens_on_its_difference_in_the_head_that_moves_most():
    compared = attnscope.compare(TEXT, layer="all", head="all").data
    walk = WalkState(comparison_source(compared))
    walk.settle()
    place = walk.place
    sides = [
        np.stack([head.stages["weights"] for head in side.report.texts[0].heads])
        for side in compared.sides
    ]
    moved = (np.abs(sides[1].astype(float) - sides[0]).sum(-1) / 2).max(-1)
    layer, head = divmod(int(moved.argmax()), 4)
    assert (place.spot.layer, place.spot.head, place.spot.mask) == (layer, head, 1)
    assert (place.pinned.layer, place.pinned.head, place.pinned.mask) == (layer, head, 0)
    expected = sides[1][4 * layer + head].astype(float) - sides[0][4 * layer + head]
    shown = walk.drawn.stages["difference"]
    known = np.isfinite(shown)
    assert walk.drawn_stage == "difference" and np.allclose(
        shown[known], expected[known], atol=1e-7
    )
    rows = np.abs(expected).sum(-1)
    assert place.spot.query == rows.argmax() != len(rows) - 1
    assert place.spot.key == np.abs(expected[rows.argmax()]).argmax()
    assert walk.place.display == "moved"
    (moved_number,) = (each for each in walk.scene.numbers if each.name == "moved")
    assert np.allclose(moved_number.values, moved.reshape(moved_number.values.shape), atol=1e-6)


@pytest.mark.parametrize("unit", ["tokens", "words"])
def test_a_comparison_opens_on_the_row_that_moves_most_unless_a_row_or_head_is_named(unit):
    compared = attnscope.compare("The bank by the river", layer="all", head="all").data
    source = comparison_source(compared)
    for begin, row, key in (
        (Begin(unit=unit), "by", "the"),
        (Begin(unit=unit, query="bank"), "bank", "by"),
        (Begin(unit=unit, layer="0", head="1"), "river", None),
    ):
        walk = WalkState(source, begin=begin)
        walk.settle()
        spot = walk.place.spot
        assert walk.scene.queries.names[spot.query].text.strip() == row
        assert key is None or walk.scene.keys.names[spot.key].text.strip() == key


@pytest.mark.parametrize("texts", [("the bank by the river", "the bank by the money")])
def test_a_comparison_of_texts_opens_on_the_row_that_moves_most(texts):
    compared = attnscope.compare(text=list(texts), layer="all", head="all").data
    change = compared.changes[0].most_moved(1)[0]
    walk = WalkState(comparison_source(compared))
    walk.settle()
    row = change.queries[int(np.nanargmax(change.total_variation))]
    assert walk.scene.queries.positions[walk.place.spot.query] == row[walk.place.spot.mask]


def test_a_label_is_never_that_of_two_sides():
    assert distinct(["a", "b", "a", "a"]) == ["a", "b", "a (2)", "a (3)"]


def random_bounds(rng):
    texts, masks, layers, heads, queries, keys = rng.integers(1, 9, 6).tolist()
    stages = [stage for stage in STAGES if rng.random() < 0.7] or ["weights"]
    zooms = sorted({1, *(2 ** rng.integers(0, 6, 2)).tolist()})
    return Bounds(
        texts,
        masks,
        layers,
        heads,
        queries,
        keys,
        stages,
        zooms,
        ["thumbnails", "roles", "entropy"],
    )


def values(rng, bounds):
    query = int(rng.integers(0, bounds.queries))
    return {
        "follow": Spot(0, 0, 0, 0, query, None) if rng.random() < 0.9 else None,
        "cut": ["L0H0", "L1H2: 3→1"][int(rng.integers(2))],
        "goto": Spot(0, 0, 0, 0, query, None),
    } | dict.fromkeys(
        ("find", "next_match", "previous_match"), ("bank", query if rng.random() < 0.5 else None)
    )


@pytest.mark.parametrize("seed", range(drawn(15)))
def test_walks_stay_within_bounds(seed):
    rng = np.random.default_rng(seed)
    bounds, place = random_bounds(rng), Place()
    place = fit(place, bounds)
    for _ in range(300):
        name = str(rng.choice([*(action.name for action in ACTIONS), "goto"]))
        before = place
        place = apply(place, Action(name, values(rng, bounds).get(name)), bounds)
        assert fit(place, bounds) == place
        for spot in (place.spot, *place.history, *([place.pinned] if place.pinned else [])):
            assert 0 <= spot.layer < bounds.layers and 0 <= spot.head < bounds.heads
            assert 0 <= spot.query < bounds.queries and (
                spot.key is None or 0 <= spot.key < bounds.keys
            )
        assert place.trail == place.history[len(place.history) - len(place.trail) :]
        if name == "back" and before.history:
            assert place.spot == before.history[-1]
        if rng.random() < 0.05:
            bounds = random_bounds(rng)
            place = fit(replace(place, history=(), trail=()), bounds)


def test_steps_and_their_opposites_cancel():
    bounds = Bounds(3, 4, 5, 6, 7, 8, STAGES, (1, 2, 4), ("thumbnails", "roles"))
    start = Place(Spot(1, 1, 2, 3, 3, 4), stage="scaled", zoom=2)
    for one, other in (
        ("left", "right"), ("up", "down"), ("previous_head", "next_head"), ("previous_layer", "next_layer"),
        ("previous_text", "next_text"), ("stage", "previous_stage"), ("mask", "previous_mask"), ("digits", "digits"),
        ("bare", "bare"),
        ("zoom_in", "zoom_out"), ("pin", "pin"), ("next_panel", "previous_panel"), ("predictions", "predictions"),
    ):  # fmt: skip
        there = apply(start, Action(one), bounds)
        assert there != start
        assert apply(there, Action(other), bounds) == start
    head = WalkCut("L1H1", edge=False)
    cut = apply(start, Action("cut", head), bounds)
    assert cut.cuts == (head,) and apply(cut, Action("cut", head), bounds) == start
    pinned = apply(apply(start, Action("pin"), bounds), Action("next_head"), bounds)
    swapped = apply(pinned, Action("swap"), bounds)
    assert (swapped.spot, swapped.pinned) == (pinned.pinned, pinned.spot)


def test_enter_follows_into_the_layer_below_and_backspace_returns():
    bounds = Bounds(layers=4, heads=4, queries=9, keys=9)
    start = Place(Spot(layer=2, head=1, query=8, key=3))
    below = Spot(layer=1, head=2, query=3, key=1)
    there = apply(start, Action("follow", below), bounds)
    assert (there.spot, there.history, there.trail) == (below, (start.spot,), (start.spot,))
    deeper = apply(there, Action("follow", Spot(layer=0, head=3, query=1, key=0)), bounds)
    assert deeper.trail == (start.spot, below)
    assert apply(deeper, Action("back"), bounds) == there
    assert apply(there, Action("back"), bounds) == start
    elsewhere = apply(there, Action("goto", Spot(query=5)), bounds)
    assert elsewhere.trail == () and apply(elsewhere, Action("back"), bounds).trail == ()


def test_the_head_below_is_the_one_that_writes_most_past_sinks():
    """α·‖v‖ from whole weights and norms of values, of the sources that are listed."""
    source, truth = subjects.report()
    variant = Variant()
    scene = source.scene(variant)
    n_heads = len(scene.heads)
    followed = 0
    for layer, query in np.ndindex(len(scene.layers), len(scene.queries.positions)):
        heads = [source.head(variant, layer, head) for head in range(n_heads)]
        best = (0.0, None)
        for head, walk_head in enumerate(heads):
            values = truth.values[0, 0, layer, head][query]
            ranked = walk_head.sources
            listed = [key for key in ranked.places[query].tolist() if key not in (-1, 0, query)]
            listed = [key for key in listed if not scene.keys.special[key]]
            best = max(
                [best, *((values[key], (head, key)) for key in listed)], key=lambda found: found[0]
            )
        found = strongest_writer(scene, heads, query)
        assert found == best[1], (layer, query)
        followed += found is not None
    assert followed > 20


def test_enter_goes_past_sinks_between_words_too():
    """Of words, only weights are known, and Enter led to the first token, at which all heads look."""
    source, _ = subjects.report()
    variant = Variant(unit="words")
    scene = source.scene(variant)
    followed = 0
    for layer, query in np.ndindex(len(scene.layers), len(scene.queries.positions)):
        heads = [source.head(variant, layer, head) for head in range(len(scene.heads))]
        weights = np.array([head.row("weights", query) for head in heads])
        weights[:, [n for n in range(len(weights[0])) if scene.keys.sinks[n] or n == query]] = 0
        found = strongest_writer(scene, heads, query)
        expected = np.unravel_index(weights.argmax(), weights.shape) if weights.any() else None
        assert found == expected, (layer, query)
        followed += found is not None
    assert followed > 20


def test_following_leaves_a_trail_and_keys_lead_back():
    source, _ = subjects.report()
    state = WalkState(source, begin=Begin(layer="3", head="0", query="lent"))
    state.settle()
    start = state.place.spot
    for _ in range(3):
        before = state.place.spot
        assert state.act(Action("follow"))
        here = state.place.spot
        assert (
            here.layer == before.layer - 1
            and here.query == before.key
            and here.key not in (None, 0, here.query)
        )
    assert [spot.layer for spot in state.place.trail] == [3, 2, 1]
    assert not state.act(Action("follow")) and "nothing is below" in state.error
    for _ in range(3):
        state.act(Action("back"))
    assert (state.place.spot, state.place.trail) == (start, ())


def test_no_key_calls_two_actions_and_all_are_documented():
    keys = [key for action in ACTIONS for key in action.keys]
    assert len(keys) == len(set(keys))
    assert all(action.help.endswith(".") and action.keys for action in ACTIONS)
    assert [action for _, each in groups() for action in each] == list(ACTIONS)
    asked = "hjkl[]{}1234smcxp/nNertyw:?q"
    assert set(asked) <= set(keys) and {
        "left",
        "right",
        "up",
        "down",
        "enter",
        "backspace",
        "ctrl+p",
    } <= set(keys)


def test_keys_are_rebound_by_a_file(tmp_path):
    path = tmp_path / "keys.toml"
    path.write_text('next_head = ["tab", "ctrl+n"]\nquit = "Q"\n')
    table = {action.name: action for action in read_keys(path)}
    assert table["next_head"].keys == ("tab", "ctrl+n") and table["quit"].keys == ("Q",)
    assert table["next_panel"].keys == ()  # its key was taken
    assert spell_keys(table["next_head"]) == "Tab Ctrl+N"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nxt_head = 'a'", "there is no action 'nxt_head'; did you mean 'next_head'?"),
        ("next_head = 'a'\nhelp = 'a'", "'a' calls both next_head and help; remove one"),
        ("next_head = 3", "next_head is 3; give a key, or a list of keys"),
        ("quit = []", "quit has no key; add one: quit = 'q'"),
        ("next_head =", "is not TOML"),
    ],
)
def test_files_of_keys_that_are_refused(tmp_path, text, message):
    path = tmp_path / "keys.toml"
    path.write_text(text)
    with pytest.raises(AttnscopeError) as e:
        read_keys(path)
    assert str(e.value).startswith(f"{path}: {message}")


def test_a_table_without_changes_is_the_table():
    assert rebound({}) == ACTIONS


def test_averages_of_heads_are_those_of_the_rows(report, source):
    numbers = {each.name: each.values for each in source.scene(OWN).numbers}
    for layer in range(4):
        for head in range(4):
            weights = report[layer, head].weights.astype(np.float64)
            assert numbers["self"][layer, head] == pytest.approx(np.diag(weights).mean(), abs=1e-6)
            assert numbers["entropy"][layer, head] == pytest.approx(
                entropy(weights).mean(), abs=1e-5
            )


def test_passages_spell_the_text(source):
    scene = source.scene(OWN)
    assert "".join(passage.span.text for passage in scene.passages) == TEXT
    assert [p.query for p in scene.passages if p.query >= 0] == list(range(14))


def test_a_head_without_numbers_has_no_row():
    head = WalkHead(0, 0)
    assert head.row("weights", 0) is None and head.picture() is None and head.name == "L0H0"


@pytest.mark.unix
@pytest.mark.parametrize(
    "text",
    ["it's a \\ bank", "a\x1b[31mred\x1b]0;title\x07's", "b\u202eevil\u202c\x85\xad", "漢字 \n"],
)
def test_the_command_on_leaving_holds_nothing_that_a_terminal_obeys_and_is_still_the_text(text):
    report = attnscope.inspect("a bank").data
    command = run_command(report.provenance, report.mask, text).spell()
    assert not any(unicodedata.category(character) in ("Cc", "Cf") for character in command)
    shell = ["bash", "-c", command.replace("attnscope run ", "printf %s ", 1)]
    printed = subprocess.run(
        shell, capture_output=True, check=True, env={"LC_ALL": "C.UTF-8"}
    ).stdout.decode()
    assert printed == text


def test_of_a_text_that_a_thread_has_read_heads_are_unknown_until_the_place_fits_it():
    source, _ = subjects.long_dump()
    state = WalkState(source)
    state.settle()
    last_row = len(state.scene.queries.names) - 1
    state.place = replace(state.place, spot=replace(state.place.spot, query=last_row))
    state.settle()
    assert np.isfinite(state.lens()).any()
    state.place = replace(state.place, spot=replace(state.place.spot, text=1))
    source.store.reach(1)
    assert last_row >= len(source.scene(state.variant()).queries.names)
    assert np.isnan(state.lens()).all()
    assert np.isnan(state.row_lens()[0]).all()
    state.settle()
    assert np.isfinite(state.row_lens()[0]).any()


@pytest.mark.parametrize(
    ("query", "name"), [("bank", "sentence 1"), ("ran", "sentence 2"), ("[SEP]", "sentence 2")]
)
def test_a_walk_through_spans_begins_in_the_span_of_the_row_but_not_outside_of_the_text(
    query, name, minilm
):
    report = attnscope.inspect(
        "The bank was old. The river ran by it.",
        query=query,
        layer="all",
        head="all",
        spans="sentences",
        model=str(minilm),
    )
    walk = WalkState(report_source(report.data), begin=Begin(unit="spans"))
    walk.settle()
    assert walk.scene.unit == "spans"
    assert walk.scene.queries.names[walk.place.spot.query].text == name
