"""A page of a measure over layers: the text, what its last token comes from, and the layers as steps."""

import json

import numpy as np
import pytest

from attnscope.cli import main
from attnscope.request.run_config import RunConfig, TextInput
from attnscope.request.selection import IndexSelection
from attnscope.studies.rollout.run import report
from attnscope.views.palette import LIGHT
from tests.page.reading import read_page, text_in
from tests.page.test_truths import COLOURS
from tests.page.walking import middle_of_cell, shows

TEXT = "The bank by the river was steep"
WORDS = TEXT.split()


def written(folder, *options, text=TEXT):
    """The page of a measure, and the JSON of its only text."""
    path, exact = folder / "page.html", folder / "exact.json"
    for output in (path, exact):
        assert main(["run", text, *options, "-o", str(output), "--quiet"]) == 0
    return path, json.loads(exact.read_text())["texts"][0]["rollouts"]


@pytest.fixture(scope="module")
def rolled(tmp_path_factory):
    return written(tmp_path_factory.mktemp("rolled"), "--measure", "rollout")


def after(layer, text=TEXT):
    """The shares after a layer."""
    run = RunConfig(
        (TextInput(text),),
        model="riverbank",
        measure="rollout",
        layer=IndexSelection.of(range(layer + 1)),
    )
    return report(run).texts[0].rollouts[0].matrix


def matrices(path):
    page = read_page(path)
    (walk,) = page.of_kind("walk")
    (scene,) = walk["scenes"]
    return page, scene, {unit["name"]: page.stage(unit, "weights") for unit in scene["units"]}


def test_the_steps_are_the_rollouts_up_to_each_layer(rolled):
    path, (rollout,) = rolled
    page, scene, found = matrices(path)
    assert list(found) == ["L0", "L0–1", "L0–2", "L0–3"]
    for last, name in enumerate(found):
        np.testing.assert_allclose(found[name], after(last), atol=1e-6)
    np.testing.assert_allclose(found["L0–3"], rollout["matrix"], atol=1e-6)
    assert scene["units"][-1]["at"] == scene["first"]
    assert scene["size"] == "L0–3 rollout"
    below = " ".join(text_in(node) for node in page.nodes if isinstance(node, list))
    assert "L0–3 rollout  weights A averaged over heads" in below


def test_a_measure_of_each_layer_has_a_matrix_for_each(tmp_path):
    path, rollouts = written(tmp_path, "--measure", "value-zeroing")
    _, _, found = matrices(path)
    assert list(found) == ["L0", "L1", "L2", "L3"]
    for matrix, rollout in zip(found.values(), rollouts, strict=True):
        np.testing.assert_allclose(matrix, rollout["matrix"], atol=1e-6)


def test_the_answer_names_what_the_last_token_comes_from(rolled):
    path, (rollout,) = rolled
    _, scene, _ = matrices(path)
    row = np.array(rollout["matrix"])[-1]
    order = np.argsort(-row)[:3]
    named = ", ".join(f"“{WORDS[key]}” {row[key]:.2f}" for key in order)
    answer = scene["answer"].replace("\u2068", "").replace("\u2069", "")
    assert (
        answer == f"“steep”, after layer 3, comes most from the tokens before layer 0 at {named}."
    )


def test_of_a_long_text_steps_are_maps_and_the_last_is_exact(tmp_path, monkeypatch):
    monkeypatch.setattr("attnscope.studies.rollout.walk.MOST_CELLS", 1000)
    text = " ".join(["river bank"] * 48)
    path, (rollout,) = written(tmp_path, "--measure", "rollout", text=text)
    page, scene, found = matrices_of_exact(path)
    np.testing.assert_allclose(found["L0–3"], rollout["matrix"], atol=1e-6)
    assert len(found) == 1
    runs = after(1, text).reshape(24, 4, 24, 4).sum(3).mean(1)
    group = next(group for group in scene["groups"] if [0, 1] in group["units"])
    maps = page.numbers(group["map"]["weights"])
    np.testing.assert_allclose(maps[group["units"].index([0, 1])], runs, atol=6e-4)


def matrices_of_exact(path):
    page = read_page(path)
    (scene,) = page.of_kind("walk")[0]["scenes"]
    exact = [unit for unit in scene["units"] if unit["exact"]]
    return page, scene, {unit["name"]: page.stage(unit, "weights") for unit in exact}


def test_a_word_shows_what_it_comes_from_and_where_it_goes(open_page, rolled):
    path, (rollout,) = rolled
    shares = np.array(rollout["matrix"])
    page = open_page(path, size=(1280, 800)).page
    text = page.locator("#panel-text")
    assert text.bounding_box()["y"] < 100
    text.locator(".token").nth(4).click()
    said = "document.querySelector('.said-of').textContent"
    best = int(shares[4].argmax())
    begin = f"river comes from: {WORDS[best]} {shares[4, best]:.2f} · "
    assert shows(page, f"{said}.startsWith({json.dumps(begin)})", True)
    listed = page.locator("table.sources td[data-measure]").all_text_contents()
    assert listed == [f"{share:.2f}" for share in -np.sort(-shares[4])]
    page.get_by_role("button", name="goes").click()
    reader = int(shares[:, best].argmax())
    begin = f"{WORDS[best]} goes to: {WORDS[reader]} {shares[reader, best]:.2f} · "
    assert shows(page, f"{said}.startsWith({json.dumps(begin)})", True)


def test_nothing_speaks_of_attention(open_page, rolled):
    path, _ = rolled
    page = open_page(path, size=(1280, 800)).page
    for click in ((5, 2), (6, 6)):
        picture = page.locator("#panel-matrix")
        picture.click(position=middle_of_cell(picture, *click))
        shown = page.locator(".walk").inner_text()
        for word in ("reads", "weight", "Heads", "query"):
            assert word not in shown, word
    page.keyboard.press("?")
    assert page.get_by_role("dialog").is_visible()
    assert "Follow this cell" not in page.get_by_role("dialog").inner_text()


def test_what_no_token_reaches_is_hatched(open_page, tmp_path):
    path, _ = written(tmp_path, "--measure", "rollout", "--mask", "causal")
    page = open_page(path, size=(1280, 800)).page
    hatch = ",".join(str(int(LIGHT.hatch[n : n + 2], 16)) for n in (0, 2, 4))
    for row, column in ((0, 0), (2, 5), (5, 2)):
        colours = page.evaluate(COLOURS, ["#panel-matrix", row, column])
        assert (hatch in colours) == (column > row)


def test_a_row_of_layers_is_named_by_its_first_and_last_matrix(rolled):
    _, scene, _ = matrices(rolled[0])
    at = {tuple(unit["at"]): unit["name"] for unit in scene["units"]}
    for row, name in enumerate(scene["layers"]):
        first, last = at[row, 0], at[row, len(scene["heads"]) - 1]
        assert name == f"{first} … {last}"
    # a column has matrices of all depths
    assert set(scene["heads"]) == {""}


def test_a_row_with_one_matrix_has_its_name(tmp_path):
    path, _ = written(tmp_path, "--measure", "rollout", "--layer", "0-2")
    _, scene, found = matrices(path)
    assert scene["layers"] == list(found)
