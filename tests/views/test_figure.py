"""The figure of findings: every number and colour in it is read back from the SVG and held against the findings."""

import re
import sys
from pathlib import Path
from time import perf_counter
from xml.etree import ElementTree

import numpy as np
import pytest

from attnscope.base.errors import AttnscopeError
from attnscope.findings.compare import Side
from attnscope.findings.head_roles import OF_PARTS, ROLES
from attnscope.findings.heads import STAGES
from attnscope.studies import formats
from attnscope.studies.compare.reports import compare_sides
from attnscope.studies.registry import present
from attnscope.views import figure as drawing
from attnscope.views import parts
from attnscope.views.figure import canvas, labels
from attnscope.views.spans import Span, ours
from tests.helpers.sample_explanations import explanation
from tests.helpers.sample_overviews import overview
from tests.helpers.sample_reports import HOSTILE, bank, causal, report, text_report, tokens, words
from tests.helpers.sample_surveys import measured, survey
from tests.helpers.screens import read_number

SVG = "{http://www.w3.org/2000/svg}"
BLUES = "ffffff deebf7 c6dbef 9ecae1 6baed6 4292c6 2171b5 08519c 08306b"
ORANGE_BLUE = "7f2704 a63603 d94801 f16913 fd8d3c fdae6b fdd0a2 feedde " + BLUES
HATCHED = "hatched"


def figure(findings, **options):
    return b"".join(formats.export(findings, Path("x.svg"), **options))


def parsed(findings, **options):
    return ElementTree.fromstring(figure(findings, **options))


def texts(root):
    return ["".join(element.itertext()) for element in root.iter(f"{SVG}text")]


def lines(root, **around):
    """The attributes of every line of text, also those of the groups that it is in, and its text."""
    for element in root:
        if element.tag == f"{SVG}text":
            yield around | element.attrib, "".join(element.itertext())
        elif element.tag == f"{SVG}g":
            yield from lines(element, **(around | element.attrib))


def runs(path):
    """The rectangles of a path: x, y, width and height."""
    for x, y, length, back in re.findall(r"M(\d+) (\d+)h(\d+)v1h-(\d+)", path):
        assert length == back
        yield int(x), int(y), int(length), 1


def grids(root):
    """The colours of every matrix, by row and column, however its cells are drawn."""
    found = []
    for parent, group in ((element, child) for element in root.iter() for child in element):
        if "crispEdges" not in group.get("shape-rendering", ""):
            continue
        cells = {}
        for element in group:
            if element.tag == f"{SVG}rect":
                x, y = int(element.get("x", 0)), int(element.get("y", 0))
                boxes = [(x, y, int(element.get("width")), int(element.get("height")))]
            else:
                boxes = list(runs(element.get("d")))
            for x, y, width, height in boxes:
                cells |= {
                    (r, c): element.get("fill")
                    for r in range(y, y + height)
                    for c in range(x, x + width)
                }
        rows, columns = (1 + max(place[n] for place in cells) for n in (0, 1))
        cells |= dict.fromkeys(hatched_cells(group, list(parent)), HATCHED)
        found.append([[cells[r, c] for c in range(columns)] for r in range(rows)])
    return found


def hatched_cells(group, siblings):
    """The row and column of cells with lines over them, which are drawn behind their matrix."""
    following = siblings[siblings.index(group) + 1 :][:1]
    if not following or following[0].get("fill") != "url(#attnscope-hatched)":
        return
    left, top, across, down = map(float, re.findall(r"[\d.]+", group.get("transform")))
    for x, y, length, height, back in re.findall(
        r"M([\d.]+) ([\d.]+)h([\d.]+)v([\d.]+)h-([\d.]+)z", following[0].get("d")
    ):
        assert (length, float(height)) == (back, pytest.approx(down, abs=0.06))
        first = round((float(x) - left) / across)
        row = round((float(y) - top) / down)
        yield from ((row, first + n) for n in range(round(float(length) / across)))


def places(colour, ramp):
    """Where on a ramp a colour is, from 0 to 1."""
    stops = np.array([list(bytes.fromhex(stop)) for stop in ramp.split()])
    fine = np.linspace(0, 1, 2001)
    shades = np.stack(
        [np.interp(fine, np.linspace(0, 1, len(stops)), channel) for channel in stops.T], axis=1
    )
    return fine[np.abs(shades - list(bytes.fromhex(colour[1:]))).sum(1).argmin()]


