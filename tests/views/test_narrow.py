"""Text, facts and tables of words: nothing is lost on a narrow screen, and in ASCII our own signs have a spelling."""

import os
import re
import subprocess
import sys
from io import StringIO

import pytest
from rich.cells import cell_len
from rich.console import Console

from attnscope.cli import main
from attnscope.views.parts import GAP, Column, Facts, Table, Text
from attnscope.views.spans import Span, note, ours, untrusted
from attnscope.views.terminal import as_text, draw
from tests.helpers.screens import Named

ROWS = [("check", "measured", "verdict"), ("nothing on keys that are not allowed", "0.0e+00", "ok")]
COMMANDS = [["info", "--cost"], ["check", "ab", "--config", "causal"], ["run", "ab"], ["run", "ab", "--pool", "2"],
            ["compare", "a b"],
            ["explain", "a bank", "--query", "bank"],
            ["explain", "a bank", "--query", "1", "--config", "sliding-window"],
            ["run", "a bank", "--config", "grouped-query", "--by", "projected", "--mask", "causal"],
            ["heads", "a bank", "--draws", "2"], ["ablate", "a [MASK]", "--cut", "L0H0"]]  # fmt: skip


def drawn(part, width, encoding="utf-8"):
    """The lines of one part."""
    file = StringIO()
    draw(
        [part],
        Console(file=Named(file, encoding), width=width, color_system=None, legacy_windows=False),
    )
    return file.getvalue().splitlines()


def table(rows):
    (heading, *headings), *rows = rows
    columns = [
        Column(name, [row[n + 1] for row in rows], left=True) for n, name in enumerate(headings)
    ]
    return Table(heading, columns, labels=[ours(row[0]) for row in rows], indent=0)


def test_the_widest_column_wraps_before_rows_become_paragraphs():
    """As the places of doctor's checks at 60 columns; those of check are its names."""
    place = "sdpa L2H1 row 2 token 4 'knew' key 5 'why'"
    rows = [
        ("check", "verdict", "number", "where"),
        ("padding_positions", "cannot tell", "118", place),
    ]
    lines = drawn(table(rows), 60)
    assert lines[0].split() == list(rows[0])
    assert lines[1].startswith("padding_positions  cannot tell  118     sdpa L2H1")
    assert "".join(line[40:].replace(" ", "") for line in lines[1:]) == place.replace(" ", "")


@pytest.mark.parametrize("width", [24, 40, 60, 72])
def test_a_table_of_words_loses_no_cell_and_is_no_wider_than_the_page(width):
    lines = drawn(table(ROWS), width)
    assert all(cell_len(line) <= width for line in lines)
    shown = [word for word in " ".join(lines).split() if word != "check"]
    assert sorted(shown) == sorted(
        word for row in ROWS for cell in row for word in cell.split() if word != "check"
    )


def test_a_table_of_words_that_fits_has_its_cells_below_each_other():
    heading, row = drawn(table(ROWS), 60)
    assert row == "nothing on keys that are not allowed  0.0e+00   ok"
    assert heading.index("measured") == row.index("0.0e+00") and heading.index(
        "verdict"
    ) == row.index("ok")


def test_a_cell_that_does_not_fit_wraps_in_its_column():
    _, first, *others = drawn(table([("check", "measured"), ("word " * 30, "2.2e-07")]), 80)
    assert first.endswith("  2.2e-07") and all(len(line) <= 80 for line in (first, *others))
    assert " ".join([first.removesuffix("2.2e-07"), *others]).split() == ["word"] * 30


def test_facts_wrap_at_words_behind_a_margin():
    facts = Facts([("heads", ours("4 that share 2 key/value heads")), ("mask", ours("own"))])
    assert drawn(facts, 41) == ["heads    4 that share 2 key/value heads", "mask     own"]
    assert drawn(Facts([("heads", ours("4 that share 2 key/value heads, and more"))]), 41) == [
        "heads    4 that share 2 key/value heads,",
        "         and more",
    ]


def test_values_are_behind_names_that_take_half_of_the_screen():
    assert drawn(
        Facts([("a name of many words", ours("and its value, which is longer"))], indent=1), 40
    ) == [
        "a name of many words: and its value,",
        "which is longer",
    ]


