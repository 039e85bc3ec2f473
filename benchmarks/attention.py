"""Attention with exact findings of every row against attention alone, in float32: time, memory, and the same numbers.

    python benchmarks/attention.py [--sizes 1024,2048,…] [--masks causal,bidirectional] [--runs N] [--busy N]
    python benchmarks/attention.py --cpus 0.5,1,1.5 [--sizes …] | --memory [--sizes …]

Ours: `attend()` of 12 heads of width 64: output, and of every row the five strongest sources and the entropy; once more
with all statistics of a dump. Peer: `scaled_dot_product_attention`, the output alone. At most 1.7 times as long as that
for the former, and 2.0 times where `--busy` other processes spin meanwhile, for both. `--cpus` measures in a container
that may use so much of the CPUs' time: at most 1.25 times what one thread takes there. Memory for tiles is shared by
all runs, as by the layers of a model. `--memory` measures instead what `attend()` takes beyond its input, in a process
of its own for each size: it grows as the text does. Exits with 1 where a limit is missed.
"""

# ruff: noqa: E402

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from attnscope.engines.torch_setup import import_torch

import_torch()  # with attnscope's settings, as in a run

import torch
import torch.nn.functional as F
from measure import Table, busy, cpu_quota, exponent, machine, own_peak, script, seconds, take_turns

from attnscope.base.system.machine import count_threads
from attnscope.findings.row_statistics import KEY_TOKENS, STATISTICS
from attnscope.model.attention import attend
from attnscope.model.inputs import AttentionInputs, AttentionSpec
from attnscope.model.masks import intersect
from attnscope.model.recorders import KeyTokens, RowRecorder, TopRecorder
from attnscope.model.tile import Workspace
from attnscope.request.masks.terms import Bidirectional, Causal, SlidingWindow

HEADS, WIDTH, TOP = 12, 64, 5
SIZES = (1024, 2048, 4096, 8192, 16384)
MASKS = {
    "causal": Causal(),
    "bidirectional": Bidirectional(),
    "window": intersect((Causal(), SlidingWindow(1024))),
}


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
        # as a model's projections lay them
        made = (torch.randn(1, size, heads * WIDTH) for _ in range(3))
        self.q, self.k, self.v = (one.unflatten(-1, (heads, WIDTH)).transpose(1, 2) for one in made)
        self.causal, self.real = mask == "causal", torch.ones(1, size, dtype=torch.bool)
        self.inputs = AttentionInputs(
            0, self.q, self.k, self.v, AttentionSpec(WIDTH**-0.5, MASKS[mask])
        )
        self.workspace = Workspace()
        self.found: tuple[TopRecorder, RowRecorder] | None = None

    @torch.inference_mode()
    def ours(self, names: Sequence[str] = ("entropy",)) -> torch.Tensor | None:
        """Output, top contributors and statistics of every row."""
        heads, rows = range(self.heads), range(self.real.shape[1])
        top = TopRecorder(TOP, "weight", heads, rows, self.real, ("weight",))
        stats = RowRecorder(
            heads,
            rows,
            KeyTokens(dict.fromkeys(KEY_TOKENS, torch.zeros_like(self.real)), self.real),
            names,
        )
        self.found = top, stats
        return attend(self.inputs, [top, stats], workspace=self.workspace)

    @torch.inference_mode()
    def theirs(self) -> torch.Tensor:
        """The output alone."""
        found: torch.Tensor = F.scaled_dot_product_attention(
            self.q, self.k, self.v, is_causal=self.causal
        )
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
        torch.testing.assert_close(
            top.measures["weight"], values.masked_fill(none, torch.nan), equal_nan=True
        )
        same = top.keys == keys.masked_fill(none, -1)
        assert same.float().mean() > 0.9999, "other contributors"  # equals may change places
        entropy = torch.special.entr(weights).sum(-1) / torch.log(torch.tensor(2.0))
        torch.testing.assert_close(stats.recorded["entropy"], entropy, rtol=1e-5, atol=1e-5)


def speed(sizes: list[int], masks: list[str], runs: int, limit: float) -> bool:
    """Seconds of both, and whether a ratio is too large."""
    table = Table("ours", "sdpa")
    for mask in masks:
        for size in sizes:
            contest = Contest(size, mask)
            contest.check(whole=size <= 2048)
            every = partial(contest.ours, STATISTICS)
            works = {"ours": contest.ours, "all": every, "sdpa": contest.theirs}
            took = take_turns({name: partial(seconds, work) for name, work in works.items()}, runs)
            table.row(
                f"{mask}, {size:,} tokens", took["ours"] * 1000, took["sdpa"] * 1000, "ms", limit
            )
            table.row("  all statistics", took["all"] * 1000, took["sdpa"] * 1000, "ms")
    return table.missed


def containers(cpus: list[float], sizes: list[int], masks: list[str], runs: int) -> bool:
    """Seconds within a quota, with the threads that a run would choose there, against one thread."""
    table = Table("chosen", "one")
    for quota in cpus:
        with cpu_quota(quota):
            chosen = count_threads()
            for mask in masks:
                for size in sizes:
                    contest = Contest(size, mask)
                    works = {
                        threads: partial(_with_threads, contest, threads) for threads in {chosen, 1}
                    }
                    took = take_turns(works, runs)
                    name = f"{quota:g} CPUs: {chosen} threads, {mask}, {size:,} tokens"
                    table.row(name, took[chosen] * 1000, took[1] * 1000, "ms", 1.25)
    return table.missed


def _with_threads(contest: Contest, threads: int) -> float:
    torch.set_num_threads(threads)
    return seconds(contest.ours)


def memory(sizes: list[int], masks: list[str]) -> bool:
    """What `attend()` takes beyond its input."""
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
    parser.add_argument("--busy", type=int, default=0, help="processes that spin meanwhile")
    parser.add_argument(
        "--cpus", help="measure in containers that may use so much of the CPUs' time"
    )
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    torch.set_num_threads(count_threads())
    if asked.one:
        size, mask = asked.one.split(",")
        contest = Contest(int(size), mask)
        print(json.dumps({"peak": own_peak(contest.ours)}))
        return 0
    print(machine())
    sizes, masks = [int(size) for size in asked.sizes.split(",")], asked.masks.split(",")
    if asked.memory:
        return int(memory(sizes, masks))
    if asked.cpus:
        return int(
            containers([float(one) for one in asked.cpus.split(",")], sizes, masks, asked.runs)
        )
    with busy(asked.busy):
        return int(speed(sizes, masks, asked.runs, 2.0 if asked.busy else 1.7))


if __name__ == "__main__":
    sys.exit(main())
