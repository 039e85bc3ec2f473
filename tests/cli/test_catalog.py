"""What programs and coding agents read: the catalogue, the committed SKILL.md and llms.txt, and errors as JSON."""

import json
import os
import re
import shlex
from pathlib import Path

import pytest

import attnscope
from attnscope.cli import main
from attnscope.cli.catalog import RECIPES, skill
from attnscope.cli.commands import COMMANDS
from attnscope.cli.topics import TOPICS
from attnscope.request.options import COMMANDS as TABLE
from attnscope.studies.registry import options_of
from tests.helpers.skills import llms_text

ROOT = Path(__file__).parents[2]
REWRITE = os.environ.get("ATTNSCOPE_SNAPSHOTS") == "write"


@pytest.fixture
def catalog(capsys):
    assert main(["help", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_catalogue_has_every_command_with_every_option(catalog):
    assert [command["name"] for command in catalog["commands"]] == COMMANDS
    for command in catalog["commands"]:
        declared = options_of(command["name"])
        assert [option["name"] for option in command["options"]] == [
            option.name for option in declared
        ]
        for option, row in zip(command["options"], declared, strict=True):
            assert option["default"] == row.default
            assert option["argument"] or row.spelled in option["flags"]
            assert (option["type"] == "flag") == row.is_flag
            assert "{" not in option["help"].replace('{"', "").replace("{NAME}", "")
    assert set(catalog["topics"]) == set(TOPICS)
    table = re.search(
        r"\| exit code .*?\n\n", (ROOT / "docs" / "commands.md").read_text(), re.DOTALL
    )[0]
    documented = {
        code
        for cell in re.findall(r"^\| ([\d, ]+) \|", table, re.MULTILINE)
        for code in cell.split(", ")
    }
    assert set(catalog["exit_codes"]) == documented


def test_types_in_the_catalogue_are_those_that_an_option_takes(catalog, capsys):
    (run,) = (command for command in catalog["commands"] if command["name"] == "run")
    by_name = {option["name"]: option for option in run["options"]}
    assert by_name["top"]["type"] == "integer"
    assert by_name["top"]["minimum"] == 0
    assert main(["run", "a", "--top", "-1"]) == 2
    assert by_name["what_if"]["choices"] == ["stack", "same-scores"]
    assert by_name["output"]["type"] == "path"
    for command in catalog["commands"]:
        for option, row in zip(command["options"], options_of(command["name"]), strict=True):
            if option["type"] == "choice":
                assert [row.read(word) for word in option["choices"]] == option["choices"]


def test_functions_of_the_catalogue_exist(catalog):
    names = {command["python"] for command in catalog["commands"] if command["python"]}
    assert {"attnscope.inspect", "attnscope.heads", "attnscope.doctor"} <= names
    for name in names:
        assert callable(getattr(attnscope, name.removeprefix("attnscope.")))


def test_schemas_of_the_catalogue_are_published(catalog):
    published = json.loads((ROOT / "docs" / "schema.json").read_text())["$defs"]
    for command in catalog["commands"]:
        for findings in command["findings"]:
            name = findings["definition"].rpartition("/")[2]
            assert findings["schema"] in json.dumps(published[name])


@pytest.mark.parametrize(("file", "text"), [("docs/SKILL.md", skill), ("docs/llms.txt", llms_text)])
def test_the_committed_file_is_the_generated_one(file, text):
    if REWRITE:
        (ROOT / file).write_text(text())
    assert (ROOT / file).read_text() == text()


def test_the_skill_names_every_command_and_its_examples_parse(capsys):
    text = skill()
    assert re.match(r"---\nname: attnscope\ndescription: >-\n", text)
    for name in TABLE:
        assert f"`attnscope {name}`" in text
    blocks = "".join(re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    for line in re.findall(r"^attnscope .*$", blocks, re.MULTILINE):
        command, *words = shlex.split(line.partition(" | ")[0].partition(" > ")[0])[1:]
        known = {
            name
            for option in options_of(command)
            for name in (option.spelled, option.short, option.off)
        }
        assert {word for word in words if word.startswith("-") and word != "-"} <= known, line
    for line in RECIPES:
        assert line in text


@pytest.mark.parametrize("line", RECIPES)
def test_a_recipe_finds_something(line, capsys):
    command, _, path = line.partition(" | jq .")
    assert main(shlex.split(command)[1:]) == 0
    found = json.loads(capsys.readouterr().out)
    for member in path.split("."):
        found = found[member.partition("[")[0]]
        found = found[0] if "[0]" in member else found
    assert found


ERRORS = [
    (["run", "x", "--laier", "3", "--errors", "json"], 2, None, "did you mean '--layer'?"),
    (["run", "x", "--layer", "77", "--errors=json"], 2, "--layer", "this model has layers 0 to 3"),
    (["--errors", "json", "rnu"], 2, None, None),
    (["run", "x", "--model", "gone", "--errors", "json"], 1, "gone", None),
]


@pytest.mark.parametrize(("words", "code", "where", "hint"), ERRORS)
def test_errors_are_json_if_asked(words, code, where, hint, capsys):
    assert main(words) == code
    error = json.loads(capsys.readouterr().err)
    assert (error["kind"], error["exit_code"], error["where"]) == ("error", code, where)
    assert hint is None or error["hint"] == hint
    assert error["message"]


def test_a_text_that_looks_like_the_option_does_not_ask_for_json(capsys):
    assert main(["run", "--layer", "77", "--", "--errors=json"]) == 2
    assert capsys.readouterr().err.startswith("attnscope: error: --layer: ")


def test_notes_are_json_too_and_the_next_call_is_text_again(tmp_path, capsys):
    target = tmp_path / "out.json"
    assert main(["run", "The bank", "-o", str(target), "--errors", "json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert lines[0]["kind"] == "wrote"
    assert str(target) in lines[0]["message"]
    assert main(["run", "The bank", "-o", str(target)]) == 1
    assert capsys.readouterr().err.startswith("attnscope: error: ")
