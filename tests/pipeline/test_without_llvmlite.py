"""An installation without the extra `fast`: the same findings in long texts, and one line about what it would gain."""

import os
import subprocess

import numpy as np
import pytest

from attnscope.findings.codec import from_json
from tests.helpers import fork_server

STACK = """
d_model = 24
n_heads = 12
n_layers = 2
d_mlp = 24
mask = "causal"
positions = "rope"
norm = "rmsnorm"
seed = 3
"""
GAIN = "attention in long texts takes about 0.7 of this time with llvmlite: pip install 'attnscope[fast]'"


@pytest.fixture
def run(tmp_path):
    """A function that runs every head of a text of so many words, without some modules; its Report and stderr."""
    (tmp_path / "stack.toml").write_text(STACK)

    def of_words(count, *hidden):
        text = tmp_path / f"{count}.txt"
        text.write_text(" ".join(f"w{i * i % 83}" for i in range(count)))
        given = ["run", "--file", text, "--config", tmp_path / "stack.toml", "--format", "json"]
        given += ["--layer", "all", "--head", "all", "--stage", "none"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        ran = fork_server.run("", *map(str, given), env=dict(os.environ), hidden=hidden, **pipes)
        assert ran.returncode == 0
        return from_json(ran.stdout), ran.stderr.decode()

    return of_words


def test_a_long_text_has_the_same_findings_and_says_once_what_llvmlite_would_gain(run):
    (without, stderr), (fast, quiet) = run(900, "llvmlite"), run(900)
    assert (stderr, quiet) == (f"attnscope: warning: {GAIN}\n", "")
    heads = list(zip(without.texts[0].heads, fast.texts[0].heads, strict=True))
    assert len(heads) == 24
    for ours, expected in heads:
        np.testing.assert_allclose(ours.rows.entropy, expected.rows.entropy, rtol=2e-5, atol=2e-5)
        np.testing.assert_allclose(ours.top.weight, expected.top.weight, rtol=2e-5, atol=2e-6)


def test_a_short_text_says_nothing(run):
    assert run(20, "llvmlite")[1] == ""
