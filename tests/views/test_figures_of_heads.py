"""Figures of roles and of effects: points, counts, the legend and the example, each held against the findings."""

import json
import re
from collections import Counter
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest

import attnscope
from attnscope.cli import main
from attnscope.findings.head_roles import ROLES
from attnscope.studies.heads.texts import TEXTS
from attnscope.views.figure.canvas import spans_width, text_width, wrap
from attnscope.views.spans import Span
from tests.helpers.screens import read_number
from tests.views.test_figure import BLUES, SVG, grids, lines, places, texts

TEXT = "She sat by the [MASK] of the river"
EFFECTS = ["ablate", TEXT, "--each", "head"]
WIDTHS = [None, "column", "5.5in"]


def drawn(arguments, tmp_path, width=None):
    """Return the root of a figure, and the findings that it shows."""
    path, exact = tmp_path / "a.svg", tmp_path / "a.json"
    more = [] if width is None else ["--width", width]
    assert main([*arguments, *more, "-o", str(path), "--quiet", "--force"]) == 0
    kept = [
        word for n, word in enumerate(arguments) if "--only" not in arguments[max(0, n - 1) : n + 1]
    ]
    assert main([*kept, "-o", str(exact), "--quiet", "--force"]) == 0
    return ElementTree.parse(path).getroot(), json.loads(exact.read_text())


def ranks(values):
    """Mean ranks: how many are smaller, and half of the equal ones."""
    values = np.asarray(values, dtype=float)
    return np.array([(values < one).sum() + (values == one).sum() / 2 for one in values])


def spearman(first, second):
    return np.corrcoef(ranks(first), ranks(second))[0, 1]


def points(root):
    return np.array(
        [[float(one.get(at)) for at in ("cx", "cy")] for one in root.iter(f"{SVG}circle")]
    )


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("target", [[], ["--target", "bank"]])
def test_points_are_weights_and_effects(target, width, tmp_path):
    root, found = drawn([*EFFECTS, *target], tmp_path, width)
    effects = found["effects"][0]["target" if target else "kl"]
    weights = found["weights"]
    right, down = points(root).T
    for values, coordinates, way in ((weights, right, 1), (effects, down, -1)):
        line = np.polyfit(values, coordinates, 1)
        np.testing.assert_allclose(np.polyval(line, values), coordinates, atol=0.1)
        assert line[0] * way > 0
    said = texts(root)
    (title,) = [text for text in said if text.startswith("weight against effect")]
    expected = spearman(weights, np.abs(effects))
    assert f"of {len(weights)} heads" in title
    assert read_number(re.search(r"ρ (\S+) \(Spearman", " ".join(said))[1]) == pytest.approx(
        expected, abs=0.0051
    )
    assert ("by size" in " ".join(said)) == bool(target)
    if not target:  # no rank is lost in a tenth of a pixel, apart from two
        assert spearman(right, -down) == pytest.approx(expected, abs=0.02)
    assert "weight →" in said
    assert ("change of the logit →" if target else "KL, bits →") in said


@pytest.mark.parametrize("width", WIDTHS)
def test_the_three_strongest_heads_are_named_beside_their_points(width, tmp_path):
    root, found = drawn(EFFECTS, tmp_path, width)
    heads = [f"L{n}H{m}" for n, m in zip(found["layers"], found["heads"], strict=True)]
    strongest = np.argsort(-np.array(found["effects"][0]["kl"]))[:3]
    end = min(float(at["y"]) for at, text in lines(root) if text == "weight →")
    names = {text: at for at, text in lines(root) if text in heads and float(at["y"]) < end}
    assert set(names) == {heads[n] for n in strongest}
    circles = points(root)
    for n in strongest:
        at = names[heads[n]]
        x, y = float(at["x"]), float(at["y"])
        assert min(abs(x - circles[n][0]), abs(x + text_width(heads[n], 9) - circles[n][0])) < 7
        assert abs(y - circles[n][1]) < 10
        assert 0 < x < float(root.get("width")) + 24


