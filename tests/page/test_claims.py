"""What a page claims of heads holds for all of them: means, heads of which it lists few sources, layers that it lacks."""

import json
import random
import re
import shlex

import numpy as np
import pytest

import attnscope
from attnscope.cli import main
from tests.helpers.architectures import write_tokenizer
from tests.helpers.tiny_models import TABLE
from tests.page.conftest import LONG, SHORT
from tests.page.test_heads import click_cell
from tests.page.walking import number, read_places, shows

WORDS = "the bank by the river was old and we sat on it all day while water ran"
MATTERS = "(document.querySelector('.matters')?.textContent ?? '')"
# Whether the pixels of a cell have more than one colour: that of the page, and lines over it.
HATCHED = """([row, column]) => {
  const canvas = document.getElementById("panel-matrix");
  const [left, top, wide, high] = canvas.dataset.cells.split(" ").map(Number);
  const { data } = canvas.getContext("2d").getImageData(left + column * wide + 3, top + row * high + 3, 6, 6);
  return new Set(Array.from({ length: data.length / 4 }, (_, n) => data.slice(4 * n, 4 * n + 3).join())).size > 1;
}"""


@pytest.fixture(scope="module")
def windowed(tmp_path_factory):
    """A folder of a model with a sliding window in two of its three layers."""
    folder = tmp_path_factory.mktemp("windowed")
    (row,) = (row for row in TABLE if row.name == "gemma3")
    row.save(folder)
    write_tokenizer(folder)
    return folder


def test_a_mean_is_no_softmax_and_reads_what_one_of_its_layers_may(
    open_page, windowed, tmp_path, capsys
):
    path = tmp_path / "page.html"
    command = ["run", WORDS, "--model", str(windowed), "--layer", "mean", "--head", "mean"]
    assert main([*command, "-o", str(path), "--quiet"]) == 0
    exact = tmp_path / "exact.json"
    assert main([*command, "--stage", "masked,weights", "-o", str(exact), "--quiet"]) == 0
    stages = json.loads(exact.read_text())["texts"][0]["heads"]["stages"]
    masked, weights = (stages[name][0] for name in ("masked", "weights"))
    query = 16
    far, near, later = 3, 14, 17  # outside of the windows, inside of all, and after the query
    assert masked[query][far] is None
    assert masked[query][later] is None
    page = open_page(path, size=(1280, 900)).page
    addresses = [f"#head=mean&query={query}&key={key}&stage=weights" for key in (far, near, later)]
    outside, inside, after = read_places(page, addresses)
    for seen, key in ((outside, far), (inside, near)):
        weight = weights[query][key]
        assert weight > 0
        assert np.float32(number(seen["cell"].rsplit(": ")[-1])) == np.float32(weight)
        assert seen["arithmetic"].endswith(f"→ weight {weight:.2f}")
        assert not page.evaluate(HATCHED, [query, key])
    assert after["arithmetic"].endswith("→ not allowed by the mask: weight 0")
    assert page.evaluate(HATCHED, [query, later])
    page.keyboard.press("e")
    said = page.locator("dialog").text_content()
    assert "it is a mean of rows" in said
    assert "e^" not in said
    capsys.readouterr()
    assert main([*command, "--stage", "masked,weights", "--query", str(query)]) == 0
    assert "is not allowed in one or more of them" in " ".join(capsys.readouterr().out.split())


def test_means_are_no_heads_of_which_one_matters(open_page, windowed, tmp_path):
    path = tmp_path / "page.html"
    command = ["run", WORDS, "--model", str(windowed), "--layer", "0,1", "--head", "mean"]
    assert main([*command, "-o", str(path), "--quiet"]) == 0
    page = open_page(path, "#head=L0H3&query=16&key=14&stage=weights").page
    click_cell(page.locator("#panel-heads"), 0, 2)
    assert shows(page, f"{MATTERS}.includes(' of 12 heads. ')", True)
    page.keyboard.press("]")
    page.keyboard.press("]")
    assert shows(page, "document.querySelector('#where').textContent", "L0 mean")
    assert page.evaluate(MATTERS).startswith("L0 mean has ")
    assert "matter?" not in page.evaluate(MATTERS)
    # from the last head of layer 2, of which the page has no mean, to the first
    page.evaluate("location.hash = '#head=L2H3&query=16&key=14&stage=weights'")
    assert shows(page, "document.querySelector('#where').textContent", "L2H3")
    page.keyboard.press("]")
    assert shows(page, "document.querySelector('#where').textContent", "L0H0")


