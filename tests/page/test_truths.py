"""What a page says of itself is what it shows: where it begins, what is hatched, and what buttons and captions name."""

import json
import re
import zlib

import numpy as np
import pytest

from attnscope.cli import main
from attnscope.views.palette import LIGHT
from tests.page.conftest import SHORT
from tests.page.gallery import IT
from tests.page.reading import read_page
from tests.page.test_heads import TEXT
from tests.page.test_screens import TOUCHING
from tests.page.walking import middle_of_cell, shows

TOKENS = 1100
RUNS = 24  # of a map of a head that is not exact

# The colours of the pixels of a cell.
COLOURS = """([selector, row, column]) => {
  const canvas = document.querySelector(selector);
  const [left, top, wide, high] = canvas.dataset.cells.split(" ").map(Number);
  const pixels = canvas.getContext("2d").getImageData(left + column * wide + 2, top + row * high + 2, wide - 4, high - 4);
  const { data } = pixels;
  return [...new Set(Array.from({ length: data.length / 4 }, (_, n) => data.slice(4 * n, 4 * n + 3).join()))];
}"""
# The size of every letter that is written on the map of heads.
LETTERS = """
window.letters = [];
const write = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, x, y, ...rest) {
  if (this.canvas.id === "panel-heads" && /^([A-Z]|[?])$/.test(text)) window.letters.push(parseFloat(this.font));
  return write.call(this, text, x, y, ...rest);
};
"""


@pytest.fixture
def long_page(tmp_path, monkeypatch):
    """The page of two heads and a long text, one of which is exact, and the weights of both."""
    # so that every other row is listed
    monkeypatch.setattr("attnscope.run.summary_plan._ROWS", TOKENS)
    draw, path, arrays = (
        np.random.default_rng(0),
        tmp_path / "page.html",
        tmp_path / "qk.npz",
    )
    q, k = draw.standard_normal((2, 1, 2, TOKENS, 4), np.float32)
    q += 5
    k[..., 200:400, :] -= 3  # all queries read these very little
    np.savez(arrays, q=q, k=k)
    command = ["run", "--qkv", str(arrays), "--mask", "causal"]
    assert main([*command, "-o", str(path), "--quiet"]) == 0
    scores = (q[0].astype(np.float64) @ k[0].transpose(0, 2, 1)) / 2
    scores[:, ~np.tri(TOKENS, dtype=bool)] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return path, weights / weights.sum(-1, keepdims=True)


def test_a_long_page_begins_at_a_row_that_it_lists(open_page, long_page):
    path, _ = long_page
    (scene,) = read_page(path).of_kind("walk")[0]["scenes"]
    rows = next(group["rows"] for group in scene["groups"] if scene["first"] in group["units"])
    assert TOKENS - 1 not in rows
    assert scene["start"] == min(rows, key=lambda row: abs(row - (TOKENS - 1)))
    page = open_page(path).page
    assert page.locator(".row-panel tbody tr").count() > 0
    assert page.locator(".row-panel p.dim button").count() == 0


def test_no_button_names_a_token_that_is_not_known(open_page, long_page):
    page = open_page(long_page[0], f"#head=L0H0&query={TOKENS - 1}&stage=weights").page
    reads, read = page.get_by_role("group", name="Direction").get_by_role("button").all()
    assert read.text_content() == "who reads …"
    assert read.is_disabled()
    assert reads.is_enabled()


