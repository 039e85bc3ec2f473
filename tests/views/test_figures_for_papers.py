"""Figures of a named width: as wide as that, squares, and no letter smaller than 6 pt, in SVG and in PDF."""

import re
import zlib
from xml.etree import ElementTree

import pytest

import attnscope
from attnscope.cli import main
from attnscope.views.figure.canvas import SMALL, text_width
from tests.views.test_figure import SVG, lines, texts

LONG = "The animal did not cross the street because it was too tired, and the rain came down on all of them"
TEXT = "She sat by the [MASK] of the river"
SPANS = "The bank by the river. The old mill."
WIDTHS = {
    "column": 234.0,
    "397pt": 397.0,
    "5.5in": 396.0,
    "14cm": 14 / 2.54 * 72,
    "84mm": 84 / 25.4 * 72,
}
FIGURES = {
    "stages": ["run", "The bank by the river"],
    "one head": ["run", LONG, "--layer", "2", "--head", "0", "--stage", "weights", "--only", "map"],
    "heads of a layer": ["run", LONG, "--layer", "2", "--head", "all", "--stage", "weights"],
    "all heads": [
        "run",
        TEXT,
        "--layer",
        "all",
        "--head",
        "all",
        "--stage",
        "weights",
        "--only",
        "map",
    ],
    "map": ["run", " ".join([LONG] * 5), "--only", "map"],
    "map with its lists": ["run", " ".join([LONG] * 5)],
    "comparison": ["compare", TEXT, "--only", "map"],
    "roles": ["heads", TEXT, "--draws", "2"],
    "numbers of heads": ["heads", TEXT, "--measure", "entropy"],
    "effects": ["ablate", TEXT, "--each", "head"],
    "bars": ["ablate", TEXT, "--each", "head", "--only", "bars", "--font", "serif"],
    "spans": [
        "ablate",
        SPANS,
        "--mask",
        "causal",
        "--spans",
        "sentences",
        "--each",
        "span",
        "--answer",
        " It was old",
    ],
}


def drawn(arguments, path, *more):
    assert main([*arguments, "-o", str(path), "--quiet", "--force", *more]) == 0
    return path


def check_svg(path, width):
    root = ElementTree.parse(path).getroot()
    assert float(root.get("width")) * 0.75 == pytest.approx(width, abs=0.1)  # CSS pixels to points
    left, _, across, down = map(float, root.get("viewBox").split())
    # nothing is scaled
    assert (across, down) == (float(root.get("width")), float(root.get("height")))
    (group,) = (element for element in root if element.get("font-size"))
    sizes = {float(attributes["font-size"]) for attributes, _ in lines(group, **group.attrib)}
    assert min(sizes) * 0.75 >= 6.0
    for element in root.iter(f"{SVG}g"):
        if "crispEdges" in element.get("shape-rendering", ""):
            x, _, *cell = map(float, re.findall(r"[\d.]+", element.get("transform")))
            assert cell[0] == pytest.approx(cell[1], rel=1e-3)
            columns = max(
                int(one.get("x", 0)) + int(one.get("width", 0))
                for one in element.iter(f"{SVG}rect")
            )
            assert x + columns * cell[0] <= left + across + 0.1


@pytest.mark.parametrize("name", FIGURES)
def test_no_letter_is_smaller_than_6_points(name, tmp_path):
    for width in ("column", "397pt"):
        check_svg(drawn(FIGURES[name], tmp_path / "a.svg", "--width", width), WIDTHS[width])


ROW = ["explain", TEXT, "--query", "4", "--layer", "2", "--head", "0"]


