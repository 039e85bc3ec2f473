"""The command that is printed on leaving shows the numbers of the place that was left."""

import json
import shlex

import numpy as np
import pytest

pytest.importorskip("textual", reason="textual is not installed")

from attnscope.cli import main
from attnscope.request.spans import SpanRequest
from attnscope.views.explore.app import ExploreApp
from attnscope.views.walk.place import Action
from attnscope.views.walk.scene import WalkCut
from tests.explore import subjects
from tests.helpers.heads import unstacked

TEXT = "The bank was closed. The river lent us money."
STEPS = [
    ("next_head", None), ("next_layer", None), ("up", None), ("left", None), ("stage", None), ("mask", None),
    ("unit", None), ("pin", None), ("cut", WalkCut("L0H1", edge=False)),
    ("cut", WalkCut("L1H2: 4←1", edge=True)), ("first_query", None),
    ("previous_head", None),
]  # fmt: skip


def settle(app):
    """Compute what the screen would show."""
    state = app.state
    for _ in range(12):
        state.settle()
        wanted = [
            (variant, spot)
            for variant, spot in (
                state.wants() if state.placed else [(state.variant(), state.place.spot)]
            )
            if state.source.missing(
                variant, spot.layer, spot.head, state.place.stage, app._rows(spot)
            )
        ]
        if not wanted:
            break
        variant, spot = wanted[0]
        state.source.compute(
            variant, spot.layer, spot.head, state.place.stage, app._rows(spot), lambda *_: None
        )
    state.settle()


def same_numbers(app, line, capsys, *, pinned=False):
    """Run a command, and compare what it gives with what the screen has."""
    state = app.state
    words = shlex.split(line)
    assert words[0] == "attnscope"
    place = state.place
    spot = place.pinned if pinned else place.spot
    scene = state.source.scene(state.variant(pinned=pinned))
    head = state.source.head(state.variant(pinned=pinned), spot.layer, spot.head)
    # the cell under the cursor, but of an output, whose columns are no keys
    is_cell = spot.key is not None and place.stage != "output"
    assert ("--key" in words) == is_cell, line
    keys = [spot.key] if "--key" in words else slice(None)
    assert main([*words[1:], "--json"]) == 0
    found = unstacked(json.loads(capsys.readouterr().out))
    if words[1] == "compare":
        (change,) = found["changes"][0]["heads"]
        return np.allclose(
            change["difference"],
            state.drawn.stages["difference"][[spot.query]][:, keys],
            atol=1e-6,
        )
    (text,) = found["texts"]
    if scene.unit == "spans":
        return np.allclose(
            text["spans"]["weights"][spot.layer][spot.head], head.stages["weights"], atol=1e-6
        )
    assert text["heads"][0]["layer"] == spot.layer and text["heads"][0]["head"] == spot.head
    assert text["queries"] == list(scene.tokens_of(spot.query))
    if "--key" in words:
        assert text["keys"] == list(scene.tokens_of_key(spot.key))
    if scene.unit == "words":
        (between,) = text["heads"][0]["words"]["weights"]
        return np.allclose(between, head.stages["weights"][spot.query][keys], atol=1e-6)
    stage = place.stage if place.stage in ("scaled", "output") else "weights"
    return np.allclose(
        text["heads"][0]["stages"][stage], head.stages[stage][[spot.query]][:, keys], atol=1e-5
    )


@pytest.mark.parametrize("seed", range(8))
def test_the_last_command_shows_the_numbers_of_the_walk(seed, capsys):
    rng = np.random.default_rng(seed)
    spans = SpanRequest("sentences", written="sentences") if seed % 3 else None
    app = ExploreApp(
        subjects.live(TEXT, ("own", "causal", "window:2"), model="riverbank", spans=spans)
    )
    settle(app)
    for name, value in [STEPS[n] for n in rng.integers(0, len(STEPS), 7)]:
        app.state.act(Action(name, value))
        settle(app)
    said = app.last_command()
    lines = said.splitlines()
    assert same_numbers(app, lines[0], capsys), said
    for line in lines[1:]:
        assert same_numbers(app, line, capsys, pinned=True), said


@pytest.mark.parametrize(("steps", "begins"), [
    (["pin", "next_head"], "attnscope compare"),
    (["pin", "mask"], "attnscope compare"),
    (["pin", "mask", "next_head"], "attnscope run"),
])  # fmt: skip
def test_a_comparison_is_one_command_if_there_is_one(steps, begins, capsys):
    app = ExploreApp(subjects.live(TEXT, ("own", "causal"), model="riverbank"))
    settle(app)
    for name in steps:
        app.state.act(Action(name))
        settle(app)
    lines = app.last_command().splitlines()
    assert lines[0].startswith(begins) and len(lines) == (1 if begins.endswith("compare") else 2)
    assert same_numbers(app, lines[0], capsys)
