"""The commands that pages offer: each runs as it stands, and finds the numbers that its page shows."""

import io
import json
import random
import re
import shlex

import numpy as np
import pytest

from attnscope.cli import main
from attnscope.findings.heads import HeadRef
from tests.helpers.heads import unstacked
from tests.page.reading import read_page
from tests.page.test_heads import TEXT
from tests.page.walking import number, read_places, shows
from tests.referee.models import ROWS, Models

TEXTS = ["The bank by the river was steep", "The bank by the old river was very steep"]
WITH_SINKS = ["the bank by river was old", "--mask", "own", "--mask", "own+window:2"]


def offered(page, selector="#page-command code"):
    """The words of the command on a page, without the program's name."""
    name, *words = shlex.split(page.locator(selector).text_content())
    assert name == "attnscope"
    return words


def found_by(words, capsys):
    """What a command finds, as JSON."""
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("options", [["heads", "--draws", "2"], ["heads", TEXT, "--draws", "2"]])
def test_the_command_of_a_page_of_heads_measures_the_same_roles(
    options, open_page, tmp_path, capsys
):
    path = tmp_path / "heads.html"
    assert main([*options, "-o", str(path), "--quiet", "--force"]) == 0
    words = offered(open_page(path).page)
    assert words == options
    page = read_page(path)
    (walk,) = page.of_kind("walk")
    roles = walk["scenes"][0]["roles"]
    main_roles, strength = page.raw(roles["main"]), page.numbers(roles["strength"])
    measured = found_by(words, capsys)
    values = {role["name"]: np.array(role["values"]) for role in measured["roles"]}
    for layer, names in enumerate(measured["main"]):
        for head, name in enumerate(names):
            index = main_roles[layer, head]
            assert (roles["names"][index] if index >= 0 else None) == name
            if name is not None:
                assert strength[layer, head] == pytest.approx(values[name][layer, head], abs=1e-6)


def test_the_command_of_a_page_of_effects_measures_the_same_effects(open_page, tmp_path, capsys):
    path = tmp_path / "effects.html"
    options = ["ablate", TEXT, "--each", "head", "--replacement", "mean"]
    assert main([*options, "--output", str(path), "--quiet", "--no-header"]) == 0
    words = offered(open_page(path).page)
    assert words == options
    page = read_page(path)
    (scene,) = page.of_kind("walk")[0]["scenes"]
    (effects,) = [item for item in scene["numbers"] if item["name"] == "effect of head"]
    survey = found_by(words, capsys)
    expected = np.full(page.raw(effects["values"]).shape, np.nan)
    expected[survey["layers"], survey["heads"]] = survey["effects"][0]["kl"]
    np.testing.assert_allclose(page.raw(effects["values"]), expected, atol=1e-6)
    # what it offers is also what it says first
    best = np.unravel_index(np.argmax(np.abs(expected)), expected.shape)
    said = re.match(
        rf"Largest effect: L{best[0]}H{best[1]} (\S+) bits \((.+)\), then ", scene["answer"]
    )
    assert float(said[1]) == pytest.approx(expected[best], rel=0.01)


def test_the_answer_of_a_page_of_layers_is_about_layers(tmp_path):
    path, exact = tmp_path / "layers.html", tmp_path / "layers.json"
    for output in (path, exact):
        assert main(["ablate", TEXT, "--each", "layer", "-o", str(output), "--quiet"]) == 0
    kl = np.array(json.loads(exact.read_text())["effects"][0]["kl"])
    order = np.argsort(-kl)[:3]
    (scene,) = read_page(path).of_kind("walk")[0]["scenes"]
    said = re.fullmatch(
        r"Largest effect: (L\d) (\S+) bits \([a-z ]+\), then (L\d) (\S+) bits, (L\d) (\S+) bits\.",
        scene["answer"],
    )
    assert said.groups()[::2] == tuple(f"L{layer}" for layer in order)
    assert [float(bits) for bits in said.groups()[1::2]] == pytest.approx(kl[order], abs=0.0051)


def test_the_command_of_an_explanation_explains_the_same_cell(open_page, tmp_path, capsys):
    path = tmp_path / "explain.html"
    options = ["explain", TEXT, "--query", "[MASK]", "--layer", "2", "--head", "0"]
    assert main([*options, "-o", str(path), "--quiet"]) == 0
    page = open_page(path).page
    words = offered(page)
    assert words == options
    found = found_by(words, capsys)
    weight = found["row"]["weights"][found["keys"].index(found["cells"][0]["key"])]
    assert f"weight {weight:.4f}" in page.locator("main").text_content()


@pytest.mark.parametrize("mask", [0, 1])
def test_the_command_of_two_texts_compares_them_in_the_chosen_head(
    mask, open_page, tmp_path, capsys
):
    path = tmp_path / "texts.html"
    assert main(["compare", *TEXTS, "-o", str(path), "--quiet"]) == 0
    page = open_page(path).page
    draw = random.Random(mask)
    for query in (2, 6):
        layer, head = draw.randrange(4), draw.randrange(4)
        read_places(page, [f"#mask={mask}&head=L{layer}H{head}&query={query}&key=1&stage=weights"])
        words = offered(page, ".walk .command code")
        assert words[:3] == ["compare", *TEXTS]
        # after the word that only one text has, a position names different tokens
        assert ("--query" in words) == (query == 2)
        (change,) = found_by(words, capsys)["changes"][0]["heads"]
        assert change["first"] == change["second"] == [layer, head]
        row = [pair[mask] for pair in change["queries"]].index(query)
        column = [pair[mask] for pair in change["keys"]].index(1)
        shown = page.locator(".difference p.cell").text_content().rsplit(": ")[-1]
        assert number(shown) == pytest.approx(change["difference"][row][column], abs=2e-7)


