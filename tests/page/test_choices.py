"""What a click or a touch chooses, and what the page then says of it."""

import re

import numpy as np
import pytest

import attnscope
from attnscope.cli import main
from attnscope.views.walk.glossary import GLOSSARY
from tests.page.conftest import SHORT
from tests.page.reading import read_page
from tests.page.test_heads import PAGES, click_cell
from tests.page.walking import number, shows

CAUSAL = ["run", SHORT, "--mask", "causal"]
HASH = "location.hash.match(/query=\\d+(&key=\\d+)?/)[0]"
MATTERS = "document.querySelector('.matters').textContent"


@pytest.fixture
def opened(open_page, tmp_path):
    """A function that writes the page of a command and opens it."""

    def opened(command, fragment="", size=(1280, 800), *, touch=False):
        path = tmp_path / "page.html"
        assert main([*command, "-o", str(path), "--quiet", "--force"]) == 0
        return open_page(path, fragment, size=size, touch=touch).page

    return opened


def test_a_second_word_is_the_key_of_the_first_and_a_third_begins_again(opened):
    page = opened(CAUSAL)
    words = page.locator("#panel-text .token")
    for word, place in (
        (4, "query=4"),
        (1, "query=4&key=1"),
        (4, "query=4"),  # the way back
        (6, "query=6"),  # a later word is no key of it
        (2, "query=6&key=2"),
        (3, "query=3"),
    ):
        words.nth(word).click()
        assert shows(page, HASH, place)


def test_the_head_that_the_answer_is_about_opens_with_a_click(opened):
    weights = attnscope.inspect(SHORT, layer="all", head="all", stages="weights").weights
    page = opened(["run", SHORT, "--layer", "0", "--head", "0"])
    click_cell(page.locator("#panel-matrix"), 4, 1)
    layer, head = np.unravel_index(weights[:, :, 4, 1].argmax(), (4, 4))
    button = page.locator(".matters button")
    assert button.text_content() == f"Open L{layer}H{head}."
    button.click()
    assert shows(page, "document.querySelector('#where').textContent", f"L{layer}H{head}")
    assert page.locator(".matters button").count() == 0


def test_of_a_cell_that_the_mask_forbids_the_page_says_so(opened):
    page = opened(CAUSAL)
    click_cell(page.locator("#panel-matrix"), 1, 4)
    assert shows(
        page, MATTERS, "The mask forbids this cell: 0 in every head whose scores this page holds."
    )
    click_cell(page.locator("#panel-matrix"), 4, 1)
    assert shows(page, f"{MATTERS}.includes('Does ')", True)


def test_the_rest_of_a_row_is_named_only_if_a_source_is_not_listed(opened):
    page = opened(["run", SHORT, "--mask", "causal", "--head", "1"])
    weights = attnscope.inspect(SHORT, mask="causal", layer=0, head=1, stages="weights")
    for query in range(len(SHORT.split())):
        page.evaluate(f"location.hash = '#head=L0H1&query={query}'")
        assert shows(page, HASH, f"query={query}")
        listed = page.locator("[data-measure=weight]").count()
        rest = page.locator("[data-rest]")
        row = np.sort(weights.weights[0, 0, query])[::-1]
        assert listed == min(5, query + 1)
        assert rest.count() == int(query + 1 > listed)
        if rest.count():
            assert number(rest.text_content()) == pytest.approx(row[listed:].sum(), abs=5.1e-3)


def test_lines_are_weights_and_both_ends_of_the_strongest_are_in_sight(opened):
    text = " ".join([SHORT] * 8)
    weights = attnscope.inspect(text, layer=0, head=0, stages="weights").weights[0, 0]
    page = opened(["run", text, "--layer", "0", "--head", "0"], "#query=60&stage=scores")
    page.get_by_role("button", name="lines").click()
    stages = page.get_by_role("group", name="Stage").get_by_role("button")
    for n, name in enumerate(stages.all_text_contents()):
        assert stages.nth(n).is_disabled() == (name != "weights")
        assert stages.nth(n).get_attribute("aria-pressed") == str(name == "weights").lower()
    page.keyboard.press("Home")
    for query in (60, 20, 85):
        page.evaluate(f"location.hash = '#head=L0H0&query={query}'")
        key = int(weights[query].argmax())
        seen = f"""(() => {{
            const box = document.querySelector("#panel-lines").getBoundingClientRect();
            const end = document.querySelector("#panel-lines > :last-child").children[{key}];
            const at = end.getBoundingClientRect();
            return at.top >= box.top - 1 && at.bottom <= box.bottom + 1;
        }})()"""
        assert shows(page, seen, True)


def test_a_finger_reads_what_a_term_means(opened):
    page = opened(CAUSAL, "#query=9&key=1", size=(360, 740))
    for term in (page.locator(".matters .term"), page.locator("td .term")):
        term.click()
        meaning = term.get_attribute("title")
        assert len(meaning) > 40
        said = "document.querySelector('.said').textContent"
        assert shows(page, said, meaning)
        box = page.locator(".said").bounding_box()
        assert box["x"] >= 0 and box["width"] > 200
        # which leaves the answer free
        assert box["y"] + box["height"] <= page.locator(".matters").bounding_box()["y"]
        page.locator(".said").click()
        assert shows(page, said, "")


