"""Pages in a real browser: opened from disk without a network, every number read back."""

import base64
import csv
import io
import itertools
import json
import random
import re
import shlex
import struct
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from msgspec.structs import replace

import attnscope
from attnscope.cli import main
from attnscope.findings.heads import HeadRef
from attnscope.studies.explore.saved import report_source
from attnscope.studies.formats import export
from attnscope.views.palette import DARK, LIGHT
from attnscope.views.scales import SHAPES, Scale
from attnscope.views.spans import spell_token
from attnscope.views.walk.cell import arithmetic, cell_numbers, weight_text
from attnscope.views.walk.scene import Variant
from tests.helpers.draws import drawn
from tests.helpers.heads import unstacked
from tests.helpers.sample_reports import HOSTILE, report, text_report, tokens
from tests.page.cells import check_cells
from tests.page.conftest import SHORT
from tests.page.reading import read_page
from tests.page.test_page import COMMANDS, TEXT
from tests.page.walking import middle_of_cell, number, read_places, shows

WEB = Path(__file__).parent.parent.parent / "web"
CASES = drawn(40)  # of each page
MORE_HOSTILE = [
    *(
        "</script>",
        "<img src=x onerror=alert(1)>",
        "javascript:alert(1)",
        "&lt;b&gt;",
        "${alert(1)}",
        "]]>",
        "<!--",
    ),
    *(
        "'\"><svg onload=alert(1)>",
        "\u2066x\u2069",
        "🏳️‍🌈",
        "a" * 300,
        "__proto__",
        "constructor",
        "%00",
        "\ufeff",
    ),
    "=1+1",
]


@pytest.mark.parametrize("name", ["short", "long"])
def test_numbers_of_random_cells_are_those_of_the_report(open_page, pages, name):
    path, *findings = pages[name]
    page = open_page(path).page
    check_cells(lambda addresses: read_places(page, addresses), findings, seed=7, count=CASES)


def test_every_cell_of_every_stage_is_exact(open_page, pages):
    path, report, _ = pages["long"]
    (head,) = report.texts[0].heads
    watched = open_page(path)
    for stage, matrix in head.stages.items():
        watched.page.evaluate(
            f"location.hash = '#head=L{head.layer}H{head.head}&query=0&stage={stage}'"
        )
        watched.page.get_by_role("button", name="copy", exact=True).click()
        watched.page.get_by_role("button", name="the matrix (CSV)").click()
        copied = watched.page.evaluate("window.copied.at(-1)")
        rows = list(csv.reader(io.StringIO(copied)))
        found = np.array([[float(cell) for cell in row[1:]] for row in rows[1:]], dtype=np.float32)
        np.testing.assert_array_equal(found.view(np.int32), matrix.view(np.int32), err_msg=stage)
    assert watched.messages == []


def test_the_arithmetic_of_a_cell_is_that_of_the_terminal(open_page, pages):
    path, _, summary = pages["short"]
    source, count = report_source(summary), len(summary.texts[0].tokens)
    scene = source.scene(Variant())
    draw = random.Random(3)
    cases = [
        (draw.randrange(4), draw.randrange(4), draw.randrange(count), draw.randrange(count))
        for _ in range(40)
    ]
    addresses = [f"#head=L{layer}H{h}&query={q}&key={k}" for layer, h, q, k in cases]
    shown = read_places(open_page(path).page, addresses)
    for (layer, h, query, key), seen in zip(cases, shown, strict=True):
        head = source.head(Variant(), layer, h)
        assert seen["arithmetic"].endswith(
            " ".join(arithmetic(head, cell_numbers(scene, head, query, key)))
        )


@pytest.mark.parametrize("command", COMMANDS)
def test_every_page_fits_every_screen(open_page, tmp_path, command):
    path = tmp_path / "page.html"
    assert main([*COMMANDS[command], "-o", str(path), "--quiet"]) == 0
    page = open_page(path, size=(360, 640), theme="dark").page
    for size, theme in (((360, 640), "dark"), ((1440, 900), "light"), ((2560, 1440), "dark")):
        page.set_viewport_size({"width": size[0], "height": size[1]})
        page.emulate_media(color_scheme=theme)
        assert shows(
            page,
            "[innerWidth, document.documentElement.dataset.theme].join()",
            f"{size[0]},{theme}",
        )
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0]


def test_hostile_tokens_are_text(open_page, tmp_path):
    hostile = [*HOSTILE, *MORE_HOSTILE]
    hostile += [
        f"<b onclick=alert({n})>{one}" for n, one in enumerate((hostile * 3)[: 64 - len(hostile)])
    ]
    assert len(hostile) == 64
    unplaced = [replace(token, start=None, end=None) for token in tokens(hostile)]
    findings = report(text_report(unplaced, text=" ".join(hostile)), notes=["<i>note</i>"])
    path = tmp_path / "hostile.html"
    path.write_bytes(b"".join(export(findings, path)))
    page = open_page(path).page
    assert (
        page.evaluate(
            "document.querySelectorAll('img, iframe, svg, b, i, script[src], [onclick]').length"
        )
        == 0
    )
    names = page.evaluate(
        "[...document.querySelectorAll('.flow .token')].map((one) => one.textContent)"
    )
    assert names == [spell_token(one, ascii=False) for one in hostile]