def test_a_map_is_hatched_where_nothing_is_read_and_nowhere_else(open_page, long_page):
    path, weights = long_page
    (scene,) = read_page(path).of_kind("walk")[0]["scenes"]
    head = next(unit["head"] for unit in scene["units"] if not unit["exact"])
    starts = [-(-run * TOKENS // RUNS) for run in range(RUNS + 1)]
    pooled = np.add.reduceat(np.add.reduceat(weights[head], starts[:-1], 1), starts[:-1], 0)
    pooled /= np.diff(starts)[:, None]
    tiny = np.argwhere((pooled > 0) & (pooled < 4e-4))  # written as 0.000
    assert len(tiny)
    page = open_page(path, f"#head=L0H{head}&query=1098&stage=weights", size=(1280, 800)).page
    assert len(page.evaluate(COLOURS, ["#panel-matrix", 2, 20])) > 1
    for row, column in tiny[:: max(1, len(tiny) // 4)].tolist():
        assert len(page.evaluate(COLOURS, ["#panel-matrix", row, column])) == 1
    picture = page.locator("#panel-matrix")
    picture.click(position=middle_of_cell(picture, 2, 20))
    said = "document.querySelector('.matrix-panel p.cell').textContent"
    assert shows(page, f"{said}.endsWith(': 0')", True)


def test_a_matrix_of_spans_is_hatched_where_nothing_is_read(open_page, tmp_path):
    path = tmp_path / "page.html"
    command = ["run", "It rained. She went home.", "--spans", "sentences", "--mask", "causal"]
    assert main([*command, "-o", str(path), "--quiet"]) == 0
    page = open_page(path).page
    hatch = ",".join(str(int(LIGHT.hatch[n : n + 2], 16)) for n in (0, 2, 4))
    for row, column in ((0, 0), (0, 1), (1, 0), (1, 1)):
        colours = page.evaluate(COLOURS, ["#panel-matrix", row, column])
        assert (hatch in colours) == (column > row)


def test_roles_have_letters_in_cells_of_eight_pixels_and_none_is_not_grey(open_page, tmp_path):
    draw, arrays, path = np.random.default_rng(0), tmp_path / "qk.npz", tmp_path / "page.html"
    q, k = draw.standard_normal((2, 30, 9, 12, 4), np.float32)
    np.savez(arrays, q=q * np.linspace(0.1, 2, 30)[:, None, None, None].astype(np.float32), k=k)
    assert main(["run", "--qkv", str(arrays), "-o", str(path), "--quiet"]) == 0
    watched = open_page(path, size=(1280, 720))
    watched.page.add_init_script(LETTERS)
    page = watched.open(path, "#show=roles&head=L0H0&query=3")
    page.reload()
    page.wait_for_selector("html[data-ready]")
    _, _, wide, high = map(float, page.locator("#panel-heads").get_attribute("data-cells").split())
    assert 8 <= high < 10 < wide
    assert shows(page, "window.letters.length >= 270", True)
    assert min(page.evaluate("window.letters")) >= 9
    (scene,) = read_page(path).of_kind("walk")[0]["scenes"]
    main_roles = read_page(path).raw(scene["roles"]["main"])
    row, column = np.argwhere(main_roles < 0)[-1].tolist()
    assert "255,255,255" in page.evaluate(COLOURS, ["#panel-heads", row, column])


def test_only_stages_that_are_shown_can_be_chosen(open_page, tmp_path):
    draw, arrays, path = np.random.default_rng(0), tmp_path / "few.npz", tmp_path / "few.html"
    np.savez(arrays, **{name: draw.standard_normal((1, 2, 400, 4), np.float32) for name in "qk"})
    assert main(["run", "--qkv", str(arrays), "-o", str(path), "--quiet"]) == 0
    page = open_page(path, "#head=L0H0&query=3&stage=scores").page
    stages = page.get_by_role("group", name="Stage").get_by_role("button")
    caption = "document.querySelector('.matrix-panel figcaption .dim').textContent"
    assert all(button.is_enabled() for button in stages.all())
    assert page.evaluate(caption) == "scores"
    page.keyboard.press("]")
    assert shows(page, caption, "weights")
    enabled = [button.text_content() for button in stages.all() if button.is_enabled()]
    assert enabled == ["weights"]
    assert page.locator(".stages [aria-pressed=true]").last.text_content() == "weights"
    assert page.locator(".matrix-panel p.dim").count() == 0
    page.keyboard.press("s")
    said = "document.querySelector('.said').textContent"
    assert shows(page, f"{said}.startsWith('Only weights are known of this head')", True)
    page.keyboard.press("[")
    disabled = "document.querySelectorAll('.matrix-panel .stages button:disabled').length"
    assert shows(page, disabled, 0)


def test_a_page_begins_at_a_mask_token_that_is_not_predicted(open_page, tmp_path):
    path = tmp_path / "page.html"
    assert main(["run", TEXT, "--no-predict", "-o", str(path), "--quiet"]) == 0
    page = open_page(path).page
    assert page.locator(".predictions").count() == 0
    assert page.locator(".flow .token.query").text_content() == "[MASK]"


def test_tooltips_of_tools_say_what_is_now(open_page, tmp_path):
    path = tmp_path / "page.html"
    assert main(["run", SHORT, "-o", str(path), "--quiet"]) == 0
    page = open_page(path, "#head=L2H1&query=3&key=1&show=thumbnails").page
    button = page.get_by_role("button", name="no sinks")
    assert button.get_attribute("title").startswith("sinks are in the scale")
    button.click()
    assert button.get_attribute("title").startswith("sinks are out of the scale")
    pin = page.get_by_role("button", name="pin")
    before = pin.get_attribute("title")
    pin.click()
    assert before == "compare other heads with this one (c)"
    assert pin.get_attribute("title") == "no longer compare heads with this one (c)"


@pytest.mark.parametrize("size", [(1024, 768), (1280, 800), (1920, 1080)])
def test_the_numbers_of_a_logarithmic_ramp_do_not_touch(size, open_page, tmp_path):
    path = tmp_path / "page.html"
    assert main(["compare", SHORT, "-o", str(path), "--quiet"]) == 0
    page = open_page(path, "#head=L2H1&query=3&key=1", size=size).page
    for _ in range(2):
        page.keyboard.press("L")
    assert shows(page, "document.querySelector('.controls button').textContent", "log scale")
    assert page.evaluate(TOUCHING) == []
    gaps = """() => [...document.querySelectorAll('.heads-panel .stops, .sides > :not(.difference) .stops')].map((ramp) => {
      const boxes = [...ramp.children].map((tick) => tick.getBoundingClientRect()).filter(({ width }) => width);
      boxes.sort((a, b) => a.left - b.left);
      return Math.min(...boxes.slice(1).map((box, n) => box.left - boxes[n].right));
    })"""
    assert all(gap > 8 for gap in page.evaluate(gaps))


def test_panels_stay_where_they_are_under_the_pointer(open_page, tmp_path):
    path = tmp_path / "page.html"
    assert main(["compare", SHORT, "-o", str(path), "--quiet"]) == 0
    page = open_page(path, size=(1280, 800)).page
    places = "[...document.querySelectorAll('.card')].slice(0, 3).map((one) => one.getBoundingClientRect().y)"
    before = page.evaluate(places)
    said = page.locator(".said-of")
    assert said.text_content().startswith("Point at a word")
    page.locator(".flow .token").nth(3).hover()
    assert shows(page, "document.querySelector('.said-of').textContent.includes('reads: ')", True)
    assert page.evaluate(places) == before


def written_sheets(pdf):
    """Of every sheet of a file of Chromium, whether it has any text."""
    objects = dict(re.findall(rb"(?s)(\d+) 0 obj\n(.*?)endobj", pdf))
    sheets = [one for one in objects.values() if re.search(rb"/Type /Page\b", one)]
    contents = [objects[re.search(rb"/Contents (\d+) 0 R", sheet)[1]] for sheet in sheets]
    streams = [re.search(rb"(?s)stream\r?\n(.*)\r?\nendstream", one)[1] for one in contents]
    return [b"Tj" in zlib.decompress(stream) for stream in streams]


def test_no_printed_sheet_is_blank(open_page, smollm2, tmp_path):
    path = tmp_path / "page.html"
    assert main(["run", IT, "--model", str(smollm2), "-o", str(path), "--quiet"]) == 0
    page = open_page(path, size=(1280, 800)).page
    page.keyboard.press("L")  # what is said of it is not printed on every sheet
    for paper in ("Letter", "A4"):
        sheets = written_sheets(page.pdf(format=paper))
        assert len(sheets) > 1
        assert all(sheets), paper


def test_the_mark_of_an_unknown_word_is_beside_it(open_page, tmp_path):
    path = tmp_path / "page.html"
    assert main(["run", "שלום עולם & the bank by the river", "-o", str(path), "--quiet"]) == 0
    page = open_page(path).page
    boxes = page.evaluate("""[...document.querySelectorAll('.flow .token')].slice(0, 3).map((token) => {
      const boxes = [...token.textContent].map((_, n) => {
        const range = document.createRange();
        range.setStart(token.firstChild, n);
        range.setEnd(token.firstChild, n + 1);
        return range.getBoundingClientRect();
      });
      return [token.textContent, boxes.map(({ left, right }) => [left, right])];
    })""")
    words = {text: np.array(letters) for text, letters in boxes}
    assert [*words] == ["?שלום", "?עולם", "&"]
    for letters in (words["?שלום"], words["?עולם"]):
        # each letter, from the mark on, is left of the one before, without a gap
        assert letters[1:, 1] == pytest.approx(letters[:-1, 0], abs=1)
    # and the words follow each other from right to left
    assert words["?עולם"].max() < words["?שלום"].min()
    assert words["?שלום"].max() < words["&"].min()


def test_buttons_name_what_is_shown_under_the_pointer(open_page, tmp_path):
    path = tmp_path / "page.html"
    assert main(["run", SHORT, "-o", str(path), "--quiet"]) == 0
    page = open_page(path, "#head=L1H2&query=3&key=4&stage=weights").page
    tokens = SHORT.split()
    picture = page.locator("#panel-matrix")
    picture.hover(position=middle_of_cell(picture, 8, 6))
    buttons = "document.querySelector('.text-panel .stages').textContent"
    assert shows(page, buttons, f"what {tokens[8]} readswho reads {tokens[6]}")
    page.mouse.move(1, 1)
    assert shows(page, buttons, f"what {tokens[3]} readswho reads {tokens[4]}")


POINTED = """() => {
  const text = (selector) => document.querySelector(selector)?.textContent;
  return {
    query: text(".token.query"), key: text(".token.key"), row: text(".row-panel h2"),
    cells: [...document.querySelectorAll(".matrix-panel p.cell")].map((cell) => cell.textContent.split(": ")[0]),
    head: text(".heads-panel p.cell").split(":")[0], lens: text(".heads-panel h2"),
  };
}"""


@pytest.mark.exhaustive
def test_pointing_anywhere_previews_what_a_click_chooses(open_page, tmp_path):
    path = tmp_path / "page.html"
    assert main(["compare", SHORT, "-o", str(path), "--quiet"]) == 0
    page = open_page(path, "#mask=1&head=L2H0&query=3&key=4&stage=weights", size=(1280, 800)).page
    names = SHORT.split()
    seen = page.evaluate(POINTED)
    assert (seen["query"], seen["key"], seen["lens"]) == (names[3], names[4], "the ← river")

    def pointed(picture, row, column):
        left, top, wide, high = map(float, picture.get_attribute("data-cells").split())
        x = left / 2 if column is None else left + (column + 0.5) * wide
        picture.hover(position={"x": x, "y": top / 2 if row is None else top + (row + 0.5) * high})
        assert shows(
            page, "document.querySelector('.row-panel h2').textContent.endsWith('pointer')", True
        )
        return page.evaluate(POINTED)

    sides = page.locator(".matrix-panel canvas")
    for n in range(3):  # both sides, and the difference
        cell = pointed(sides.nth(n), 8, 6)
        assert (cell["query"], cell["key"], cell["lens"]) == (names[8], names[6], "so ← steep")
        assert set(cell["cells"]) == {"8 so ← 6 steep"}
        column = pointed(sides.nth(n), None, 6)
        assert (column["query"], column["key"]) == (names[3], names[6])
        row = pointed(sides.nth(n), 9, None)
        assert row["query"] == names[9] and row["cells"][0].startswith("9 ")
    # a head is marked, and the row shows it; the lens stays about the chosen cell
    head = pointed(page.locator("#panel-heads"), 3, 1)
    assert (head["head"], head["lens"]) == ("L3H1", "the ← river")
    assert "L3H1" in head["row"] and head["query"] == names[3]
    assert "L3H1" in page.locator(".said-of").text_content()
    entry = page.locator("ol.lens button").nth(1)
    entry.hover()
    name = entry.locator("b").text_content()
    assert shows(
        page, "document.querySelector('.heads-panel p.cell').textContent.split(':')[0]", name
    )
    assert page.locator("#where").text_content() == "L2H0"  # nothing is chosen
    page.mouse.move(1, 1)
    assert shows(
        page,
        f"JSON.stringify(({POINTED})())",
        json.dumps(seen, ensure_ascii=False, separators=(",", ":")),
    )
    entry.click()
    assert shows(page, "document.querySelector('#where').textContent", name)