@pytest.mark.parametrize("query", ["1", "4", "7"])
def test_the_steps_of_a_row_fit_into_a_column(query, tmp_path):
    """Columns of numbers that do not fit stand below the others: none is missing, and each has its keys beside it."""
    row = ["explain", TEXT, "--query", query, "--layer", "2", "--head", "0"]
    data = attnscope.explain(TEXT, query=int(query), layer=2, head=0).data
    whole = texts(ElementTree.parse(drawn(row, tmp_path / "whole.svg")).getroot())
    for width in ("column", "3.25in", "397pt"):
        path = drawn(row, tmp_path / "row.svg", "--width", width)
        root = ElementTree.parse(path).getroot()
        (group,) = (element for element in root if element.get("font-size"))
        sizes = {float(attributes["font-size"]) for attributes, _ in lines(group, **group.attrib)}
        assert min(sizes) * 0.75 >= 6.0
        left, _, across, _ = map(float, root.get("viewBox").split())
        for attributes, text in lines(group, **group.attrib):
            if "transform" in attributes or attributes.get("text-anchor") == "end":
                continue
            assert float(attributes["x"]) + text_width(text, SMALL) * 0.8 <= left + across, text
        shown = texts(root)
        row_values = data.row
        for values in (row_values.scores, row_values.masked, row_values.exponentials):
            for value in values.tolist():
                assert f"{value:.4f}".replace("-", "−") in shown
        for heading in ("‖k‖", "cosine", "q·k", "masked", "exp", "weight", "‖v‖"):
            heading = heading.replace("‖", "||")
            assert shown.count(heading) == whole.count(heading), (width, heading)


def test_the_strips_of_a_row_fit_into_a_column(tmp_path):
    row = ROW
    path = tmp_path / "row.svg"
    (head,) = attnscope.inspect(TEXT, layer=2, head=0, stages="scores").data.texts[0].heads
    score = max(head.stages["scores"][4])
    for width in ("column", "397pt"):
        root = ElementTree.parse(drawn([*row, "--only", "map"], path, "--width", width)).getroot()
        assert float(root.get("width")) * 0.75 == pytest.approx(WIDTHS[width], abs=0.1)
        (group,) = (element for element in root if element.get("font-size"))
        sizes = {float(attributes["font-size"]) for attributes, _ in lines(group, **group.attrib)}
        assert min(sizes) * 0.75 >= 6.0
        assert texts(root) == ["q", "k", "q × k", "so far", f"{score:.4f}", "−", "+"]


def test_widths_are_those_that_are_named(tmp_path):
    for width, points in WIDTHS.items():
        check_svg(drawn(FIGURES["bars"], tmp_path / "a.svg", "--width", width), points)


def letters_of(pdf):
    """Sizes of the letters of a page of a PDF in points: of the font, times the matrices that apply to it."""
    data = b"\n".join(
        zlib.decompress(stream) if b"FlateDecode" in head else stream
        for head, stream in re.findall(
            rb"<<((?:[^>]|>(?!>))*)>>\s*stream\r?\n(.*?)\r?\nendstream", pdf, re.DOTALL
        )
        if b"/Length1" not in head
    )
    number = rb"(-?[\d.]+)"
    scale, saved, size, sizes = 1.0, [], 0.0, set()
    operator = re.compile(
        rb"(?P<q>\bq\b)|(?P<Q>\bQ\b)|"
        + rb"\s+".join([number] * 6)
        + rb"\s+(?P<m>cm|Tm)\b|"
        + number
        + rb"\s+(?P<tf>Tf)\b"
    )
    for found in operator.finditer(data):
        if found["q"]:
            saved.append(scale)
        elif found["Q"]:
            scale = saved.pop() if saved else 1.0
        elif found["m"] == b"cm":
            a, b = float(found[3]), float(found[4])
            scale *= (a * a + b * b) ** 0.5
        elif found["m"] == b"Tm":
            a, b = float(found[3]), float(found[4])
            sizes.add(size * scale * (a * a + b * b) ** 0.5)
        else:
            size = float(found[10])
    return sizes


@pytest.mark.parametrize("name", ["stages", "bars"])
def test_letters_of_a_pdf_are_as_large(name, tmp_path):
    pytest.importorskip("typst")
    for width in ("column", "397pt"):
        pdf = drawn(FIGURES[name], tmp_path / "a.pdf", "--width", width).read_bytes()
        (box,) = re.findall(rb"/MediaBox ?\[([^\]]*)\]", pdf)
        assert float(box.split()[2]) == pytest.approx(WIDTHS[width], abs=0.1)
        sizes = letters_of(pdf)
        assert sizes
        assert 6.0 <= min(sizes) + 0.01 <= 12.0