KINDS = {
    **COMMANDS,
    "spans": ["run", "It rained. She went home.", "--spans", "sentences"],
    "rollout": ["run", TEXT, "--measure", "rollout"],
    "predictions": ["run", "The bank by the [MASK] was steep"],
    "effects": ["ablate", "The bank by the [MASK] was steep", "--each", "head"],
}
# keys, and what is examined then
OPENED = {"": "document", "r": "'.heads-panel'", "e": "'dialog'", ":": "'dialog'"}


def test_no_accessibility_violations(open_page, pages, tmp_path):
    axe = WEB / "node_modules" / "axe-core" / "axe.min.js"
    if not axe.is_file():
        pytest.skip("axe-core is not installed (npm ci --prefix web)")
    paths = {"long": pages["long"][0]}
    for name, command in KINDS.items():
        paths[name] = tmp_path / f"{name}.html"
        assert main([*command, "-o", str(paths[name]), "--quiet"]) == 0
    # Colours alone depend on the theme; all pages have one style, so that most take turns.
    checks = {"light": "{}", "dark": "{runOnly: ['color-contrast']}"}
    for n, (name, path) in enumerate(paths.items()):
        page = open_page(path).page
        page.evaluate(axe.read_text(encoding="utf-8"))
        # Of lists of numbers, which are all alike, a few are enough.
        page.evaluate(
            "[...document.querySelectorAll('details')].slice(2).forEach((list) => list.remove())"
        )
        page.evaluate(
            "document.querySelectorAll('details > :nth-child(n + 9)').forEach((item) => item.remove())"
        )
        for key, where in (OPENED if name == "predictions" else {"": "document"}).items():
            if key:
                page.keyboard.press(key)
                page.wait_for_timeout(50)
            for theme, rules in checks.items():
                if theme == "dark" and n % 2 and name != "predictions":
                    continue
                page.emulate_media(color_scheme=theme)
                assert shows(page, "document.documentElement.dataset.theme", theme)
                found = page.evaluate(
                    f"axe.run({where}, {rules}).then((result) => result.violations)"
                )
                problems = [
                    (one["id"], [node["html"][:200] for node in one["nodes"]]) for one in found
                ]
                assert problems == [], f"{name}, {theme}, {key}"
            page.keyboard.press("Escape")


@pytest.mark.exhaustive
@pytest.mark.parametrize("size", [(360, 640), (1280, 800), (1920, 1080)])
@pytest.mark.parametrize("name", KINDS)
def test_no_accessibility_violations_at_any_size_in_both_themes(name, size, open_page, tmp_path):
    axe = WEB / "node_modules" / "axe-core" / "axe.min.js"
    if not axe.is_file():
        pytest.skip("axe-core is not installed (npm ci --prefix web)")
    path = tmp_path / "page.html"
    assert main([*KINDS[name], "-o", str(path), "--quiet"]) == 0
    page = open_page(path, size=size).page
    page.evaluate(axe.read_text(encoding="utf-8"))
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        assert shows(page, "document.documentElement.dataset.theme", theme)
        # also with the lens, which the first chosen token opens
        for chosen in (False, True):
            token = page.locator("#panel-text .token")
            if chosen and token.count():
                token.last.click()
            found = page.evaluate("axe.run(document).then((result) => result.violations)")
            assert [
                (one["id"], [node["html"][:200] for node in one["nodes"]]) for one in found
            ] == [], (theme, chosen)


def test_a_notebook_shows_a_page_that_works(open_page, tmp_path):
    results = [
        attnscope.inspect(TEXT, layer=2, head=0),
        attnscope.compare(TEXT),
        attnscope.heads(draws=2),
    ]
    path = tmp_path / "notebook.html"
    frames = "".join(result._repr_html_() for result in results)
    path.write_text(
        f"<!doctype html><html lang=en data-ready><title>notebook</title>{frames}", encoding="utf-8"
    )
    watched = open_page(path)
    inner = watched.page.frames[1:]
    assert len(inner) == 3
    for frame in inner:
        frame.wait_for_selector("html[data-ready]", timeout=20_000)
    seen = inner[0].evaluate("document.querySelector('.matrix-panel p.cell').textContent")
    query, key = (int(part.split()[0]) for part in seen.partition(": ")[0].split(" ← "))
    assert np.float32(number(seen.rsplit(": ")[-1])) == results[0].weights[0, 0, query, key]
    assert watched.messages == []
    assert [one for one in watched.requests if not one.startswith(("file:", "about:"))] == []


