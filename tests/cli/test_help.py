"""The help, as a user reads it: reviewed as a whole; and its examples are command lines that parse."""

import os
import shlex
from pathlib import Path

import pytest

from attnscope.cli import info, main
from attnscope.cli.commands import COMMANDS, load
from attnscope.cli.option_text import described, names_of
from attnscope.cli.topics import TOPICS
from attnscope.request.options import COMMANDS as TABLE
from attnscope.request.options import COMMON
from attnscope.studies.registry import options_of
from tests.helpers.cli_runner import on_terminal

HERE = Path(__file__).parent
REWRITE = os.environ.get("ATTNSCOPE_SNAPSHOTS") == "write"


@pytest.fixture(autouse=True)
def pinned(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("ATTNSCOPE_MODEL", raising=False)


def shown(capsys, *words):
    assert main(list(words)) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", ["attnscope", *COMMANDS])
def test_help_is_as_reviewed(name, capsys):
    """To accept a change: run with ATTNSCOPE_SNAPSHOTS=write, and read the difference."""
    command = [] if name == "attnscope" else [name]
    texts = {f"{name}.txt": [*command, "--help"]}
    if name in TABLE:
        texts[f"{name}-short.txt"] = [*command, "-h"]
    for file, words in texts.items():
        text = shown(capsys, *words)
        if REWRITE:
            (HERE / "help" / file).write_text(text)
        assert text == (HERE / "help" / file).read_text()


@pytest.mark.parametrize("topic", TOPICS)
def test_a_topic_is_as_reviewed(topic, capsys):
    text = shown(capsys, "help", topic)
    file = HERE / "help" / f"topic-{topic}.txt"
    if REWRITE:
        file.write_text(text)
    assert text == file.read_text()


@pytest.mark.parametrize("name", ["attnscope", *COMMANDS])
def test_short_help_fits_40_lines_of_80_columns(name, capsys):
    text = shown(capsys, *([] if name == "attnscope" else [name]), "-h")
    assert text.count("\n") <= 40
    assert max(len(line) for line in text.splitlines()) <= 80


@pytest.mark.parametrize("name", COMMANDS)
def test_short_help_has_four_examples_and_up_to_15_options_of_one_line(name, capsys):
    options = [option for option in options_of(name) if option.brief]
    text = shown(capsys, name, "-h")
    assert len(options) <= 15
    if not options:
        for option in options_of(name):
            assert option.hidden or names_of(option) in text
        return
    assert len(options) >= 5
    for option in options:
        lines = (f"{names_of(option)}", described(name, option.brief))
        assert all(any(line.strip().startswith(part) or line.endswith(part) for line in text.splitlines())
                   for part in lines), option.name  # fmt: skip
    examples = text.partition("Examples:\n")[2].partition("\n\n")[0].splitlines()
    assert len(examples) == 4
    assert f"attnscope {name} --help" in text


def test_the_options_of_a_run_in_its_short_help_are_those_that_most_runs_use():
    names = "TEXT --file --chat --model --layer --head --query --key --mask --stage --top --by --words --generate"
    briefs = {option.spelled for option in TABLE["run"] if option.brief}
    assert briefs == {*names.split(), "--output"}


@pytest.mark.parametrize("columns", ["1", "60", "80", "120", "200"])
def test_no_line_of_help_is_longer_than_the_terminal(monkeypatch, capsys, columns):
    """But names of options and commands, which one copies."""
    monkeypatch.setenv("COLUMNS", columns)
    width = max(min(int(columns), 80), 52)
    for name in COMMANDS:
        for line in shown(capsys, name, "--help").partition("Examples:")[0].splitlines():
            assert len(line) <= width or "-" in line.split()[0] or line.startswith("Usage:"), line


@pytest.mark.parametrize("columns", ["1", "40", "80", "200"])
def test_help_at_any_width_has_every_option(monkeypatch, capsys, columns):
    monkeypatch.setenv("COLUMNS", columns)
    out = shown(capsys, "run", "--help")
    for option in TABLE["run"]:
        assert option.hidden or names_of(option).split()[0] in out
    assert load("run").examples.splitlines()[-1] in out.replace(" \\\n     ", "")


@pytest.mark.parametrize("columns", [60, 80, 120, 200])
def test_examples_fit_the_terminal_and_can_be_pasted(monkeypatch, capsys, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    broken = 0
    for name in COMMANDS:
        text = shown(capsys, name, "--help").partition("Examples:\n")[2].partition("\n\n")[0]
        for line in text.splitlines():
            words = shlex.split(line.removesuffix("\\"))
            assert len(line) <= columns or not any(word[0] in "-|" for word in words[1:]), line
        broken += text.count("\\\n")
        pasted = [shlex.split(line) for line in text.replace("\\\n", " ").splitlines()]
        assert pasted == [shlex.split(line) for line in load(name).examples.splitlines()]
    assert (broken > 0) == (columns < 140)


def test_help_of_a_command_is_its_full_help(capsys):
    for name in COMMANDS:
        assert shown(capsys, "help", name) == shown(capsys, name, "--help")
    assert shown(capsys, "help") == shown(capsys, "--help")


def test_a_topic_of_a_command_lists_its_options_as_the_full_help_does(capsys):
    for name in COMMANDS:
        whole = " ".join(shown(capsys, name, "--help").split())
        for topic, declared in TOPICS.items():
            options = declared.options_among((*options_of(name), *COMMON))
            if not options:
                assert main(["help", name, topic]) == 2
                assert "have some" in capsys.readouterr().err
                continue
            section = shown(capsys, "help", name, topic).partition(
                f"Options of attnscope {name}:\n"
            )[2]
            section = section.partition("\nCommands:")[0]
            for option in options:
                assert names_of(option) in section
                assert described(name, option.help).split("{")[0][:60] in whole
                assert " ".join(described(name, option.help).split("{")[0].split())[
                    :40
                ] in " ".join(section.split())


def test_every_option_of_a_topic_exists():
    every = {option.name for options in (*TABLE.values(), COMMON) for option in options}
    for name, topic in TOPICS.items():
        assert set(topic.options) <= every, name


def test_unknown_names_are_refused_with_the_nearest(capsys):
    for words, hint in ((["runn"], "did you mean 'run'?"), (["mask"], "did you mean 'masks'?"),
                        (["run", "mask"], "did you mean 'masks'?"), (["pull", "masks"], "run, compare")):  # fmt: skip
        assert main(["help", *words]) == 2
        assert hint in capsys.readouterr().err


ALIASES = [
    ("ablate", "--with", "mean", "replacement"),
    ("ablate", "--from=a text", "", "patch_from"),
    ("ablate", "--cuts", "L1H0", "cuts"),
    ("run", "--stages", "weights", "stages"),
]


@pytest.mark.parametrize(("command", "typed", "value", "name"), ALIASES)
def test_further_names_of_an_option_are_taken_but_not_listed(
    command, typed, value, name, capsys, monkeypatch
):
    from attnscope.cli import help as parsing

    (option,) = (option for option in options_of(command) if option.name == name)
    words = parsing._without_aliases(
        command, ["text", typed, *([value] if value else []), "--", typed]
    )
    assert words[1].partition("=")[0] == option.spelled
    assert words[-1] == typed  # a text
    assert typed.partition("=")[0] + " " not in shown(capsys, command, "--help")


def test_inspect_is_run(capsys):
    assert main(["inspect", "The bank", "--query", "bank", "--stage", "weights"]) == 0
    first = capsys.readouterr()
    assert main(["run", "The bank", "--query", "bank", "--stage", "weights"]) == 0
    assert capsys.readouterr() == first


@pytest.mark.unix
@pytest.mark.parametrize(
    ("words", "paged"), [(["run", "--help"], True), (["help", "run"], True), (["run", "-h"], False)]
)
def test_full_help_is_paged_in_a_terminal_and_short_help_is_not(words, paged, tmp_path):
    kept = tmp_path / "paged.txt"
    code, seen = on_terminal("", *words, env={"PAGER": f"tee {kept}", "TERM": "dumb"})
    assert code == 0
    assert kept.exists() == paged
    assert seen.startswith(b"Usage: attnscope run")


@pytest.mark.parametrize("line", load("run").examples.splitlines())
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
    known = "--model ./my-bert ./my-bert/config.json --config sliding-window --cost --json --list --settings"
    assert set(args) <= set(known.split())
