"""Sentences of figures: they name no sign that a figure lacks, and nothing that its reader could type."""

import ast
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

import attnscope
from attnscope.cli import main
from attnscope.findings.ablation import EffectSurvey
from attnscope.findings.codec import from_json
from attnscope.findings.hints import Hint, hint_of
from attnscope.studies import formats
from attnscope.views.figure import as_svg
from attnscope.views.parts import Facts
from attnscope.views.spans import note
from attnscope.views.terminal import as_text
from tests.helpers.sample_reports import sized
from tests.views.test_figure import HATCHED, grids, texts

LONG = "The animal did not cross the street because it was too tired and slept by the river. " * 4
PACKAGE = Path(attnscope.__file__).parent
COMMANDS = {
    "a few heads": ["run", "The bank by the river", "--layer", "1", "--head", "1-2"],
    "a row": ["run", LONG, "--query", "3"],
    "a map": ["run", LONG, "--layer", "1", "--head", "2"],
    "rollout": ["run", LONG, "--measure", "rollout"],
    "a rollout's row": ["run", LONG, "--measure", "rollout", "--query", "3"],
    "spans, a head": ["run", LONG, "--spans", "sentences", "--layer", "1"],
    "spans, generated": [
        "run",
        "The bank.",
        "--mask",
        "causal",
        "--spans",
        "sentences",
        "--generate",
        "2",
    ],
    "words of a map": ["run", LONG, "--words"],
    "ablate, spans": [
        "ablate",
        "The bank by the river. The old mill.",
        "--mask",
        "causal",
        "--spans",
        "sentences",
        "--each",
        "span",
    ],
    "learn": ["learn", "softmax"],
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
    r"--(?!words merges)[a-z]|\b(?:selects?|shows?|lists?|explains) (?:others|more|all|another)\b|\bhas all\b"
    r"|\((?:layer|head|stages)[,)]"
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


def said_by(*view_parts):
    """Return what a figure and a terminal say."""
    figure = texts(ElementTree.fromstring(as_svg(view_parts)))
    return "".join(figure), "".join(as_text(view_parts, width=200).split())


@pytest.mark.parametrize("hint", Hint, ids=lambda hint: hint.name)
def test_a_note_keeps_what_it_says_of_the_findings(hint):
    """A terminal has the whole note, and a figure the statement, with nothing of a note that is a hint alone."""
    for statement in ("--pair: the model; shows 10 rows", ""):
        text = hint.after(statement, "0:60")
        figure, terminal = said_by(Facts([("note", note(text)), ("mask", note("own"))]))
        left = f"note{statement}" if statement else ""
        assert figure.replace(" ", "") == f"{left}maskown".replace(" ", "")
        assert terminal == f"note{text}maskown".replace(" ", "")


@pytest.mark.parametrize(
    "statement",
    [
        "--pair: the model shows no pair",
        "the encoder reads --context: It is; late",
        "--show-padding: no text is padded",
        "config keys ignored by --ignore-key: a; the real model's numbers may differ",
    ],
)
def test_a_statement_that_names_an_option_stays(statement):
    figure, _ = said_by(Facts([("note", note(statement))]))
    assert figure.replace(" ", "") == f"note{statement}".replace(" ", "")


def test_a_figure_of_saved_findings_says_nothing_of_options(tmp_path):
    """JSON holds a note as a string, with what a terminal tells to type."""
    saved = tmp_path / "report.json"
    assert main([*COMMANDS["ablate"], "-o", str(saved)]) == 0
    survey = from_json(saved.read_bytes(), EffectSurvey)
    told = "comparing hidden states of all tokens"
    assert [hint_of(text) for text in survey.provenance.notes if told in text] == [
        Hint.PREDICTIONS.value
    ]
    figure = b"".join(formats.export(survey, Path("x.svg"))).decode()
    said = " ".join(texts(ElementTree.fromstring(figure)))
    assert told in said
    assert HINT.findall(said) == []


# A clause that tells what to type, in text of these folders.
TOLD = re.compile(
    r"--[a-z-]+(?: [A-Z…0-9:]+)* [a-z]+s\b|\b(?:such as|add|without|use|with|select) --[a-z]"
)
FOLDERS = "checkpoints", "engines", "findings", "model", "run", "studies", "views"
# What is none of a note: an error, options in a list, what explore says, and statements that name an option.
NO_HINTS = {
    "the file was edited or damaged: save it again with --json",
    "--layer L --head H, or --stage weights",
    "--stage weights",
    "--stage weights (the matrix)",
    "--layer … stops before that, …",
    "no predictions here; attnscope run --predict shows them",
    "no predictions: the weights are random; attnscope run --predict shows them",
    "the text is long; attnscope run --predict shows them",
    "which --query names",
    "--words merges rows and columns, not runs of a map",
}


DOCUMENTS = "hint", "_EXAMPLES"


def written_texts(path):
    """Yield the texts that a file writes, with `…` for what differs, but for documents and errors."""
    tree = ast.parse(path.read_text())
    left_out = set()
    for node in ast.walk(tree):
        called = (
            node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
        )
        if called in ("AttnscopeError", "UsageError", "Study"):
            left_out.update(ast.walk(node))
        elif isinstance(node, ast.JoinedStr):
            left_out.update(node.values)
        elif isinstance(node, ast.Expr):
            left_out.add(node.value)
        elif (isinstance(node, ast.keyword) and node.arg == "hint") or (
            isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in DOCUMENTS
        ):
            left_out.update(ast.walk(node.value))
    for node in ast.walk(tree):
        if node not in left_out and isinstance(node, ast.JoinedStr):
            yield "".join(
                part.value if isinstance(part, ast.Constant) else "…" for part in node.values
            )
        elif node not in left_out and isinstance(node, ast.Constant):
            yield str(node.value)


def test_all_that_a_note_tells_to_type_is_declared_as_a_hint():
    files = [path for name in FOLDERS for path in (PACKAGE / name).rglob("*.py")]
    told = {text for path in files for text in written_texts(path) if TOLD.search(text)}
    declared = {hint.value for hint in Hint}
    assert told - NO_HINTS == {text for text in declared if TOLD.search(text)}
    for hint in Hint:
        assert hint_of(hint.after("5 rows: shown", "0:60")) == hint.value.replace("{}", "0:60")
        assert re.search("--[a-z]", hint.value) or hint is Hint.EXACT_CELLS
