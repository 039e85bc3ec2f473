"""`--strict`: exit code 1 exactly if something above the numbers changes how they are read."""

import json

import pytest

from attnscope.cli import main

TEXT = "The bank by the river"
TRUNCATED = " ".join(["river"] * 300)
PLAIN = (
    ["run", TEXT],
    ["run", TEXT, "--mask", "causal"],
    ["run", TEXT, "--layer", "all", "--head", "all"],
    ["explain", TEXT, "--query", "bank"],
    ["heads", TEXT, "--measure", "entropy"],
    ["ablate", "The [MASK] by the river", "--cut", "L2H0"],
    ["compare", TEXT, "A bank by the river"],
    ["compare", TEXT, "A bank by the river", "--tolerance", "1000"],
)
CHANGED = (
    (["run", TEXT, "--config", "causal"], "the weights are random", "RANDOM WEIGHTS"),
    (
        ["explain", TEXT, "--config", "causal", "--query", "bank"],
        "the weights are random",
        "RANDOM WEIGHTS",
    ),
    (
        ["run", "The \N{SNOWMAN} by the river"],
        "1 of 5 words is unknown to the tokenizer",
        "UNKNOWN WORDS",
    ),
    (
        ["ablate", "The \N{SNOWMAN} by the river", "--cut", "L2H0"],
        "1 of 5 words is unknown",
        "UNKNOWN WORDS",
    ),
    (
        ["compare", TEXT, "The \N{SNOWMAN} by the river"],
        "1 of 5 words is unknown to the tokenizer",
        "UNKNOWN WORDS",
    ),
    (
        ["run", TEXT, "--mask", "own+window:99"],
        "hides nothing that the model's own mask shows",
        "hides nothing here",
    ),
    (
        ["run", TRUNCATED, "--truncate"],
        "truncated from 300 to 128 tokens",
        "truncated from 300 to 128 tokens",
    ),
    (
        ["heads", TRUNCATED, "--truncate", "--measure", "entropy"],
        "truncated from 300 to 128",
        "truncated from 300",
    ),
)


@pytest.mark.parametrize("argv", PLAIN, ids=lambda argv: " ".join(argv[:1] + argv[2:]))
def test_nothing_above_the_numbers_is_no_failure(argv, capsys):
    assert main([*argv, "-m", "riverbank", "--strict"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("argv", "reason", "shown"), CHANGED, ids=lambda item: item if isinstance(item, str) else None
)
def test_what_changes_the_reading_ends_with_1_and_is_named(argv, reason, shown, capsys):
    model = [] if "--config" in argv else ["-m", "riverbank"]
    assert main([*argv, *model]) == 0
    screen, _ = capsys.readouterr()
    assert shown in " ".join(screen.split())
    assert main([*argv, *model, "--strict"]) == 1
    strict, error = capsys.readouterr()
    assert strict == screen, "everything is shown as without it"
    assert (
        error.startswith("attnscope: error: --strict: ")
        and reason in error
        and error.count("\n") == 1
    )
    assert main([*argv, *model, "--strict", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)


def test_a_failed_tolerance_is_named_first(capsys):
    sides = [TEXT, "The \N{SNOWMAN} by the river", "--query", "river"]
    assert main(["compare", *sides, "-m", "riverbank", "--tolerance", "0", "--strict"]) == 1
    assert "--strict" not in capsys.readouterr().err
    assert main(["compare", *sides, "-m", "riverbank", "--tolerance", "1000", "--strict"]) == 1
    assert "--strict: 1 of 5 words is unknown to the tokenizer" in capsys.readouterr().err
