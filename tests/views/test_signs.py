"""One sign has one meaning in every view: `·` is a weight of exactly zero, and `←` is reading."""

import ast
import re
from pathlib import Path

import pytest

from attnscope.findings.tokens import CONTINUES
from attnscope.studies.heads.needle_screen import _SHADES
from attnscope.studies.heads.screen import UNCLEAR
from attnscope.views.numbers import NO_WEIGHT, Digits, cell_text
from attnscope.views.spans import ASCII
from attnscope.views.terminal.colours import SHADES

ROOT = Path(__file__).parents[2]
# where the sign itself is declared, translated or measured
DECLARED = {("attnscope/views/numbers.py", "·"), ("attnscope/views/figure/canvas.py", "·")}
DECLARED |= {("attnscope/views/spans.py", text) for text in ("·×÷…←→↓▾▴▸–−‖│α░▒▓█▏▎▍▌▋▊▉▕▐",)}


def strings(path):
    """Every string of a module that is no docstring, with `x` for what an f-string fills in."""
    tree = ast.parse(path.read_text())
    documents = {
        node.body[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and isinstance(node.body[0], ast.Expr)
    }
    formatted = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    for joined in formatted:
        yield "".join(
            part.value if isinstance(part, ast.Constant) else "x" for part in joined.values
        )
    documents |= {part for joined in formatted for part in joined.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in documents:
            yield node.value


def second_meanings(text):
    """Dots of a text that neither separate (` · `) nor multiply (`q·k`)."""
    return re.findall(r"(?<![^ ])·(?! )|(?<! )·(?= |$)|^·$|^· ", text)


@pytest.mark.parametrize(
    ("text", "has"),
    [
        ("a · b", 0),
        (" · ", 0),
        ("q·k", 0),
        ("α·‖v‖", 0),
        ("·", 1),
        ("· is", 1),
        ("no ·x", 1),
        ("x· y", 1),
    ],
)
def test_the_search_finds_dots_that_mean_something_else(text, has):
    assert bool(second_meanings(text)) == bool(has)


def test_a_dot_is_no_weight_and_nothing_else():
    found = {
        (str(path.relative_to(ROOT)), text)
        for path in (ROOT / "attnscope").rglob("*.py")
        if "·" in path.read_text()
        for text in strings(path)
        if second_meanings(text)
    }
    assert found == DECLARED
    scripts = {
        path.name: [
            text
            for text in re.findall(r"""["'`]([^"'`]*·[^"'`]*)["'`]""", path.read_text())
            if second_meanings(text)
        ]
        for path in (ROOT / "web/src").glob("*.ts*")
    }
    assert {name: texts for name, texts in scripts.items() if texts} == {"format.ts": [NO_WEIGHT]}
    assert NO_WEIGHT not in {UNCLEAR, *CONTINUES, *_SHADES, *SHADES}
    for stage, value in (("masked", -float("inf")), ("weights", 0.0)):
        assert cell_text(stage, value, False, Digits(2)).strip() == NO_WEIGHT
    for stage, value in (
        ("weights", 0.001),
        ("weights", 1.0),
        ("scores", 0.0),
        ("scaled", 0.0),
        ("output", 0.0),
    ):
        assert NO_WEIGHT not in cell_text(stage, value, False, Digits(2))


def test_signs_of_ascii_terminals_are_apart():
    drawn = [NO_WEIGHT, UNCLEAR, *SHADES]
    assert len({sign.translate(ASCII) for sign in drawn}) == len(drawn)


def test_what_reads_is_on_the_left_of_its_arrow_in_every_document():
    pages = [
        *(ROOT / "docs").glob("*.md"),
        ROOT / "README.md",
        *(ROOT / "tests").rglob("snapshots/*"),
    ]
    label = r"\d+ [^\s│]+"
    assert len(pages) > 40
    for page in pages:
        if page.is_file():
            assert not re.findall(
                rf"^.*{label} → {label}.*$", page.read_text(errors="replace"), re.MULTILINE
            ), page