def test_a_map_of_one_layer_has_no_rows_of_others(tmp_path):
    """The layers that were not cut stood below and above it, hatched, without a word."""
    found = attnscope.ablate(TEXT, each="head", layer=1).data
    path = drawn(["ablate", TEXT, "--each", "head", "--layer", "1"], tmp_path / "a.svg")
    root = ElementTree.parse(path).getroot()
    shown = texts(root)
    effects = found.effects[0].kl
    assert shown.count("L1") == 1
    assert not {"L0", "L2"} & set(shown)
    for value in effects.tolist():
        assert f"{value:.3f}" in shown


def test_labels_name_tokens_positions_or_nothing(tmp_path):
    words = TEXT.split()
    positions = [str(n) for n in range(len(words))]
    both = [f"{n} {word}" for n, word in enumerate(words)]
    for labels, expected in (
        ("tokens", words),
        ("positions", positions),
        ("none", []),
        (None, both),
    ):
        more = [] if labels is None else ["--labels", labels]
        path = drawn(
            ["run", TEXT, "--stage", "weights", "--only", "map"], tmp_path / "a.svg", *more
        )
        shown = texts(ElementTree.parse(path).getroot())
        for kind in (words, positions, both):
            assert shown.count(kind[-1]) == (2 if kind[-1] in expected else 0), labels


def test_only_bars_are_the_effects(tmp_path):
    path = drawn(FIGURES["bars"], tmp_path / "a.svg", "--width", "column")
    found = attnscope.ablate(TEXT, each="head")
    effects = sorted(found.data.effects[0].kl.tolist(), reverse=True)[:10]
    root = ElementTree.parse(path).getroot()
    bars = [
        float(one.get("width")) for one in root.iter(f"{SVG}rect") if one.get("fill") == "#4292c6"
    ]
    assert [length / bars[0] for length in bars] == pytest.approx(
        [value / effects[0] for value in effects], abs=2e-3
    )
    shown = texts(root)
    assert shown[-2:] == ["0", f"{effects[0]:.3g} bits"]
    (axis,) = (one for one in root.iter(f"{SVG}rect") if one.get("height") == "0.5")
    assert float(axis.get("width")) == pytest.approx(bars[0], abs=0.01)
    assert "riverbank" not in " ".join(shown)
    assert "Liberation Serif" in path.read_text() and "Helvetica" not in path.read_text()


def test_what_cannot_be_drawn_is_refused(tmp_path, capsys):
    path = str(tmp_path / "a.svg")
    cases = [
        (
            ["run", TEXT, "--width", "column"],
            "--width: applies only to --output FILE.svg, .png or .pdf; add --output FILE.svg",
        ),
        (
            ["run", TEXT, "--only", "map", "-o", "a.html"],
            "--only map: applies only to --output FILE.svg",
        ),
        (
            ["run", TEXT, "--ramp", "log", "-o", "a.html"],
            "--ramp log and --output a.html cannot be used together: the key L changes the ramp",
        ),
        (
            ["compare", TEXT, "--without-sinks", "-o", "a.svg"],
            "--without-sinks and --output a.svg cannot be used together: the key z takes sinks out of a page, and colours",
        ),
        (
            ["run", TEXT, "-o", path, "--width", "5"],
            "--width: must be a width from 1in to 100in, or column, not '5'",
        ),
        (["run", TEXT, "-o", path, "--width", "0.1in"], "use 5.5in, 84mm, 397pt or column"),
        (
            ["run", "The bank by the river", "-o", path, "--only", "bars"],
            "--only bars: there are no bars",
        ),
        (["info", "--width", "column"], "no such option"),
    ]
    for arguments, message in cases:
        assert main([*arguments, "--quiet"]) == 2
        assert message.casefold() in capsys.readouterr().err.casefold()
        assert not (tmp_path / "a.svg").exists()


def test_python_saves_the_same_figure(tmp_path):
    for name, path in (("python", tmp_path / "a.svg"), ("typed", tmp_path / "b.svg")):
        if name == "python":
            attnscope.inspect(TEXT).save(
                path, width="column", labels="tokens", only="map", font="serif"
            )
        else:
            more = ["--labels", "tokens", "--only", "map", "--font", "serif", "--width", "column"]
            drawn(["run", TEXT], path, *more)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