def test_the_answer_has_the_meaning_of_content_weight(opened):
    page = opened(["run", "The bank by the river"], size=(1280, 800))
    term = page.locator(".answer .term")
    assert term.text_content() == "content weight"
    assert term.get_attribute("title") == GLOSSARY["content weight"]
    assert (
        "chosen automatically: most content weight from " in page.locator(".answer").text_content()
    )


def test_a_finger_reads_a_term_beside_what_is_clickable(opened):
    """A browser takes it to a command or a button that is near, unless the term is as clickable as that."""
    page = opened(["compare", "The bank by the river"], size=(360, 640), touch=True)
    click_cell(page.locator("#panel-matrix"), 1, 0)
    assert page.locator(".matters code").is_visible()
    # of which side its weight is
    assert " at bank ← The (causal), a sink" in page.evaluate(MATTERS)
    term = page.locator(".matters .term", has_text="matter")
    box = term.bounding_box()
    said = "document.querySelector('.said').textContent"
    for share in (0.5, 0.7, 0.9):
        page.touchscreen.tap(box["x"] + box["width"] / 2, box["y"] + share * box["height"])
        assert shows(page, said, term.get_attribute("title")), share
        page.locator(".said").click()
        assert shows(page, said, "")


def test_the_legend_of_roles_has_the_roles_of_this_model(opened, tmp_path):
    page = opened(PAGES["roles"])
    data = read_page(tmp_path / "page.html")
    roles = data.of_kind("walk")[0]["scenes"][0]["roles"]
    main_roles = set(data.raw(roles["main"]).ravel().tolist()) - {-1}
    expected = [roles["names"][n] for n in sorted(main_roles)]
    items = page.locator("ul.roles li").all_text_contents()
    assert [re.sub(r"^\S\s*", "", item) for item in items] == [*expected, "no clear role"]
    assert "Click a head" in page.locator(".said-of").text_content()


def test_a_page_of_effects_counts_the_heads_that_its_table_leaves_out(opened):
    page = opened(["ablate", "The bank by the river", "--each", "head"])
    rows = page.locator("table.data:not(.sources) tbody tr").count()
    said = f"{16 - rows} more with smaller effects: point at a head of the map"
    assert page.get_by_text(said, exact=True).count() == 1
    assert "--top" not in page.locator("body").text_content()
    assert page.locator(".walk .command").text_content().startswith("This matrix in a terminal: ")


def test_a_click_in_a_difference_keeps_the_side(opened):
    page = opened(["compare", SHORT, SHORT.replace("steep", "wide")])
    matrix = page.locator("figure.difference canvas")
    for side in (0, 1):
        page.evaluate(f"location.hash = '#mask={side}&head=L0H0&query=1'")
        click_cell(matrix, 4, 2)
        assert shows(page, HASH, "query=4&key=2")
        assert page.evaluate("location.hash.includes('mask=1')") == bool(side)


def test_a_difference_says_which_cells_no_side_may_read(opened):
    page = opened(["compare", SHORT, SHORT.replace("steep", "wide"), "--mask", "causal"])
    figure = page.locator("figure.difference")
    page.evaluate("location.hash = '#mask=0&head=L0H0'")
    for query, key in [(4, 2), (2, 4), (0, 1), (1, 1)]:
        click_cell(figure.locator("canvas"), query, key)
        assert shows(page, HASH, f"query={query}&key={key}")
        assert ("not allowed" in figure.text_content()) == (key > query)


def test_lines_follow_the_direction(opened):
    """Bold lines are those of the query, or, of who reads the key, those that end at it."""
    weights = attnscope.inspect(SHORT, layer=0, head=0, stages="weights").weights[0, 0]
    page = opened(["run", SHORT, "--layer", "0", "--head", "0"], "#head=L0H0&query=9&key=2")
    page.get_by_role("button", name="lines").click()
    bold = """JSON.stringify([...document.querySelectorAll(".lines line[stroke-width='2.5']")]
      .map((line) => ["y1", "y2"].map((end) => (Number(line.getAttribute(end)) - 10) / 20)))"""
    marked = (
        "[...document.querySelectorAll('.line-token.query')].map((one) => one.textContent).join()"
    )
    words = SHORT.split()
    expected = [[9, key] for key in range(len(words)) if weights[9, key] > 0.005]
    assert shows(page, bold, str(expected).replace(" ", ""))
    assert page.evaluate(marked) == f"{words[9]} 9"
    page.get_by_role("button", name="who reads").click()
    expected = [[query, 2] for query in range(len(words)) if weights[query, 2] > 0.005]
    assert shows(page, bold, str(expected).replace(" ", ""))
    assert page.evaluate(marked) == f"{words[2]} 2"
    # a word on the left is one that reads, and one on the right is read
    page.locator(".lines .left > *").nth(4).click()
    assert shows(page, HASH, "query=4&key=2")
    page.locator(".lines > :last-child > *").nth(1).click()
    assert shows(page, f"{HASH}.endsWith('&key=1')", True)
