"""What the README tells people to run is what the checks run."""

import os
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_ci_runs_the_command_of_the_readme():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    command = script.read_text().splitlines()[-1]
    assert command.startswith("python3 -m venv .venv && ")
    assert command.endswith(" && python -m pytest")
    assert command in (line.strip() for line in (ROOT / "README.md").read_text().splitlines())
