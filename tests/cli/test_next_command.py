"""The command that is printed after a result can be typed, and belongs to what was found."""

import json
import re
import shlex

import numpy as np
import pytest

from attnscope.cli import main
from tests.helpers.cli_runner import on_terminal

TEXT = "The bank by the river"


@pytest.fixture
def typed_next(capsys, monkeypatch):
    """A function that runs a command as on a terminal, and returns the words of the command that it prints."""

    def run(*words):
        for module in ("next_command", "deliver"):
            monkeypatch.setattr(
                f"attnscope.cli.{module}.is_read_along", lambda given: not given.quiet
            )
        assert main(list(words)) == 0, capsys.readouterr().err
        shown = capsys.readouterr()
        assert "next: attnscope" not in shown.out
        lines = [
            line
            for line in shown.err.splitlines()
            if line.startswith("attnscope: next: attnscope ")
        ]
        assert len(lines) <= 1
        return shlex.split(lines[0].partition("next: attnscope ")[2]) if lines else []

    return run


CASES = [
    (["run", TEXT], "explain"),
    (["run", TEXT, "--mask", "causal", "-m", "riverbank", "--by", "value"], "explain"),
    (["run", TEXT, "--head", "all", "--layer", "mean"], None),
    (["explain", TEXT, "--query", "bank", "--mask=causal"], "ablate"),
    (["heads", TEXT, "--query", "bank", "--key", "river"], "ablate"),
    (["ablate", TEXT, "--cut", "L2H0", "--at", "bank"], "ablate"),
    (["ablate", TEXT, "--each", "layer", "--at", "bank"], "ablate"),
    (["compare", TEXT], "compare"),
    (["run", TEXT, "--scale", "2"], "explain"),
    (["explain", TEXT, "--query", "bank", "--scale", "2"], None),  # ablate cannot change the scale
    (["run", TEXT, "--cut", "L1H0"], None),
    (["info"], "run"),
    (["info", "riverbank"], "run"),
    (["run", TEXT, "--quiet"], None),
]


@pytest.mark.parametrize(("words", "follows"), CASES)
def test_the_next_command_can_be_typed(words, follows, typed_next, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    following = typed_next(*words)
    assert (following[0] if following else None) == follows
    assert ("--scale" in following) == (follows == "explain" and "--scale" in words)
    if following:
        assert main([*following, "--quiet"]) == 0, capsys.readouterr().err


def test_a_run_is_followed_by_the_explanation_of_its_strongest_cell_between_words(
    typed_next, capsys
):
    words = ["run", TEXT, "--layer", "3", "--head", "1", "--mask", "causal"]
    following = typed_next(*words)
    assert main([*words, "--json", "--quiet"]) == 0
    weights = np.array(
        json.loads(capsys.readouterr().out)["texts"][0]["heads"]["stages"]["weights"][0],
        dtype=float,
    )
    weights[:, 0] = 0.0  # the first token is where heads rest
    np.fill_diagonal(weights, 0.0)
    query, key = np.unravel_index(weights.argmax(), weights.shape)
    value = {
        word: following[n + 1] for n, word in enumerate(following[:-1]) if word.startswith("--")
    }
    assert value["--layer"] == "3" and value["--head"] == "1" and value["--mask"] == "causal"
    assert (int(value["--query"]), int(value["--key"])) == (query, key)


CELLS = [
    (["--query", "bank", "--key", "river"], 1, 4),
    (["--query", "bank", "--key", "river", "-m", "riverbank", "--mask", "bidirectional"], 1, 4),
]


@pytest.mark.parametrize(("words", "query", "key"), CELLS)
def test_a_run_of_a_cell_names_the_command_that_cuts_it(words, query, key, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")
    assert main(["run", TEXT, *words]) == 0
    shown = capsys.readouterr().out
    head = re.search(r"^(L\dH\d)", shown, re.MULTILINE)[1]
    lines = shown.partition("\neffect   ")[2].splitlines()
    assert all(line.endswith(" \\") for line in lines[:-1])
    program, *command = shlex.split("\n".join(lines).replace("\\\n", ""))
    assert program == "attnscope"
    assert command[:4] == ["ablate", TEXT, "--cut", f"{head}: {query}<-{key}"]
    assert command[4:] == words[4:]
    assert main([*command, "--json"]) == 0
    cut = json.loads(capsys.readouterr().out)["cuts"][0]
    assert (cut["queries"], cut["keys"]) == ([query], [key])


def test_commands_after_a_run_of_all_heads_are_about_the_strongest_on_the_key(typed_next, capsys):
    words = ["run", TEXT, "--query", "river", "--key", "by", "--layer", "all", "--head", "all"]
    following = typed_next(*words)
    assert main([*words, "--json", "--quiet"]) == 0
    heads = json.loads(capsys.readouterr().out)["texts"][0]["heads"]
    weights = np.array(heads["stages"]["weights"], dtype=float)[:, 0, 0]
    layer, head = map(str, heads["units"][int(weights.argmax())])
    assert int(weights.argmax()) > 0
    value = dict(zip(following[2::2], following[3::2], strict=True))
    assert value == {"--query": "4", "--key": "2", "--layer": layer, "--head": head}
    assert main(words) == 0
    assert f"--cut 'L{layer}H{head}: 4<-2'" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["--query", "bank"],
        ["--key", "river"],
        ["--query", "bank", "--key", "river", "--mask", "causal"],  # no weight
        ["--query", "bank", "--key", "river", "--head", "mean"],
        ["--query", "bank", "--key", "river", "--scale", "2"],
        ["--query", "bank", "--key", "river", "--cut", "L1H0"],
        ["--query", "bank", "--key", "river", "--words"],
        ["--query", "bank", "--key", "river", "--quiet"],
    ],
)
def test_other_runs_name_no_cut(words, capsys):
    assert main(["run", TEXT, *words]) == 0
    assert "attnscope ablate" not in capsys.readouterr().out


def test_a_command_that_no_line_holds_is_not_shown(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = " ".join(["the river"] * 8)
    assert main(["run", text, "--query", "0", "--key", "1"]) == 0
    assert "attnscope ablate" not in capsys.readouterr().out


def test_the_page_follows_an_ablation(typed_next, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["ablate", TEXT, "--cut", "L2H0", "--at", "bank"]
    following = typed_next(*words)
    assert following == [*words, "-o", "ablate.html"]
    (tmp_path / "ablate.html").touch()
    assert typed_next(*words) == [*words, "-o", "ablate2.html"]
    (tmp_path / "ablate.html").unlink()
    assert typed_next(*following) == []
    assert (tmp_path / "ablate.html").read_text().startswith("<!doctype html>")


def test_dumps_are_verified_then_converted(typed_next, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.txt").write_text("The bank\n")
    following = typed_next("batch", "texts.txt", "-o", "a dump.jsonl")
    assert following == ["verify", "a dump.jsonl"]
    following = typed_next(*following)
    assert following == ["convert", "a dump.jsonl", "table.csv"]
    assert typed_next(*following) == []


@pytest.mark.unix
def test_it_is_printed_on_a_terminal_and_not_into_a_pipe(capsys):
    code, seen = on_terminal(
        "", "explain", TEXT, "--query", "bank", "--layer", "2", "--head", "0", "--no-pager", env={}
    )
    assert code == 0
    assert b"attnscope: next: attnscope ablate 'The bank by the river' --cut 'L2H0: 1<-4'" in seen
    assert main(["explain", TEXT, "--query", "bank"]) == 0
    assert "next:" not in capsys.readouterr().err
