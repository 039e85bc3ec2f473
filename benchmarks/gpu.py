"""Attention with exact findings of every row against the flash kernel, on CUDA, in bfloat16; exits with 1 without CUDA.

    python benchmarks/gpu.py [--tokens N] [--runs N]

32 query heads of width 128 over 8 key/value heads, causal, 32,768 tokens. Ours: `attend()` with the five strongest
sources and row statistics of every row; scores and softmax are float32. Peer: `scaled_dot_product_attention` held to
its flash kernel, the output alone, in bfloat16. Aim: 3 times as long.
"""

import argparse
import sys
from functools import partial

import torch
import torch.nn.functional as F
from measure import Table, machine, seconds, take_turns
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnscope.masks.terms import Causal
from attnscope.model.attention import attend
from attnscope.model.inputs import AttentionInputs, AttentionSpec
from attnscope.model.recorders import KeyTokens, RowRecorder, TopRecorder
from attnscope.report.row_statistics import KEY_TOKENS

HEADS, GROUPS, WIDTH, TOP, AIM = 32, 8, 128, 5, 3.0


@torch.inference_mode()
def ours(inputs: AttentionInputs) -> None:
    """Output, top contributors and row statistics."""
    heads, rows = range(HEADS), range(inputs.q.shape[2])
    real = torch.ones(1, len(rows), dtype=torch.bool, device=inputs.q.device)
    top = TopRecorder(TOP, "weight", heads, rows, real, ("weight",))
    attend(inputs, [top, RowRecorder(heads, rows, KeyTokens(dict.fromkeys(KEY_TOKENS, torch.zeros_like(real)), real))])
    torch.cuda.synchronize()


@torch.inference_mode()
def theirs(inputs: AttentionInputs) -> None:
    """The output alone."""
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        F.scaled_dot_product_attention(inputs.q, inputs.k, inputs.v, is_causal=True, enable_gqa=True)
    torch.cuda.synchronize()


def main() -> int:
    """Measure where there is CUDA."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--runs", type=int, default=5)
    asked = parser.parse_args()
    if not torch.cuda.is_available():
        print("there is no CUDA device here, which this benchmark is about", file=sys.stderr)
        return 1
    print(f"{machine()}, {torch.cuda.get_device_name()}")
    torch.manual_seed(0)
    q, k, v = (
        torch.randn(1, n, asked.tokens, WIDTH, dtype=torch.bfloat16, device="cuda") for n in (HEADS, GROUPS, GROUPS)
    )
    inputs, table = AttentionInputs(0, q, k, v, AttentionSpec(WIDTH**-0.5, Causal())), Table("ours", "flash")
    took = take_turns(
        {"ours": partial(seconds, partial(ours, inputs)), "flash": partial(seconds, partial(theirs, inputs))},
        asked.runs,
    )
    table.row(f"causal, {asked.tokens:,} tokens", took["ours"] * 1000, took["flash"] * 1000, "ms", AIM)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    ours(inputs)
    table.fact("memory besides the input", (torch.cuda.max_memory_allocated() - before) / 2**20, "MiB")
    return int(table.missed)


if __name__ == "__main__":
    sys.exit(main())
