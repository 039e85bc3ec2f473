"""Pages in a real browser: opened from disk without a network, every number read back."""

import csv
import io
import json
import random
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from attnscope.cli import main
from attnscope.findings.row_statistics import STATISTICS
from attnscope.request.run_config import RunConfig, TextInput
from attnscope.request.selection import PAGE, WALKED
from attnscope.run.session import inspect_every_head
from attnscope.studies.explore.saved import report_source
from attnscope.studies.formats import export
from attnscope.views.spans import token_span
from attnscope.views.spelling import spell_token
from attnscope.views.walk.cell import arithmetic, cell_numbers
from attnscope.views.walk.scene import Variant
from tests.helpers.sample_reports import HOSTILE, report, text_report, tokens
from tests.page.test_page import COMMANDS, TEXT
from tests.page.walking import number, read_places

WEB = Path(__file__).parent.parent.parent / "web"
SHORT = "The bank by the river was steep , so they walked"
LONG = " ".join(["the river ran past an old bank while committees argued about money and water"] * 8)
CASES = 100  # of each page: 200 in all
DECIMALS = {"weight": 3, "distance": 1}
MORE_HOSTILE = [
    *("</script>", "<img src=x onerror=alert(1)>", "javascript:alert(1)", "&lt;b&gt;", "${alert(1)}", "]]>", "<!--"),
    *("'\"><svg onload=alert(1)>", "\u2066x\u2069", "🏳️‍🌈", "a" * 300, "__proto__", "constructor", "%00", "\ufeff"),
    "=1+1",
]


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Two pages and every number of the model: all heads exact, and all but one in summary."""
    folder, found = tmp_path_factory.mktemp("pages"), {}
    for name, text in (("short", SHORT), ("long", LONG)):
        path = folder / f"{name}.html"
        assert main(["run", text, "-o", str(path), "--quiet"]) == 0
        run = RunConfig((TextInput(text),), model="riverbank", window=PAGE, stages=WALKED, predict=None)
        found[name] = path, *inspect_every_head(run)
    return found


def heads_of(report, summary):
    """Every head, and those that the page was asked for."""
    named = {(head.layer, head.head): head for head in report.texts[0].heads}
    return {(head.layer, head.head): head for head in summary.texts[0].heads}, named


def drawn(report, summary, seed):
    """Random cells, half of them of the head that the page was asked for: the head in summary, and as it was asked."""
    draw, (heads, named) = random.Random(seed), heads_of(report, summary)
    size = len(report.texts[0].queries)
    for n in range(CASES):
        place = draw.choice(sorted(named if n % 2 else heads))
        stage = draw.choice(["scores", "scaled", "masked", "weights"])
        yield heads[place], named.get(place, heads[place]), draw.randrange(size), draw.randrange(size), stage


@pytest.mark.parametrize("name", ["short", "long"])
def test_numbers_of_random_cells_are_those_of_the_report(open_page, pages, name):
    path, report, summary = pages[name]
    text = report.texts[0]
    names = [spell_token(token_span(text.tokens, n).text, ascii=False) for n in range(len(text.tokens))]
    cases = list(drawn(report, summary, 7))
    addresses = [f"#head=L{h.layer}H{h.head}&query={q}&key={k}&stage={s}" for h, _, q, k, s in cases]
    watched = open_page(path)
    shown = read_places(watched.page, addresses)
    for (head, named, query, key, stage), seen in zip(cases, shown, strict=True):
        where = f"{name} L{head.layer}H{head.head} {query} {key} {stage}"
        matrix = named.stages.get(stage)
        exact = matrix is not None
        assert seen["head"] == f"L{head.layer}H{head.head}", where
        assert (seen["badge"] == "exact float32") == exact, where
        if exact:
            assert seen["cell"].startswith(f"{query} {names[query]} → {key} {names[key]}: "), where
            assert np.float32(number(seen["cell"].rsplit(": ")[-1])) == matrix[query, key], where
        weights = head.top.weight[query]
        assert len(seen["sources"]) == len(weights), where
        for rank, row in enumerate(seen["sources"]):
            source = int(head.top.keys[query, rank])
            if exact:  # of equal rounded weights, the order is that of the exact ones
                assert row["source"] == f"{source} {names[source]}", where
            for measure, (written, digits) in row["measures"].items():
                value = float(getattr(head.top, measure)[query, rank])
                if exact:
                    assert np.float32(number(digits)) == np.float32(value), where
                if measure == "weight":
                    assert number(written) == pytest.approx(value, abs=0.5001e-3), where
        listed = weights.astype(np.float64) if exact else np.round(weights.astype(np.float64), 3)
        assert number(seen["rest"]) == pytest.approx(max(0.0, 1 - listed.sum()), abs=0.501e-3), where
        for statistic, (written, digits) in seen["statistics"].items():
            value = float(getattr(named.rows, statistic)[query])
            assert number(written) == pytest.approx(value, abs=0.501 * 10.0 ** -DECIMALS.get(statistic, 2)), where
            if exact:
                assert np.float32(number(digits)) == np.float32(value), where
        assert {"entropy", "first", "self", "other", "distance"} <= set(seen["statistics"]) <= set(STATISTICS), where


def test_every_cell_of_every_stage_is_exact(open_page, pages):
    path, report, _ = pages["long"]
    (head,) = report.texts[0].heads
    watched = open_page(path)
    for stage, matrix in head.stages.items():
        watched.page.evaluate(f"location.hash = '#head=L{head.layer}H{head.head}&query=0&stage={stage}'")
        watched.page.get_by_role("button", name="copy", exact=True).click()
        watched.page.get_by_role("button", name="matrix as CSV").click()
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
    cases = [(draw.randrange(4), draw.randrange(4), draw.randrange(count), draw.randrange(count)) for _ in range(40)]
    addresses = [f"#head=L{layer}H{h}&query={q}&key={k}" for layer, h, q, k in cases]
    shown = read_places(open_page(path).page, addresses)
    for (layer, h, query, key), seen in zip(cases, shown, strict=True):
        head = source.head(Variant(), layer, h)
        assert seen["arithmetic"].endswith(arithmetic(head, cell_numbers(scene, head, query, key)))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_page_fits_every_screen(open_page, tmp_path, command):
    path = tmp_path / "page.html"
    assert main([*COMMANDS[command], "-o", str(path), "--quiet"]) == 0
    for size, theme in (((360, 640), "dark"), ((1440, 900), "light"), ((2560, 1440), "dark")):
        watched = open_page(path, size=size, theme=theme)
        assert watched.page.evaluate("document.documentElement.scrollWidth") <= size[0]
        assert watched.page.evaluate("document.documentElement.dataset.theme") == theme


def test_hostile_tokens_are_text(open_page, tmp_path):
    hostile = [*HOSTILE, *MORE_HOSTILE]
    hostile += [f"<b onclick=alert({n})>{one}" for n, one in enumerate((hostile * 3)[: 64 - len(hostile)])]
    assert len(hostile) == 64
    unplaced = [replace(token, start=None, end=None) for token in tokens(hostile)]
    findings = report(text_report(unplaced, text=" ".join(hostile)), notes=["<i>note</i>"])
    path = tmp_path / "hostile.html"
    path.write_bytes(b"".join(export(findings, path)))
    page = open_page(path).page
    assert page.evaluate("document.querySelectorAll('img, iframe, svg, b, i, script[src], [onclick]').length") == 0
    names = page.evaluate("[...document.querySelectorAll('.flow .token')].map((one) => one.textContent)")
    assert names == [spell_token(one, ascii=False) for one in hostile]


def test_keys_alone_reach_everything(open_page, pages):
    path, report, _ = pages["short"]
    text = report.texts[0]
    watched = open_page(path, "#head=L0H0&query=0&key=0&stage=scores")
    page, press = watched.page, watched.page.keyboard.press

    def place():
        return dict(part.split("=") for part in page.evaluate("location.hash")[1:].split("&"))

    for keys, expected in (
        ("]", {"head": "L0H1"}),
        ("}", {"head": "L1H1"}),
        ("j", {"query": "1"}),
        ("ArrowRight", {"key": "1"}),
        ("s", {"stage": "scaled"}),
        ("S", {"stage": "scores"}),
        ("G", {"query": str(len(text.tokens) - 1)}),
        ("v", {"show": "entropy"}),
        ("c", {"pin": "L1H1%2C0"}),
        ("[", {"head": "L1H0"}),
    ):
        press(keys)
        page.wait_for_timeout(150)
        assert place() | expected == place(), keys
    press("Space")  # the strongest source of the row
    page.wait_for_timeout(150)
    assert "key" not in place()
    press("1")
    assert page.evaluate("document.activeElement.id") == "panel-heads"
    press("ArrowDown")
    page.wait_for_timeout(150)
    assert place()["head"] == "L2H0"
    press("Enter")
    assert page.evaluate("document.activeElement.id") == "panel-matrix"
    press("/")
    page.keyboard.type("river")
    press("Enter")
    page.wait_for_timeout(150)
    assert place()["query"] == "4"
    press("?")
    page.wait_for_selector("dialog[open]", timeout=5000)
    press("Escape")
    page.wait_for_timeout(150)
    assert page.locator("dialog").count() == 0
    reached = set()
    for _ in range(60):
        press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.textContent"))
    assert {"panel-heads", "panel-matrix", "panel-text", "copy", "keys", "weights", "lines"} <= reached
    assert watched.messages == []


def test_no_accessibility_violations(open_page, pages):
    axe = WEB / "node_modules" / "axe-core" / "axe.min.js"
    if not axe.is_file():
        pytest.skip("axe-core is not installed (npm ci --prefix web)")
    for name in ("short", "long"):
        for theme in ("light", "dark"):
            page = open_page(pages[name][0], theme=theme).page
            page.evaluate(axe.read_text(encoding="utf-8"))
            found = page.evaluate("axe.run().then((result) => result.violations)")
            assert [(one["id"], [node["html"][:200] for node in one["nodes"]]) for one in found] == []


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
    page.get_by_role("button", name="copy", exact=True).click()
    with page.expect_download() as waiting:
        page.get_by_role("button", name="save the matrix as a figure (SVG)").click()
    saved = tmp_path / "figure.svg"
    waiting.value.save_as(saved)
    svg = saved.read_text(encoding="utf-8")
    assert svg.startswith("<svg xmlns")
    assert svg.count("<rect") >= len(pages["short"][1].texts[0].tokens) ** 2
    assert "river" in svg
    assert json.dumps(svg)


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
    page = open_page(page_path).page
    draw = random.Random(5)
    for change in draw.sample(changes, 8):
        query, key = draw.randrange(5), draw.randrange(5)
        read_places(page, [f"#head={change['first']}&query={query}&key={key}&stage=weights"])
        cells = page.locator(".matrix-panel p.cell").all_text_contents()
        assert len(cells) == 3
        first, second, difference = (number(cell.rsplit(": ")[-1]) for cell in cells)
        assert difference == pytest.approx(change["difference"][query][key], abs=2e-7)
        assert second - first == pytest.approx(difference, abs=2e-7)
