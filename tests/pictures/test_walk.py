"""Walks over pictures: what a place shows, how keys move over patches, and what a page holds."""

import base64
import json
import re
import zlib

import numpy as np
import pytest

from attnscope.studies.explore.saved import report_source
from attnscope.studies.formats import page
from attnscope.studies.run.every_head import EveryHead
from attnscope.views.explore.matrix import MatrixPanel
from attnscope.views.explore.state import WalkState
from attnscope.views.settings import DisplaySettings
from attnscope.views.walk.place import Action, Spot
from tests.helpers.pictures import COLUMNS, ROWS, pixels, random_weights, report_on_picture

PATCHES = ROWS * COLUMNS
TOKENS = 2 + PATCHES
WEIGHTS = random_weights(2, 3, TOKENS)


@pytest.fixture
def state() -> WalkState:
    """A walk that begins at CLS of L0H1."""
    walk = WalkState(report_source(report_on_picture(WEIGHTS, layer="all", head="all")))
    walk.settle()
    walk.act(Action("goto", Spot(layer=0, head=1, query=walk.place.spot.query)))
    return walk


def text_of(state: WalkState, width: int = 60, height: int = 30) -> list[str]:
    return [
        "".join(segment.text for segment in line)
        for line in MatrixPanel().draw(state, width, height)
    ]


def test_a_walk_begins_at_cls_and_says_its_shares(state: WalkState) -> None:
    assert state.place.spot.query == 0 and state.pictured
    row = WEIGHTS[0, 1, 0].astype(float)
    written = [f"{100 * share:.{0 if share >= 0.0995 else 1 if share >= 0.00995 else 2}f} %" for share in
               (row[2:].sum(), row[0], row[1])]  # fmt: skip
    said = f"patches {written[0]} · CLS {written[1]} · registers {written[2]}"
    assert said in "\n".join(text_of(state))


def test_arrows_move_over_patches_and_up_leads_to_cls(state: WalkState) -> None:
    def at() -> int:
        return state.place.spot.query - 2

    state.act(Action("down"))
    assert state.place.spot.query == 1  # the register
    state.act(Action("down"))
    assert at() == (ROWS // 2) * COLUMNS + COLUMNS // 2
    for key, expected in (
        ("left", 5),
        ("up", 1),
        ("left", 0),
        ("left", 0),
        ("right", 1),
        ("down", 5),
    ):
        state.act(Action(key))
        assert at() == expected, key
    for _ in range(3):
        state.act(Action("up"))
    assert state.place.spot.query == 0


def test_the_query_is_in_brackets_and_digits_show_the_matrix(state: WalkState) -> None:
    state.act(Action("goto", Spot(layer=0, head=1, query=2 + COLUMNS + 2)))
    (marked,) = [line for line in text_of(state) if "[" in line and "]" in line]
    side = 60 // COLUMNS
    assert marked.index("[") == 2 * side
    state.act(Action("digits"))
    assert not state.pictured
    assert f"{WEIGHTS[0, 1, 2 + COLUMNS + 2, 0]:.2f}" in "\n".join(text_of(state, 200, 60))


def test_a_click_on_a_patch_makes_it_the_query(state: WalkState) -> None:
    panel = MatrixPanel()
    panel.draw(state, 60, 30)
    side = 60 // COLUMNS
    hit = panel.hit(state, 3 * side + 1, 1 + side // 2 + 1)
    assert hit is not None and hit.value.query == 2 + COLUMNS + 3
    assert panel.hit(state, 59, 29) is None


def test_a_page_holds_the_picture_and_all_weights_of_heads_that_are_not_exact() -> None:
    report = report_on_picture(WEIGHTS, layer=1, head=2)
    every_head = EveryHead(
        report_on_picture(WEIGHTS, layer="all", head="all", stages="weights"), [None]
    )
    html = b"".join(page(report, DisplaySettings(every_head=every_head))).decode()
    (data,) = re.findall(r'id="data">\n(.*?)</script>', html, re.DOTALL)
    block = zlib.decompress(base64.b64decode(data))
    length = int.from_bytes(block[:4], "little")
    header = json.loads(block[4 : 4 + length])

    def array(reference: dict[str, int]) -> np.ndarray:
        entry = header["arrays"][reference["@"]]
        assert entry["t"] == "u1"
        start = 4 + length + entry["o"]
        return np.frombuffer(block, np.uint8, int(np.prod(entry["s"])), start).reshape(entry["s"])

    (walk,) = (node for node in header["nodes"] if isinstance(node, dict) and node["k"] == "walk")
    pictures = walk["scenes"][0]["pictures"]
    (grid,) = pictures["grids"]
    np.testing.assert_array_equal(
        np.cumsum(array(grid["pixels"]), axis=0, dtype=np.uint8), pixels()
    )
    assert grid["sources"] == list(range(2, TOKENS)) and grid["shape"] == [ROWS, COLUMNS]
    rounded = (array(pictures["rows"]["weights"]) / 255.0) ** 2
    for (layer, head), weights in zip(pictures["rows"]["units"], rounded, strict=True):
        # Half a step of the root, at both ends of it.
        limit = (np.sqrt(WEIGHTS[layer, head]) + 0.5 / 255) ** 2 - WEIGHTS[layer, head]
        assert (np.abs(weights - WEIGHTS[layer, head]) <= limit + 1e-6).all()
    assert len(rounded) == 5
    assert pictures["kinds"] == [
        ["patches", list(range(2, TOKENS))],
        ["CLS", [0]],
        ["registers", [1]],
    ]
