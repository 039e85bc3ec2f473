"""Every kind of page on the screens that people have: nothing is cut, letters can be read, and the answer comes first."""

import io
import json
import re

import numpy as np
import pytest

import attnscope
from attnscope.cli import main
from tests.page.gallery import FOLDER
from tests.page.reading import read_page
from tests.page.test_heads import PAGES, TEXT, click_cell
from tests.page.walking import number, shows

SIZES = [(360, 640), (768, 1024), (1280, 800), (1920, 1080)]
OTHER = "She sat by the [MASK] of the old river"
TURNS = "Mary went to the store .\nJohn drank .\nThe old bank of the river , far away .\nWhere is John ?"
KINDS = {
    **PAGES,
    "run": ["run", TEXT],
    "cell": ["run", TEXT, "--query", "[MASK]", "--key", "river"],
    "masks": ["compare", TEXT],
    "texts": ["compare", TEXT, OTHER],
    "explain": ["explain", TEXT, "--query", "[MASK]"],
    "spans": ["run", "It rained. She went home.", "--spans", "sentences"],
    "turns": ["run", TURNS, "--spans", "lines"],
    "rollout": ["run", TEXT, "--measure", "rollout"],
    "token": ["run", "the internationalisation of an old bank"],
    "long": ["run", "the river ran past an old bank " * 14],
}
TWELVE = """
d_model = 48
n_heads = 12
n_layers = 2
"""
# Notes the sizes of all letters on canvases, and what is written on which, where, and how wide that may be.
NOTED = """
const fill = CanvasRenderingContext2D.prototype.fillText;
window.sizes = new Set();
window.written = [];
CanvasRenderingContext2D.prototype.fillText = function (text, ...more) {
  if (text.trim()) window.sizes.add(Number(/([0-9.]+)px/.exec(this.font)[1]));
  window.written.push([this.canvas.id, text, ...more]);
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
OPENED = "for (const one of document.querySelectorAll('details')) one.open = true"
CUT = """() => [...document.querySelectorAll('.card, .aside')]
  .filter((panel) => panel.scrollHeight > panel.clientHeight + 1 || panel.scrollWidth > panel.clientWidth + 1)
  .map((panel) => panel.className)"""
# Commands, options of which a line breaks within.
BROKEN = """() => [...document.querySelectorAll('.command code, .matters code')].flatMap((code) => {
  const walker = document.createTreeWalker(code, NodeFilter.SHOW_TEXT);
  const found = [];
  while (walker.nextNode())
    for (const option of walker.currentNode.data.matchAll(/--[a-z-]+/g)) {
      const range = document.createRange();
      range.setStart(walker.currentNode, option.index);
      range.setEnd(walker.currentNode, option.index + option[0].length);
      if (range.getClientRects().length > 1) found.push(option[0]);
    }
  return found;
})"""
# Ramps whose numbers touch.
TOUCHING = """() => [...document.querySelectorAll('.stops')].flatMap((stops) => {
  const boxes = [...stops.children].map((tick) => tick.getBoundingClientRect()).filter((box) => box.width);
  boxes.sort((a, b) => a.left - b.left);
  return boxes.slice(1).filter((box, n) => box.left < boxes[n].right + 1).map(() => stops.textContent);
})"""
# Lines of the text that its box cuts: at its end, and where it begins.
CUT_LINES = """() => {
  const flow = document.querySelector('.text-panel .flow');
  if (!flow || flow.scrollHeight <= flow.clientHeight) return [0, 0];
  const line = parseFloat(getComputedStyle(flow).lineHeight);
  const padding = parseFloat(getComputedStyle(flow).paddingTop);
  const apart = (pixels) => Math.abs(pixels - line * Math.round(pixels / line));
  return [apart(flow.clientHeight - 2 * padding), apart(flow.scrollTop)];
}"""
# Pixels between what moved and what is above and below it.
GAPS = """() => [...document.querySelectorAll('.moves')].flatMap((moves) => {
  const boxes = [...moves.parentElement.children].map((one) => one.getBoundingClientRect()).filter((box) => box.height);
  const own = moves.getBoundingClientRect();
  const above = Math.max(...boxes.map((box) => box.bottom).filter((bottom) => bottom <= own.top + 1));
  const below = Math.min(...boxes.map((box) => box.top).filter((top) => top >= own.bottom - 1));
  return [own.top - above, below - own.bottom].filter(Number.isFinite);
})"""
LONG_TEXTS = [
    "the river ran past an old bank while committees argued " * 10,
    "the river ran past an old mill while committees argued " * 10,
]
ANSWERS = {
    "spans": ".answer",
    "turns": ".answer",
    "rollout": ".answer",
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
        assert page.evaluate(BROKEN) == [], name
        assert page.evaluate(TOUCHING) == [], name
        assert max(page.evaluate(CUT_LINES)) <= 1.5, name
        assert all(gap >= 8 for gap in page.evaluate(GAPS)), name


@pytest.mark.parametrize("size", [*SIZES, (1000, 800), (1100, 800)])
def test_beside_a_long_token_numbers_are_whole(size, shown, pages_of_kinds):
    """The token ends in dots where it has to, and its title has all of it."""
    page = shown(pages_of_kinds["token"], size, "light")
    panel = page.locator(".row-panel")
    token = panel.locator("td.left .item", has_text="international")
    assert token.get_attribute("title") == "international"
    inside = panel.bounding_box()
    for one in panel.locator(".sources :is(td[data-measure], td[data-rest], th.term)").all():
        assert one.evaluate("(cell) => cell.scrollWidth <= cell.clientWidth"), one.text_content()
        box = one.bounding_box()
        assert box["x"] + box["width"] <= inside["x"] + inside["width"] - 8, one.text_content()
    ends = "(button) => [getComputedStyle(button).textOverflow, button.scrollWidth > button.clientWidth]"
    dots, cut = token.locator("..").evaluate(ends)
    assert dots == "ellipsis"
    assert cut == (1000 <= size[0] <= 1280)
    bars = panel.locator(".sources .meter").all()
    assert all(bar.bounding_box()["width"] >= 15 for bar in bars)


@pytest.mark.parametrize("size", [(1024, 768), (1280, 800)])
def test_the_heading_of_the_heads_is_whole(size, shown, pages_of_kinds):
    page = shown(pages_of_kinds["token"], size, "light")
    heading = page.locator(".heads-panel h2")
    title = "document.querySelector('.heads-panel h2').textContent"
    for query, name in {0: "the", 3: "##ation", 6: "old", 7: "bank"}.items():
        page.evaluate(f"location.hash = '#head=L1H1&query={query}'")
        assert shows(page, title, f"{name} reads most")
        assert heading.evaluate("(h2) => h2.scrollWidth <= h2.clientWidth"), name


def test_on_a_phone_the_steps_of_a_row_are_whole_and_a_line_each(shown, pages_of_kinds):
    page = shown(pages_of_kinds["token"], (360, 640), "light")
    page.keyboard.press("e")
    steps = page.locator("dialog .scrolling")
    assert steps.locator("tbody tr").count() == 8
    assert steps.evaluate("(steps) => steps.scrollWidth <= steps.clientWidth")
    assert not steps.locator(".meter").first.is_visible()
    heights = {row.bounding_box()["height"] for row in steps.locator("tbody tr").all()}
    assert max(heights) - min(heights) <= 1
    keys = steps.locator("tbody th")
    assert keys.evaluate_all("(keys) => keys.every((key) => key.title === key.textContent)")
    assert "1 international" in keys.all_text_contents()


def test_the_numbers_of_a_linear_ramp_do_not_touch(shown, pages_of_kinds):
    page = shown(pages_of_kinds["token"], (1280, 800), "light")
    page.keyboard.press("L")
    stops = "[...document.querySelectorAll('.matrix-panel .stops span')].map((tick) => tick.textContent)"
    assert shows(page, f"{stops}.join(' ')", "1 .5 .1 0")
    assert page.evaluate(TOUCHING) == []


@pytest.mark.parametrize("size", [(1280, 800), (1920, 1080)])
def test_the_lens_of_a_wide_map_needs_no_scrolling(size, shown):
    """6 × 12 heads, of a row and of a cell; and where the sentence names a sink."""
    page = shown(FOLDER / "minilm.html", size, "light")
    for choose in (
        lambda: page.locator("#panel-text .token").nth(5).click(),
        lambda: click_cell(page.locator("#panel-matrix"), 5, 0),
        lambda: click_cell(page.locator("#panel-heads"), 2, 11),
    ):
        choose()
        assert page.locator(".lens li button").count() == 9
        assert page.evaluate(CUT) == []


def test_sides_of_long_texts_are_named_by_where_they_differ(shown, tmp_path):
    path = tmp_path / "page.html"
    assert main(["compare", *LONG_TEXTS, "-o", str(path), "--quiet"]) == 0
    page = shown(path, (1280, 800), "light")
    assert page.locator(".text-panel select option").all_text_contents() == [
        "… bank while …",
        "… mill while …",
    ]
    assert (
        page.locator(".difference figcaption strong").text_content()
        == "… mill while … − … bank while …"
    )
    assert page.evaluate(CUT) == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_frame_of_a_head_leaves_its_number_free(theme, shown):
    """In cells of 12 pixels: within the frame, a number has the pixels that it has without one."""
    page = shown(FOLDER / "smollm2-it.html", (1280, 800), theme)
    page.select_option(".heads-panel select", "effect of head")
    picture = page.locator("#panel-heads")

    def inside(row, column):
        page.mouse.move(0, 0)
        page.wait_for_timeout(100)
        return page.evaluate(
            """([row, column]) => {
              const canvas = document.querySelector('#panel-heads');
              const [left, top, wide, high] = canvas.dataset.cells.split(' ').map(Number);
              const [x, y] = [Math.ceil(left + column * wide) + 4, Math.ceil(top + row * high + 1.5)];
              const size = [Math.floor(wide) - 9, Math.floor(top + (row + 1) * high - 1.5) - y];
              return [high, ...canvas.getContext('2d').getImageData(x, y, ...size).data];
            }""",
            [row, column],
        )

    click_cell(picture, 20, 7)
    free = inside(1, 4)
    assert 10 <= free[0] < 16
    assert len(set(free[1:])) > 3  # a number is drawn
    click_cell(picture, 1, 4)
    assert inside(1, 4) == free


def test_the_shadow_of_what_scrolls_is_dark_in_the_dark(shown, pages_of_kinds):
    page = shown(pages_of_kinds["explain"], (360, 640), "dark")
    shadow = page.evaluate(
        "getComputedStyle(document.querySelector('.fold > .scrolling')).backgroundImage"
    )
    colours = re.findall(r"rgb\((\d+), (\d+), (\d+)\)", shadow)
    assert len(colours) == 2
    assert max(int(part) for colour in colours for part in colour) < 0x60


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_around_a_text_that_is_whole_there_are_no_lines(theme, chromium, pages_of_kinds):
    """On a screen of two dots a pixel, where boxes end at half pixels: shadows are of what goes on alone."""
    pillow = pytest.importorskip("PIL.Image", reason="pillow is not installed (extra images)")
    context = chromium.new_context(
        viewport={"width": 360, "height": 640},
        color_scheme=theme,
        device_scale_factor=2,
        has_touch=True,
        is_mobile=True,
    )
    page = context.new_page()
    page.goto(pages_of_kinds["run"].resolve().as_uri())
    page.wait_for_selector("html[data-ready]")
    flow = page.locator(".text-panel .flow")
    assert flow.evaluate("(text) => text.scrollHeight <= text.clientHeight")
    box = flow.bounding_box()
    seen = np.array(pillow.open(io.BytesIO(page.screenshot())).convert("RGB"))
    context.close()
    left, right = int(2 * box["x"]) - 2, int(2 * (box["x"] + box["width"])) + 2
    top, bottom = int(2 * box["y"]) - 1, int(2 * (box["y"] + box["height"])) + 2
    card = seen[top, left - 4]
    # nothing but the card above and below the lines of the text, and beside them
    for edge in (seen[top : top + 4, left:right], seen[bottom - 4 : bottom, left:right]):
        assert (edge == card).all()
    assert (seen[top:bottom, left : left + 4] == card).all()


@pytest.mark.parametrize("name", ANSWERS)
def test_on_a_phone_the_answer_is_in_sight(name, shown, pages_of_kinds):
    page = shown(pages_of_kinds[name], (360, 640), "light")
    answer = page.locator(ANSWERS[name]).first
    assert answer.text_content().strip()
    box = answer.bounding_box()
    assert box["y"] >= 0
    assert box["y"] + box["height"] <= 640


@pytest.mark.parametrize("name", ["run", "cell", "spans", "turns", "roles", "masks", "texts"])
def test_on_a_phone_the_first_screen_has_rows_of_the_matrix(name, shown, pages_of_kinds):
    """The first at least, above the answer, which is at the bottom of the screen."""
    page = shown(pages_of_kinds[name], (360, 640), "light")
    picture = page.locator("figure.difference canvas, #panel-matrix").last
    _, top, _, high = map(float, picture.get_attribute("data-cells").split())
    first = picture.bounding_box()["y"] + top + high
    assert first <= page.locator(ANSWERS[name]).bounding_box()["y"]
    # tools are not before it
    assert page.locator(".tools").bounding_box()["y"] > 640


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


@pytest.mark.parametrize("name", ["masks", "texts"])
def test_a_comparison_begins_at_the_row_in_which_most_moved(name, tmp_path):
    path, exact = tmp_path / "page.html", tmp_path / "exact.json"
    for output in (path, exact):
        assert main([*KINDS[name], "-o", str(output), "--quiet"]) == 0
    heads = json.loads(exact.read_text())["changes"][0]["heads"]
    change = max(heads, key=lambda head: max(head["total_variation"]))
    most = change["total_variation"].index(max(change["total_variation"]))
    for side, scene in enumerate(read_page(path).of_kind("walk")[0]["scenes"]):
        assert scene["first"] == change["first"]
        assert scene["start"] == change["queries"][most][side]


def test_effects_on_states_are_in_percent(shown, tmp_path):
    """In cells as in the answer, and with all digits in the line below."""
    path, exact = tmp_path / "page.html", tmp_path / "exact.json"
    for output in (path, exact):
        command = ["ablate", "The bank by the river", "--config", "causal", "--each", "head"]
        assert main([*command, "-o", str(output), "--quiet"]) == 0
    effects = json.loads(exact.read_text())["effects"][0]["hidden"]
    largest = f"{100 * max(effects):.{0 if max(effects) >= 0.0995 else 1}f} %"
    page = shown(path, (1280, 800), "light")
    assert f"{largest} (" in page.locator(".answer").text_content()
    said = page.locator(".heads-panel p.cell").text_content()
    assert re.search(r": effect of head (.*), ", said)[1] == largest
    assert float(said.split()[-1]) == pytest.approx(max(effects))


def numbers_in(page, panel):
    """The numbers that the last drawing of a map has in its cells, by row and column."""
    page.evaluate("window.written = []")
    page.mouse.move(0, 0)
    page.keyboard.press("Shift+L")
    page.wait_for_timeout(200)
    left, top, wide, high = map(
        float, page.locator(f"#{panel}").get_attribute("data-cells").split()
    )
    found = {}
    for name, text, x, y, *most in page.evaluate("window.written"):
        if name == panel and most:  # a number, which has its cell's width at most
            found[int((y - top) // high), int((x - left) // wide)] = text
    return found, wide


def test_scores_in_small_cells_have_fewer_decimals(shown, tmp_path):
    """Those for which there is no room: they had no digits at all."""
    path = tmp_path / "page.html"
    text = "The old bank by the river was steep , so they walked to the mill"
    assert main(["run", text, "--no-effects", "-o", str(path), "--quiet"]) == 0
    first = read_page(path).of_kind("walk")[0]["scenes"][0]["first"]
    scores = attnscope.inspect(text, layer=first[0], head=first[1], stages="scores").scores[0, 0]
    assert np.abs(scores).max() >= 10
    page = shown(path, (1280, 720), "light")
    page.click(".stages button:text-is('scores')")
    assert "rounded as cells have room" in page.locator(".row-panel").text_content()
    for width, decimals in ((1280, 0), (1600, 1), (1920, 2)):
        page.set_viewport_size({"width": width, "height": 9 * width // 16})
        found, _ = numbers_in(page, "panel-matrix")
        assert len(found) == scores.size
        for (row, column), written in found.items():
            assert len(written.partition(".")[2]) == decimals
            assert number(written) == pytest.approx(scores[row, column], abs=0.5001 / 10**decimals)


def test_of_many_heads_each_has_its_effect_in_percent(shown, tmp_path):
    """In cells of 22 pixels, without the sign, which the legend has, and with numbers of the same unit on the ramp."""
    path, exact = tmp_path / "page.html", tmp_path / "exact.json"
    (tmp_path / "twelve.toml").write_text(TWELVE)
    for output in (path, exact):
        command = ["ablate", "The bank by the river", "--config", str(tmp_path / "twelve.toml")]
        assert main([*command, "--each", "head", "-o", str(output), "--quiet"]) == 0
    effects = 100 * np.array(json.loads(exact.read_text())["effects"][0]["hidden"])
    page = shown(path, (1280, 800), "light")
    found, wide = numbers_in(page, "panel-heads")
    assert 20 < wide < 26
    assert len(found) == effects.size == 24
    for place, effect in zip(sorted(found), effects, strict=True):
        assert number(found[place]) == pytest.approx(effect, abs=0.5 if effect > 9.95 else 0.051)
    panel = page.locator(".heads-panel .ramp")
    assert "effect of head, %" in panel.text_content()
    ticks = panel.locator(".stops span").all_text_contents()
    assert float(ticks[0]) == pytest.approx(effects.max(), rel=0.01)
    assert {"1", "10"} <= set(ticks)


def test_of_a_row_the_list_of_heads_has_each_weight_beside_its_head(shown):
    page = shown(FOLDER / "smollm2-it.html", (1280, 800), "light")
    page.locator(".text-panel .flow").get_by_text("it", exact=True).first.click()
    page.wait_for_selector(".lens bdi")
    apart = page.evaluate(
        """() => [...document.querySelectorAll('.lens button')].map((button) => Math.abs(
          button.querySelector('b').getBoundingClientRect().bottom -
          button.querySelector('[data-lens]').getBoundingClientRect().bottom))"""
    )
    assert len(apart) == 9 and max(apart) < 3, apart


@pytest.mark.parametrize("size", [(360, 640), (800, 900), (1280, 800)])
def test_of_a_row_the_weights_of_heads_are_below_each_other(size, shown, tmp_path):
    """However long the word is that a head reads."""
    path = tmp_path / "page.html"
    (tmp_path / "twelve.toml").write_text(TWELVE)
    text = "a bank by the old internationalisation committees"
    command = ["run", text, "--config", str(tmp_path / "twelve.toml")]
    assert main([*command, "-o", str(path), "--quiet"]) == 0
    page = shown(path, size, "light")
    page.locator(".text-panel .token").nth(5).click()
    page.wait_for_selector(".lens bdi")
    page.wait_for_timeout(100)
    words = page.locator(".lens bdi").all_text_contents()
    assert len({len(word) for word in words}) > 2
    ends = page.evaluate(
        "[...document.querySelectorAll('[data-lens]')].map((one) => one.getBoundingClientRect().right)"
    )
    assert len(ends) == 9
    assert max(ends) - min(ends) < 1


def test_shortened_names_keep_the_number_that_tells_them_apart(open_page, tmp_path):
    text = "The bank was old. Then the river came. She went home."
    path = tmp_path / "page.html"
    assert main(["run", text, "--spans", "sentences", "-o", str(path), "--quiet"]) == 0
    page = open_page(path, size=(390, 844)).page
    page.add_init_script(NOTED)
    page.reload()
    page.wait_for_function("window.written.length > 10")
    names = {name for _, name, *_ in page.evaluate("window.written")}
    shortened = {name for name in names if "…" in name and "sen" in name}
    assert {name[0] + name[-1] for name in shortened} == {"11", "22", "33"}
