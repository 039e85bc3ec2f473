"""Time of the weights between spans of all heads, beside the statistics that a dump keeps of the same pass.

    python benchmarks/spans.py [--tokens N] [--runs N]

`attend()` of 12 heads of width 64 under a causal mask, float32. 20 spans, and what the last of them reads, may take at
most 1.1 times the contributors and statistics of every row. The two take turns; a time is the median. Exits with 1
where the limit is missed.
"""

import argparse
import sys
from functools import partial

import torch
from attention import STATISTICS, Contest
from measure import Table, machine, seconds, take_turns

from attnscope.model.attention import attend
from attnscope.model.recorders import SpanRecorder, SpanTokens, TokenReading

SPANS, LIMIT = 20, 1.1


@torch.inference_mode()
def between_spans(contest: Contest, spans: SpanTokens) -> None:
    """Output, and the weights between spans."""
    recorder = SpanRecorder(range(contest.heads), spans, reading=TokenReading(spans, [SPANS - 1]))
    attend(contest.inputs, [recorder], workspace=contest.workspace)
    recorder.compute()


def main() -> int:
    """Measure both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--runs", type=int, default=5)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print(machine())
    contest = Contest(asked.tokens, "causal")
    spans = SpanTokens((torch.arange(asked.tokens) * SPANS // asked.tokens)[None], SPANS)
    ways = {"spans": partial(between_spans, contest, spans), "statistics": partial(contest.ours, STATISTICS)}
    took = take_turns({name: partial(seconds, way) for name, way in ways.items()}, asked.runs)
    table = Table("s", "")
    for name, time in took.items():
        table.fact(f"{name}, {asked.tokens:,} tokens", time, "s")
    table.fact("spans / statistics", took["spans"] / took["statistics"], "", LIMIT)
    return int(table.missed)


if __name__ == "__main__":
    sys.exit(main())
