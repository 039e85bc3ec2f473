"""Sentences of figures: they name no sign that a figure lacks, and nothing that its reader could type."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from attnscope.cli import main
from attnscope.studies import formats
from attnscope.studies.hints import without_hints
from attnscope.views.parts import Facts, joined
from attnscope.views.spans import note
from tests.helpers.sample_reports import sized
from tests.views.test_figure import HATCHED, grids, texts

LONG = "The animal did not cross the street because it was too tired and slept by the river. " * 4
COMMANDS = {
    "a few heads": ["run", "The bank by the river", "--layer", "1", "--head", "1-2"],
    "a row": ["run", LONG, "--query", "3"],
    "a map": ["run", LONG, "--layer", "1", "--head", "2"],
    "rollout": ["run", LONG, "--measure", "rollout"],
    "a rollout's row": ["run", LONG, "--measure", "rollout", "--query", "3"],
    "spans": ["run", "The bank. The river.", "--spans", "sentences"],
    "compare": ["compare", "The bank by the river"],
    "compare, long": ["compare", LONG],
    "compare, a row": ["compare", LONG, "--query", "3"],
    "compare, texts": ["compare", "The bank by the river", "The old bank", "--layer", "1"],
    "explain": ["explain", "The bank by the river", "--query", "bank"],
    "explain, long": ["explain", LONG, "--query", "8"],
    "ablate": ["ablate", "The bank by the river", "--each", "head"],
    "ablate, a cut": ["ablate", "The bank by the river", "--cut", "L1H1"],
    "heads": ["heads", "The bank by the river", "--measure", "entropy"],
    "heads, a key": ["heads", "The bank by the river", "--key", "bank"],
}
# What a command line or Python is told: an option, or the arguments of the same names.
HINT = re.compile(
    r"--[a-z]|\b(?:selects?|shows?|lists?|explains) (?:others|more|all|another)\b|\bhas all\b|\((?:layer|head|stages)[,)]"
    r"|\b(?:select|such as) "
)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_figure_says_nothing_of_options(name, tmp_path):
    path = tmp_path / "figure.svg"
    assert main([*COMMANDS[name], "-o", str(path)]) == 0
    said = " | ".join(texts(ElementTree.parse(path).getroot()))
    assert "bank" in said or "animal" in said
    assert [said[max(0, found.start() - 60) : found.end()] for found in HINT.finditer(said)] == []


def test_a_figure_names_its_hatching_and_not_a_sign_of_a_screen():
    root = ElementTree.fromstring(b"".join(formats.export(sized(20), Path("x.svg"))))
    said = " ".join(texts(root)).replace("\u00a0", " ")
    assert any(HATCHED in row for grid in grids(root) for row in grid)
    assert re.search(r"hatched +is +not +allowed", said)
    assert re.search(r"hatched +is +exactly +zero", said)
    assert "· is" not in said


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("the 10 rows with most weight are shown; --query 0:90 shows all", "the 10 rows with most weight are shown"),
        ("no [MASK] in the text; --at compares predictions at a token", "no [MASK] in the text"),
        ("words are cut differently: --spans whole-words compares words", "words are cut differently"),
        ("select rows, such as --query 0:8", None),
        ("--layer L --head H adds the matrices of a head", None),
        ("--pair: the model shows no pair", "--pair: the model shows no pair"),
        ("the encoder reads --context: It is; late", "the encoder reads --context: It is; late"),
    ],
)  # fmt: skip
def test_a_note_keeps_what_it_says_of_the_findings(text, left):
    parts = [*without_hints([Facts([("note", note(text)), ("mask", note("--x shows all"))])])]
    said = [(name, "".join(span.text for span in joined(value))) for name, value in parts[0].lines]
    assert said == [("note", left)] * (left is not None) + [("mask", "--x shows all")]
