"""The page of an explanation: the answer and its strips on one screen, and every number below, folded."""

import json
import re

import pytest

from attnscope.cli import main
from tests.page.test_screens import BROKEN as BROKEN_OPTIONS
from tests.page.test_screens import KINDS, OPENED

MINUS = "\N{MINUS SIGN}"
WIDE = 'd_model = 256\nn_heads = 2\npositions = "rope"\nmask = "causal"\nseed = 3\n'  # 128 a head
NARROW = 'd_model = 8\nn_heads = 2\npositions = "alibi"\nmask = "causal"\nseed = 3\n'  # 4 a head
ASKED = ["explain", "The bank by the river was steep", "--query", "river", "--key", "bank"]
# Numbers that a line breaks within.
BROKEN = """() => {
  const walker = document.createTreeWalker(document.querySelector('#app'), NodeFilter.SHOW_TEXT);
  const found = [];
  while (walker.nextNode())
    for (const number of walker.currentNode.data.matchAll(/[−+-]?\\d[\\d.,]*(e[-+]\\d+)?/g)) {
      const range = document.createRange();
      range.setStart(walker.currentNode, number.index);
      range.setEnd(walker.currentNode, number.index + number[0].length);
      const boxes = [...range.getClientRects()].filter((box) => box.width);
      if (new Set(boxes.map((box) => Math.round(box.top))).size > 1) found.push(number[0]);
    }
  return found;
}"""
SIDEWAYS = """() => [document.documentElement, ...document.querySelectorAll('.scrolling')]
  .filter((one) => one.scrollWidth > one.clientWidth + 1).map((one) => one.textContent.slice(0, 40))"""
# Left and right edges of the cells of every line.
EDGES = """() => [...document.querySelectorAll('.strips')].map((strips) =>
  [...strips.querySelectorAll('div:not(.dim) > .cells')].map((line) =>
    [...line.children].flatMap((cell) => {
      const { left, right } = cell.getBoundingClientRect();
      return [left, right];
    })))"""


@pytest.fixture(scope="module")
def explained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("explained")
    (folder / "wide.toml").write_text(WIDE)
    (folder / "narrow.toml").write_text(NARROW)
    commands = {
        "sample": [*ASKED],
        "window": [*ASKED[:4], "--config", "sliding-window"],
        "wide": [*ASKED, "--config", str(folder / "wide.toml")],
        "narrow": [*ASKED, "--config", str(folder / "narrow.toml")],
    }
    for name, command in commands.items():
        for ending in ("html", "json"):
            path = folder / f"{name}.{ending}"
            assert main([*command, "-o", str(path), "--quiet"]) == 0
    return {name: folder / f"{name}.html" for name in commands}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [(1280, 800), (1920, 1080)])
def test_the_answer_the_strips_and_the_names_of_all_steps_are_on_one_screen(
    size, theme, open_page, explained
):
    for name, path in explained.items():
        page = open_page(path, size=size, theme=theme).page
        steps = page.locator(".fold > summary")
        assert steps.count() == 7, name
        last = steps.last.bounding_box()
        assert last["y"] + last["height"] <= size[1], name
        assert page.locator(".fold[open]").count() == 0
        answer = page.locator("main").inner_text()
        weight = re.search(r"4 river ← \d \w+: weight (0\.\d+)", answer)
        assert f"= weight {weight[1]};" in answer
        assert "why" in answer.split()
        whole = page.locator("main").text_content().partition("This page in a terminal")
        assert "the key asked for" in whole[0] or name == "window"
        assert "--" not in whole[0] and whole[1], name
        assert re.search(r"check: all \d+ hold, to [\d.e-]+ or better", answer)


@pytest.mark.parametrize("width", [360, 1280])
def test_cells_of_one_dimension_are_below_each_other_and_wide_enough_to_see(
    width, open_page, explained
):
    for name, path in explained.items():
        page = open_page(path, size=(width, 800)).page
        lines = page.evaluate(EDGES)[0]
        assert len(lines) == 4
        for line in lines[1:]:
            assert line == pytest.approx(lines[0], abs=0.6), name
        assert lines[0][1] - lines[0][0] >= 1
        assert lines[0][-1] <= width
        assert len(lines[0]) == 2 * {"wide": 128, "narrow": 4}.get(name, len(lines[0]) // 2)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_on_a_phone_nothing_scrolls_sideways(theme, open_page, explained):
    for name, path in explained.items():
        page = open_page(path, size=(360, 640), theme=theme).page
        assert page.evaluate(SIDEWAYS) == [], name
        page.evaluate(OPENED)
        assert page.evaluate(SIDEWAYS) == [], name


def test_on_a_phone_no_line_breaks_within_a_number_or_an_option(open_page, explained, tmp_path):
    commands = {name: KINDS[name] for name in ("run", "cell", "masks", "spans", "effect of head")}
    for name, command in commands.items():
        path = tmp_path / f"{name}.html"
        assert main([*command, "-o", str(path), "--quiet"]) == 0
    pages = {**explained, **{name: tmp_path / f"{name}.html" for name in commands}}
    powers = 0
    for name, path in pages.items():
        page = open_page(path, size=(360, 640)).page
        page.evaluate(OPENED)
        # at some of these widths, a line ends within an exponent if it may
        for width in (320, 340, 360, 380, 400):
            page.set_viewport_size({"width": width, "height": 640})
            assert page.evaluate(BROKEN) == [], (name, width)
            assert page.evaluate(BROKEN_OPTIONS) == [], (name, width)
        powers += page.locator(".whole").count()
    assert powers > 20


def test_all_numbers_can_be_found_and_printed(open_page, explained):
    """Steps are open on paper, where nobody can click; their longest lists stay as they are on the screen."""
    path = explained["wide"]
    exact = json.loads(path.with_suffix(".json").read_text())
    page = open_page(path, size=(718, 1040)).page
    text = page.locator("main").text_content()
    for vector in exact["key_vectors"]:
        assert all(f"{value:z.4f}".replace("-", MINUS) in text for value in vector)
    norms = page.locator(".fold").nth(2).locator("td").first
    assert not norms.is_visible()
    page.emulate_media(media="print")
    assert norms.is_visible()
    assert page.evaluate(SIDEWAYS) == []


def test_a_step_that_does_not_hold_is_open(open_page, tmp_path):
    path = tmp_path / "masked.html"
    mask = tmp_path / "mask.json"
    mask.write_text(json.dumps([[key < query for key in range(7)] for query in range(7)]))
    command = ["explain", "The bank by the river was steep", "--query", "0", "--layer", "0"]
    command += ["--head", "0", "--config", "causal", "--mask", str(mask)]
    assert main([*command, "-o", str(path), "--quiet"]) == 0
    page = open_page(path).page
    shown = page.locator("main > .text").all_inner_texts()
    assert "masked: no key is allowed, so there are no weights and no output" in shown
    assert page.locator(".fold[open] > summary").all_inner_texts() == [
        "5 weights: softmax exp(masked − largest), divided by the sum"
    ]
