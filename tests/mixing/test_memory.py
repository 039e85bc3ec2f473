"""A text of 20,000 tokens through a whole model takes memory in proportion to its length: no mask and no matrix."""

import subprocess
import sys

import pytest

from tests.helpers import hybrids

TOKENS = 20_000
_ONE_MASK = TOKENS**2 >> 20  # MiB of a mask of one byte a cell
SCRIPT = """
import resource
import sys
import numpy as np
import attnscope
words = np.random.default_rng(0).choice(["the", "bank", "river", "was", "old", "by"], size=int(sys.argv[2]))
options = {"model": sys.argv[1], "measure": "mixing", "layer": -1, "head": 1, "top": 3}
attnscope.inspect("the bank", **options)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
attnscope.inspect(" ".join(words), **options, query=len(words) - 1)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.unix
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("model_type", "changes"),
    # chunks as long as those of real models: transformers makes a matrix of all chunks
    [
        ("qwen3_next", {}),
        ("minimax", {}),
        ("falcon_h1", {"mamba_chunk_size": 256}),
        ("mamba2", {"chunk_size": 256}),
        ("xlstm", {}),
        ("recurrent_gemma", {}),
    ],
)
def test_a_long_text_takes_less_than_one_mask(model_type, changes, tmp_path):
    """Layers with softmax run below the shown one, under masks that are never made."""
    made = hybrids.make_hybrid(model_type, max_position_embeddings=2 * TOKENS, **changes)
    folder = hybrids.save_hybrid(tmp_path, hybrids.with_long_states(made))
    command = [sys.executable, "-c", SCRIPT, str(folder), str(TOKENS)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(ran.stdout) < _ONE_MASK
