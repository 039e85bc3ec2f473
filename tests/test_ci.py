"""What the README tells people to run is what the checks run."""

import os
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_ci_runs_the_command_of_the_readme():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    command = script.read_text().splitlines()[-1]
    assert command.startswith("python3 -m venv .venv && ")
    assert command.endswith(" && ruff check && ruff format --check && mypy && python -m pytest")
    assert command in (line.strip() for line in (ROOT / "README.md").read_text().splitlines())


def test_files_that_scripts_and_pages_name_are_there():
    folders = "attnscope|tests|benchmarks|training|configs"
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob(".ci/*"), ROOT / "benchmarks" / "README.md"]
    for page in pages:
        text = page.read_text() if page.name != "CHANGELOG.md" else ""  # it names what is gone
        for name in re.findall(rf"\b(?:{folders})/[\w./-]*\w", text):
            assert (ROOT / name).exists() or (ROOT / f"{name}.py").exists(), (page.name, name)
        for module in re.findall(rf"python -m ((?:{folders})[\w.]*\w)", text):
            path = ROOT / module.replace(".", "/")
            assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), (page.name, module)
