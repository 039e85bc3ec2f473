"""A comparison with spans begins with the text and an answer: a walk between spans of both sides, then between tokens."""

import itertools
import json
import shlex

import numpy as np
import pytest

from attnscope.cli import main
from tests.page.reading import read_page
from tests.page.walking import middle_of_cell, number, shows

TEXT = "Doc: the bank by the river was steep. Note: a boat sank there. Answer: the old bank"
MARKS = "Doc:,Note:,Answer:"
OF_ORDERS = [
    "the red boat saw a green hill",
    "a green hill and snow saw the red boat",
    "--spans",
    "whole-words",
]


def written(folder, *options):
    """The page of a comparison, and its JSON."""
    path, exact = folder / "page.html", folder / "exact.json"
    for output in (path, exact):
        assert main(["compare", *options, "-o", str(output), "--quiet"]) == 0
    return path, json.loads(exact.read_text())


def spans_of(exact, side):
    (text,) = exact["sides"][side]["report"]["texts"]
    return text["spans"]["text"]["names"], np.array(text["spans"]["weights"], dtype=np.float64)


def scenes_of(path):
    """The walk, and the scenes between spans of every side."""
    page = read_page(path)
    assert [node["k"] for node in page.nodes if isinstance(node, dict)] == ["walk"]
    (walk,) = page.of_kind("walk")
    assert walk["texts"] == ["as spans", "as tokens"]
    return page, walk, [scene for scene in walk["scenes"] if scene["text"] == 0]


def parts_of(names):
    """Indices of the spans that are parts of the text."""
    return [n for n, name in enumerate(names) if not name.startswith("(")]


def moved(before, after):
    """The share of each row that moved, of matrices whose keys are the same."""
    return np.abs(after - before).sum(-1) / 2


def with_means(heads):
    """Numbers of layers and heads with the means of layers, of heads and of all."""
    of_layers = np.concatenate([heads, heads.mean(1, keepdims=True)], axis=1)
    return np.concatenate([of_layers, of_layers.mean(0, keepdims=True)])


@pytest.fixture(scope="module")
def masks(tmp_path_factory):
    return written(tmp_path_factory.mktemp("masks"), TEXT, "--spans", MARKS)


@pytest.fixture(scope="module")
def orders(tmp_path_factory):
    return written(tmp_path_factory.mktemp("orders"), *OF_ORDERS)


def test_both_sides_have_every_head_and_their_means(masks):
    path, exact = masks
    page, walk, scenes = scenes_of(path)
    assert walk["masks"] == ["causal", "bidirectional"]
    for side, scene in enumerate(scenes):
        _, weights = spans_of(exact, side)
        expected = with_means(weights)
        assert scene["size"] == "4×4"
        assert len(scene["units"]) == 25
        for unit in scene["units"]:
            np.testing.assert_allclose(
                page.stage(unit, "weights"), expected[tuple(unit["at"])], atol=1e-6
            )


def test_heads_show_how_much_of_a_row_moved(masks):
    path, exact = masks
    page, _, scenes = scenes_of(path)
    parts = parts_of(spans_of(exact, 0)[0])
    before, after = (with_means(spans_of(exact, side)[1]) for side in (0, 1))
    expected = moved(before, after)[..., parts].max(-1)
    for scene in scenes:
        (shown,) = [one for one in scene["numbers"] if one["name"] == scene["display"]]
        np.testing.assert_allclose(page.numbers(shown["values"]), expected, atol=1e-6)


def test_the_answer_has_the_part_the_changes_and_the_head(masks):
    path, exact = masks
    _, _, scenes = scenes_of(path)
    names, before = spans_of(exact, 0)
    _, after = spans_of(exact, 1)
    parts = parts_of(names)
    assert len(parts) < len(names)
    shares = moved(before.mean((0, 1)), after.mean((0, 1)))
    row = parts[int(shares[parts].argmax())]
    change = (after - before).mean((0, 1))[row]
    order = np.argsort(-np.abs(change))[:2]
    changes = ", ".join(
        f"“{names[key]}” {before.mean((0, 1))[row, key]:.2f} → {after.mean((0, 1))[row, key]:.2f}"
        for key in order
        if abs(change[key]) >= 0.005
    )
    of_heads = moved(before, after)[..., parts].max(-1)
    most = f"{of_heads.max():.2f}"
    tied = [
        f"L{layer}H{head}"
        for layer, head in itertools.product(range(4), repeat=2)
        if f"{of_heads[layer, head]:.2f}" == most
    ]
    for scene in scenes:
        answer = scene["answer"].replace("\u2068", "").replace("\u2069", "")
        assert answer.startswith(
            f"“{names[row]}” moves most, {shares[row]:.2f} of its weight (mean of all 16 heads): {changes}. Of all heads, "
        )
        assert f" most: {most} of " in answer
        assert answer.count("L") == min(len(tied), 3)
        assert (scene["start"], scene["startKey"]) == (row, order[0])


def test_a_row_that_is_asked_about_is_answered(tmp_path):
    path, exact = written(tmp_path, TEXT, "--spans", MARKS, "--query", "Note")
    _, _, scenes = scenes_of(path)
    names, before = spans_of(exact, 0)
    row = names.index("Note")
    share = moved(before.mean((0, 1)), spans_of(exact, 1)[1].mean((0, 1)))[row]
    answer = scenes[0]["answer"].replace("\u2068", "").replace("\u2069", "")
    begin = f"“Note” moves {share:.2f} of its weight (mean of all 16 heads)"
    assert answer.startswith(begin)
    assert scenes[0]["start"] == scenes[1]["start"] == row


