"""What a page of a comparison says first: how much moved on each side, and which heads tie."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import attnscope
from attnscope.cli import main
from attnscope.views.walk.effects import tied_names
from tests.page.reading import read_page
from tests.page.walking import number

TEXT = "The bank by the river was steep"
OTHER = "The boat by the river was old"


def written(folder, *options):
    path, exact = folder / "page.html", folder / "exact.json"
    for output in (path, exact):
        assert main(["compare", *options, "-o", str(output), "--quiet"]) == 0
    return read_page(path), json.loads(exact.read_text())


def moved_in(page, scene):
    (shown,) = [one for one in scene["numbers"] if one["name"] == "moved"]
    return shown["meaning"], page.numbers(shown["values"])


def largest(change, text):
    """The largest share of a row that moved, (layers, heads)."""
    found = np.full((4, 4), np.nan)
    for head in change["heads"]:
        if head["text"] == text:
            found[tuple(head["first"])] = max(head["total_variation"])
    return found


def test_every_side_has_what_moved_to_it(tmp_path):
    sides = ("causal", "bidirectional", "window:1")
    page, exact = written(tmp_path, TEXT, *(word for side in sides for word in ("--mask", side)))
    scenes = page.of_kind("walk")[0]["scenes"]
    shown = [moved_in(page, scene) for scene in scenes]
    for n, (meaning, values) in enumerate(shown):
        to = max(1, n)
        np.testing.assert_allclose(values, largest(exact["changes"][to - 1], 0), atol=1e-6)
        assert meaning.endswith(f"from “causal” to “{sides[to]}”.")
        assert scenes[n]["maskName"] == ", ".join(sides)
    assert not np.allclose(shown[1][1], shown[2][1])


def test_every_text_has_what_moved_in_it(tmp_path):
    file = tmp_path / "texts.txt"
    file.write_text(f"{TEXT}\n{OTHER}\n")
    page, exact = written(tmp_path, "--file", str(file))
    for scene in page.of_kind("walk")[0]["scenes"]:
        expected = largest(exact["changes"][0], scene["text"])
        np.testing.assert_allclose(moved_in(page, scene)[1], expected, atol=1e-6)


@pytest.mark.parametrize(
    "options", [[TEXT], [TEXT, OTHER], [TEXT, "--mask", "own", "--mask", "own+window:2"]]
)
def test_heads_that_tie_are_counted(options, tmp_path):
    page, exact = written(tmp_path, *options)
    answer = page.of_kind("walk")[0]["scenes"][0]["answer"]
    shares = largest(exact["changes"][0], 0)
    most = f"{shares.max():.2f}"
    tied = [f"L{n}H{m}" for n, m in np.ndindex(4, 4) if f"{shares[n, m]:.2f}" == most]
    said = answer.partition(" Of all heads, most weight moved in ")[2]
    named = re.findall(r"L\dH\d", said)
    if len(tied) == 1:
        assert said.startswith(f"{tied[0]}: {most}, then in ")
        return
    assert set(named) <= set(tied)
    assert len(named) == min(len(tied), 3)
    more = f" and {len(tied) - 3} more" * (len(tied) > 3)
    assert said.endswith(f"{more}: {most}.")


@pytest.mark.parametrize("sides", [("causal", "bidirectional"), ("bidirectional", "window:1")])
def test_the_answer_says_from_where_to_where_most_moved(sides, tmp_path):
    page, exact = written(tmp_path, TEXT, *(word for side in sides for word in ("--mask", side)))
    before, after = (
        np.array(side["report"]["texts"][0]["heads"]["stages"]["weights"], dtype=float)
        for side in exact["sides"]
    )
    change = after - before
    moved = np.abs(change).sum(-1) / 2
    (head, row), words = np.unravel_index(moved.argmax(), moved.shape), TEXT.split()
    gains, loses = change[head, row].argmax(), change[head, row].argmin()
    answer = page.of_kind("walk")[0]["scenes"][0]["answer"]
    assert re.sub("[\u2068\u2069]", "", answer).startswith(
        f"From {sides[0]} to {sides[1]}, “{words[row]}” moves {moved.max():.2f} of its weight in "
        f"L{head // 4}H{head % 4}: “{words[gains]}” gains {change[head, row].max():.2f}, "
        f"“{words[loses]}” loses {-change[head, row].min():.2f}. "
    )


def test_an_answer_about_two_texts_names_both_words_and_what_each_side_reads(tmp_path):
    page, exact = written(tmp_path, TEXT, OTHER, "--head", "L2H0")
    before, after = (
        np.array(side["report"]["texts"][0]["heads"]["stages"]["weights"][0], dtype=float)
        for side in exact["sides"]
    )
    change = after - before
    row = (np.abs(change).sum(-1) / 2).argmax()
    words = TEXT.split(), OTHER.split()
    answer = re.sub("[\u2068\u2069]", "", page.of_kind("walk")[0]["scenes"][0]["answer"])
    query = "/".join(dict.fromkeys(f"“{side[row]}”" for side in words))
    assert f", {query} moves " in answer
    assert f" in L2H0: “{words[1][change[row].argmax()]}” gains " in answer
    assert f", “{words[0][change[row].argmin()]}” loses " in answer


def test_no_name_of_a_side_controls_what_shows_it(tmp_path):
    sample = Path(attnscope.__file__).parent.parent / "sample_weights" / "riverbank"
    folder = tmp_path / "ev\x1bil"
    shutil.copytree(sample, folder)
    (file,) = folder.glob("*.safetensors")
    save_file({name: 1.3 * values for name, values in load_file(file).items()}, file)
    page, _ = written(tmp_path, TEXT, "--model", str(sample), "--model", str(folder))
    walk = page.of_kind("walk")[0]
    assert walk["scenes"][0]["answer"].startswith("From riverbank to ")
    for scene in walk["scenes"]:
        meanings = [one["meaning"] for one in scene["numbers"]]
        assert "\x1b" not in "".join([scene["answer"], *walk["masks"], *meanings])


def test_names_of_heads_that_tie():
    names = [f"L0H{n}" for n in range(12)]
    assert tied_names(names[:2]) == "L0H0 and L0H1"
    assert tied_names(names[:3]) == "L0H0, L0H1 and L0H2"
    assert tied_names(names) == "L0H0, L0H1, L0H2 and 9 more"


def test_an_address_of_a_side_without_a_row_begins_where_that_side_does(open_page, tmp_path):
    page, _ = written(tmp_path, "the bank", "by the old river the bank was very steep")
    first, second = page.of_kind("walk")[0]["scenes"]
    assert first["start"] != second["start"]
    shown = open_page(tmp_path / "page.html", "#mask=1").page
    name = second["queries"]["names"][second["start"]]
    assert (
        shown.locator(".row-panel h2")
        .text_content()
        .strip()
        .startswith(f"{second['start']} {name}")
    )


def test_the_change_of_a_cell_has_the_decimals_of_its_sides(open_page, tmp_path):
    path, exact = tmp_path / "page.html", tmp_path / "exact.json"
    for output in (path, exact):
        assert main(["compare", TEXT, "-o", str(output), "--quiet"]) == 0
    sides = json.loads(exact.read_text())["sides"]
    page = open_page(path, "#head=L2H1&query=2&key=0&stage=weights").page
    said = page.locator("[data-sides] strong").text_content()
    before, after = (
        attnscope.inspect(TEXT, layer=2, head=1, mask=side["label"]).weights[0, 0, 2, 0]
        for side in sides
    )
    assert number(said) == pytest.approx(after - before, abs=5.1e-4)
    assert len(said.partition(".")[2]) == 3


def test_the_sides_of_a_comparison_have_tokens(open_page, tmp_path):
    """Cells are large enough for a label: names, not numbers."""
    path = tmp_path / "page.html"
    longer = f"{TEXT} and old and green and the boat by the river was old"
    assert main(["compare", TEXT, longer, "-o", str(path), "--quiet"]) == 0
    page = open_page(path, size=(1280, 800)).page
    cells = page.locator(".sides figure:not(.difference) canvas").evaluate_all(
        "(all) => all.map((one) => one.dataset.cells.split(' ').map(Number))"
    )
    assert len(cells) == 2
    for _, _, wide, high in cells:
        assert min(wide, high) >= 9
    panel = page.locator(".matrix-panel")
    assert panel.evaluate("(panel) => panel.scrollHeight <= panel.clientHeight")


def test_thumbnails_of_many_layers_are_as_wide_as_their_panel(open_page, tmp_path):
    path = tmp_path / "page.html"
    draw = np.random.default_rng(0)
    arrays = {name: draw.standard_normal((30, 9, 6, 4), np.float32) for name in "qkv"}
    np.savez(tmp_path / "qkv.npz", **arrays)
    assert main(["run", "--qkv", str(tmp_path / "qkv.npz"), "-o", str(path), "--quiet"]) == 0
    page = open_page(path, size=(1280, 800)).page
    assert page.locator(".heads-panel select").input_value() == "thumbnails"
    left, _, wide, _ = map(float, page.locator("#panel-heads").get_attribute("data-cells").split())
    panel = page.locator(".heads-panel .heat").bounding_box()
    assert left + 9 * wide > 0.95 * panel["width"]


def test_the_hint_beside_the_sides_is_short_on_a_phone(open_page, tmp_path):
    path = tmp_path / "page.html"
    sides = ["--mask", "causal", "--mask", "bidirectional"]
    assert main(["compare", TEXT, *sides, "-o", str(path), "--quiet"]) == 0
    page = open_page(path, size=(360, 640)).page
    assert page.locator(".text-panel select").is_visible()
    lines = page.locator(".said-of").evaluate(
        "(hint) => hint.offsetHeight / parseFloat(getComputedStyle(hint).lineHeight)"
    )
    assert 1 <= lines < 2.5


def test_a_page_of_two_models_names_both(tmp_path):
    folder = tmp_path / "deeper"
    sample = Path(attnscope.__file__).parent.parent / "sample_weights" / "riverbank"
    shutil.copytree(sample, folder)
    page, _ = written(tmp_path, TEXT, "--model", "riverbank", "--model", str(folder))
    for scene in page.of_kind("walk")[0]["scenes"]:
        assert scene["model"] == "riverbank, deeper"


def test_a_matrix_is_as_wide_as_a_phone(open_page, tmp_path):
    path = tmp_path / "page.html"
    longer = f"{TEXT} and old"
    assert main(["run", longer, "--no-effects", "-o", str(path), "--quiet"]) == 0
    page = open_page(path, size=(360, 640)).page
    matrix = page.locator("#panel-matrix")
    left, _, wide, high = map(float, matrix.get_attribute("data-cells").split())
    assert wide == high
    count = len(attnscope.inspect(longer).tokens)
    box = page.locator(".matrix-panel .heat").bounding_box()
    assert left + count * wide > 0.97 * box["width"]
