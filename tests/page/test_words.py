"""A page of words begins with the text and an answer: the walk between words, and then that between tokens."""

import itertools
import json
import re
import shlex

import numpy as np
import pytest

from attnscope.cli import main
from tests.page.reading import read_page
from tests.page.walking import shows

TEXT = "The unbelievable bank by the riverside"
WORDS = {
    "The": [0],
    "unbelievable": [1, 2, 3, 4],
    "bank": [5],
    "by": [6],
    "the": [7],
    "riverside": [8, 9],
}


def between_words(weights):
    """Weights of tokens, (…, tokens, tokens): summed over a word's keys, averaged over its queries."""
    summed = np.stack([weights[..., tokens].sum(-1) for tokens in WORDS.values()], axis=-1)
    return np.stack([summed[..., tokens, :].mean(-2) for tokens in WORDS.values()], axis=-2)


def written(folder, *options):
    """The page, and the weights between words of all heads by those between tokens."""
    path = folder / "page.html"
    exact = folder / "exact.json"
    assert main(["run", TEXT, "--words", *options, "-o", str(path), "--quiet"]) == 0
    every = ["--layer", "all", "--head", "all", "--stage", "weights"]
    assert main(["run", TEXT, *every, "-o", str(exact), "--quiet"]) == 0
    text = json.loads(exact.read_text())["texts"][0]
    assert len(text["tokens"]) == 10
    weights = np.array(text["heads"]["stages"]["weights"], dtype=np.float64)
    return path, between_words(weights).reshape(4, 4, 6, 6)


@pytest.fixture(scope="module")
def page_of_words(tmp_path_factory):
    return written(tmp_path_factory.mktemp("words"))


def test_the_walk_between_words_has_every_head(page_of_words):
    path, weights = page_of_words
    page = read_page(path)
    assert [node["k"] for node in page.nodes if isinstance(node, dict)] == ["walk"]
    (walk,) = page.of_kind("walk")
    assert walk["texts"] == ["as words", "as tokens"]
    scene = walk["scenes"][0]
    assert scene["queries"]["names"] == list(WORDS)
    assert scene["queries"]["positions"] == [tokens[0] for tokens in WORDS.values()]
    assert "".join(text for text, _, _ in scene["passages"]) == TEXT
    assert [text for text, query, _ in scene["passages"] if query >= 0] == list(WORDS)
    assert len(scene["units"]) == 16
    for unit in scene["units"]:
        found = page.stage(unit, "weights")
        np.testing.assert_allclose(found, weights[tuple(unit["at"])], atol=1e-6)


def test_the_answer_names_what_the_row_reads_most(page_of_words):
    path, weights = page_of_words
    scene = read_page(path).of_kind("walk")[0]["scenes"][0]
    names = list(WORDS)
    layer, head = scene["first"]
    row = weights[layer, head, scene["start"]]
    order = [n for n in np.argsort(-row) if n not in (0, scene["start"])][:3]
    reader = names[scene["start"]]
    answer = scene["answer"].replace("\u2068", "").replace("\u2069", "")
    said = f"In L{layer}H{head}, “{reader}” reads “{names[order[0]]}” most of the other words: "
    said += f"{row[order[0]]:.2f} of its weight"
    said += f", then “{names[order[1]]}” {row[order[1]]:.2f} and “{names[order[2]]}” {row[order[2]]:.2f}"
    cells = weights[..., scene["start"], order[0]]
    best = np.unravel_index(cells.argmax(), (4, 4))
    said += f". It reads itself {row[scene['start']]:.2f}"
    if row[0] >= 0.05:
        said += f", “{names[0]}” {row[0]:.2f}"
    said += "."
    said += (
        f" Of all heads, L{best[0]}H{best[1]} reads “{names[order[0]]}” most: {cells.max():.2f}."
    )
    assert answer == said
    assert scene["startKey"] == order[0]


def test_text_answer_heads_matrix_and_row_are_one_screen(open_page, page_of_words):
    path, weights = page_of_words
    page = open_page(path, size=(1280, 800)).page
    boxes = [
        page.locator(selector).bounding_box()
        for selector in ("#panel-text", ".answer", "#panel-heads")
    ]
    for one, after in itertools.pairwise(boxes):
        assert one["y"] + one["height"] <= after["y"]
    for selector in ("#panel-heads", "#panel-matrix", "#panel-row"):
        box = page.locator(selector).bounding_box()
        assert box["y"] + box["height"] <= 800
    assert page.locator(".flow").text_content() == TEXT
    page.locator("#panel-text .token", has_text="unbelievable").click()
    row = "document.querySelector('.row-panel h2').textContent.trim()"
    assert shows(page, row, "1 unbelievable")
    layer, head = re.match(r"L(\d)H(\d)", page.locator("#where").text_content()).groups()
    shares = weights[int(layer), int(head), 1]
    best = int(shares.argmax())
    said = page.locator(".said-of").text_content()
    assert said.startswith(f"unbelievable reads: {list(WORDS)[best]} {shares[best]:.2f}")
    page.locator(".text-panel select").select_option(label="as tokens")
    assert shows(page, "document.querySelectorAll('#panel-text .token').length", 10)


def test_the_command_of_a_word_repeats_its_row(open_page, page_of_words, capsys):
    path, weights = page_of_words
    page = open_page(path, "#head=L1H2&query=8", size=(1280, 800)).page
    _, *command = shlex.split(page.locator("p.command code").text_content())
    assert command == ["run", TEXT, "--words", "--layer", "1", "--head", "2", "--query", "8"]
    assert main([*command, "--json"]) == 0
    heads = json.loads(capsys.readouterr().out)["texts"][0]["heads"]
    np.testing.assert_allclose(heads["words"]["weights"], weights[1, 2, 5][None, None], atol=1e-6)
    # no command compares heads between words
    page.keyboard.press("c")
    page.keyboard.press("]")
    assert shows(page, "document.querySelectorAll('p.command').length", 0)


def test_a_cell_that_is_asked_about_is_that_of_its_words(tmp_path):
    path, _ = written(tmp_path, "--query", "riverside", "--key", "unbelievable")
    scene = read_page(path).of_kind("walk")[0]["scenes"][0]
    assert [scene["start"], scene["startKey"]] == [5, 1]
    assert not scene["answer"]
