"""Pages about every head: the map of roles, numbers or effects, and the matrix that a click on a head opens."""

import json
import re
import shlex
from types import SimpleNamespace

import numpy as np
import pytest

import attnscope
from attnscope.cli import main
from attnscope.findings.head_roles import HEAD_ROLES
from attnscope.run import summary_plan
from attnscope.views.page.walk import _opened
from tests.helpers.hybrids import make_hybrid, save_hybrid, with_long_states
from tests.page.reading import read_page
from tests.page.test_browser import SHOWS
from tests.page.walking import middle_of_cell, number, shows

TEXT = "She sat by the [MASK] of the river"
PAGES = {
    "effect of head": ["ablate", TEXT, "--each", "head"],
    "weight": ["heads", TEXT, "--query", "[MASK]", "--key", "river"],
    "roles": ["heads", TEXT, "--draws", "2"],
    "previous token": ["heads", TEXT, "--role", "previous"],
    "effect of layer": ["ablate", TEXT, "--each", "layer"],
}


def click_head(page, layer, head):
    click_cell(page.locator("#panel-heads"), layer, head)


def click_cell(picture, row, column):
    picture.click(position=middle_of_cell(picture, row, column))


@pytest.mark.parametrize("display", PAGES)
def test_a_click_on_a_head_opens_its_matrix(display, open_page, tmp_path):
    path, exact = tmp_path / "page.html", tmp_path / "exact.json"
    for output in (path, exact):
        assert main([*PAGES[display], "-o", str(output), "--quiet"]) == 0
    found = json.loads(exact.read_text())
    weights = attnscope.inspect(TEXT, layer="all", head="all", stages="weights").weights
    watched = open_page(path, size=(1280, 800))
    page = watched.page
    assert page.evaluate(SHOWS) == display
    if display == "weight":  # on the scale of every matrix, so that both can be compared
        ticks = ".ramp .stops span"
        shown = page.locator(f".heads-panel {ticks}").all_text_contents()
        matrix = page.locator(f".matrix-panel {ticks}").all_text_contents()
        assert {"0", "1"} <= set(shown) <= set(matrix)
    for layer, head in ((3, 1), (0, 2)):
        click_head(page, layer, head)
        assert shows(page, "document.querySelector('#where').textContent", f"L{layer}H{head}")
        said = page.locator(".heads-panel p.cell").text_content()
        assert said.startswith(f"L{layer}H{head}: ")
        value = value_of(found, layer, head)
        if value is None:
            assert said.endswith("no clear role")
        elif display == "roles":
            assert number(said.split()[-1]) == pytest.approx(value, abs=5.1e-3)
        else:
            if display.startswith("effect"):
                assert said.endswith(" bits")
            assert np.float32(number(said.removesuffix(" bits").split()[-1])) == np.float32(value)
        page.get_by_role("button", name="copy", exact=True).click()
        page.get_by_role("button", name="the matrix (CSV)").click()
        rows = page.evaluate("window.copied.at(-1)").splitlines()[1:]
        copied = np.array([row.split(",")[1:] for row in rows], dtype=np.float32)
        # not the same bits: the page's text may run beside another
        np.testing.assert_allclose(copied, weights[layer, head], atol=1e-6)
    assert watched.messages == []


def value_of(found, layer, head):
    """The number of a head in the JSON of heads or ablate; None for a head without a role."""
    if "effects" in found:
        column = head if found["unit"] == "head" else -1
        units = list(zip(found["layers"], found["heads"], strict=True))
        return found["effects"][0]["kl"][units.index((layer, column))]
    if "values" in found:
        return found["values"][layer][head]
    if len(found["roles"]) == 1:
        return found["roles"][0]["values"][layer][head]
    role = next(
        (role for role in found["roles"] if role["name"] == found["main"][layer][head]), None
    )
    return None if role is None else role["values"][layer][head]


def test_a_page_of_heads_begins_at_the_strongest(tmp_path):
    for display, arguments in PAGES.items():
        path, exact = tmp_path / "page.html", tmp_path / "exact.json"
        for output in (path, exact):
            assert main([*arguments, "-o", str(output), "--quiet", "--force"]) == 0
        found = json.loads(exact.read_text())
        scene = read_page(path).of_kind("walk")[0]["scenes"][0]
        if display == "roles":  # the head that `auto` chooses
            by_name = {role["name"]: role["values"] for role in found["roles"]}
            values = np.array(by_name["content"])
        else:
            values = np.array(
                [[value_of(found, layer, head) for head in range(4)] for layer in range(4)]
            )
        layer, head = scene["first"]
        assert np.abs(values)[layer, head] == np.abs(values).max(), display
        expected = 4 if display in ("weight", "effect of head", "effect of layer") else None
        assert expected is None or scene["start"] == expected


