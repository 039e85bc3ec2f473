"""The wheel holds what it needs: it runs from any folder, without the checkout."""

import importlib
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The wheel's files, without the checkout; what it depends on is this environment's."""
    folder = tmp_path_factory.mktemp("wheel")
    backend = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"][
        "build-backend"
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        # as pip calls it
        wheel = folder / importlib.import_module(backend).build_wheel(str(folder))
    zipfile.ZipFile(wheel).extractall(folder / "site")
    return folder / "site"


def test_samples_and_configs_travel_in_the_wheel(installed, tmp_path):
    options = ["--model", "riverbank", "--mask", "causal", "--mask", "window:2"]
    program = "import sys; from attnscope.cli import main; sys.exit(main(['info', '--config', 'causal']) or main())"
    argv = [sys.executable, "-c", program, "compare", "The bank by the river", *options]
    environment = {**os.environ, "PYTHONPATH": str(installed), "PYTHONSAFEPATH": "1"}
    ran = subprocess.run(
        argv, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "parameters" in ran.stdout
    assert "window:2" in ran.stdout


def test_what_agents_read_travels_in_the_wheel(installed):
    for name in ("SKILL.md", "llms.txt", "schema.json"):
        shipped = installed / "attnscope" / "_shipped" / name
        assert shipped.read_bytes() == (ROOT / "docs" / name).read_bytes()


def test_the_wheel_says_that_it_is_typed(installed):
    assert (installed / "attnscope" / "py.typed").is_file()


def test_the_wheel_holds_no_training_and_no_tests(installed):
    assert sorted(path.name for path in installed.iterdir() if "dist-info" not in path.name) == [
        "attnscope"
    ]