def test_names_of_close_points_do_not_touch():
    from attnscope.views.figure.canvas import Canvas
    from attnscope.views.figure.scatter import draw_scatter
    from attnscope.views.parts import Scatter, ScatterAxis

    weights, effects = (
        np.array(values) for values in ([0.999, 1.0, 0.5, 0.4], [2.0, 2.01, 1.99, 0.1])
    )
    canvas = Canvas()
    axes = ScatterAxis("weight", weights), ScatterAxis("KL", effects, "bits")
    draw_scatter(canvas, Scatter("close", ["L0H0", "L0H1", "L1H0", "L1H1"], *axes))
    root = ElementTree.fromstring(canvas.svg())
    boxes = [
        (float(at["x"]), float(at["y"]))
        for at, text in lines(root)
        if re.fullmatch(r"L\dH\d", text)
    ]
    assert len(boxes) == 3
    width = text_width("L0H0", 9)
    for (x, y), (other, below) in pairwise(sorted(boxes, key=lambda box: box[1])):
        assert abs(x - other) > width or below - y >= 8.9


@pytest.mark.parametrize("width", WIDTHS)
def test_a_legend_counts_the_heads_of_every_role_in_bars_of_one_scale(width, tmp_path):
    root, found = drawn(["heads", "--draws", "2"], tmp_path, width)
    counts = Counter(name for row in found["main"] for name in row if name)
    bars = [one for one in root.iter(f"{SVG}rect") if one.get("fill") == "#4292c6"]
    written = {text: at for at, text in lines(root)}
    lengths = {}
    for role in found["roles"]:
        at = written[f"{role['letter']} {role['title']}"]
        beside = [
            float(bar.get("width"))
            for bar in bars
            if 0 < float(at["y"]) - float(bar.get("y")) < 9
            and 0 < float(bar.get("x")) - float(at["x"]) < 320
        ]
        lengths[role["name"]] = beside[0] if beside else 0.0
    longest = max(lengths.values())
    assert longest >= 40
    for name, length in lengths.items():
        assert length / longest == pytest.approx(counts[name] / max(counts.values()), abs=2e-3)
    lefts = {float(written[f"{role['letter']} {role['title']}"]["x"]) for role in found["roles"]}
    assert len(lefts) == (1 if width == "column" else 2)
    strongest = next(role for role in found["roles"] if role["name"] == "previous")
    layer, head = divmod(int(np.argmax(strongest["values"])), len(strongest["values"][0]))
    assert any(text.startswith(f"L{layer}H{head} ") for text in written) == (width is None)


@pytest.mark.parametrize("width", WIDTHS)
def test_bars_beside_a_map_of_roles_count_those_of_every_layer(width, tmp_path):
    root, found = drawn(["heads", "--draws", "2", "--only", "map"], tmp_path, width)
    names = {role.colour: name for name, role in ROLES.items()}
    rows = {}
    for one in root.iter(f"{SVG}rect"):
        if one.get("fill") in names and one.get("x") and float(one.get("height")) > 9:
            rows.setdefault(float(one.get("y")), []).append(one)
    assert len(rows) == len(found["main"])
    step = min(float(one.get("width")) for row in rows.values() for one in row)
    for (_, drawn_row), main_roles in zip(sorted(rows.items()), found["main"], strict=True):
        counted = {names[one.get("fill")]: float(one.get("width")) / step for one in drawn_row}
        expected = Counter(name for name in main_roles if name)
        assert counted == {name: pytest.approx(count, abs=0.02) for name, count in expected.items()}
    assert len(grids(root)) == 1
    assert not points(root).size


def example(root):
    """Return the places on the ramp of the last matrix of a figure, and the names of its rows and columns."""
    colours = grids(root)[-1]
    shown = [[0.0 if one == "hatched" else places(one, BLUES) for one in row] for row in colours]
    turned = [text for at, text in lines(root) if "rotate" in at.get("transform", "")]
    return np.array(shown), turned