@pytest.mark.parametrize(
    ("strengths", "said"),
    [
        ([0.27, 0.26, 0.9], "the strongest content head (0.27; clear from 0.25)"),
        ([0.266, 0.274, 0.9], "one of the strongest content heads (0.27; clear from 0.25)"),
        ([0.26, 0.27, 0.9], "a content head (0.26; clear from 0.25)"),
        ([0.26, 0.27, 0.9], "an induction head (0.26; clear from 0.4)"),
        (
            [0.41, 0.47, 0.9],
            "the strongest head of content weight (0.29); its main role is induction (0.41; clear from 0.4)",
        ),
        ([np.nan, 0.3, 0.9], "the strongest head of content weight (0.29); it has no clear role"),
    ],
)
def test_a_page_says_why_it_opens_at_a_head(strengths, said):
    of_content = "content head" in said
    chosen = "content weight" in said
    roles = SimpleNamespace(
        names=["content", "induction"],
        clear=[0.25, 0.4],
        main=np.array([[0, 0, 1]] if of_content else [[1, 1, 0]]),
        strength=np.array([strengths]),
        chosen_by=("content", "content weight", 0.29) if chosen else None,
    )
    roles.main[np.isnan(roles.strength)] = -1
    scene = SimpleNamespace(first=(0, 0), layers=[4], heads=[0, 1, 2])
    assert _opened(scene, roles) == f" It opens at L4H0, {said}."


def test_heads_of_random_tokens_are_shown_on_these(open_page, smollm2, tmp_path):
    """An induction head reads nothing but sinks in a text where nothing comes again."""
    path = tmp_path / "page.html"
    roles = ["--role", "induction,previous,first,uniform", "--draws", "2"]
    assert main(["heads", TEXT, "--model", str(smollm2), *roles, "-o", str(path), "--quiet"]) == 0
    scene = read_page(path).of_kind("walk")[0]["scenes"][1]
    assert "Item" in scene["queries"]["names"]  # without a blank, and no part of the word before it
    assert not [name for name in scene["queries"]["names"] if name.startswith("##")]
    assert " random tokens: text 1 is the first of them." in scene["roles"]["measured"]
    page = open_page(path, size=(1280, 800)).page
    click_head(page, 18, 6)
    assert page.locator(".heads-panel p.cell").text_content().startswith("L18H6: induction 0.")
    tokens = page.evaluate(
        "[...document.querySelectorAll('.flow .token')].map((one) => one.textContent)"
    )
    assert tokens[-50:] == tokens[-100:-50]  # written twice
    assert page.locator(".walk .command").count() == 0
    cell = page.locator("[data-arithmetic]").text_content()
    row = int(page.evaluate("new URLSearchParams(location.hash.slice(1)).get('query')"))
    assert cell.startswith(f"← {row - 50 + 1} ")  # the token after the same token in the first copy
    click_head(page, 0, 0)  # uniform: in words
    tokens = page.evaluate(
        "[...document.querySelectorAll('.flow .token')].map((one) => one.textContent)"
    )
    assert "".join(tokens) == TEXT.replace(" ", "") or tokens[0] == "She"


