"""How time and memory of attention with exact findings grow with the text: slopes of a log-log line.

    python benchmarks/growth.py [--runs N] [--shrink N]

`attend()` of two heads of width 64 with top-5 and row statistics of every row, float32: at most T^2.05 under a causal
mask and T^1.1 under a sliding window of 1,024; memory beyond the input at most T^1.05. Each size's time is the median
of several runs, the sizes taking turns; memory is measured in a process of its own. `--shrink 64` divides sizes by 64.
Exits with 1 where one is missed.
"""

import argparse
import json
import sys
from functools import partial
from pathlib import Path

import torch
from attention import Contest
from measure import Table, exponent, machine, own_peak, script, seconds, take_turns

SIZES = {"causal": (2048, 4096, 8192, 16384), "window": (8192, 16384, 32768, 65536)}
LIMITS = {"causal": 2.05, "window": 1.1}
HEADS = 2


def main() -> int:
    """Measure both masks, or the memory of one size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--shrink", type=int, default=1, help="divide all sizes by it")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    torch.set_num_threads(2)
    if asked.one:
        size, mask = asked.one.split(",")
        print(json.dumps({"peak": own_peak(Contest(int(size), mask, HEADS).ours)}))
        return 0
    print(machine())
    table = Table("s or MiB", "")
    for mask, full_sizes in SIZES.items():
        sizes = [size // asked.shrink for size in full_sizes]
        took = take_turns(
            {size: partial(seconds, Contest(size, mask, HEADS).ours) for size in sizes}, asked.runs
        )
        taken = {size: script(Path(__file__), "--one", f"{size},{mask}").peak for size in sizes}
        for size in sizes:
            table.fact(f"{mask}, {size:,} tokens", took[size], f"s {taken[size]:10,.1f} MiB")
        table.fact(
            f"{mask}: exponent of time", exponent(sizes, list(took.values())), "", LIMITS[mask]
        )
        table.fact(f"{mask}: exponent of memory", exponent(sizes, list(taken.values())), "", 1.05)
    return int(table.missed)


if __name__ == "__main__":
    sys.exit(main())