@pytest.mark.parametrize("n", [5, 20], ids=["rectangles", "paths"])
@pytest.mark.parametrize("allowed", [None, causal])
def test_colours_are_the_numbers(n, allowed):
    text = text_report(tokens(words(n)), stages=("scores", "masked", "weights"), allowed=allowed)
    shown = grids(parsed(report(text)))
    assert len(shown) == 3
    for (name, matrix), grid in zip(text.heads[0].stages.items(), shown, strict=True):
        finite = matrix[np.isfinite(matrix)]
        largest = np.abs(finite).max()
        assert (len(grid), len(grid[0])) == matrix.shape
        for r in range(n):
            for c in range(n):
                value = float(matrix[r, c])
                if not np.isfinite(value) or (name == "weights" and value == 0):
                    assert grid[r][c] == HATCHED
                elif name == "weights":
                    assert places(grid[r][c], BLUES) == pytest.approx(value**0.5, abs=0.014)
                else:
                    assert places(grid[r][c], ORANGE_BLUE) == pytest.approx(
                        (value / largest + 1) / 2, abs=0.012
                    )


def test_small_matrices_have_their_numbers_and_labels():
    made = report(text_report(tokens(["a", "bc", "d"]), stages=("weights",), top=2))
    root = parsed(made, precision=3)
    shown = texts(root)
    (head,) = made.texts[0].heads
    numbers = [f"{weight:.3f}" for weight in head.stages["weights"].ravel()]
    assert [text for text in shown if re.fullmatch(r"\d\.\d{3}", text)][:9] == numbers
    assert shown.count("0 a") >= 2
    assert shown.count("1 bc") >= 2
    for r, query in enumerate(["0 a", "1 bc", "2 d"]):
        key, weight = head.top.keys[r, 0], head.top.weight[r, 0]
        row = [f"{key} {made.texts[0].tokens[key].text}", f"{weight:.4f}"]
        assert any(shown[i : i + 3] == [query, *row] for i in range(len(shown)))


