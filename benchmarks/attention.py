"""Attention with exact findings of every row against attention alone, in float32: time, memory, and the same numbers.

    python benchmarks/attention.py [--sizes 1024,2048,…] [--masks causal,bidirectional] [--runs N] [--memory]

Ours: `attend()` of 12 heads of width 64: output, and of every row the five strongest sources and the entropy; once more
with all statistics of a dump. Peer: `scaled_dot_product_attention`, the output alone. At most 1.8 times as long as that
for the former. Memory for tiles is shared by all runs, as by the layers of a model. `--memory` measures instead what
`attend()` takes besides its input, in a process of its own for each size: it grows as the text does. Exits with 1 where
a limit is missed.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from measure import Table, exponent, machine, own_peak, script, seconds, take_turns

from attnscope.masks.terms import Bidirectional, Causal, SlidingWindow
from attnscope.model.attention import attend
from attnscope.model.inputs import AttentionInputs, AttentionSpec
from attnscope.model.masks import intersect
from attnscope.model.recorders import KeyTokens, RowRecorder, TopRecorder
from attnscope.model.tile import Workspace
from attnscope.report.row_statistics import KEY_TOKENS, STATISTICS

HEADS, WIDTH, TOP = 12, 64, 5
SIZES = (1024, 2048, 4096, 8192, 16384)
MASKS = {"causal": Causal(), "bidirectional": Bidirectional(), "window": intersect((Causal(), SlidingWindow(1024)))}


class Contest:
    """The same queries, keys and values for both.

    Args:
        size: Tokens.
        mask: One of MASKS.
        heads: Query heads, each with its own keys and values.
    """

    def __init__(self, size: int, mask: str, heads: int = HEADS) -> None:
        torch.manual_seed(0)
        self.heads = heads
        made = (torch.randn(1, size, heads * WIDTH) for _ in range(3))  # as a model's projections lay them
        self.q, self.k, self.v = (one.unflatten(-1, (heads, WIDTH)).transpose(1, 2) for one in made)
        self.causal, self.real = mask == "causal", torch.ones(1, size, dtype=torch.bool)
        self.inputs = AttentionInputs(0, self.q, self.k, self.v, AttentionSpec(WIDTH**-0.5, MASKS[mask]))
        self.workspace = Workspace()
        self.found: tuple[TopRecorder, RowRecorder] | None = None

    @torch.inference_mode()
    def ours(self, names: Sequence[str] = ("entropy",)) -> torch.Tensor | None:
        """Output, top contributors and statistics of every row."""
        heads, rows = range(self.heads), range(self.real.shape[1])
        top = TopRecorder(TOP, "weight", heads, rows, self.real, ("weight",))
        stats = RowRecorder(
            heads, rows, KeyTokens(dict.fromkeys(KEY_TOKENS, torch.zeros_like(self.real)), self.real), names
        )
        self.found = top, stats
        return attend(self.inputs, [top, stats], workspace=self.workspace)

    @torch.inference_mode()
    def theirs(self) -> torch.Tensor:
        """The output alone."""
        found: torch.Tensor = F.scaled_dot_product_attention(self.q, self.k, self.v, is_causal=self.causal)
        return found

    def check(self, *, whole: bool) -> None:
        """Refuse other numbers; with `whole`, also the findings, held against the whole matrix of weights."""
        output = self.ours()
        assert output is not None and self.found is not None
        torch.testing.assert_close(output, self.theirs(), rtol=0, atol=1e-5)
        if not whole:
            return
        scores = self.q @ self.k.mT * WIDTH**-0.5
        if self.causal:
            scores.masked_fill_(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
        weights, (top, stats) = scores.softmax(-1), self.found
        values, keys = weights.topk(TOP)
        none = values == 0  # the first rows of a causal mask have fewer sources
        torch.testing.assert_close(top.measures["weight"], values.masked_fill(none, torch.nan), equal_nan=True)
        same = top.keys == keys.masked_fill(none, -1)
        assert same.float().mean() > 0.9999, "other contributors"  # equals may change places
        entropy = torch.special.entr(weights).sum(-1) / torch.log(torch.tensor(2.0))
        torch.testing.assert_close(stats.recorded["entropy"], entropy, rtol=1e-5, atol=1e-5)


def speed(sizes: list[int], masks: list[str], runs: int) -> bool:
    """Seconds of both, and whether a ratio is too large."""
    table = Table("ours", "sdpa")
    for mask in masks:
        for size in sizes:
            contest = Contest(size, mask)
            contest.check(whole=size <= 2048)
            every = partial(contest.ours, STATISTICS)
            works = {"ours": contest.ours, "all": every, "sdpa": contest.theirs}
            took = take_turns({name: partial(seconds, work) for name, work in works.items()}, runs)
            table.row(f"{mask}, {size:,} tokens", took["ours"] * 1000, took["sdpa"] * 1000, "ms", 1.8)
            table.row("  all statistics", took["all"] * 1000, took["sdpa"] * 1000, "ms")
    return table.missed


def memory(sizes: list[int], masks: list[str]) -> bool:
    """What `attend()` takes besides its input."""
    table = Table("MiB", "")
    for mask in masks:
        taken = [script(Path(__file__), "--one", f"{size},{mask}").peak for size in sizes]
        for size, peak in zip(sizes, taken, strict=True):
            table.fact(f"{mask}, {size:,} tokens", peak, "MiB")
        table.fact(f"{mask}: exponent of memory against tokens", exponent(sizes, taken), "", 1.05)
    return table.missed


def main() -> int:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--masks", default="causal,bidirectional")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    torch.set_num_threads(2)
    if asked.one:
        size, mask = asked.one.split(",")
        contest = Contest(int(size), mask)
        print(json.dumps({"peak": own_peak(contest.ours)}))
        return 0
    print(machine())
    sizes, masks = [int(size) for size in asked.sizes.split(",")], asked.masks.split(",")
    return int(memory(sizes, masks) if asked.memory else speed(sizes, masks, asked.runs))


if __name__ == "__main__":
    sys.exit(main())