def test_what_is_pointed_at_is_of_the_head_that_a_key_goes_to(open_page, pages):
    path, report, _ = pages["short"]
    page = open_page(path, "#head=L0H0&query=2&key=1&stage=weights").page
    page.hover("#panel-matrix", position={"x": 150, "y": 150})
    assert shows(
        page,
        "document.querySelector('.row-panel h2').textContent.endsWith('under the pointer')",
        True,
    )
    page.keyboard.press("]")
    assert shows(
        page,
        "document.querySelector('.row-panel h2').textContent.endsWith('under the pointer')",
        False,
    )
    # in the short page every head is exact, and those that were not asked for are in no report
    head = attnscope.inspect(report.texts[0].text, layer=0, head=1)
    titles = (
        "[...document.querySelectorAll('.row-panel [data-measure=weight]')].map((one) => one.title)"
    )
    shown = [number(title) for title in page.evaluate(titles)]
    expected = np.sort(head.weights[0, 0, 2])[::-1]
    np.testing.assert_allclose(shown, expected[: len(shown)], atol=1e-6)


def test_a_pinned_head_is_compared_by_the_command_below(open_page, pages, capsys):
    page = open_page(pages["short"][0], "#head=L2H1&query=2&key=1&stage=weights").page
    assert " run " in page.locator(".command").text_content()
    page.keyboard.press("c")
    # as long as it is chosen itself, there is nothing to compare it with
    said = "document.querySelector('.said').textContent"
    assert shows(page, f"{said}.startsWith('pinned: go to another head')", True)
    assert page.get_by_role("button", name="pinned L2H1").count() == 1
    assert " run " in page.locator(".command").text_content()
    assert page.locator(".sides, [data-sides], .moves").count() == 0
    page.keyboard.press("]")
    assert shows(page, "document.querySelector('.command').textContent.includes('compare')", True)
    command = shlex.split(page.locator(".command code").text_content())
    assert command[:2] == ["attnscope", "compare"]
    assert main([*command[1:], "--json"]) == 0
    compared = json.loads(capsys.readouterr().out)
    change = compared["changes"][0]["heads"][0]
    assert [change["first"], change["second"]] == [[2, 1], [2, 2]]
    assert change["queries"] == [[2, 2]]


def test_a_link_leads_to_the_same_cell(open_page, pages):
    path, report, _ = pages["long"]
    text, head = report.texts[0], report.texts[0].heads[0]
    address = f"#head=L{head.layer}H{head.head}&query=17&key=40&stage=masked"
    (seen,) = read_places(open_page(path, address).page, [address])
    assert seen["hash"] == address
    assert np.float32(number(seen["cell"].rsplit(": ")[-1])) == head.stages["masked"][17, 40]
    assert text.tokens[17].text in seen["cell"]


def test_a_figure_is_saved_as_svg(open_page, pages, tmp_path):
    page = open_page(pages["short"][0]).page
    page.keyboard.press("w")
    with page.expect_download() as waiting:
        page.get_by_role("button", name="the matrix as a figure (SVG)").click()
    saved = tmp_path / "figure.svg"
    waiting.value.save_as(saved)
    svg = saved.read_text(encoding="utf-8")
    assert svg.startswith("<svg xmlns")
    drawn, matrix = (
        ElementTree.fromstring(svg),
        pages["short"][1].texts[0].heads[0].stages["weights"],
    )
    spaced = "{http://www.w3.org/2000/svg}"
    cells = next(g for g in drawn.iter(f"{spaced}g") if g.get("shape-rendering"))
    assert len(cells) == matrix.size
    written = [text.text for text in drawn.iter(f"{spaced}text")]
    numbers = [float(text) for text in written if re.fullmatch(r"\d\.\d\d", text)]
    np.testing.assert_allclose(numbers, matrix.ravel(), atol=0.00501)
    assert written.count("4 river") == 2


def test_a_large_figure_is_a_picture_of_its_cells(open_page, tmp_path):
    draw, arrays, path = np.random.default_rng(0), tmp_path / "qk.npz", tmp_path / "page.html"
    np.savez(arrays, **{name: draw.standard_normal((1, 1, 140, 4), np.float32) for name in "qk"})
    assert main(["run", "--qkv", str(arrays), "-o", str(path), "--quiet"]) == 0
    page = open_page(path).page
    page.keyboard.press("w")
    with page.expect_download() as waiting:
        page.get_by_role("button", name="the matrix as a figure (SVG)").click()
    waiting.value.save_as(tmp_path / "figure.svg")
    svg = (tmp_path / "figure.svg").read_text(encoding="utf-8")
    assert len(svg) < 100_000
    picture = base64.b64decode(re.search(r'href="data:image/png;base64,([^"]*)"', svg)[1])
    assert struct.unpack(">II", picture[16:24]) == (140, 140)


def test_a_page_of_the_first_version_still_opens(open_page):
    found = sorted((Path(__file__).parent / "fixtures").glob("*.html"))
    assert found
    for path in found:
        (seen,) = read_places(open_page(path).page, ["#head=L2H0&query=1&key=4&stage=weights"])
        assert seen["cell"] == "1 bank → 4 river: 0.96797645"
        assert seen["arithmetic"] == "→ 4 riverq·k 16.94 × 0.144 = 2.45 → e^2.45 / Σ = 0.97"