def test_as_many_items_as_fit_on_a_line_are_shown_and_the_others_counted():
    numbers = Text([ours(f"{n}.00") for n in range(40)], "  ", cut="  … {} more")
    for width in range(30, 80):
        (line,) = drawn(numbers, width)
        shown, more = line.split("  … ")
        assert len(line) <= width and len(shown.split()) + int(more.split()[0]) == 40
        assert len(line) + len("  00.00") > width - 1
    assert drawn(Text(numbers.items[:3], "  ", cut="  … {} more"), 30) == ["0.00  1.00  2.00"]


def test_untrusted_text_is_told_from_our_own_in_ascii():
    facts = Facts([("text", (*untrusted("a·b"), Span(" · 2 tokens × ε")))])
    assert drawn(facts, 80, "ascii") == [r"text     a\xb7b . 2 tokens x eps"]
    assert drawn(Facts([("note", note("a map of 3 × 3 of 'é'"))]), 80, "ascii") == [
        r"note     a map of 3 x 3 of '\xe9'"
    ]


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
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        check=True,
        env={**os.environ, **plain},
    )
    parts = done.stdout.decode("ascii").split("\0")[:-1]
    return {
        tuple(map(int, name.split())): shown
        for shown, name in zip(parts[::2], parts[1::2], strict=True)
    }


def test_no_sign_of_ours_is_escaped_where_the_terminal_knows_ascii_only(in_ascii):
    """The model's name and the text are ASCII here: a backslash would be ours. And lines break between words."""
    assert len(in_ascii) == 2 * len(COMMANDS)
    for (number, width), shown in in_ascii.items():
        assert len(shown.splitlines()) > 5, COMMANDS[number]
        assert "\\" not in shown, (COMMANDS[number], width, re.findall(r".*\\.*", shown))
        if width == 40 and number < 2:
            assert all(len(line) <= 40 for line in shown.splitlines()), shown


@pytest.mark.parametrize("width", [40, 41, 60])
def test_wide_characters_take_two_columns(width):
    text = "漢字 仮名漢字 ab 漢字仮名漢字仮名漢字仮名漢字仮名漢字仮名漢字仮名漢字仮名漢字仮名 end"
    lines = drawn(Facts([("text", untrusted(text))]), width)
    assert all(cell_len(line) <= width for line in lines)
    assert "".join(lines).removeprefix("text").replace(" ", "") == text.replace(" ", "")


@pytest.mark.parametrize("width", [*range(52, 100, 3)])
def test_a_head_and_its_number_stand_on_one_line(width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    text = "The animal crossed because it was tired"
    assert main(["run", text, "--query", "it", "--key", "animal", "--stage", "weights"]) == 0
    lines = capsys.readouterr().out.splitlines()
    start = next(n for n, line in enumerate(lines) if "chosen automatically" in line)
    sentence = re.match(r".*?; then (?:L\dH\d \d\.\d\d,? ?)+", " ".join(lines[start : start + 5]))
    assert sentence and sentence[0].count(", L") == 3
    ends = [line.split()[-1] for line in lines[start : start + 5] if line]
    assert not [end for end in ends if end == "then" or re.fullmatch(r"L\dH\d", end)]


def test_blocks_go_on_beside_a_longer_one_while_they_end_above_its_end():
    def block(name, lines, *, beside=False):
        numbers = [str(n) for n in range(lines)]
        labels = [ours("row")] * lines
        return Table(name, [Column("n", numbers)], labels=labels, beside=beside)

    def text(words):
        return Text((ours(words),))

    shown = [text("answer"), GAP, block("map", 9, beside=True), GAP]
    shown += [block("rows", 3), GAP, text("short"), GAP, block("long", 3), GAP, text("end")]
    wide = as_text(shown, 100).splitlines()
    (top,) = [n for n, line in enumerate(wide) if line.startswith("answer") and "map" in line]
    # the map has a heading and nine rows; of what follows, two blocks end above its end
    assert wide[top + 2].split() == ["rows", "n", "row", "1"]
    assert wide[top + 7].split() == ["short", "row", "6"]
    assert wide[top + 11].split() == ["long", "n"] and wide[-1] == "end"
    narrow = as_text(shown, 80).splitlines()
    assert [line.split() for line in narrow if "map" in line] == [["map", "n"]]