def test_a_click_on_a_head_of_a_hybrid_shows_its_matrix(open_page, tmp_path):
    """Signed in layers without softmax, whose later tokens are no numbers; layers in their order."""
    text = "the bank by the river was old"
    folder = str(save_hybrid(tmp_path / "hybrid", with_long_states(make_hybrid("qwen3_next"))))
    path = tmp_path / "page.html"
    assert (
        main(
            [
                "heads",
                text,
                "--model",
                folder,
                "--query",
                "river",
                "--key",
                "bank",
                "-o",
                str(path),
                "--quiet",
            ]
        )
        == 0
    )
    options = {"model": folder, "head": "all"}
    signed = (
        attnscope.inspect(text, layer=[0, 2], **options)
        .data.texts[0]
        .mixing.matrix.reshape(2, 4, 8, 8)
    )
    weights = attnscope.inspect(text, layer=[1, 3], stages="weights", **options).weights
    watched = open_page(path, size=(1280, 800))
    page = watched.page
    names = page.evaluate("[...document.querySelectorAll('figure[id]')].map((one) => one.id)")
    assert names == [f"L{layer}H{head}" for layer in range(4) for head in range(4)]
    for layer, head, kind, matrices in ((2, 1, "gated delta", signed), (1, 3, "softmax", weights)):
        page.evaluate("scrollTo(0, 0)")
        click_cell(page.locator("figure canvas").first, layer, head)
        figure = page.locator(f"#L{layer}H{head}")
        assert abs(figure.bounding_box()["y"]) < 2  # it begins where the window does
        assert figure.locator("strong").text_content() == f"L{layer}H{head} {kind}"
        matrix = matrices[layer // 2, head]
        lowest = np.unravel_index(matrix.argmin(), matrix.shape)
        for row, column in ((4, 2), (7, 5), *([lowest] if kind == "gated delta" else [])):
            click_cell(figure.locator("canvas"), row, column)
            said = figure.locator("p.cell").text_content()
            assert np.float32(number(said.rsplit(": ")[-1])) == matrix[row, column]
        click_cell(figure.locator("canvas"), 2, 6)
        said = figure.locator("p.cell").text_content()
        assert said.endswith(": not allowed" if kind == "gated delta" else ": 0")
    assert signed[1, 1].min() < 0
    assert watched.messages == []


def test_what_cannot_be_walked_names_the_command(open_page, tmp_path):
    """A comparison of two models has no text to walk through."""
    path = tmp_path / "page.html"
    models = ["--dtype", "float32", "--dtype", "bfloat16", "--role", "previous", "--draws", "2"]
    assert main(["heads", TEXT, *models, "-o", str(path), "--quiet"]) == 0
    page = open_page(path).page
    canvas = page.locator("canvas").first
    size = canvas.bounding_box()
    canvas.click(position={"x": size["width"] - 1.5, "y": size["height"] - 1.5})
    assert (
        page.locator("p.cell")
        .first.text_content()
        .endswith("its matrix: attnscope run TEXT --head L3H3")
    )


def test_points_are_weights_and_effects_and_lead_to_their_heads(open_page, tmp_path):
    path, exact = tmp_path / "page.html", tmp_path / "exact.json"
    for output in (path, exact):
        assert main([*PAGES["effect of head"], "-o", str(output), "--quiet"]) == 0
    found = json.loads(exact.read_text())
    weights, effects = np.array(found["weights"]), np.array(found["effects"][0]["kl"])
    page = open_page(path, size=(1280, 800)).page
    points = page.evaluate(
        "[...document.querySelectorAll('.scatter a')].map((one) => [one.getAttribute('href'),"
        " ...['cx', 'cy'].map((name) => Number(one.querySelector('circle').getAttribute(name)))])"
    )
    names = [
        f"L{layer}H{head}" for layer, head in zip(found["layers"], found["heads"], strict=True)
    ]
    assert [point[0].split("&")[0] for point in points] == [f"#head={name}" for name in names]
    across, down = (np.array([point[n] for point in points]) for n in (1, 2))
    line = np.polyfit(weights, across, 1)
    np.testing.assert_allclose(np.polyval(line, weights), across, atol=0.1)
    assert line[0] > 0 and np.polyval(line, 0) == pytest.approx(52, abs=0.2)  # the axis begins at 0
    line = np.polyfit(effects, down, 1)
    np.testing.assert_allclose(np.polyval(line, effects), down, atol=0.1)
    assert line[0] < 0
    ranks = [np.argsort(np.argsort(values)) for values in (weights, effects)]  # no two are equal
    spearman = np.corrcoef(*ranks)[0, 1]
    title = page.locator(".scatter figcaption").text_content()
    assert number(title.split("ρ ")[1].split()[0]) == pytest.approx(spearman, abs=0.0051)
    page.locator(".scatter a").nth(5).click()
    assert shows(page, "document.querySelector('#where').textContent", names[5])
    assert page.evaluate(SHOWS) == "effect of head"


def test_effects_that_may_be_negative_have_zero_as_the_middle_of_their_scale(open_page, tmp_path):
    path = tmp_path / "page.html"
    assert (
        main(["ablate", TEXT, "--each", "head", "--target", "bank", "-o", str(path), "--quiet"])
        == 0
    )
    scene = (page := read_page(path)).of_kind("walk")[0]["scenes"][0]
    values = page.numbers(scene["numbers"][0]["values"])
    assert values.min() < 0 < values.max()
    ticks = open_page(path).page.evaluate(
        "[...document.querySelectorAll('.heads-panel .stops span')].map((one) => [one.style.left, one.textContent])"
    )
    largest = np.abs(values).max()
    shown = {left: number(text) for left, text in ticks}
    assert (shown["0%"], shown["50%"], shown["100%"]) == pytest.approx(
        (-largest, 0, largest), rel=0.01
    )


def test_a_head_opens_at_the_row_where_its_role_is_strongest(open_page, tmp_path):
    """The role is recomputed of every row from the exact weights of the text."""
    path, exact = tmp_path / "page.html", tmp_path / "exact.json"
    for output in (path, exact):
        assert main(["heads", TEXT, "--draws", "2", "-o", str(output), "--quiet"]) == 0
    found = json.loads(exact.read_text())
    report = attnscope.inspect(TEXT, layer="all", head="all", stages="weights")
    count = report.weights.shape[-1]
    offsets = {"previous": -1, "next": 1, "self": 0}
    special = [token.special for token in report.tokens]
    watched = open_page(path, size=(1280, 800))
    clicked = 0
    for layer, head in np.ndindex(4, 4):
        offset = offsets.get(found["main"][layer][head])
        if offset is None:
            continue
        on_target = [
            report.weights[layer, head, row, row + offset]
            if 0 <= row + offset < count and not special[row]
            else 0.0
            for row in range(count)
        ]
        click_head(watched.page, layer, head)
        assert shows(watched.page, f"location.hash.startsWith('#head=L{layer}H{head}&')", True)
        said = watched.page.evaluate("new URLSearchParams(location.hash.slice(1)).get('query')")
        assert on_target[int(said)] == pytest.approx(max(on_target), abs=5.1e-4), (layer, head)
        clicked += 1
    assert clicked and watched.messages == []
    first = read_page(path).of_kind("walk")[0]["scenes"][0]["first"]
    query = "new URLSearchParams(location.hash.slice(1)).get('query')"
    page = open_page(path, size=(1280, 800)).page
    begins = page.evaluate(query)
    click_head(page, *first)
    assert page.evaluate(query) == begins  # the page begins there, too


def test_the_lens_says_what_the_model_loses_without_a_head(open_page, tmp_path):
    path, exact = tmp_path / "page.html", tmp_path / "exact.json"
    for output in (path, exact):
        assert main([*PAGES["effect of head"], "-o", str(output), "--quiet"]) == 0
    effects = np.array(json.loads(exact.read_text())["effects"][0]["kl"])
    page = open_page(path, size=(1280, 800)).page
    page.locator("#panel-text .token").nth(5).click()
    assert page.evaluate(SHOWS) == "lens"
    page.locator("#lens-first").click()
    said = page.locator(".matters").text_content()
    name, value = re.match(
        r".*Does L(\d+H\d+) matter\? \w+: (\S+) bits, number .* How much predictions change: ",
        said,
    ).groups()
    rank, count = re.search(r", number (\d+) of (\d+) heads", said).groups()
    layer, head = map(int, name.split("H"))
    own = value_of(json.loads(exact.read_text()), layer, head)
    assert float(value) == pytest.approx(own, rel=0.06)
    assert (int(rank), int(count)) == ((effects > own).sum() + 1, len(effects))


def test_a_page_without_effects_names_the_command_that_measures_one(open_page, tmp_path):
    path = tmp_path / "page.html"
    assert main(["run", TEXT, "--no-effects", "-o", str(path), "--quiet"]) == 0
    page = open_page(path, size=(1280, 800)).page
    page.locator("#panel-text .token").nth(5).click()
    page.locator("#lens-first").click()
    where = page.locator("#where").text_content()
    command = page.locator(".matters code").text_content()
    assert command.endswith(f" --cut {where}")
    assert main([*shlex.split(command)[1:], "--quiet"]) == 0


def test_on_a_phone_the_roles_stay_a_table(open_page, tmp_path):
    path = tmp_path / "page.html"
    assert main(["heads", "--draws", "2", "-o", str(path), "--quiet"]) == 0
    page = open_page(path, size=(360, 640), touch=True).page
    rows = page.locator("table.data:has(details) tbody tr")
    displays = rows.evaluate_all("all => all.map((row) => getComputedStyle(row).display)")
    assert set(displays) == {"table-row"}
    # the first entry is on the line of the triangle
    first = page.locator("table.data summary").evaluate_all(
        "all => all.map((line) => line.firstChild.getClientRects()[0].top - line.getBoundingClientRect().top)"
    )
    assert max(first) < 12
    assert page.evaluate("document.documentElement.scrollWidth") == 360


@pytest.mark.parametrize("display", ["roles", "moved"])
def test_what_to_do_first_is_one_line(display, open_page, tmp_path):
    path = tmp_path / "page.html"
    command = {"roles": ["heads", "--draws", "2"], "moved": ["compare", TEXT]}[display]
    assert main([*command, "-o", str(path), "--quiet"]) == 0
    page = open_page(path, size=(1280, 800)).page
    hint = page.locator(".said-of")
    assert hint.text_content().startswith("Point at a word")
    lines = "hint => { const range = document.createRange(); range.selectNodeContents(hint);"
    lines += " return new Set([...range.getClientRects()].map((box) => box.top)).size; }"
    assert hint.evaluate(lines) == 1


def test_the_shadow_of_a_scrolling_text_has_no_corners(open_page, tmp_path):
    path = tmp_path / "page.html"
    assert main(["run", TEXT, "-o", str(path), "--quiet"]) == 0
    page = open_page(path).page
    # of a round box, a browser draws the shadow beyond the edge of what covers it
    radius = "getComputedStyle(document.querySelector('.flow')).borderRadius"
    assert page.evaluate(radius) == "0px"


def test_a_head_of_a_short_text_is_a_matrix_of_its_tokens(open_page, monkeypatch, tmp_path):
    """Also one that the page keeps rounded: names, digits, and the same rounding in its row and its statistics."""
    path, exact = tmp_path / "page.html", tmp_path / "exact.json"
    monkeypatch.setattr(summary_plan, "MOST_CELLS", 0)
    for output in (path, exact):
        assert main(["heads", TEXT, "--draws", "2", "-o", str(output), "--quiet"]) == 0
    _, scene = (page := read_page(path)), page.of_kind("walk")[0]["scenes"][0]
    report = attnscope.inspect(TEXT, layer="all", head="all", stages="weights")
    roles = scene["roles"]
    layer, head = scene["first"]
    role = roles["names"][page.raw(roles["main"])[layer, head]]
    strength = page.numbers(roles["strength"])[layer, head]
    clear = next(known.clear for known in HEAD_ROLES if known.name == role)
    found = json.loads(exact.read_text())["roles"]
    content = np.array(next(one["values"] for one in found if one["name"] == "content"))
    assert role != "content"
    assert content[layer, head] == content.max()
    why = f"the strongest head of content weight ({content.max():.2f})"
    also = f"its main role is {role} ({strength:.2f}; clear from {clear:g})."
    assert scene["answer"].endswith(f" It opens at L{layer}H{head}, {why}; {also}")
    assert sum(unit["exact"] for unit in scene["units"]) == 1
    shown = open_page(path, "#text=0&head=L0H0&query=3&key=1", size=(1280, 800)).page
    names = [token.piece for token in report.tokens]
    for unit in [unit for unit in scene["units"] if not unit["exact"]][:6]:
        layer, head = unit["at"]
        click_head(shown, layer, head)
        weights = report.weights[layer, head]
        said = shown.locator(".matrix-panel p.cell")
        expected = f"3 {names[3]} ← 1 {names[1]}: {weights[3, 1]:.3f} (rounded to 3 decimals)"
        assert said.text_content() == expected
        sources = {
            line.locator(".number").text_content(): line.locator("[data-measure=weight]")
            for line in shown.locator("table.sources tbody tr:has([data-measure])").all()
        }
        for position, statistic in (("0", "first"), ("3", "self")):
            if position in sources:
                value = shown.locator(f"[data-statistic={statistic}]").text_content()
                listed = number(sources[position].text_content())
                assert number(value) == pytest.approx(listed, abs=1e-9 if listed >= 0.01 else 0.01)


def test_thumbnails_without_sinks_have_no_common_scale(open_page, tmp_path):
    path = tmp_path / "page.html"
    assert main(["run", TEXT, "--no-effects", "-o", str(path), "--quiet"]) == 0
    page = open_page(path, "#head=L2H0&show=thumbnails", size=(1280, 800)).page
    ticks = "[...document.querySelectorAll('.heads-panel .stops span')].length"
    assert page.evaluate(ticks) >= 3
    page.keyboard.press("z")
    assert shows(page, ticks, 0)
    assert "each picture has its own scale" in page.locator(".heads-panel").text_content()


def test_a_page_with_means_counts_the_heads_of_the_model(tmp_path):
    path = tmp_path / "page.html"
    command = ["run", TEXT, "--layer", "mean", "--head", "mean", "--no-effects"]
    assert main([*command, "-o", str(path), "--quiet"]) == 0
    (scene,) = read_page(path).of_kind("walk")[0]["scenes"]
    assert "mean" in scene["layers"]
    assert scene["size"] == "4×4"