def test_the_sides_of_a_comparison_are_side_by_side(open_page, tmp_path):
    page_path, exact = tmp_path / "page.html", tmp_path / "exact.json"
    for output in (page_path, exact):
        every = ["--layer", "all", "--head", "all"] if output is exact else []
        assert main(["compare", TEXT, "-o", str(output), "--quiet", *every]) == 0
    changes = json.loads(exact.read_text())["changes"][0]["heads"]
    watched = open_page(page_path, size=(360, 640))
    tops = [one.bounding_box()["y"] for one in watched.page.locator(".sides > figure").all()]
    assert tops[2] < tops[0] < tops[1]  # on a phone, what moved is above both sides
    page = open_page(page_path).page
    draw = random.Random(5)
    for change in draw.sample(changes, 8):
        query, key = draw.randrange(5), draw.randrange(5)
        read_places(
            page, [f"#head={HeadRef(*change['first'])}&query={query}&key={key}&stage=weights"]
        )
        cells = page.locator(".matrix-panel p.cell").all_text_contents()
        assert len(cells) == 3
        first, second, difference = (
            number(cell.rsplit(": ")[-1].replace("not allowed", "0")) for cell in cells
        )
        assert difference == pytest.approx(change["difference"][query][key], abs=2e-7)
        assert second - first == pytest.approx(difference, abs=2e-7)


def test_texts_of_different_lengths_are_compared_token_by_token(open_page, tmp_path):
    texts = ["The bank by the river was steep", "The bank by the old river was very steep"]
    path, exact = tmp_path / "page.html", tmp_path / "exact.json"
    for output in (path, exact):
        every = ["--layer", "all", "--head", "all"] if output is exact else []
        assert main(["compare", *texts, "-o", str(output), "--quiet", *every]) == 0
    saved = unstacked(json.loads(exact.read_text()))
    page = open_page(path).page
    # The second text's query and key, and the cell of the difference; the first text has no "very".
    places = (
        (5, 5, "4/5 river ← 4/5 river: "),
        (6, 7, "5/6 was ← –/7 –/very: "),
        (8, 1, "6/8 steep ← 1 bank: "),
    )
    for n in (0, 6, 15):
        change, second = (
            saved["changes"][0]["heads"][n],
            saved["sides"][1]["report"]["texts"][0]["heads"][n],
        )
        for query, key, name in places:
            read_places(
                page,
                [f"#mask=1&head={HeadRef(*change['first'])}&query={query}&key={key}&stage=weights"],
            )
            cells = page.locator(".matrix-panel p.cell").all_text_contents()
            row = [pair[1] for pair in change["queries"]].index(query)
            # of a token that the first text lacks, all has moved
            expected = second["stages"]["weights"][query][key]
            if key != 7:
                expected = change["difference"][row][
                    [pair[1] for pair in change["keys"]].index(key)
                ]
            assert cells[2].startswith(name)
            assert number(cells[2].removeprefix(name)) == pytest.approx(expected, abs=2e-7)
    page.keyboard.press("m")  # the same tokens of the first text
    assert shows(
        page, "location.hash", f"#head={HeadRef(*change['first'])}&query=6&key=1&stage=weights"
    )
    # in the second text, from its steep and bank
    page.locator(".matrix-panel canvas").nth(1).press("ArrowLeft")
    assert shows(
        page,
        "location.hash",
        f"#mask=1&head={HeadRef(*change['first'])}&query=8&key=0&stage=weights",
    )


def test_a_row_is_explained_step_by_step(open_page, pages):
    path, _, summary = pages["short"]
    head = next(head for head in summary.texts[0].heads if (head.layer, head.head) == (3, 0))
    page = open_page(path, "#head=L3H0&query=4&stage=weights").page
    page.keyboard.press("e")
    assert shows(
        page, "document.querySelectorAll('dialog tbody tr').length", len(summary.texts[0].tokens)
    )
    cells = "(row) => [...row.cells].slice(1).map((cell) => cell.textContent)"
    rows = page.evaluate(f"[...document.querySelectorAll('dialog tbody tr')].map({cells})")
    masked = head.stages["masked"][4].astype(np.float64)
    powers = np.exp(masked - masked.max())
    columns = [
        head.stages["scores"][4],
        head.stages["scaled"][4],
        masked,
        powers,
        powers / powers.sum(),
    ]
    for n, row in zip(np.argsort(-powers, kind="stable"), rows, strict=True):  # the strongest first
        for cell, column in zip(row[: len(columns)], columns, strict=True):
            assert number(cell) == pytest.approx(column[n], abs=0.6e-4), (n, row)
    total = page.evaluate("document.querySelector('[data-sum]').textContent")
    assert number(total) == pytest.approx(powers.sum(), rel=1e-4)


def test_a_saved_page_is_the_page(open_page, pages, tmp_path):
    path, saved = pages["short"][0], tmp_path / "saved.html"
    page = open_page(path).page
    page.keyboard.press("w")
    with page.expect_download() as waiting:
        page.get_by_role("button", name="this page").click()
    waiting.value.save_as(saved)
    assert read_page(saved).header == read_page(path).header
    places = ["#head=L2H0&query=1&key=4&stage=weights"]
    assert read_places(open_page(saved).page, places) == read_places(page, places)


