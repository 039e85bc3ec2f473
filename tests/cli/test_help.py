"""The help, as a user reads it: reviewed as a whole; and its examples are command lines that parse."""

import shlex
from pathlib import Path

import pytest

from attnscope.cli import info, main, run

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def pinned(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("ATTNSCOPE_MODEL", raising=False)


COMMANDS = "run compare explain heads ablate explore check doctor batch merge verify convert import info pull".split()


@pytest.mark.parametrize(("args", "name"), [([], "attnscope"), *(([name], name) for name in COMMANDS)])
def test_help_is_as_reviewed(args, name, capsys):
    """To accept a change: write what is shown to the file, and read the difference."""
    assert main([*args, "--help"]) == 0
    assert capsys.readouterr().out == (HERE / "help" / f"{name}.txt").read_text()


@pytest.mark.parametrize("columns", ["1", "40", "80", "200"])
def test_help_at_any_width_has_every_option(monkeypatch, capsys, columns):
    monkeypatch.setenv("COLUMNS", columns)
    assert main(["run", "--help"]) == 0
    out = capsys.readouterr().out
    for (
        name
    ) in "file pair context model config mask what-if layer head query key stage top by no-special device".split():
        assert f"--{name}" in out
    for name in "dtype format output precision truncate max-memory force quiet color help".split():
        assert f"--{name}" in out
    assert out.endswith(run.EXAMPLES.strip().splitlines()[-1] + "\n")


@pytest.mark.parametrize("line", [line for line in run.EXAMPLES.splitlines() if line])
def test_examples_of_run_parse(line, pipeline, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    asked = pipeline("fine")
    ours = line.split(" | ")[1] if line.startswith("echo") else line
    if line.startswith("echo"):
        (tmp_path / "piped").write_text("The bank by the river\n")
    name, *args = shlex.split(ours)
    assert name == "attnscope"
    with open(tmp_path / "piped", "a+") as piped:
        piped.seek(0)
        monkeypatch.setattr("sys.stdin", piped)
        assert main(args) == 0
    assert len(asked) == 1


@pytest.mark.parametrize("line", [line for line in info.EXAMPLES.splitlines() if line])
def test_examples_of_info_parse(line):
    name, command, *args = shlex.split(line.split(" | ")[0])
    assert (name, command) == ("attnscope", "info")
    known = "--model ./my-bert ./my-bert/config.json --config sliding-window --cost --json --list"
    assert set(args) <= set(known.split())
