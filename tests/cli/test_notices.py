"""Errors and other notices are one line, which a terminal does not break inside words."""

import fcntl
import os
import pty
import shlex
import struct
import subprocess
import termios
from dataclasses import replace
from itertools import pairwise

import pytest
from rich.cells import cell_len

from attnscope.base.errors import UsageError
from attnscope.cli import main
from attnscope.cli.process import choose_notices, print_notice
from attnscope.request.combinations import check_combinations
from attnscope.request.options import COMMANDS, on_command_line, option_in, rules
from attnscope.studies.registry import options_of
from tests.cli.test_combinations import given

WIDTHS = 60, 80, 100
# with words of two cells, and one that is longer than some terminals
OTHERS = [
    "The bank … 川を渡って 銀行へ 行く 川を渡って 銀行へ 行く 川を渡って 銀行へ 行く 川を渡って 銀行へ 行く",
    f"no such file: {'/a-long-folder' * 6}/weights.safetensors; pass a folder",
]
TYPED = [
    ["ablate", "The bank by the river"],
    ["explain", "The bank by the river"],
    ["run"],
    ["run", "The bank by the river", "--layer", "9"],
    ["run", "The bank by the river", "--query", "lake"],
    ["run", "The bank by the river", "--maks", "causal"],
    ["run", "The bank by the river", "--stage", "weigths"],
    ["run", "The bank by the river", "-m", "no-such-model"],
    ["run", "The bank by the river", "-o", "x.docx"],
    ["compare", "The bank", "--mask", "causal", "--mask", "casual"],
    ["heads", "--role", "inducton"],
    ["verify", "no-such-file.jsonl"],
]


@pytest.fixture
def shown_on(monkeypatch):
    """A function that returns what a call writes to standard error on a terminal of some width, as lines."""

    def show(columns, call, *args, **named):
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        with open(theirs, "w", encoding="utf-8") as terminal, monkeypatch.context() as patch:
            patch.setattr("sys.stderr", terminal)
            call(*args, **named)
            os.write(theirs, b"\0")  # reads would wait
            seen = b""
            while not seen.endswith(b"\0"):
                seen += os.read(ours, 65536)
        os.close(ours)
        return seen.decode().rstrip("\0").replace("\r\n", "\n").splitlines()

    return show


def refusals():
    """Yield the line of every refusal that rows of options declare."""
    for command in COMMANDS:
        table = {option.name: option for option in options_of(command)}
        for option in table.values():
            cases = [
                ([replace(option, needs=())], [f"{option.name}={own}", condition])
                for own, excluded in rules(option.excludes)
                for condition in excluded
                if option_in(condition) in table
            ]
            cases += [
                (list(table.values()), [f"{option.name}={own}"]) for own, _ in rules(option.needs)
            ]
            for options, conditions in cases:
                values = dict(given(table, condition) for condition in conditions)
                try:
                    check_combinations(options, values)
                except UsageError as error:
                    yield error.line(on_command_line)


def check_lines(lines, words, columns):
    assert [word for line in lines for word in line.split()] == words
    for line in lines:
        assert cell_len(line) <= columns or len(line.split()) == 1, (columns, line)
    for line, following in pairwise(lines):
        assert following.startswith("  ")
        # no line ends early
        assert cell_len(f"{line} {following.split()[0]}") > columns


@pytest.mark.unix
@pytest.mark.parametrize("columns", WIDTHS)
def test_no_word_of_a_notice_is_broken_on_a_terminal(columns, shown_on):
    lines = [*sorted(set(refusals())), *OTHERS]
    assert len(lines) > 150 and max(map(len, lines)) > 100
    for line in lines:
        check_lines(
            shown_on(columns, print_notice, "error", line),
            ["attnscope:", "error:", *line.split()],
            columns,
        )


@pytest.mark.unix
@pytest.mark.parametrize("columns", WIDTHS)
def test_errors_of_typed_lines_are_whole_on_a_terminal(
    columns, shown_on, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    for words in TYPED:
        capsys.readouterr()
        assert main(words) in (1, 2)
        err = capsys.readouterr().err
        assert err.count("\n") == 1, err
        check_lines(shown_on(columns, main, words), err.split(), columns)


@pytest.mark.unix
def test_a_broken_command_is_one_command_to_a_shell(shown_on):
    command = [
        "attnscope",
        "run",
        shlex.quote("The bank by the 'old' river " * 2),
        *["--top", "3"] * 9,
    ]
    lines = shown_on(60, print_notice, "next", " ".join(command), command=command)
    assert len(lines) > 2 and all(line.endswith(" \\") for line in lines[:-1])
    typed = "\n".join(lines).removeprefix("attnscope: next: ")
    read = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {typed}"], capture_output=True, check=True
    )
    assert read.stdout.decode().split("\0")[:-1] == shlex.split(" ".join(command))
    assert all(len(line) <= 60 or line.lstrip().startswith("'The") for line in lines)


@pytest.mark.unix
def test_an_option_and_its_value_part_rather_than_the_value(shown_on):
    """A path was folded before its ending, as two columns were missing."""
    for size in (40, 48, 49, 56, 57, 62):
        path = f"/a/{'b' * (size - 8)}.gguf"
        command = ["attnscope", "run", f"--model {path}", "--top 3", "'a b c'"]
        lines = shown_on(60, print_notice, "next", " ".join(command), command=command)
        words = [word.strip(" \\") for line in lines for word in line.split(" --")]
        assert any(word.endswith(path) for word in words)
        whole = [line for line in lines if line.lstrip().startswith(f"--model {path}")]
        assert bool(whole) is (size + len("  --model  \\") <= 60)
        assert "'a b c'" in " ".join(lines)
        assert all(len(line) <= 60 for line in lines) or size > 56


@pytest.mark.unix
def test_notices_for_programs_are_one_line_on_a_terminal(shown_on):
    choose_notices(["--errors", "json"])
    try:
        (line,) = shown_on(60, print_notice, "error", "a long line " * 20)
    finally:
        choose_notices([])
    assert line.startswith('{"kind": "error"')
