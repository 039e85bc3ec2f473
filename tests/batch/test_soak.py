"""A little of `tests.batch.soak`, always the same; the whole of it takes minutes."""

import re
import subprocess
import sys
from pathlib import Path


def test_dumps_that_are_ended_again_and_again_become_whole():
    arguments = ["--signals", "2", "--kills", "1", "--seed", "3", "--words", "4000"]
    arguments += ["--dumps", "3", "--patience", "10", "--worker-kills", "0"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.batch.soak", *arguments], cwd=Path(__file__).parents[2], capture_output=True,
        text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(
        r"2 signals and 1 kills .* [1-9]\d* dumps became whole, 0 wrong", done.stdout, re.S
    )
