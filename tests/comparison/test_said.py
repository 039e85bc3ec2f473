"""What the screen of a comparison says of heads that tie, and of rows that cannot differ."""

import json
import re

import numpy as np
import pytest

from attnscope.cli import main

TEXT = "The bank by the river was steep"


def shown(capsys, *options):
    assert main(["compare", *options]) == 0
    screen = " ".join(capsys.readouterr().out.split())
    assert main(["compare", *options, "--json"]) == 0
    return screen, json.loads(capsys.readouterr().out)


def shares(comparison):
    found = {}
    for head in comparison["changes"][0]["heads"]:
        layer, index = head["first"]
        found[f"L{layer}H{index}"] = max(
            share for share in head["total_variation"] if share is not None
        )
    return found


@pytest.mark.parametrize(
    "options",
    [
        [TEXT],
        ["A river bank", "A savings bank"],
        [TEXT, "--hide", "The"],
        [TEXT, "--hide", "river"],
    ],
)
def test_the_strongest_heads_have_digits_that_tell_the_first_from_the_second(options, capsys):
    screen, comparison = shown(capsys, *options)
    moved = shares(comparison)
    listed = re.findall(r"(L\dH\d) (\d\.\d+)", screen.partition("strongest ")[2])[:10]
    order = sorted(moved, key=lambda name: -moved[name])
    digits = 2 if round(moved[order[0]], 2) != round(moved[order[1]], 2) else 4
    assert listed[0] == (order[0], f"{moved[order[0]]:.{digits}f}")
    assert listed[1][1] == f"{moved[order[1]]:.{digits}f}"
    tied = sum(np.round(list(moved.values()), 4) == np.round(moved[order[0]], 4))
    said = f"{tied} heads tie at {moved[order[0]]:.4f}, one of which follows"
    assert (said in screen) == (tied > 1)
    assert ("the head in which most moved follows" in screen) == (tied == 1)


def test_rows_before_the_first_token_that_differs_cannot_differ(capsys):
    texts = [TEXT, "The bank by the river was old"]
    causal = ["--mask", "causal"]
    why = "before the first token that differs"
    screen, comparison = shown(capsys, *texts, *causal, "--query", "river")
    assert max(shares(comparison).values()) == 0
    assert f"nothing: both sides have the same weights in all 16 heads: this row is {why}" in screen
    screen, _ = shown(capsys, *texts, *causal, "--query", "0:5")
    assert f"these rows are {why}" in screen
    for options in (
        [*texts, *causal, "--query", "-1"],
        [TEXT, "--mask", "causal", "--mask", "causal", "--query", "river"],
    ):
        screen, _ = shown(capsys, *options)
        assert why not in screen


@pytest.mark.parametrize("hidden", [["none", "0:5"], ["0:5", "none"]])
@pytest.mark.parametrize("how", ["--summary", "--pool=2"])
def test_nothing_is_measured_where_a_side_reads_no_key(hidden, how, capsys):
    """Of maps, half of the weight had moved, or 2.5e30 of it; a summary said nothing."""
    sides = [word for tokens in hidden for word in ("--hide", tokens)]
    assert main(["compare", "The bank by the river", *sides, how]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "tie at" not in shown and "strongest" not in shown
    assert how != "--summary" or "unknown: no row has all of its weights on both sides" in shown


def test_spans_that_read_nothing_are_of_all_heads(capsys):
    assert main(["run", "The bank. The river.", "--hide", "0:6", "--spans", "sentences"]) == 0
    assert "mean of all 16 heads" in " ".join(capsys.readouterr().out.split())