def test_a_printed_page_is_light_and_has_no_controls(open_page, pages):
    page = open_page(pages["short"][0], theme="dark").page
    screen = "getComputedStyle(document.querySelector('{}')).{}"
    assert page.evaluate(screen.format("body", "color")) == "rgb(230, 234, 240)"
    page.emulate_media(media="print")
    assert page.evaluate(screen.format(".controls", "display")) == "none"
    assert page.evaluate(screen.format("body", "backgroundColor")) == "rgb(255, 255, 255)"
    assert page.evaluate(screen.format("body", "color")) == "rgb(28, 36, 48)"
    # a browser leaves out backgrounds otherwise
    for painted in (".meter span", ".ramp .stops", ".token.query"):
        assert page.evaluate(screen.format(painted, "printColorAdjust")) == "exact"


def test_the_row_shows_the_cell_under_the_pointer(open_page, pages):
    page = open_page(pages["short"][0], "#head=L3H0&query=0&key=0").page
    seen = set()
    for x, y in ((0.5, 0.4), (0.7, 0.4), (0.7, 0.8)):
        box = page.locator("#panel-matrix").bounding_box()
        page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])
        assert shows(
            page,
            "document.querySelector('.row-panel h2').textContent.endsWith('under the pointer')",
            True,
        )
        query, _, key = (
            page.locator(".matrix-panel p.cell").text_content().partition(": ")[0].partition(" ← ")
        )
        assert page.locator(".row-panel h2").text_content().startswith(query)
        assert page.locator("[data-arithmetic]").text_content().startswith(f"← {key}q·k")
        seen.add((query, key))
    assert len(seen) == 3


def test_pointing_at_a_side_shows_that_side_and_marks_the_cell_on_all(open_page, tmp_path):
    path, sides = tmp_path / "page.html", {}
    assert (
        main(["compare", SHORT, "--layer", "all", "--head", "all", "-o", str(path), "--quiet"]) == 0
    )
    for mask in ("causal", "bidirectional"):
        arrays = tmp_path / f"{mask}.npz"
        every = ["--layer", "all", "--head", "all", "--stage", "weights", "--mask", mask]
        assert main(["run", SHORT, *every, "-o", str(arrays), "--quiet"]) == 0
        sides[mask] = np.load(arrays)["weights"]
    page = open_page(path, "#head=L3H0&query=0&key=0", size=(1280, 800)).page
    for number_of_side, mask in enumerate([*sides, "difference"]):
        picture = page.locator(".matrix-panel canvas").nth(number_of_side)
        picture.scroll_into_view_if_needed()
        picture.hover(position=middle_of_cell(picture, 6 + number_of_side, 4 - number_of_side))
        captions = page.locator(".matrix-panel p.cell").all_text_contents()
        cells = [caption.rpartition(": ") for caption in captions]
        assert len({cell for cell, _, _ in cells}) == 1, captions
        query, key = (int(name.split()[0]) for name in cells[0][0].split(" ← "))
        assert (query, key) != (0, 0)
        causal, bidirectional = (float(weights[3, 0, query, key]) for weights in sides.values())
        assert np.float32(number(cells[0][2])) == np.float32(causal)
        assert np.float32(number(cells[1][2])) == np.float32(bidirectional)
        shown_side = "bidirectional" if mask == "difference" else mask
        assert shown_side in page.locator(".row-panel h2").text_content()
        arithmetic_text = page.locator("[data-arithmetic]").text_content()
        assert arithmetic_text.endswith(
            f"= {weight_text(float(sides[shown_side][3, 0, query, key]))}"
        ) or (arithmetic_text.endswith("weight 0") and causal == 0)
        words = page.locator("[data-sides]").text_content().split()
        assert [words[0], words[2], words[3]] == ["causal", "→", "bidirectional"]
        assert number(words[1]) == pytest.approx(causal, rel=6e-3, abs=6e-4)
        assert number(words[4]) == pytest.approx(bidirectional, rel=6e-3, abs=6e-4)
        assert number(words[5]) == pytest.approx(bidirectional - causal, rel=6e-2, abs=6e-3)


PIXEL = """([row, column]) => {
  const canvas = document.getElementById("panel-matrix");
  const [left, top, size] = canvas.dataset.cells.split(" ").map(Number);
  const [x, y] = [left + (column + 0.12) * size, top + (row + 0.12) * size];
  return [...canvas.getContext("2d").getImageData(Math.round(x), Math.round(y), 1, 1).data.slice(0, 3)];
}"""


def test_a_page_begins_at_the_mask_or_the_last_token_and_says_what_to_do(open_page, tmp_path):
    texts = {
        "The bank by the [MASK] was the end": 4,
        "The bank by the river": 4,
        "She sat by the river , and read .": 8,
    }
    for text, position in texts.items():
        path = tmp_path / "page.html"
        assert main(["run", text, "-o", str(path), "--quiet", "--force"]) == 0
        page = open_page(path).page
        assert page.evaluate("new URLSearchParams(location.hash.slice(1)).get('query')") == str(
            position
        )
        said = page.locator(".said-of")
        assert said.text_content().startswith("Point at a word")
        page.locator(".flow .token").nth(1).click()
        assert said.text_content().startswith(f"{text.split()[1]} reads: ")
        assert page.locator(".text-panel").bounding_box()["y"] < 100


