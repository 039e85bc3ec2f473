"""A simulation of a million texts on a hundred workers, seeded: hours, bytes, what is lost, and what breaks first.

What a text costs is measured first, with two models, as seconds of a CPU and bytes of a record: `--texts-a-second` and
`--bytes` take other costs. Workers differ in speed, some are stragglers, all fail at random and start again, and a disk
takes so many bytes a second from all of them together, until it is full. A worker that fails loses the windows that
were not safe, as the journal does.
"""

import argparse
import heapq
import math
import os
import random
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import real_model

WORDS = "the bank by river was eroded a that lends money is still and does not mind".split()


@dataclass
class Costs:
    """What a text costs, and what happens to workers."""

    texts: int
    workers: int
    rate: float  # texts a second of a worker of usual speed
    size: float  # bytes of a record
    block: int = 1024
    spread: float = 0.1  # of the speeds of workers
    stragglers: float = 0.05  # share of workers that are …
    slow: float = 0.3  # … so fast
    hours_between_failures: float = 8.0
    start: float = 60.0  # seconds to queue and start again, and to read the input
    disk: float = 500e6  # bytes a second, of all workers together
    capacity: float = math.inf  # bytes that the disk holds


def simulate(costs, seed, *, shards_each):
    """Seconds until the last shard is done or the disk is full, seconds of work lost, restarts, and texts written.

    Args:
        costs: What a text costs.
        seed: Of everything that is drawn.
        shards_each: Shards for each worker: 1 for a job array, 4 for actors that take the next one.
    """
    luck = random.Random(seed)
    blocks = -(-costs.texts // costs.block)
    count = shards_each * costs.workers
    shards = [len(range(number, blocks, count)) for number in range(count)]
    speeds = [max(0.2, luck.gauss(1, costs.spread)) for _ in range(costs.workers)]
    for worker in luck.sample(range(costs.workers), round(costs.stragglers * costs.workers)):
        speeds[worker] = costs.slow
    share = costs.disk / costs.workers  # a worker that needs more than its share waits for the disk
    ready, lost, restarts = [(costs.start, worker) for worker in range(costs.workers)], 0.0, 0
    heapq.heapify(ready)
    finished = []  # when each block is
    for shard in sorted(shards, reverse=True) if shards_each > 1 else shards:
        now, worker = heapq.heappop(ready)
        seconds = costs.block / min(costs.rate * speeds[worker], share / costs.size)  # of a block
        for _ in range(shard):
            if luck.random() < seconds / (3600 * costs.hours_between_failures):
                half = luck.random() * 2 * seconds  # at most the last two windows
                now, lost, restarts = now + half + costs.start, lost + half, restarts + 1
            now += seconds
            finished.append(now)
        heapq.heappush(ready, (now, worker))
    room = costs.capacity / (costs.block * costs.size)
    if room < costs.texts / costs.block:
        return sorted(finished)[int(room)], lost, restarts, int(room) * costs.block
    return max(finished), lost, restarts, costs.texts


def measure(model, texts):
    """Texts a second of one CPU and bytes a record, without the start of the process."""
    luck = random.Random(1)
    lines = [" ".join(luck.choices(WORDS, k=luck.randint(8, 18))) for _ in range(texts)]
    with tempfile.TemporaryDirectory() as name:
        folder, seconds = Path(name), []
        for count in (1, texts):
            (folder / "texts.txt").write_text("\n".join(lines[:count]) + "\n")
            command = [
                sys.executable,
                "-m",
                "attnscope",
                "batch",
                "texts.txt",
                "-o",
                f"{count}.jsonl",
                "--threads",
                "1",
            ]
            before = os.times()
            subprocess.run([*command, "--quiet", *model], cwd=folder, check=True)
            after = os.times()
            spent = (
                after.children_user
                - before.children_user
                + after.children_system
                - before.children_system
            )
            seconds.append(spent)
        return (texts - 1) / (seconds[1] - seconds[0]), (
            folder / f"{texts}.jsonl"
        ).stat().st_size / texts


MODELS = {  # description, model (None for the bundled sample) and number of texts
    "sample (4 layers of 4 heads)": (None, 4000),
    "all-MiniLM-L6-v2 (6 layers of 12 heads)": ("minilm", 400),
    "SmolLM2-135M (30 layers of 9 heads)": ("smollm2", 60),
}


def measured():
    """What a text costs with each model."""
    for description, (name, texts) in MODELS.items():
        model = [] if name is None else ["--model", str(real_model(name))]
        yield description, measure(model, texts)


def main():
    """Print what a text costs, and a line for each way to share the work and each speed of the disk."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts-a-second", type=float, default=None)
    parser.add_argument("--bytes", type=float, default=15_000)
    parser.add_argument("--texts", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--capacity", type=float, default=20e9, help="bytes that the disk holds")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    costs = [("given", (given.texts_a_second, given.bytes))] if given.texts_a_second else measured()
    for model, (rate, size) in costs:
        print(f"{model}: {rate:.0f} texts a second of a CPU, {size / 1e3:.1f} kB a record")
        print(
            f"  output {given.texts * size / 1e9:.1f} GB; one worker {given.texts / rate / 3600:.2f} h"
        )
        for shards_each, way in ((1, "job array, one shard each"), (4, "actors, four shards each")):
            for disk in (500e6, 50e6):
                share = Costs(given.texts, given.workers, rate, size, disk=disk)
                end, lost, restarts, _ = simulate(share, given.seed, shards_each=shards_each)
                result = f"{end / 60:.1f} min, {restarts} restarts, {lost:.0f} s of work lost"
                print(f"  {way}, disk of {disk / 1e6:,.0f} MB/s: {result}")
        if given.capacity < given.texts * size:
            small = Costs(given.texts, given.workers, rate, size, capacity=given.capacity)
            end, _, _, written = simulate(small, given.seed, shards_each=1)
            print(
                f"  a disk of {given.capacity / 1e9:.0f} GB is full after {end / 60:.1f} min and {written:,} texts"
            )


if __name__ == "__main__":
    main()
