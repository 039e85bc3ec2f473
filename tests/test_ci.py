"""What the README tells people to run is what the checks run."""

import os
import re
from pathlib import Path

import pytest
import yaml

from attnscope.base.version import __version__

ROOT = Path(__file__).parent.parent


def test_ci_runs_the_command_of_the_readme():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    command = script.read_text().splitlines()[-1]
    assert command.startswith("python3 -m venv .venv && ")
    assert command.endswith(" && ruff check && ruff format --check && mypy && python -m pytest")
    assert command in (line.strip() for line in (ROOT / "README.md").read_text().splitlines())


def test_make_and_github_run_the_commands_of_the_readme():
    recipes = (
        (ROOT / "Makefile").read_text().replace("\t$(RUN) ", "").replace("$(PYTHON)", "python3")
    )
    command = (ROOT / ".ci" / "run").read_text().splitlines()[-1]
    assert (ROOT / ".ci" / "exhaustive").read_text().splitlines()[-1] in recipes
    install, checks = command.split(" && ruff check", 1)
    assert all(
        part in recipes for part in install.split(" && ") if ".venv/bin/activate" not in part
    )
    assert f"ruff check{checks}" in recipes
    (workflow,) = ROOT.glob(".github/workflows/test.yml")
    steps = [
        step
        for job in yaml.safe_load(workflow.read_text())["jobs"].values()
        for step in job["steps"]
    ]
    assert {".ci/run", ".ci/exhaustive", ".ci/lowest"} < {step.get("run") for step in steps}


@pytest.mark.parametrize(
    "path",
    [*ROOT.glob(".github/**/*.yml"), ROOT / "CITATION.cff", ROOT / ".pre-commit-config.yaml"],
)
def test_yaml_can_be_read(path):
    assert yaml.safe_load(path.read_text())


def test_the_citation_names_this_version():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == __version__


def test_files_that_scripts_and_pages_name_are_there():
    folders = "attnscope|tests|benchmarks|training|configs"
    pages = [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/*.md"),
        *ROOT.glob(".ci/*"),
        ROOT / "benchmarks" / "README.md",
    ]
    for page in [
        *pages,
        ROOT / "Makefile",
        *ROOT.glob(".github/**/*.yml"),
        ROOT / "tests" / "mutation.toml",
    ]:
        text = page.read_text()
        for name in re.findall(rf"(?<!\.config/)\b(?:{folders})/[\w./-]*\w", text):
            assert (ROOT / name).exists() or (ROOT / f"{name}.py").exists(), (page.name, name)
        for module in re.findall(rf"python -m ((?:{folders})[\w.]*\w)", text):
            path = ROOT / module.replace(".", "/")
            assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), (
                page.name,
                module,
            )