def test_everything_is_on_one_screen(open_page, pages):
    for size in ((1280, 800), (1920, 1080)):
        page = open_page(pages["short"][0], "#head=L2H0&query=4&key=1", size=size).page
        for panel in (
            ".text-panel",
            ".heads-panel",
            ".matrix-panel",
            ".aside",
            "#panel-matrix",
            "#panel-heads",
            ".lens",
        ):
            box = page.locator(panel).bounding_box()
            assert box["y"] >= 0, panel
            assert box["y"] + box["height"] <= size[1], panel


def test_who_reads_a_token_is_its_column(open_page, pages):
    path, _, summary = pages["short"]
    weights = next(h for h in summary.texts[0].heads if (h.layer, h.head) == (1, 2)).stages[
        "weights"
    ]
    page = open_page(path, "#head=L1H2&query=3&key=4&stage=weights").page
    tokens = SHORT.split()
    directions = page.get_by_role("group", name="Direction").get_by_role("button")
    said = [f"what {tokens[3]} reads", f"who reads {tokens[4]}"]
    assert directions.all_text_contents() == said
    directions.nth(1).click()
    page.locator(".flow .token").nth(5).click()
    shown = page.evaluate(
        "[...document.querySelectorAll('[data-reader]')].map((one) => [one.dataset.reader, one.textContent])"
    )
    strongest = np.argsort(-weights[:, 5], kind="stable")[:8]
    assert [int(query) for query, _ in shown] == strongest.tolist()
    assert [number(weight) for _, weight in shown] == pytest.approx(
        weights[strongest, 5].tolist(), abs=5.1e-3
    )
    reader = next(query for query in strongest if query != 5)
    assert page.evaluate("location.hash") == f"#head=L1H2&query={reader}&key=5&stage=weights"
    page.locator("#panel-matrix").click(
        position={"x": 12, "y": page.locator("#panel-matrix").bounding_box()["height"] - 8}
    )
    assert shows(
        page, "location.hash", f"#head=L1H2&query={len(weights) - 1}&stage=weights"
    )  # the label of the last row


def test_colours_are_those_of_the_declaration(open_page, pages):
    path, report, _ = pages["short"]
    (head,) = report.texts[0].heads
    place = f"#head=L{head.layer}H{head.head}&query=0&key=0&stage="
    cells = [(1, 4), (3, 2), (5, 9), (7, 3), (9, 6), (10, 1)]
    weights, scores = head.stages["weights"], head.stages["scores"]
    largest = float(np.abs(scores).max())
    for theme, surface in (("light", LIGHT), ("dark", DARK)):
        page = open_page(path, f"{place}weights", theme=theme).page
        for shape in SHAPES:
            for row, column in cells:
                expected = surface.colour(
                    Scale(0.0, 1.0, False, shape).place(weights[row, column]), signed=False
                )
                np.testing.assert_allclose(
                    page.evaluate(PIXEL, [row, column]), expected, atol=2, err_msg=shape
                )
            page.keyboard.press("L")
        page.evaluate(f"location.hash = '{place}scores'")
        assert shows(
            page, "document.querySelector('.matrix-panel figcaption .dim').textContent", "scores"
        )
        for row, column in cells:
            expected = surface.colour(
                Scale(-largest, largest, True).place(scores[row, column]), signed=True
            )
            np.testing.assert_allclose(
                page.evaluate(PIXEL, [row, column]), expected, atol=3, err_msg="scores"
            )
        page.evaluate(f"location.hash = '{place}weights'")
        page.keyboard.press("z")
        elsewhere = np.delete(weights, 0, axis=1).max()
        row, column = np.unravel_index(
            np.argsort(weights[:, 1:].ravel())[-3], (len(weights), weights.shape[1] - 1)
        )
        expected = surface.colour(
            Scale(0.0, elsewhere, False, "sqrt").place(weights[row, column + 1]), signed=False
        )
        assert shows(
            page, "document.querySelector('.said').textContent", "sinks are out of the scale"
        )
        np.testing.assert_allclose(
            page.evaluate(PIXEL, [int(row), int(column) + 1]), expected, atol=2
        )


