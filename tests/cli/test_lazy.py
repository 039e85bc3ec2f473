"""What can be answered without torch is answered without torch."""

import json
import subprocess
import sys

import pytest

from attnscope import cli
from tests.helpers import fork_server
from tests.helpers.cli_runner import ROOT, environment

HEAVY = {
    "torch",
    "numpy",
    "transformers",
    "tokenizers",
    "safetensors",
    "msgspec",
    "orjson",
    "rich",
    "pydantic",
}
LOADED = """
import atexit, json, os, sys
path = sys.argv.pop(1)
atexit.register(lambda: open(path, "w").write(json.dumps(sorted({name.partition(".")[0] for name in sys.modules}))))
"""
RUN = f"{LOADED}\nfrom attnscope.cli import main\nsys.exit(main(sys.argv[1:]))"


def loaded(program, tmp_path, *args):
    """Exit code, stderr, and the top-level modules that were loaded when the process ended."""
    path = tmp_path / "modules"
    done = subprocess.run(
        [sys.executable, "-c", program, str(path), *args], cwd=tmp_path, capture_output=True, timeout=60, check=False,
        env=environment(PYTHONPATH=str(ROOT)),
    )  # fmt: skip
    return done.returncode, done.stderr.decode(), set(json.loads(path.read_text()))


@pytest.mark.parametrize("module", ["attnscope", "attnscope.cli", "attnscope.cli.app"])
def test_importing_the_command_line_loads_nothing_heavy(tmp_path, module):
    code, _, modules = loaded(f"{LOADED}\nimport {module}", tmp_path)
    assert code == 0
    # what Typer itself imports is its own
    assert not modules & (HEAVY - {"rich"} if module.endswith("app") else HEAVY)


@pytest.mark.parametrize("args", [("--help",), ("run", "--help"), ("--version",)])
def test_help_loads_nothing_heavy(tmp_path, args):
    code, _, modules = loaded(RUN, tmp_path, *args)
    assert code == 0
    assert not modules & HEAVY


@pytest.mark.parametrize("arguments", [("--help",), ("-h",), ("--version",), ()])
def test_help_of_the_program_declares_no_options_of_commands(arguments, monkeypatch, capsys):
    """Those of 17 commands took half of its time."""

    def declare(name, *_):
        raise AssertionError(f"the options of {name} are declared for {arguments}")

    monkeypatch.setattr("attnscope.cli.app.as_command", declare)
    cli._command.cache_clear()
    try:
        assert cli.main(list(arguments)) == (0 if arguments else 2)
    finally:
        cli._command.cache_clear()
    assert "attnscope" in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (("run", "x", "--haed", "1"), 2, "did you mean '--head'?"),
        (("run", "x", "--layer", "one"), 2, "--layer: cannot read 'one'"),
        (("run", "x", "--mask", "casual"), 2, "did you mean 'causal'?"),
        (("run",), 2, "no text given"),
        (("run", "x", "--model", "missing"), 1, "missing: no such folder"),
        (("run", "x", "--model", "empty"), 1, "empty"),
        (("run", "x", "--config", "missing.toml"), 1, "missing.toml: no such file"),
        (("run", "x", "--config", "bad.toml"), 1, "did you mean 'n_heads'?"),
        (("run", "x", "--config", "wrong.toml"), 1, "wrong.toml: n_heads"),
        (("run", "", "--config", "causal"), 1, "TEXT"),
        (("run", "x", "--config", "causal", "--layer", "7"), 2, "--layer: there is no layer 7"),
        (("run", "x", "--config", "causal", "--head", "0-9"), 2, "--head: there is no head 9"),
        (
            ("run", "x y", "--config", "causal", "--query", "z"),
            2,
            "--query: 'z' is not in the text",
        ),
        (("run", "x y", "--config", "causal", "--key", "5"), 2, "--key: '5' is not in the text"),
        (("run", "x", "--config", "causal", "--max-memory", "1k"), 1, "--max-memory"),
        (("run", "x", "--config", "causal", "--output", "old.json"), 1, "old.json: exists"),
        (("run", "x", "--config", "causal", "--output", "gone/x.json"), 1, "gone: no such folder"),
        (("run", "--file", "gone"), 1, "gone: no such file"),
        (("info", "--config", "missing"), 1, "missing: no such file"),
    ],
)
def test_what_cannot_be_done_is_said_without_torch(tmp_path, args, code, says):
    """Nor is an import tried: the process has neither torch nor transformers, and would end in another way."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "old.json").write_text("old")
    (tmp_path / "bad.toml").write_text("n_haeds = 2\n")
    (tmp_path / "wrong.toml").write_text('n_heads = "2"\n')
    done = fork_server.run(
        "",
        *args,
        hidden=("torch", "transformers"),
        cwd=tmp_path,
        env=environment(),
        stderr=subprocess.PIPE,
    )
    stderr = done.stderr.decode()
    assert done.returncode == code, stderr
    assert stderr.startswith("attnscope: error: ")
    assert stderr.count("\n") == 1
    assert says in stderr


@pytest.mark.parametrize(
    "args", [("info", "--config", "causal"), ("info", "--config", "causal", "--cost")]
)
def test_info_needs_no_torch(tmp_path, args):
    code, stderr, modules = loaded(RUN, tmp_path, *args)
    assert (code, stderr) == (0, "")
    assert not modules & {"torch", "transformers"}


def test_a_run_does_load_torch(tmp_path):
    """Or the tests above would pass on anything."""
    code, stderr, modules = loaded(
        RUN, tmp_path, "run", "The bank", "--config", "causal", "--output", "out.json", "--quiet"
    )
    assert (code, stderr) == (0, "")
    assert "torch" in modules
    # Typer would read values of options with the last
    assert not modules & {"transformers", "rich", "pydantic"}
