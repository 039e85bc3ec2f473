"""Text without rich: nothing is cut or broken inside a word, and in ASCII our own signs have a spelling."""

import os
import re
import subprocess
import sys

import pytest
from rich.cells import cell_len

from attnscope.views.plain import PAGE, Page

ROWS = [("check", "measured", "verdict"), ("nothing on keys that are not allowed", "0.0e+00", "ok")]
COMMANDS = [["info", "--cost"], ["check", "ab", "--config", "causal"], ["run", "ab"], ["run", "ab", "--pool", "2"],
            ["compare", "a b"],
            ["explain", "a bank", "--query", "bank"],
            ["explain", "a bank", "--query", "1", "--config", "sliding-window"],
            ["run", "a bank", "--config", "grouped-query", "--by", "projected", "--mask", "causal"]]  # fmt: skip


@pytest.mark.parametrize("width", [16, 24, 40, 60])
def test_a_table_loses_no_cell_and_is_no_wider_than_the_page(width):
    lines = Page(width).table(ROWS)
    assert all(len(line) <= max(width, 16 + 2 + 8) for line in lines)
    assert set(" ".join(lines).split()) == {word for row in ROWS for cell in row for word in cell.split()}
    assert PAGE.table(ROWS)[1] == "nothing on keys that are not allowed  0.0e+00   ok"


@pytest.mark.parametrize("width", range(16, 80))
def test_a_name_that_is_wider_than_its_column_wraps_after_an_underscore(width):
    name = "equals scaled_dot_product_attention"
    _, first, *others = Page(width).table([("check", "measured"), (name, "2.2e-07")])
    shown = [first.removesuffix("2.2e-07").strip(), *(line.strip() for line in others)]
    assert all(part.endswith(("_", "equals", "attention")) for part in shown)
    assert "".join(shown).replace(" ", "") == name.replace(" ", "")


def test_a_name_without_an_underscore_is_broken_where_its_column_ends():
    lines = Page(20).table([("check",), ("x" * 50 + "_y",)])
    assert "".join(line.strip() for line in lines[1:]) == "x" * 50 + "_y"
    assert max(map(len, lines)) <= 22


def test_facts_wrap_at_words_behind_a_margin():
    assert Page(30).facts([("heads", "4 that share 2 key/value heads"), ("mask", "own")], 8) == [
        "heads   4 that share 2",
        "        key/value heads",
        "mask    own",
    ]


def test_untrusted_text_is_told_from_our_own_in_ascii():
    page = Page(80, ascii=True)
    (line,) = page.facts([("text", f"{page.safe('a·b')} · 2 tokens × ε")], 6)
    assert line == r"text  a\xb7b . 2 tokens x eps"
    assert page.note("a map of 3 × 3 of 'é'") == r"a map of 3 x 3 of '\xe9'"


@pytest.fixture
def in_ascii():
    """What the commands print under `LANG=C`, by command and width: one process runs them all."""
    program = f"""
import os, sys
from attnscope.cli import main
for width in (40, 100):
    for number, command in enumerate({COMMANDS!r}):
        os.environ["COLUMNS"] = str(width)
        assert main(command) == 0
        sys.stdout.flush()
        print(chr(0), number, width, end=chr(0))
"""
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, env={**os.environ, **plain})
    parts = done.stdout.decode("ascii").split("\0")[:-1]
    return {tuple(map(int, name.split())): shown for shown, name in zip(parts[::2], parts[1::2], strict=True)}


def test_no_sign_of_ours_is_escaped_where_the_terminal_knows_ascii_only(in_ascii):
    """The model's name and the text are ASCII here: a backslash would be ours. And lines break between words."""
    assert len(in_ascii) == 2 * len(COMMANDS)
    for (number, width), shown in in_ascii.items():
        assert len(shown.splitlines()) > 5, COMMANDS[number]
        assert "\\" not in shown, (COMMANDS[number], width, re.findall(r".*\\.*", shown))
        if width == 40 and number < 2:
            assert all(len(line) <= 40 for line in shown.splitlines()), shown


@pytest.mark.parametrize("width", [24, 41, 60])
def test_wide_characters_take_two_columns(width):
    text = "漢字 仮名漢字 ab 漢字仮名漢字仮名漢字仮名漢字仮名漢字仮名漢字仮名漢字仮名漢字仮名 end"
    lines = Page(width).wrapped(text, "text", 8)
    assert all(cell_len(line) <= width for line in lines)
    assert "".join(lines).removeprefix("text").replace(" ", "") == text.replace(" ", "")