def test_forbidden_cells_are_hatched_and_zero_is_the_background(open_page, tmp_path):
    path = tmp_path / "page.html"
    assert main(["run", SHORT, "--mask", "causal", "-o", str(path), "--quiet"]) == 0
    page = open_page(path, "#head=L2H0&query=3&key=1&stage=weights").page
    colours = """([row, column]) => {
      const canvas = document.getElementById("panel-matrix");
      const [left, top, wide, high] = canvas.dataset.cells.split(" ").map(Number);
      const { data } = canvas.getContext("2d").getImageData(left + column * wide + 2, top + row * high + 2, 14, 14);
      return [...new Set(Array.from({ length: data.length / 4 }, (_, n) => data.slice(4 * n, 4 * n + 3).join()))];
    }"""
    assert len(page.evaluate(colours, [2, 8])) > 1
    page.evaluate("location.hash = '#head=L2H0&query=3&key=1&stage=scores'")
    assert shows(
        page, "document.querySelector('.matrix-panel figcaption .dim').textContent", "scores"
    )
    page.keyboard.press("d")  # scores of forbidden cells are numbers as all others are
    assert len(page.evaluate(colours, [2, 8])) == 1
    page.evaluate("location.hash = '#head=L2H0&query=2&key=8&stage=weights'")
    assert shows(
        page,
        "document.querySelector('.matrix-panel p.cell').textContent",
        "2 by ← 8 so: not allowed",
    )
    draw, arrays = np.random.default_rng(0), tmp_path / "qk.npz"
    np.savez(arrays, **{name: draw.standard_normal((1, 1, 1100, 4), np.float32) for name in "qk"})
    command = ["run", "--qkv", str(arrays), "--mask", "causal"]
    assert main([*command, "-o", str(path), "--quiet", "--force"]) == 0
    page = open_page(path, "#head=L0H0&query=1000&key=1").page
    assert len(page.evaluate(colours, [10, 40])) > 1  # of a map, runs that are forbidden altogether


def test_the_lens_shows_a_cell_in_every_head(open_page, pages):
    for name, cells in (("short", [(4, 1), (10, 3)]), ("long", [(41, 40), (90, 64)])):
        path, report, summary = pages[name]
        page = open_page(path).page
        assert page.evaluate(SHOWS) == "thumbnails"
        (named,) = report.texts[0].heads
        for query, key in cells:
            page.evaluate(f"location.hash = '#head=L1H1&query={query}&key={key}&stage=weights'")
            assert shows(page, SHOWS, "lens")
            exact = {(h.layer, h.head): known_weight(h, query, key) for h in summary.texts[0].heads}
            exact[named.layer, named.head] = float(named.stages["weights"][query, key])
            known = {place: weight for place, weight in exact.items() if weight is not None}
            listed = page.evaluate(LISTED)
            strongest = sorted(known, key=known.get, reverse=True)[:9]
            assert len(listed) == len([place for place in strongest if known[place] > 0])
            for (head, weight), place in zip(listed, strongest, strict=False):
                assert number(weight) == pytest.approx(known[place], abs=5.6e-3), (name, place)
                found = tuple(int(part) for part in head[1:].split("H"))
                assert known[found] == pytest.approx(known[place], abs=1.1e-3)
            picture = page.locator("#panel-heads")
            for layer, head in ((0, 0), (2, 1), (3, 3)):
                picture.hover(position=middle_of_cell(picture, layer, head))
                said = page.locator(".heads-panel p.cell").text_content()
                assert said.startswith(f"L{layer}H{head}: {query} ")
                if known.get((layer, head)) is None:
                    assert "at most" in said
                else:
                    assert number(said.split()[-1]) == pytest.approx(
                        known[layer, head], rel=0.06, abs=5.1e-3
                    )
        page.keyboard.press("a")
        assert shows(page, "document.activeElement.id", "lens-first")
        page.keyboard.press("2")
        assert shows(page, "document.querySelector('#where').textContent", listed[1][0])
        # the row: no sink, not itself
        page.evaluate(f"location.hash = '#head=L1H1&query={cells[0][0]}&stage=weights'")
        assert shows(
            page,
            "document.querySelector('.heads-panel h2').textContent.endsWith(' reads most')",
            True,
        )
        if name == "short":
            row = cells[0][0]
            others = [key for key in range(len(summary.texts[0].tokens)) if key not in (0, row)]
            strongest = {
                f"L{h.layer}H{h.head}": float(h.stages["weights"][row, others].max())
                for h in summary.texts[0].heads
            }
            listed = page.evaluate(LISTED)
            assert [number(weight) for _, weight in listed] == pytest.approx(
                sorted(strongest.values(), reverse=True)[:9], abs=5.1e-3
            )
            assert all(
                number(weight) == pytest.approx(strongest[head], abs=5.1e-3)
                for head, weight in listed
            )


SHOWS = "document.querySelector('.heads-panel select').value"
LISTED = "[...document.querySelectorAll('[data-lens]')].map((one) => [one.dataset.lens, one.textContent])"


def known_weight(head, query, key):
    """The weight of a cell of a summary; None if it is not among the listed sources."""
    if "weights" in head.stages:
        return float(head.stages["weights"][query, key])
    ranks = np.flatnonzero(head.top.keys[query] == key)
    return float(head.top.weight[query, ranks[0]]) if ranks.size else None


GRIDS = [(30, 9), (12, 12), (4, 4), (2, 40), (48, 2), (1, 1), (80, 64)]


