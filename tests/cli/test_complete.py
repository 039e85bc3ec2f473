"""Shell completion: option values by name, and folders and files."""

import pytest

from attnscope.checkpoints.samples import sample_names
from attnscope.cli import completion
from attnscope.cli.app import COMMANDS
from attnscope.findings.heads import STAGES


def test_stages_are_those_of_the_report():
    assert completion.STAGES == STAGES


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("", [*STAGES, "none"]),
        ("n", ["none"]),
        ("sc", ["scores", "scaled"]),
        ("weights,", ["weights,scores", "weights,scaled", "weights,masked", "weights,output"]),
        ("weights,scores,o", ["weights,scores,output"]),
        ("x", []),
    ],
)
def test_completion_offers_stages(typed, offered):
    assert completion.stages(typed) == offered


def test_completion_offers_terms_and_files_of_masks(tmp_path, monkeypatch):
    (tmp_path / "corner.json").touch()
    monkeypatch.chdir(tmp_path)
    terms = [
        "own",
        "causal",
        "bidirectional",
        "window:",
        "prefix:",
        "block:",
        "sink:",
        "docs:",
        "docs:eos",
    ]
    assert completion.masks("") == terms
    assert completion.masks("causal+(sink:4|w") == ["causal+(sink:4|window:"]
    assert completion.masks("causal+w") == ["causal+window:"]
    assert completion.masks("own+c") == ["own+causal", "own+corner.json"]


def test_samples_and_configs_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert completion.configs("") == sample_names("configs")
    assert completion.configs("sl") == ["sliding-window"]
    assert completion.samples("") == sample_names("sample_weights")


def test_completion_offers_folders_and_files_of_the_right_ending(tmp_path, monkeypatch):
    for name in ("models/bert", "models/.hidden"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("my.toml", "models/my.toml", "models/readme"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    assert completion.samples("mo") == ["models/"]
    assert completion.samples("models/") == ["models/bert/"]
    assert completion.configs("m") == [
        *[n for n in sample_names("configs") if n.startswith("m")],
        "models/",
        "my.toml",
    ]
    assert completion.files("models/") == ["models/bert/", "models/my.toml", "models/readme"]
    assert completion.files("models/.") == ["models/.hidden/"]
    assert completion.files(f"{tmp_path}/my") == [f"{tmp_path}/my.toml"]
    assert completion.files("gone/") == []


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("attnscope ", set(COMMANDS)),
        ("attnscope run --wh", {"--what-if"}),
        ("attnscope run --what-if ", {"stack", "same-scores"}),
        ("attnscope run --by v", {"value"}),
        ("attnscope run --stage weights,o", {"weights,output"}),
        ("attnscope run --config sli", {"sliding-window"}),
        ("attnscope info --format ", {"table", "json"}),
        ("attnscope run x --layer a", {"auto", "all"}),
    ],
)
def test_bash(attnscope, line, offered):
    words = line.split(" ")
    env = {
        "_ATTNSCOPE_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }
    done = attnscope("", env=env)
    assert (done.returncode, done.stderr) == (0, b"")
    assert set(done.stdout.decode().split()) == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_can_be_shown(attnscope, shell):
    done = attnscope(
        "", "--show-completion", shell, env={"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"_ATTNSCOPE_COMPLETE" in done.stdout


def test_the_script_can_be_installed(attnscope, tmp_path):
    env = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1", "HOME": str(tmp_path)}
    done = attnscope("", "--install-completion", "bash", env=env)
    assert (done.returncode, done.stderr) == (0, b"")
    assert "attnscope" in (tmp_path / ".bashrc").read_text()
    assert "_ATTNSCOPE_COMPLETE" in (tmp_path / ".bash_completions" / "attnscope.sh").read_text()
