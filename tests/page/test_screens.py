"""Every kind of page on the screens that people have: nothing is cut, letters can be read, and the answer comes first."""

import json

import pytest

from attnscope.cli import main
from tests.page.test_heads import PAGES, TEXT
from tests.page.walking import shows

SIZES = [(360, 640), (768, 1024), (1280, 800), (1920, 1080)]
OTHER = "She sat by the [MASK] of the old river"
KINDS = {
    **PAGES,
    "run": ["run", TEXT],
    "cell": ["run", TEXT, "--query", "[MASK]", "--key", "river"],
    "masks": ["compare", TEXT],
    "texts": ["compare", TEXT, OTHER],
    "explain": ["explain", TEXT, "--query", "[MASK]"],
    "spans": ["run", "It rained. She went home.", "--spans", "sentences"],
    "long": ["run", "the river ran past an old bank " * 14],
}
# Notes the sizes of all letters on canvases.
NOTED = """
const fill = CanvasRenderingContext2D.prototype.fillText;
window.sizes = new Set();
CanvasRenderingContext2D.prototype.fillText = function (text, ...more) {
  if (text.trim()) window.sizes.add(Number(/([0-9.]+)px/.exec(this.font)[1]));
  return fill.call(this, text, ...more);
};
"""
SMALLEST = """() => {
  const walker = document.createTreeWalker(document.querySelector('#app'), NodeFilter.SHOW_TEXT);
  const sizes = [...window.sizes];
  while (walker.nextNode()) {
    const { parentElement: parent, textContent } = walker.currentNode;
    if (textContent.trim()) sizes.push(parseFloat(getComputedStyle(parent).fontSize));
  }
  return Math.min(...sizes);
}"""
CUT = """() => [...document.querySelectorAll('.card, .aside')]
  .filter((panel) => panel.scrollHeight > panel.clientHeight + 1 || panel.scrollWidth > panel.clientWidth + 1)
  .map((panel) => panel.className)"""
ANSWERS = {
    "cell": ".matters",
    "effect of head": ".answer",
    "masks": ".answer",
    "texts": ".answer",
    "roles": ".answer",
    "run": ".answer",
    "explain": "main > .text strong, main .look-bold",
}


@pytest.fixture(scope="module")
def pages_of_kinds(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kinds")
    for name, command in KINDS.items():
        assert main([*command, "-o", str(folder / f"{name}.html"), "--quiet"]) == 0
    return {name: folder / f"{name}.html" for name in KINDS}


@pytest.fixture
def shown(chromium):
    """A function that opens a page on a screen of a size and theme, and notes the letters on canvases."""
    contexts = []

    def open_shown(path, size, theme):
        width, height = size
        context = chromium.new_context(
            viewport={"width": width, "height": height},
            color_scheme=theme,
            has_touch=width < 500,
            offline=True,
        )
        contexts.append(context)
        context.add_init_script(NOTED)
        page = context.new_page()
        page.goto(path.resolve().as_uri())
        page.wait_for_selector("html[data-ready]")
        page.wait_for_timeout(100)
        return page

    yield open_shown
    for context in contexts:
        context.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_nothing_is_cut_and_all_letters_have_nine_pixels(size, theme, shown, pages_of_kinds):
    for name, path in pages_of_kinds.items():
        page = shown(path, size, theme)
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0], name
        assert page.evaluate(SMALLEST) >= 9, name
        if name != "long":
            assert page.evaluate(CUT) == [], name


@pytest.mark.parametrize("name", ANSWERS)
def test_on_a_phone_the_answer_is_in_sight(name, shown, pages_of_kinds):
    page = shown(pages_of_kinds[name], (360, 640), "light")
    answer = page.locator(ANSWERS[name]).first
    assert answer.text_content().strip()
    box = answer.bounding_box()
    assert box["y"] >= 0
    assert box["y"] + box["height"] <= 640


def test_a_row_that_is_read_by_others_is_titled_by_its_key(shown, pages_of_kinds):
    page = shown(pages_of_kinds["cell"], (1280, 800), "light")
    title = "document.querySelector('.row-panel h2').textContent.trim()"
    assert shows(page, title, "4 [MASK]")
    page.keyboard.press("i")
    assert shows(page, title, "7 river")
    assert page.locator("[data-arithmetic]").text_content().startswith("4 [MASK] ← 7 river")


def test_a_ramp_says_what_its_numbers_mean(shown, pages_of_kinds):
    page = shown(pages_of_kinds["cell"], (1280, 800), "light")
    ramp = page.locator(".matrix-panel .ramp")
    assert "a tick has the colour of its number" in ramp.text_content()
    page = shown(pages_of_kinds["explain"], (1280, 800), "light")
    assert page.locator(".strips > div").last.text_content() == "scale\N{MINUS SIGN}0+"


def test_the_end_that_was_cut_off_is_counted(shown, tmp_path):
    path, exact = tmp_path / "page.html", tmp_path / "exact.json"
    text = "the river ran past an old bank " * 100
    for output in (path, exact):
        assert main(["run", text, "--truncate", "-o", str(output), "--quiet"]) == 0
    (found,) = json.loads(exact.read_text())["texts"]
    end = max(token["end"] for token in found["tokens"] if token["end"] is not None)
    flow = shown(path, (1280, 800), "light").locator("#panel-text").text_content()
    assert flow.endswith(f"… {len(text[end:].strip()):,} characters are cut off")