def test_no_grid_of_heads_is_cropped(open_page, tmp_path):
    draw = np.random.default_rng(1)
    for layers, heads in GRIDS:
        arrays, path = tmp_path / "qk.npz", tmp_path / f"{layers}x{heads}.html"
        np.savez(
            arrays,
            **{name: draw.standard_normal((layers, heads, 4, 2), np.float32) for name in "qk"},
        )
        assert main(["run", "--qkv", str(arrays), "-o", str(path), "--quiet", "--force"]) == 0
        page = open_page(path).page
        for width, height in ((360, 640), (1280, 800), (1920, 1080), (2560, 1440), (1100, 500)):
            page.set_viewport_size({"width": width, "height": height})
            for display in ("thumbnails", "entropy"):
                page.evaluate(f"location.hash = '#head=L0H0&query=1&show={display}'")
                picture = page.locator("#panel-heads")
                picture.scroll_into_view_if_needed()
                size = picture.bounding_box()
                last = {"x": size["width"] - 1.5, "y": size["height"] - 1.5}
                picture.hover(position=last)  # what is said of the head may move the picture a bit
                picture.click(position=last)
                where = f"{layers} × {heads} at {width} × {height}, {display}"
                assert shows(
                    page,
                    "document.querySelector('#where').textContent",
                    f"L{layers - 1}H{heads - 1}",
                ), where
                assert page.locator(".heads-panel .zoom .dim").count() == 0, where


def test_the_query_is_in_sight_in_a_long_text(open_page, pages):
    page = open_page(pages["long"][0], "#head=L3H0&query=90").page
    inside = """(() => ["text", "lines"].map((name) => {
      const panel = document.getElementById(`panel-${name}`);
      const query = panel?.querySelector(".query").getBoundingClientRect();
      const { top, bottom, height } = panel?.getBoundingClientRect() ?? {};
      return query && height < 700 && query.top >= top && query.bottom <= bottom;
    }).join())()"""
    assert shows(page, inside, "true,")
    page.get_by_role("button", name="lines").click()
    assert shows(page, inside, "true,true")
    page.evaluate("location.hash = '#head=L3H0&query=3'")
    assert shows(page, inside, "true,true")


DRAWN = """
window.drawn = [];
const write = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
  if (this.canvas.id === "panel-matrix" && this.getTransform().b === 0)
    window.drawn.push([text, x, y, this.measureText(text).width, this.textAlign]);
  return write.call(this, text, x, y);
};
"""


def test_labels_are_whole_and_apart(open_page, pages, tmp_path):
    draw, arrays, given = np.random.default_rng(0), tmp_path / "qk.npz", tmp_path / "map.html"
    np.savez(
        arrays,
        q=draw.standard_normal((1, 1, 2100, 4), np.float32),
        k=draw.standard_normal((1, 1, 2100, 4), np.float32),
    )
    assert main(["run", "--qkv", str(arrays), "-o", str(given), "--quiet"]) == 0
    long = pages["long"][0]
    for size, path, query in (
        ((360, 640), long, 41),
        ((1280, 800), long, 41),
        ((360, 640), given, 700),
    ):
        page = open_page(path, size=size).page
        page.evaluate(DRAWN + f"location.hash = '#query={query}&key=16'")
        assert shows(page, "window.drawn.length > 4", True)
        width = page.evaluate("document.getElementById('panel-matrix').clientWidth")
        drawn = page.evaluate("window.drawn.splice(0)")
        assert not any("…" in text for text, *_ in drawn)
        columns = sorted(
            (x - w / 2, x + w / 2)
            for _, x, y, w, align in set(map(tuple, drawn))
            if align == "center"
        )
        rows = sorted(
            (y, x - w) for _, x, y, w, align in set(map(tuple, drawn)) if align == "right"
        )
        assert len(columns) > 2 < len(rows)
        assert columns[0][0] >= 0 and columns[-1][1] <= width
        assert all(right <= left for (_, right), (left, _) in itertools.pairwise(columns))
        assert all(start >= 0 for _, start in rows)
        assert all(below - above >= 11 for (above, _), (below, _) in itertools.pairwise(rows))


def test_a_row_that_is_not_listed_names_the_nearest_that_is(open_page, tmp_path, monkeypatch):
    # so that of 120 rows, every fourth is listed
    monkeypatch.setattr("attnscope.run.summary_plan._ROWS", 16 * 30)
    path = tmp_path / "page.html"
    assert main(["run", "the river ran past the bank " * 20, "-o", str(path), "--quiet"]) == 0
    (scene,) = read_page(path).of_kind("walk")[0]["scenes"]
    rows = next(group["rows"] for group in scene["groups"] if [3, 3] in group["units"])
    query = next(row for row in range(50, 60) if row not in rows and row - 1 not in rows)
    page = open_page(path, f"#head=L3H3&query={query}").page
    page.locator(".row-panel p.dim button").click()
    assert shows(page, "document.querySelectorAll('.row-panel tbody tr').length > 0", True)
    shown = int(page.evaluate("new URLSearchParams(location.hash.slice(1)).get('query')"))
    assert shown in rows
    assert abs(shown - query) == min(abs(row - query) for row in rows)
