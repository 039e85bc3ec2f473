"""The README says what the program does: its examples are those of the help, and its screen is a real one."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from attnscope.cli import main
from attnscope.cli.app import app

README = (Path(__file__).parent.parent / "README.md").read_text()


def epilogs():
    return {(c.name or c.callback.__name__).replace("_", "-"): c.epilog for c in app.registered_commands}


@pytest.mark.parametrize("command", epilogs())
def test_every_command_has_a_section_with_the_examples_of_its_help(command):
    section = README.partition(f"### attnscope {command}\n")[2].partition("\n### ")[0].partition("\n## ")[0]
    shown = re.findall(r"^    (.+)$", section, re.MULTILINE)
    assert shown == epilogs()[command].strip().splitlines()


def test_the_first_screen_is_what_a_terminal_of_80_columns_shows():
    command, screen = re.search(r"\$ (attnscope run .*)\n((?:    .*\n|\n)+)", README).groups()
    assert command == 'attnscope run "The bank by the river"'
    environment = {"COLUMNS": "80", "PATH": "", "PYTHONPATH": str(Path(__file__).parent.parent), "PYTHONUTF8": "1"}
    argv = [sys.executable, "-m", "attnscope", "run", "The bank by the river"]
    ran = subprocess.run(argv, capture_output=True, text=True, env=environment, check=True)
    assert re.sub("(?m)^    ", "", screen).strip() == ran.stdout.strip()


def test_the_excerpt_of_a_long_screen_is_that_of_this_page():
    excerpt = re.search(r"\$ head -c 400 README.md \| attnscope run -\n((?:    .*\n|\n)+)", README)[1]
    environment = {"COLUMNS": "80", "PATH": "", "PYTHONPATH": str(Path(__file__).parent.parent), "PYTHONUTF8": "1"}
    argv = [sys.executable, "-m", "attnscope", "run", "-"]
    ran = subprocess.run(argv, capture_output=True, env=environment, check=True, input=README.encode()[:400])
    screen = iter(ran.stdout.decode().splitlines())
    lines = [line.strip() for line in excerpt.splitlines() if line.strip() not in ("", "…")]
    assert len(lines) > 20
    for line in lines:
        assert any(line == shown.strip() for shown in screen), line


SHOWN = [line.strip() for line in README.splitlines() if re.match(r"    (attnscope|printf) ", line)]
NEEDS_FILES = ("./my-", "./my-bert", "before.json", "--file texts.txt", "jq", "attnscope batch", "attnscope convert")


@pytest.mark.parametrize("line", [line for line in dict.fromkeys(SHOWN) if not any(w in line for w in NEEDS_FILES)])
def test_every_command_that_is_shown_runs(line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    if line.startswith("attnscope "):
        assert main(shlex.split(line)[1:]) == 0, capsys.readouterr().err


def test_the_padded_batch_of_the_walkthrough_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.txt").write_text("the cat sleeps\nthe small dog runs fast\n")
    for line in (line for line in SHOWN if "--file texts.txt" in line):
        assert main(shlex.split(line)[1:]) == 0
        assert capsys.readouterr().out.count("L0H0") == 2