def test_spans_in_another_order_are_paired_by_name(orders):
    path, exact = orders
    page, _, scenes = scenes_of(path)
    (names, before), (others, after) = (spans_of(exact, side) for side in (0, 1))
    pairs = scenes[1]["pairs"]
    assert scenes[0]["pairs"] is None
    assert [(names[i], others[j]) for i, j in pairs["queries"]] == [(name, name) for name in names]
    alone = [others[j] for i, j in pairs["keys"] if i < 0]
    assert alone == [name for name in others if name not in names]
    assert {"and", "snow"} <= set(alone)
    assert f"–/{alone[0]}" in pairs["columns"]["names"]
    where = [others.index(name) for name in names]
    extra = after[..., where, :][..., [others.index(name) for name in alone]].sum(-1) / 2
    expected = moved(before, after[..., where, :][..., where]) + extra
    expected_of_mean = moved(before.mean((0, 1)), after.mean((0, 1))[where][:, where]) + extra.mean(
        (0, 1)
    )
    parts = parts_of(names)
    (shown,) = [one for one in scenes[0]["numbers"] if one["name"] == "moved"]
    values = page.numbers(shown["values"])
    np.testing.assert_allclose(values[:4, :4], expected[..., parts].max(-1), atol=1e-6)
    assert values[4, 4] == pytest.approx(expected_of_mean[parts].max(), abs=1e-6)


def test_answer_sides_difference_and_row_are_one_screen(open_page, masks):
    path, exact = masks
    page = open_page(path, size=(1280, 800)).page
    panels = [
        page.locator("#panel-text"),
        page.locator(".answer"),
        page.locator("#panel-heads"),
        page.locator("#panel-row"),
        page.locator(".sides"),
    ]
    for panel in panels:
        box = panel.bounding_box()
        assert box["y"] >= 0
        assert box["y"] + box["height"] <= 800
    names = page.locator(".sides figcaption strong").all_text_contents()
    assert names == ["causal", "bidirectional", "bidirectional − causal"]
    assert page.locator(".flow").text_content() == TEXT
    # of a cell, the panel of the row has both sides and the difference
    _, before = spans_of(exact, 0)
    _, after = spans_of(exact, 1)
    picture = page.locator(".difference .picture, .difference canvas").first
    picture.click(position=middle_of_cell(picture, 2, 3))
    pair = page.locator("[data-sides]").text_content()
    values = [matrix.mean((0, 1))[2, 3] for matrix in (before, after)]
    found = [number(word) for word in pair.split() if word.lstrip("+−").replace(".", "").isdigit()]
    np.testing.assert_allclose(found[:2], values, atol=6e-4)


@pytest.mark.parametrize("mask", [0, 1])
@pytest.mark.parametrize("name", ["masks", "orders"])
def test_the_command_of_a_place_shows_it(open_page, request, name, mask, capsys):
    path, exact = request.getfixturevalue(name)
    names, weights = spans_of(exact, mask)
    query = names[2]
    address = f"#mask={mask}&head=L1H2&query={shlex.quote(query)}"
    page = open_page(path, address.replace(" ", "%20"), size=(1280, 800)).page
    _, *command = shlex.split(page.locator("p.command code").text_content())
    assert command[-6:] == ["--layer", "1", "--head", "2", "--query", query]
    assert main([*command, "--json"]) == 0
    side = json.loads(capsys.readouterr().out)["sides"][mask]["report"]["texts"][0]["spans"]
    assert side["text"]["names"][side["query"]] == query
    assert side["selected"] == [[1, 2]]
    np.testing.assert_allclose(side["weights"], weights, atol=1e-6)


def test_the_mean_of_some_heads_has_no_command(tmp_path):
    """None shows it by the name that it has in the walk."""
    options = [TEXT, "--spans", MARKS, "--layer", "0,2", "--head", "1,3"]
    path, exact = written(tmp_path, *options)
    page, _, scenes = scenes_of(path)
    for side, scene in enumerate(scenes):
        _, weights = spans_of(exact, side)
        assert not scene["comparison"]
        (unit,) = [unit for unit in scene["units"] if unit["at"] == scene["first"]]
        assert unit["name"] == "mean"
        expected = weights[[0, 2]][:, [1, 3]].mean((0, 1))
        np.testing.assert_allclose(page.stage(unit, "weights"), expected, atol=1e-6)
        assert "(mean of 4 heads)" in scene["answer"]


@pytest.mark.parametrize("axis", ["layer", "head"])
def test_sides_that_are_heads_are_side_by_side(axis, tmp_path):
    """The layers, or heads, of the sides are compared in each head, or layer."""
    options = [TEXT, "--spans", MARKS, f"--{axis}", "0", f"--{axis}", "2"]
    path, exact = written(tmp_path, *options)
    page, _, scenes = scenes_of(path)
    for side, (scene, index) in enumerate(zip(scenes, (0, 2), strict=True)):
        _, weights = spans_of(exact, side)
        expected = with_means(weights)
        expected = expected[[index]] if axis == "layer" else expected[:, [index]]
        for unit in scene["units"]:
            np.testing.assert_allclose(
                page.stage(unit, "weights"), expected[tuple(unit["at"])], atol=1e-6
            )
        (first,) = exact["sides"][side]["report"]["texts"][0]["heads"]["units"]
        (shown,) = [unit["name"] for unit in scene["units"] if unit["at"] == scene["first"]]
        assert shown == f"L{first[0]}H{first[1]}"


def test_tokens_are_a_choice_away(open_page, masks):
    path, exact = masks
    page = open_page(path, size=(1280, 800)).page
    assert page.evaluate("document.querySelector('#where').textContent") == "mean"
    page.locator(".text-panel select").first.select_option(label="as tokens")
    tokens = exact["sides"][0]["report"]["texts"][0]["tokens"]
    assert shows(page, "document.querySelectorAll('#panel-text .token').length", len(tokens))