def test_thumbnails_are_the_largest_weights():
    heads = [(layer, head) for layer in (0, 1, 4) for head in range(4)]
    made = report(text_report(tokens(words(40)), heads=heads))
    shown = grids(parsed(made))
    assert len(shown) == len(heads)
    for head, grid in zip(made.texts[0].heads, shown, strict=True):
        cuts = [n * 40 // 16 for n in range(17)]
        for r in range(16):
            for c in range(16):
                largest = head.stages["weights"][cuts[r] : cuts[r + 1], cuts[c] : cuts[c + 1]].max()
                assert places(grid[r][c], BLUES) == pytest.approx(largest**0.5, abs=0.04)
    assert "L4" in texts(parsed(made))


def test_a_map_is_logarithmic():
    made = overview(150, dead=range(6, 12))
    (grid,) = grids(parsed(made))
    weights = made.texts[0].heads[0].pooled.weights
    known = weights[weights > 0]
    high, low = known.max(), max(known.max() / 1000, known.min())
    for r, c in np.ndindex(weights.shape):
        if weights[r, c] > 0:
            place = min(1, max(0, np.log(weights[r, c] / low) / np.log(high / low)))
            assert places(grid[r][c], BLUES) == pytest.approx(place, abs=0.02)
        else:
            assert grid[r][c] == HATCHED


@pytest.mark.parametrize("zero", [0, 3])
def test_a_map_says_what_is_hatched_only_if_something_is(zero):
    made = overview(150)
    made.texts[0].heads[0].pooled.weights[:] = 0.5
    made.texts[0].heads[0].pooled.weights[0, :zero] = 0
    assert any("hatched" in text for text in texts(parsed(made))) == bool(zero)
    assert any(HATCHED in row for grid in grids(parsed(made)) for row in grid) == bool(zero)


def test_a_number_for_every_head_is_written_on_its_colour():
    made = measured()
    (grid,) = grids(parsed(made))
    shown = texts(parsed(made))
    for row, colours in zip(made.values.tolist(), grid, strict=True):
        for value, colour in zip(row, colours, strict=True):
            assert (colour == HATCHED) == (value is None or not np.isfinite(value))
            if np.isfinite(value):
                assert any(
                    re.fullmatch(r"−?\d+\.\d+", t) and abs(read_number(t) - value) <= 0.0051
                    for t in shown
                )


def compared(*labels):
    reports = [bank(allowed=causal), bank()]
    return compare_sides(
        "mask", [Side(label, made) for label, made in zip(labels, reports, strict=True)]
    )


def test_every_matrix_of_a_comparison_names_its_side():
    shown = re.sub(r"\s+", " ", " ".join(texts(parsed(compared("causal", "bidirectional")))))
    for title in (
        "causal: weights",
        "bidirectional: weights",
        "bidirectional − causal: difference",
    ):
        assert f"{title} query ↓ key →" in shown


def test_titles_of_matrices_do_not_overlap():
    made = compared("a" * 90, "a name of many words that has to be wrapped")
    root = parsed(made)
    lines = [
        (float(e.get("x")), "".join(e.itertext())) for e in root.iter(f"{SVG}text") if e.get("x")
    ]
    titles = [(x, text) for x, text in lines if "aaaa" in text or "many words" in text]
    lefts = sorted({x for x, text in lines if ": weights" in text})
    first = [x + canvas.text_width(text, 11) for x, text in titles if x == lefts[0]]
    assert first
    assert len(lefts) == 1 or max(first) <= lefts[1]


def test_bars_are_as_long_as_the_numbers_beside_them():
    made = explanation()
    bars = [e for e in parsed(made).iter(f"{SVG}rect") if e.get("fill") == "#4292c6"]
    weights = made.row.weights
    assert [float(bar.get("width")) for bar in bars] == pytest.approx(
        (weights * 80).tolist(), abs=0.006
    )
    assert len({bar.get("x") for bar in bars}) == 1


def test_bars_of_numbers_below_0_end_where_the_others_begin():
    page = canvas.Canvas()
    column = parts.Column("adds", ["0.50", "−1.00", "0.25"])
    table = parts.Table(
        "part", [column], labels=[ours(name) for name in "abc"], bars=[0.5, -1.0, 0.25]
    )
    drawing.DRAWN[parts.Table](page, table)
    root = ElementTree.fromstring(page.svg())
    bars = [
        (float(e.get("x")), float(e.get("width")))
        for e in root.iter(f"{SVG}rect")
        if e.get("fill") == "#4292c6"
    ]
    zero = bars[0][0]
    assert bars == [(zero, 40.0), (zero - 80.0, 80.0), (zero, 20.0)]


def test_roles_have_the_colours_of_the_picture():
    root = parsed(survey())
    names = {"".join(e.itertext()): e for e in root.iter(f"{SVG}text") if e.get("x")}
    found = [e for e in root.iter(f"{SVG}rect") if e.get("x") and float(e.get("width")) == 8.1]
    for name, role in (
        (name, role) for name, role in ROLES.items() if role.measured not in OF_PARTS
    ):
        label = names[f"{role.letter} {role.title}"]
        (square,) = [
            one
            for one in found
            if 0 < float(label.get("y")) - float(one.get("y")) < 9
            and float(label.get("x")) - float(one.get("x")) == 14
        ]
        assert (name, square.get("fill")) == (name, role.colour)


def test_numbers_of_heads_do_not_touch():
    middle = {
        text: float(e["x"])
        for e, text in lines(parsed(survey(heads=12)))
        if e.get("text-anchor") == "middle"
    }
    apart = middle["H11"] - middle["H10"]
    assert apart > canvas.text_width("H11", canvas.SMALL)


def test_what_little_sources_sum_to_is_beside_the_others():
    made = report(text_report(tokens(["a", "b", "c", "d"]), stages=("weights",), top=4, size=40.0))
    shown = list(lines(parsed(made)))
    sums = [n for n, (_, text) in enumerate(shown) if re.fullmatch(r"[12] more: 0\.00\d+", text)]
    assert sums
    assert all(0 < float(shown[n][0]["x"]) - float(shown[n - 1][0]["x"]) < 30 for n in sums)


@pytest.mark.parametrize("made", [explanation(), survey()], ids=["explain", "heads"])
def test_nothing_is_cut_off_at_the_right(made):
    svg_to_bytes = pytest.importorskip("resvg_py").svg_to_bytes
    data = figure(made).decode()
    width, height = (
        int(float(size))
        for size in re.findall(r'<svg[^>]* width="([\d.]+)" height="([\d.]+)"', data)[0]
    )
    strip = f'<rect x="{width - 8}" width="8" height="{height}" fill="#ffffff"/></svg>'
    assert svg_to_bytes(svg_string=data) == svg_to_bytes(svg_string=data.replace("</svg>", strip))


def everything():
    yield report(
        text_report(
            tokens([*HOSTILE, "<script>alert(1)</script>", '" onload="x']),
            stages=STAGES,
            projected=True,
        )
    )
    yield report(
        text_report(
            tokens(["a", "b"]),
            context=tokens(["x", "y", "z"]),
            allowed=lambda query, key: query == 0,
        )
    )
    yield report(text_report(tokens(["a", "b", "c"]), sink=0.5), weights="random")
    yield from (explanation(), overview(150), survey(), measured())


@pytest.mark.parametrize("n", range(7))
def test_a_figure_is_well_formed_and_loads_nothing(n):
    made = list(everything())[n]
    data = figure(made)
    root = ElementTree.fromstring(data)
    tags = {element.tag.removeprefix(SVG) for element in root.iter()}
    assert tags <= {
        "svg",
        "defs",
        "linearGradient",
        "stop",
        "rect",
        "g",
        "text",
        "tspan",
        "path",
        "pattern",
    }
    assert not any(name.startswith("on") for element in root.iter() for name in element.attrib)
    assert not any("href" in name for element in root.iter() for name in element.attrib)
    assert set(re.findall(rb"url\(([^)]*)\)", data)) <= {
        b"#attnscope-weights",
        b"#attnscope-signed",
        b"#attnscope-hatched",
    }
    width, height = (float(root.get(name)) for name in ("width", "height"))
    for element in root.iter(f"{SVG}text"):
        if element.get("x"):
            assert 0 <= float(element.get("x")) <= width
            assert 0 <= float(element.get("y")) <= height
    assert b"--" not in b"".join(t.encode() for t in texts(root) if t.startswith("more"))


def test_what_the_parts_say_is_in_the_figure():
    made = explanation()
    said = " ".join(" ".join(texts(parsed(made))).split())
    # with fewer dimensions than a figure
    drawn = b"".join(formats.export(made, Path("x.txt"), columns=60)).decode()
    numbers = set(re.findall(r"−?\d+\.\d{2}\b", drawn))
    assert len(numbers) > 20
    assert [number for number in numbers if number not in said] == []


def test_files_are_small():
    long = text_report(
        tokens([f"word{n}" for n in range(64)]),
        heads=[(0, 0), (0, 1)],
        stages=STAGES[:4],
        projected=True,
    )
    # of 8 matrices of noise, and 768 sources with three numbers
    assert len(figure(report(long))) < 480_000
    assert len(figure(report(text_report(tokens([f"word{n}" for n in range(64)]))))) < 185_000
    heads = [(layer, head) for layer in range(6) for head in range(12)]
    assert (
        len(figure(report(text_report(tokens([f"word{n}" for n in range(64)]), heads=heads))))
        < 230_000
    )


def test_runs_show_every_cell():
    random = np.random.default_rng(3)
    for colours in (1, 2, 5, 30):
        cells = [
            [f"#{colour:06x}" for colour in row]
            for row in random.integers(0, colours, (9, 13)).tolist()
        ]
        drawn = (
            f'<g xmlns="{SVG[1:-1]}"><g shape-rendering="crispEdges">{canvas._runs(cells)}</g></g>'
        )
        assert grids(ElementTree.fromstring(drawn)) == [cells]


def test_lines_wrap_at_words_and_lose_nothing():
    text = "weights " * 40 + "a" * 200 + " end"
    lines = canvas.wrap(ours(text), 200, 11)
    assert " ".join(canvas.plain(line).strip() for line in lines) == text
    assert all(
        canvas.text_width(canvas.plain(line)) <= 203 or " " not in canvas.plain(line).strip()
        for line in lines
    )


@pytest.mark.parametrize("masked", [True, False])
def test_rows_without_sources_say_why(masked):
    made = report(
        text_report(tokens(["a", "b"]), allowed=(lambda query, key: False) if masked else causal)
    )
    (head,) = made.texts[0].heads
    head.stages.clear()
    head.top.keys[:] = -1
    assert texts(parsed(made)).count("masked" if masked else "nothing to rank") == 2 + masked


@pytest.mark.parametrize("origin", ["token", "unknown token", "new token"])
@pytest.mark.parametrize("token", [" mat", "a b", " "])
def test_a_token_stays_whole_wherever_a_line_ends(token, origin):
    named = Span(token, "bold", origin)
    for length in range(90, 120):
        lines = canvas.wrap(
            (Span("x" * length), Span(" of ", "bold"), named, Span("; y z")), 700, 11
        )
        assert [span.text for line in lines for span in line if span.origin == origin] == [token]


def test_a_png_is_the_figure(tmp_path):
    data = b"".join(formats.export(bank(), Path("x.png")))
    root = parsed(bank())
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    size = [int.from_bytes(data[at : at + 4], "big") for at in (16, 20)]
    assert size == pytest.approx([3 * float(root.get(name)) for name in ("width", "height")], abs=3)


def test_a_png_without_its_library_or_a_font_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(
        AttnscopeError,
        match=r"\.png needs resvg-py; pip install 'attnscope\[figures\]', or write \.svg",
    ):
        b"".join(formats.export(bank(), Path("x.png")))
    monkeypatch.setitem(
        sys.modules, "resvg_py", type("Fontless", (), {"svg_to_bytes": lambda **_: b"blank"})
    )
    with pytest.raises(
        AttnscopeError, match=r"needs a font, and this system has none; install a font such as"
    ):
        b"".join(formats.export(bank(), Path("x.png")))


def drawn_by(monkeypatch, missing):
    """The last page that a renderer got whose fonts lack these letters; it draws a box for each."""
    pages, boxes = [], dict.fromkeys(map(ord, (*missing, "\U0010fffe")), "□")

    def svg_to_bytes(*, svg_string, **_):
        pages.append(svg_string)
        return svg_string.translate(boxes).encode()

    monkeypatch.setitem(
        sys.modules, "resvg_py", type("Fonts", (), {"svg_to_bytes": staticmethod(svg_to_bytes)})
    )
    return pages


def by_value(*names):
    return report(text_report(tokens(["a", "b", *names]), projected=True))


def test_a_figure_has_one_font_that_holds_all_letters(monkeypatch):
    """Resvg would draw a whole line in any font that holds one letter of it: with serifs, and not bold."""
    pages = drawn_by(monkeypatch, "")
    plain = report(text_report(tokens(["a", "b"]), top=0))
    large = "'DejaVu Sans', Helvetica"
    for made, font in ((plain, "Helvetica"), (by_value(), "Helvetica"), (by_value("‖ ▴"), large)):
        b"".join(formats.export(made, Path("x.png")))
        assert f'font-family="{font}, Arial' in pages[-1]
        assert pages[-1] == figure(made).decode()
    assert "α·||vW||" in texts(parsed(by_value()))
    assert "2 ‖ ▴" in texts(parsed(by_value("‖ ▴")))  # what is not ours is not respelled


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other fonts")
def test_bold_letters_of_a_png_are_bold_beside_one_that_few_fonts_hold():
    svg_to_bytes = pytest.importorskip("resvg_py").svg_to_bytes
    pages = []
    for look in ("bold", ""):
        page = canvas.Canvas()
        page.text(10, 30, (Span("value ␣ ◌", look, "untrusted"),))
        pages.append(bytes(svg_to_bytes(svg_string=drawing._drawable(page, svg_to_bytes))))
    assert pages[0] != pages[1]


def test_a_png_spells_letters_that_no_font_holds(monkeypatch):
    pages = drawn_by(monkeypatch, "␣")
    b"".join(formats.export(by_value(" "), Path("x.png")))
    assert "␣" in figure(by_value(" ")).decode()
    assert pages[-1] == figure(by_value(" ")).decode().replace("␣", "_")


def test_long_names_are_cut_at_once():
    """A word may be as long as its text."""
    name = "Wi" * 50_000
    start = perf_counter()
    cut = labels.cut_name(name, 90.0, 9.0)
    assert perf_counter() - start < 10  # one letter after the other took minutes
    assert cut.endswith("…") and name.startswith(cut[:-1])
    assert canvas.text_width(cut, 9.0) <= 90.0 < canvas.text_width(name[: len(cut)] + "…", 9.0)
    assert labels.cut_name("bank", 90.0, 9.0) == "bank"


def test_a_picture_that_is_too_large_is_refused(monkeypatch):
    """The library that draws it ends the process where memory is short."""
    png = drawing.as_png(present(bank(), format="heat", options=False))
    size = [int.from_bytes(png[at : at + 4], "big") for at in (16, 20)]  # in the IHDR chunk
    monkeypatch.setattr(drawing, "_MOST_PIXELS", size[0] * size[1] - sum(size))
    with pytest.raises(AttnscopeError, match="pixels, of which at most") as caught:
        drawing.as_png(present(bank(), format="heat", options=False))
    said = re.search(r"([\d,]+) × ([\d,]+)", str(caught.value))
    assert said is not None
    assert [int(one.replace(",", "")) for one in said.groups()] == pytest.approx(size, abs=1)