def test_the_most_of_all_heads_is_claimed_only_if_no_other_can_have_more(open_page, tmp_path):
    path = tmp_path / "page.html"
    assert main(["run", LONG, "--no-effects", "-o", str(path), "--quiet"]) == 0
    weights = attnscope.inspect(LONG, layer="all", head="all", stages="weights").weights
    page = open_page(path, size=(1280, 800)).page
    draw = random.Random(0)
    claims = set()
    for _ in range(60):
        query, key = (draw.randrange(weights.shape[-1]) for _ in range(2))
        read_places(page, [f"#head=L0H0&query={query}&key={key}&stage=weights"])
        said = page.evaluate(MATTERS)
        claim = re.match(
            r"L(\d)H(\d) has (\S+) at .*, the most of (all heads|the heads that list)", said
        )
        if claim is None:
            continue
        claims.add(claim[4])
        if claim[4] == "all heads":
            layer, head = int(claim[1]), int(claim[2])
            cell = weights[..., query, key]
            assert cell[layer, head] == pytest.approx(cell.max(), abs=1.01e-3), (query, key)
    assert claims == {"all heads", "the heads that list"}


def test_a_layer_that_a_page_lacks_is_not_said_to_be_embeddings(open_page, tmp_path):
    path = tmp_path / "page.html"
    masks = ["--mask", "causal", "--mask", "bidirectional"]
    for layer, said in (
        (2, "this page does not show it in the layer below"),
        (0, "nothing is below: this layer reads embeddings"),
    ):
        command = ["compare", SHORT, *masks, "--layer", str(layer), "--force"]
        assert main([*command, "-o", str(path), "--quiet"]) == 0
        page = open_page(path).page
        page.keyboard.press("Enter")
        assert shows(page, "document.querySelector('.said').textContent", said)


def test_a_page_of_a_question_begins_at_its_cell_and_calls_a_difference_so(open_page, tmp_path):
    question = ["heads", SHORT, "--query", "walked", "--key", "river"]
    weights = attnscope.inspect(SHORT, layer="all", head="all", stages="weights").weights[:, :, 10]
    for options, name, values in (
        ([], "weight", weights[..., 4]),
        (["--against", "bank"], "difference", weights[..., 4] - weights[..., 1]),
    ):
        path = tmp_path / f"{name}.html"
        assert main([*question, *options, "-o", str(path), "--quiet"]) == 0
        page = open_page(path).page
        layer, head = np.unravel_index(np.abs(values).argmax(), values.shape)
        assert page.locator("#where").text_content() == f"L{layer}H{head}"
        cell = page.locator(".matrix-panel p.cell").text_content()
        assert cell.startswith("10 walked ← 4 river: ")
        assert number(cell.rsplit(": ")[-1]) == pytest.approx(weights[layer, head, 4], abs=1e-6)
        answer = page.locator(".heads-panel .answer").text_content()
        most = f"{values[layer, head]:.2f}".replace("-", "−")
        assert answer.startswith(f"Largest {name}: L{layer}H{head} {most}, then ")
        said = page.locator(".heads-panel p.cell").text_content()
        assert said.startswith(f"L{layer}H{head}: {name} ")


def test_the_command_of_a_matrix_shows_a_matrix(open_page, tmp_path, capsys):
    path = tmp_path / "page.html"
    assert main(["compare", SHORT, "--summary", "-o", str(path), "--quiet"]) == 0
    command = open_page(path).page.locator(".command code").text_content()
    capsys.readouterr()
    assert main(shlex.split(command)[1:]) == 0
    assert "weights" in capsys.readouterr().out
