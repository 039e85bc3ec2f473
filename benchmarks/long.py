"""Run a text of 100,000 tokens through the command line on CPU: time and memory.

    python benchmarks/long.py [window] [full] [--tokens N]

A stack of GPT-2-small's shape (12 heads, width 768, rotary positions, random weights, described in TOML), one layer
and head of it: the five strongest sources and row statistics of every token, by `attnscope batch`. `window`: causal
with a sliding window of 1,024, the last of 12 layers, so that all of them run. `full`: causal, the second of two
layers, the first of which runs with all of its heads. There is no peer: a matrix of weights would take 40 GB a head.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from measure import Table, attnscope, choices, machine

STACK = """
d_model = 768
n_heads = 12
n_layers = {layers}
d_mlp = 3072
mask = "{mask}"
positions = "rope"
seed = 7
"""
KINDS = {"window": (12, "causal+window:1024"), "full": (2, "causal")}


def main() -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    choices(parser, "what", KINDS)
    parser.add_argument("--tokens", type=int, default=100_000)
    asked = parser.parse_args()
    print(machine())
    table = Table("attnscope", "")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "text.txt").write_text(
            " ".join(f"w{i * i % 997}" for i in range(asked.tokens)) + "\n"
        )
        for what in asked.what or KINDS:
            layers, mask = KINDS[what]
            (folder / "stack.toml").write_text(STACK.format(layers=layers, mask=mask))
            ran = attnscope(
                *(
                    "batch",
                    folder / "text.txt",
                    "-o",
                    folder / f"{what}.jsonl",
                    "--config",
                    folder / "stack.toml",
                ),
                *("--layer", -1, "--head", 0, "--top", 5, "--quiet"),
            )
            table.fact(f"{mask}, {layers} layers, {asked.tokens:,} tokens: time", ran.seconds, "s")
            table.fact(f"{mask}, {layers} layers, {asked.tokens:,} tokens: peak", ran.peak, "MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