def test_layers_are_compared_by_their_command(open_page, tmp_path, capsys):
    path = tmp_path / "layers.html"
    assert main(["compare", TEXT, "--layer", "0", "--layer", "2", "-o", str(path), "--quiet"]) == 0
    words = offered(open_page(path).page, ".walk .command code")
    assert words.count("--layer") == 2
    assert words.count("--head") == 1
    (change,) = found_by(words, capsys)["changes"][0]["heads"]
    assert [change["first"][0], change["second"][0]] == [0, 2]


def test_a_piped_text_and_a_model_of_the_environment_are_written_out(
    open_page, tmp_path, monkeypatch
):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(f"{TEXT}\n".encode())))
    path = tmp_path / "heads.html"
    monkeypatch.setenv("ATTNSCOPE_MODEL", "riverbank")
    assert main(["heads", "-", "--role", "previous", "-o", str(path), "--quiet"]) == 0
    words = offered(open_page(path).page)
    assert words == ["heads", TEXT, "--role", "previous", "--model", "riverbank"]


def test_what_moved_follows_the_chosen_head(open_page, tmp_path):
    path, exact = tmp_path / "page.html", tmp_path / "exact.json"
    for output in (path, exact):
        every = ["--layer", "all", "--head", "all"] if output is exact else []
        assert main(["compare", *TEXTS, "-o", str(output), "--quiet", *every]) == 0
    saved = unstacked(json.loads(exact.read_text()))
    page = open_page(path).page
    moved = "[...document.querySelectorAll('[data-moved-row]')]"
    for change in random.Random(3).sample(saved["changes"][0]["heads"], 5):
        name = str(HeadRef(*change["first"]))
        read_places(page, [f"#head={name}&query=2&key=1&stage=weights"])
        assert shows(page, "document.querySelector('.moves h2').textContent.split(' ')[3]", name)
        rows = page.evaluate(f"{moved}.map((cell) => [+cell.dataset.movedRow, +cell.textContent])")
        expected = dict(enumerate(change["total_variation"]))
        listed = {row: value for row, value in expected.items() if value >= 0.005}
        assert dict(rows) == pytest.approx(listed, abs=0.0051)
        assert [value for _, value in rows] == sorted([value for _, value in rows], reverse=True)
        gains = page.evaluate(f"{moved}.map((cell) => cell.nextSibling.textContent)")
        for (row, _), gain in zip(rows, gains, strict=True):
            sign, share = gain[0], float(gain[1:].split()[0])
            assert sign == "+"
            assert share == pytest.approx(change["gain"][row], abs=0.0051)
    # a click on a row goes there
    row = page.locator(".moves tbody button").first
    label = row.locator(".number").text_content().split("/")[0]
    row.click()
    assert shows(page, f"location.hash.includes('query={label}')", True)


@pytest.mark.parametrize("unit", ["tokens", "spans"])
def test_what_moved_counts_the_share_of_a_learned_sink(unit, open_page, tmp_path, capsys):
    """As the terminal does: what a row does not give its keys is on the sink."""
    model = Models(tmp_path)[next(name for name in ROWS if name.startswith("gpt_oss"))].path
    options = [*WITH_SINKS, "--model", str(model), "--max-memory", "4G"]
    spans = ["--spans", "whole-words"] if unit == "spans" else []
    path = tmp_path / "page.html"
    assert main(["compare", *options, *spans, "-o", str(path), "--quiet"]) == 0
    page = open_page(path).page
    heads = ["--layer", "0", "--head", "1"]
    (first, second) = (
        side["report"]["texts"][0]
        for side in found_by(["compare", *options, *spans, *heads], capsys)["sides"]
    )
    if spans:
        before, after = (
            np.array(text["spans"]["weights"], dtype=np.float64)[0, 1] for text in (first, second)
        )
    else:
        before, after = (
            np.array(text["heads"]["stages"]["weights"], dtype=np.float64)[0]
            for text in (first, second)
        )
    on_keys = np.abs(after - before).sum(1) / 2
    expected = on_keys + np.abs(after.sum(1) - before.sum(1)) / 2
    assert (expected > on_keys + 0.01).any()
    read_places(page, ["#head=L0H1&stage=weights"])
    assert shows(page, "document.querySelector('.moves h2').textContent.split(' ')[3]", "L0H1")
    rows = page.evaluate(
        "[...document.querySelectorAll('[data-moved-row]')].map("
        "(cell) => [+cell.dataset.movedRow, cell.textContent])"
    )
    order = sorted(np.flatnonzero(expected >= 0.005), key=lambda row: -expected[row])[:10]
    assert [row for row, _ in rows] == order
    assert [float(share) for _, share in rows] == pytest.approx(expected[order], abs=0.0051)
    if not spans:
        assert main(["compare", *options, *heads]) == 0
        screen = capsys.readouterr().out.partition("moved")[2]
        for row, share in rows[:3]:
            name = first["tokens"][row]["text"]
            assert re.search(rf"\n *{row}\S* {re.escape(name)} .*?{share}", screen)