@pytest.mark.parametrize("width", WIDTHS)
def test_the_example_is_the_head_with_the_clearest_role_on_the_first_text(width, tmp_path):
    root, found = drawn(["heads", "--draws", "2"], tmp_path, width)
    best = max(
        (value, layer, head, role["title"])
        for role in found["roles"]
        if ROLES[role["name"]].rank == 0
        for layer, row in enumerate(role["values"])
        for head, value in enumerate(row)
        if found["main"][layer][head] == role["name"]
    )
    _, layer, head, title = best
    said = " ".join(texts(root))
    assert f"example L{layer}H{head}" in said
    assert title in said
    weights = attnscope.inspect(TEXTS[0], layer=layer, head=head, query=slice(0, 24)).weights
    shown, columns = example(root)
    assert shown.shape == (24, 24)
    np.testing.assert_allclose(shown, np.sqrt(np.asarray(weights)[0, 0, :24, :24]), atol=0.015)
    assert columns[:2] == ["0 The", "1 bank"]


def test_the_example_of_a_role_on_random_tokens_is_the_second_copy_on_the_first(tmp_path):
    root, _ = drawn(["heads", "--draws", "2", "--role", "induction"], tmp_path)
    shown, columns = example(root)
    assert shown.shape == (24, 25)
    rows = [text for at, text in lines(root) if at.get("text-anchor") == "end"][-24:]
    tokens = [[name.split(" ", 1)[1] for name in names] for names in (rows, columns)]
    assert tokens[0] == tokens[1][:24]
    assert {
        int(row.split()[0]) - int(column.split()[0])
        for row, column in zip(rows, columns, strict=False)
    } == {50}


@pytest.mark.parametrize(
    "arguments", [["--key", "bank"], ["--measure", "entropy"], ["--key", "bank", "--query", "by"]]
)
def test_the_example_of_a_number_is_the_head_with_the_largest(arguments, tmp_path):
    text = "The bank by the river"
    root, found = drawn(["heads", text, *arguments], tmp_path)
    values = np.array(found["values"])
    layer, head = divmod(int(values.argmax()), values.shape[1])
    assert f"example L{layer}H{head}" in " ".join(texts(root))
    weights = np.asarray(attnscope.inspect(text, layer=layer, head=head).weights)[0, 0]
    shown, _ = example(root)
    np.testing.assert_allclose(shown, np.sqrt(weights), atol=0.015)


def test_a_cell_far_into_a_text_is_in_its_example(tmp_path):
    text = "The bank by the river was old. " * 8
    root, found = drawn(["heads", text, "--query", "40", "--key", "38"], tmp_path)
    layer, head = divmod(int(np.argmax(found["values"])), len(found["values"][0]))
    shown, columns = example(root)
    assert [int(name.split()[0]) for name in columns] == list(range(17, 41))
    weight = attnscope.inspect(text, layer=layer, head=head, query=40, key=38).weights
    assert shown[23, 21] ** 2 == pytest.approx(float(np.asarray(weight).item()), abs=0.02)


@pytest.mark.parametrize("arguments", [["heads", "--draws", "2"], EFFECTS])
def test_only_bars_have_neither_points_nor_an_example(arguments, tmp_path):
    root, _ = drawn([*arguments, "--only", "bars"], tmp_path)
    assert not grids(root)
    assert not points(root).size
    assert "example" not in " ".join(texts(root))


def test_a_token_goes_to_the_next_line_with_the_words_that_it_is_joined_to():
    """It was written beyond the edge of a column, and the figure was refused."""
    spans = (Span("change of the logit of "), Span(" tired", "bold", "token"), Span(", at 10"))
    for room in (60, 100, 120, 150, 400):
        broken = wrap(spans, room, 11)
        assert all(spans_width(line, 11) <= room for line in broken)
        said = " ".join("".join(span.text for span in line).strip() for line in broken)
        assert said.split() == ["change", "of", "the", "logit", "of", "tired,", "at", "10"]
    assert len(broken) == 1
