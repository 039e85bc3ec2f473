"""What a config.json says that attnscope does not read: noted, refused or overridden, and shown in every view."""

import json
import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

import attnscope
from attnscope.checkpoints.samples import samples_folder
from attnscope.cli import main
from attnscope.run.session import Session
from attnscope.studies.screens.header import short_path
from tests.helpers.published_configs import PUBLISHED
from tests.helpers.requests import requested

TEXT = "The bank by the river"
OVERRIDES = ["--ignore-key", "my_alibi", "--ignore-key", "other_mask", "--trust-config"]
IGNORED = (
    "config keys ignored by --ignore-key: my_alibi, other_mask; the real model's numbers may differ"
)
TRUSTED = "--trust-config: the folder's own code may differ from what is shown"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The shipped model with keys that nobody reads, that may change attention, and with code of its own."""
    path = tmp_path / "model"
    shutil.copytree(samples_folder("sample_weights") / "riverbank", path)
    raw = json.loads((path / "config.json").read_text())
    raw |= {
        "language": "en",
        "my_alibi": True,
        "other_mask": 1,
        "auto_map": {"AutoModel": "modeling_own.OwnModel"},
    }
    (path / "config.json").write_text(json.dumps(raw))
    return path


def _run(capfdbinary, *arguments: object) -> tuple[int, str, str]:
    code = main([str(argument) for argument in arguments])
    out, err = capfdbinary.readouterr()
    return code, " ".join(out.decode().split()), err.decode()


def test_each_obstacle_is_named_with_the_option_that_overrides_it(capfdbinary, folder):
    code, _, err = _run(capfdbinary, "run", TEXT, "--model", folder)
    assert (
        code == 1
        and "auto_map: the folder has its own model code" in err
        and "--trust-config uses" in err
    )
    code, _, err = _run(capfdbinary, "run", TEXT, "--model", folder, "--trust-config")
    assert (
        code == 1 and "unknown key 'my_alibi'" in err and "--ignore-key NAME ignores a key" in err
    )
    code, _, err = _run(
        capfdbinary, "run", TEXT, "--model", folder, "--trust-config", "--ignore-key", "my_alibi"
    )
    assert code == 1 and "unknown key 'other_mask'" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", TEXT],
        ["explain", TEXT, "--query", "bank"],
        ["compare", TEXT, "--mask", "own", "--mask", "causal+window:2"],
        ["compare", TEXT, "--mask", "own", "--mask", "bidirectional", "--tolerance", "0"],
        ["check", "The bank"],
        ["info"],
        ["run", TEXT, "--engine", "transformers"],
    ],
    ids=lambda arguments: " ".join(arguments[:1] + arguments[-1:]),
)
def test_overrides_are_shown_in_every_view(capfdbinary, monkeypatch, folder, arguments):
    monkeypatch.setenv("COLUMNS", "200")
    code, out, err = _run(capfdbinary, *arguments, "--model", folder, *OVERRIDES)
    assert code == 0, err
    assert IGNORED in out and TRUSTED in out
    if "transformers" not in arguments:  # which ignores whatever it does not know by itself
        assert "ignored config keys, which no code of transformers reads: language" in out


def test_overrides_are_recorded_in_every_file(capfdbinary, tmp_path, folder):
    _run(capfdbinary, "run", TEXT, "--model", folder, *OVERRIDES, "--output", tmp_path / "run.json")
    (tmp_path / "texts.txt").write_text(TEXT)
    _run(
        capfdbinary,
        "batch",
        tmp_path / "texts.txt",
        "--output",
        tmp_path / "dump.jsonl",
        "--model",
        folder,
        *OVERRIDES,
    )
    python = attnscope.inspect(
        TEXT, model=folder, ignore_key=["my_alibi", "other_mask"], trust_config=True
    )
    found = [json.loads((tmp_path / "run.json").read_text()), json.loads(python.to_json())]
    found.append(json.loads((tmp_path / "dump.jsonl").read_text().splitlines()[0]))
    for each in found:
        assert each["provenance"]["ignored_keys"] == ["language", "my_alibi", "other_mask"]
        assert IGNORED in each["provenance"]["notes"]
        assert any(note.startswith(TRUSTED) for note in each["provenance"]["notes"])


def test_a_session_does_not_take_a_trusted_model_for_another(folder):
    session = Session([])
    trusted = requested(
        (), model=str(folder), ignore_key=("my_alibi", "other_mask"), trust_config=True
    )
    assert session.source(trusted) is session.source(trusted)
    for other in (replace(trusted, ignore_key=()), replace(trusted, trust_config=False)):
        with pytest.raises(attnscope.AttnscopeError):
            session.source(other)


def test_the_other_side_of_a_comparison_is_shown_with_its_notes(capfdbinary, monkeypatch, folder):
    monkeypatch.setenv("COLUMNS", "300")
    arguments = ["compare", TEXT, "--model", "riverbank", "--model", folder, *OVERRIDES]
    for more in ([], ["--tolerance", "0"]):
        code, out, err = _run(capfdbinary, *arguments, *more)
        assert (code, err) == (0, "")
        name = short_path(str(folder))
        assert f"{name}: {IGNORED}" in out and f"{name}: {TRUSTED}" in out


def test_python_says_it_in_its_own_words(folder):
    with pytest.raises(attnscope.AttnscopeError, match="trust_config=True uses the config alone"):
        attnscope.inspect(TEXT, model=folder)
    with pytest.raises(attnscope.AttnscopeError, match="ignore_key=NAME ignores a key"):
        attnscope.inspect(TEXT, model=folder, trust_config=True, ignore_key="other_mask")
    with pytest.raises(
        attnscope.AttnscopeError, match="ignore_key: 3 is not a key; give a str, or several"
    ):
        attnscope.inspect(TEXT, model=folder, ignore_key=3)
    with pytest.raises(
        attnscope.AttnscopeError, match="trust_config: expected True or False, got 1"
    ):
        attnscope.inspect(TEXT, model=folder, trust_config=1)


@pytest.mark.parametrize("option", [["--ignore-key", "x"], ["--trust-config"]])
def test_a_stack_has_no_config_json(capfdbinary, option):
    code, _, err = _run(capfdbinary, "run", TEXT, "--config", "causal", *option)
    assert code == 2
    assert f"--config and {option[0]} cannot be used together: a TOML stack is a whole model" in err


def test_a_config_alone_is_described(capfdbinary, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "200")
    path = tmp_path / "config.json"
    raw = {**PUBLISHED["gpt2"], "n_special": 0}
    del raw["n_head"]
    path.write_text(json.dumps(raw))
    code, out, _ = _run(capfdbinary, "info", "--model", path)
    assert code == 0
    for fact in (
        "weights none: this is a config.json alone",
        "heads 12, queries and keys 64 wide",
        "mask causal",
        "vocabulary 50,257 rows",
        "parameters 124,",
        f"file config.json {path.stat().st_size} B",
        "note keys missing from config.json have the defaults of transformers: n_head = 12",
        "note ignored config keys, which no code of transformers reads: n_special",
    ):
        assert fact in out
    assert "tokenizer" not in out
    code, out, _ = _run(capfdbinary, "info", "--model", path, "--cost", "--format", "json")
    found = json.loads(out)
    assert found["weights"] == found["tokenizer"] == "none" and found["stored_parameters"] is None
    assert found["ignored_keys"] == ["n_special"] and len(found["cost"]) == 11
    # 12 layers of 4 d² and 8 d² with their biases and two norms, and two embeddings; the last norm is not attention's
    assert found["parameters"] == 12 * (12 * 768**2 + 13 * 768) + (50257 + 1024) * 768


def test_a_config_alone_that_is_refused_says_why(capfdbinary, tmp_path):
    path = tmp_path / "any name.json"
    path.write_text(json.dumps({**PUBLISHED["gpt2"], "alibi_of_my_own": True}))
    code, _, err = _run(capfdbinary, "info", "--model", path)
    assert code == 1 and "its name contains 'alibi'" in err
    assert _run(capfdbinary, "info", "--model", path, "--ignore-key", "alibi_of_my_own")[0] == 0
    path.write_text("[]")
    assert _run(capfdbinary, "info", "--model", path)[0] == 1
