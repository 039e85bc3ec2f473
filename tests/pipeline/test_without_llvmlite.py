"""An installation without the extra `fast`: the same findings in long texts, and one line about what it would gain."""

import subprocess
import sys

import numpy as np
import pytest

from attnscope.findings.codec import from_json

WITHOUT = "import sys; sys.modules['llvmlite'] = None; from attnscope.cli import main; sys.exit(main(sys.argv[1:]))"
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
    """A function that runs every head of a text of so many words, with or without llvmlite; its Report and stderr."""
    (tmp_path / "stack.toml").write_text(STACK)

    def of_words(count, python):
        text = tmp_path / f"{count}.txt"
        text.write_text(" ".join(f"w{i * i % 83}" for i in range(count)))
        given = ["run", "--file", text, "--config", tmp_path / "stack.toml", "--format", "json"]
        given += ["--layer", "all", "--head", "all", "--stage", "none"]
        ran = subprocess.run([sys.executable, *python, *map(str, given)], capture_output=True, text=True, check=True)
        return from_json(ran.stdout), ran.stderr

    return of_words


def test_a_long_text_has_the_same_findings_and_says_once_what_llvmlite_would_gain(run):
    (without, stderr), (fast, quiet) = run(900, ["-c", WITHOUT]), run(900, ["-m", "attnscope"])
    assert (stderr, quiet) == (f"attnscope: warning: {GAIN}\n", "")
    heads = list(zip(without.texts[0].heads, fast.texts[0].heads, strict=True))
    assert len(heads) == 24
    for ours, expected in heads:
        np.testing.assert_allclose(ours.rows.entropy, expected.rows.entropy, rtol=2e-5, atol=2e-5)
        np.testing.assert_allclose(ours.top.weight, expected.top.weight, rtol=2e-5, atol=2e-6)


def test_a_short_text_says_nothing(run):
    assert run(20, ["-c", WITHOUT])[1] == ""
