"""Settings: defaults of options from files, which of them wins, and what is refused."""

import json
from pathlib import Path

import pytest

from attnscope.cli import main
from attnscope.cli.settings import settings_of
from attnscope.request.options import COMMANDS
from attnscope.studies.registry import options_of

TEXT = "The bank by the river"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder whose settings are read, and a home without any."""
    for name in ("ATTNSCOPE_NO_SETTINGS", "ATTNSCOPE_MODEL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    folder = tmp_path / "project" / "below"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    return folder


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def values(command, *words):
    return {name: setting.typed for name, setting in settings_of(command, words).items()}


def asked_by(pipeline, *words):
    asked = pipeline("fine")
    assert main(["run", TEXT, *words]) == 0
    return asked[-1]


def test_the_test_suite_reads_no_settings(tmp_path, monkeypatch):
    (tmp_path / "attnscope.toml").write_text("this is refused if it is read")
    monkeypatch.chdir(tmp_path)
    assert settings_of("run", []) == {}


def test_a_setting_is_the_default_of_an_option(project, pipeline):
    write(
        project / "attnscope.toml", 'layer = "2"\n[run]\nhead = [0, 1]\ntop = 5\nspecial = false\n'
    )
    run = asked_by(pipeline)
    assert (str(run.layer), str(run.head), run.top, run.special) == ("2", "0,1", 5, False)
    assert str(asked_by(pipeline, "--layer", "1").layer) == "1"
    run = asked_by(pipeline, "--no-settings")
    assert (str(run.layer), str(run.head), run.top, run.special) == ("auto", "auto", 3, True)


def test_which_of_several_settings_wins(project, tmp_path, monkeypatch):
    own, above, here = (
        tmp_path / "home/attnscope/attnscope.toml",
        tmp_path / "project/attnscope.toml",
        project,
    )
    write(own, "top = 1\nprecision = 1\nthreads = 1\n[profile.paper]\ntop = 6\n[profile.other]\n")
    assert values("run") == {"top": "1", "precision": "1", "threads": "1"}
    write(above, "top = 2\n[run]\nprecision = 2\n")
    assert values("run") == {"top": "2", "precision": "2", "threads": "1"}
    assert values("explain") == {"top": "2", "precision": "1", "threads": "1"}
    write(
        here / "pyproject.toml",
        "[tool.attnscope.run]\ntop = 3\n[tool.attnscope.profile.paper]\nprecision = 4\n",
    )
    # the nearest project's file is the only one
    assert values("run") == {"top": "3", "precision": "1", "threads": "1"}
    assert values("run", "--profile", "paper") == {"top": "6", "precision": "4", "threads": "1"}
    write(here / "attnscope.toml", "top = 4\n")
    assert values("run")["top"] == "4"  # before pyproject.toml
    monkeypatch.setenv("ATTNSCOPE_NO_SETTINGS", "1")
    assert values("run") == {}


def test_a_pyproject_of_another_tool_is_passed_over(project, tmp_path):
    write(project / "pyproject.toml", "[tool.other]\nlayer = 7\n")
    write(tmp_path / "project/attnscope.toml", "layer = 1\n")
    assert values("run") == {"layer": "1"}


def test_environment_variables_come_before_files(project, pipeline, monkeypatch):
    write(project / "attnscope.toml", 'model = "from-file"\n')
    assert asked_by(pipeline).model == "from-file"
    monkeypatch.setenv("ATTNSCOPE_MODEL", "from-variable")
    assert asked_by(pipeline).model == "from-variable"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('laier = "1"', "attnscope.toml: laier: is no option; did you mean 'layer'?"),
        ("[rnu]", "attnscope.toml: rnu: is no option; did you mean 'run'?"),
        (
            "[run]\nrole = 'self'",
            "attnscope.toml: run.role: is no option; attnscope help run lists what there is",
        ),
        (
            "[profile.paper.run]\nheda = 1",
            "attnscope.toml: profile.paper.run.heda: is no option; did you mean 'head'?",
        ),
        ("layer = 'one'", "attnscope.toml: layer: cannot read 'one'"),
        ("[run]\nwords = 1", "attnscope.toml: run.words: must be true or false, not 1"),
        ("[run]\nlayer = true", "attnscope.toml: run.layer: must be text or a number, not True"),
        ("run = 1", "attnscope.toml: run: must be a table with options of the command"),
        ("profile = 1", "attnscope.toml: profile: must hold tables"),
        ("layer", "attnscope.toml: is not TOML"),
        ("text = 'a'", "attnscope.toml: text: is no option"),
        ("profile = {a = 1}", "attnscope.toml: profile: must hold tables"),
    ],
)
def test_what_no_option_takes_is_refused_with_its_place(project, text, line, capsys):
    write(project / "attnscope.toml", text)
    assert main(["run", TEXT]) == 2
    assert (
        line.replace("attnscope.toml", str(project / "attnscope.toml"), 0)
        in capsys.readouterr().err
    )


def test_an_unknown_profile_is_refused_with_the_nearest(project, capsys):
    write(project / "attnscope.toml", "[profile.paper]\ntop = 1\n")
    assert main(["run", TEXT, "--profile", "papre"]) == 2
    assert "--profile: no such profile 'papre'; did you mean 'paper'?" in capsys.readouterr().err
    assert main(["run", TEXT, "--profile=paper", "--no-settings"]) == 2
    assert "there are no settings to take it from" in capsys.readouterr().err


def test_help_and_completion_do_without_settings(project, capsys):
    write(project / "attnscope.toml", "broken")
    for words in (["run", "-h"], ["run", "--help"], ["help", "run"]):
        assert main(words) == 0


EXCLUDED = [
    ("config = 'causal'", ["--model", "riverbank"]),
    ("model = 'riverbank'", ["--config", "causal"]),
    ("format = 'heat'", ["--json"]),
    ("[run]\nstage = 'scores'", ["--words"]),
    ("[run]\nstage = 'scores'", ["--measure", "rollout"]),
    ("format = 'heat'", ["-o", "out.json"]),
]


@pytest.mark.parametrize(("text", "words"), EXCLUDED)
def test_settings_that_exclude_what_is_typed_are_left_out(project, text, words, capsys):
    write(project / "attnscope.toml", text)
    assert main(["run", TEXT, *words]) == 0, capsys.readouterr().err
    write(project / "attnscope.toml", "")
    (project / "out.json").unlink(missing_ok=True)
    first = capsys.readouterr().out
    assert main(["run", TEXT, *words]) == 0
    assert capsys.readouterr().out == first


def test_options_that_exclude_others_name_options_of_the_same_command():
    for command in COMMANDS:
        names = {option.name for option in options_of(command)}
        for option in options_of(command):
            for excluded in option.settings_left_out:
                assert excluded != option.name
                assert any(
                    excluded in {other.name for other in options} for options in COMMANDS.values()
                ), excluded
        assert names


def test_a_mask_for_all_commands_does_not_break_a_comparison_of_masks(project, capsys):
    write(project / "attnscope.toml", 'mask = "causal"\n')
    assert main(["compare", TEXT]) == 0
    assert "causal → bidirectional" in capsys.readouterr().out


def test_an_error_about_a_setting_says_where_it_is(project, capsys):
    write(project / "attnscope.toml", "[run]\nlayer = 77\n")
    assert main(["run", TEXT]) == 2
    err = capsys.readouterr().err
    assert "--layer: there is no layer 77" in err
    assert "--layer is set in attnscope.toml: run.layer" in err


def test_info_lists_settings_and_where_they_come_from(project, capsys, monkeypatch):
    write(
        project / "attnscope.toml",
        "precision = 1\n[run]\nhead = 'all'\n[profile.paper]\nprecision = 5\n",
    )
    assert main(["info", "--settings", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["files"] == [str(project / "attnscope.toml")]
    assert listed["profiles"] == ["paper"]
    by_option = {setting["option"]: setting for setting in listed["settings"]}
    assert by_option["--head"] == {
        "option": "--head", "value": "all", "source": "attnscope.toml: run.head", "commands": ["run"]
    }  # fmt: skip
    assert set(by_option["--precision"]["commands"]) == {
        name for name in COMMANDS if any(option.name == "precision" for option in options_of(name))
    }
    assert main(["info", "--settings", "--profile", "paper"]) == 0
    out = capsys.readouterr().out
    assert "--precision  5    attnscope.toml: profile.paper.precision" in out
    monkeypatch.setenv("ATTNSCOPE_MODEL", "there")
    assert main(["info", "--settings", "--no-settings"]) == 0
    out = capsys.readouterr().out
    assert "files    none" in out
    assert "environment: ATTNSCOPE_MODEL" in out
    assert "--head" not in out


def test_a_dump_records_where_its_settings_come_from(project, capsys):
    write(project / "texts.txt", "The bank\n")
    write(project / "attnscope.toml", "[batch]\ntop = 2\nlayer = 1\n")
    words = ["batch", "texts.txt", "-o", "dump.jsonl", "--quiet"]
    assert main(words) == 0
    header = json.loads(Path("dump.jsonl").read_text().splitlines()[0])
    assert header["configured"] == {
        "top": "attnscope.toml: batch.top",
        "layer": "attnscope.toml: batch.layer",
    }
    assert (header["settings"]["top"], header["settings"]["layer"]) == (2, "1")
    before = Path("dump.jsonl").read_bytes()
    # the same values, typed: there is nothing to do
    assert main([*words, "--no-settings", "--top", "2", "--layer", "1"]) == 0
    assert Path("dump.jsonl").read_bytes() == before
    assert main([*words, "--no-settings"]) == 1
    assert main(["verify", "dump.jsonl", "--quiet"]) == 0
