"""A simulation of a million texts on a hundred workers, seeded: hours, bytes, what is lost, and what breaks first.

Costs of a text come from `--texts-a-second` and `--bytes`; `--measure` takes them from a real `attnscope batch` on
this machine. Workers differ in speed, some are stragglers, all fail at random and start again, and a disk takes so many
bytes a second from all of them together. A worker that fails loses the windows that were not safe, as the journal does.
"""

import argparse
import heapq
import json
import random
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

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


def simulate(costs, seed, *, shards_each):
    """Seconds until the last shard is done, seconds of work lost, and restarts.

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
    end = 0.0
    for shard in sorted(shards, reverse=True) if shards_each > 1 else shards:
        now, worker = heapq.heappop(ready)
        seconds = costs.block / min(costs.rate * speeds[worker], share / costs.size)  # of a block
        for _ in range(shard):
            if luck.random() < seconds / (3600 * costs.hours_between_failures):
                half = luck.random() * 2 * seconds  # at most the last two windows
                now, lost, restarts = now + half + costs.start, lost + half, restarts + 1
            now += seconds
        end = max(end, now)
        heapq.heappush(ready, (now, worker))
    return end, lost, restarts


def measure(texts=2000):
    """Texts a second and bytes a record of one process on this machine, with the sample model."""
    luck = random.Random(1)
    lines = (" ".join(luck.choices(WORDS, k=luck.randint(8, 18))) for _ in range(texts))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "texts.txt").write_text("\n".join(lines) + "\n")
        command = [sys.executable, "-m", "attnscope", "batch", "texts.txt", "-o", "d.jsonl", "--threads", "1"]
        done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
        rate = float(done.stderr.partition(" texts/s")[0].rpartition(" ")[2].replace(",", ""))
        return rate, (folder / "d.jsonl").stat().st_size / texts


def main():
    """Print a line for each way to share the work, and for each storage limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--texts-a-second", type=float, default=350)
    parser.add_argument("--bytes", type=float, default=15_000)
    parser.add_argument("--texts", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    rate, size = measure() if given.measure else (given.texts_a_second, given.bytes)
    print(json.dumps({"texts_a_second": round(rate), "bytes_a_record": round(size), "seed": given.seed}))
    print(f"output {given.texts * size / 1e9:.1f} GB; one worker {given.texts / rate / 3600:.2f} h")
    for shards_each, way in ((1, "job array, one shard each"), (4, "actors, four shards each")):
        for disk in (2e9, 500e6, 50e6):
            costs = Costs(given.texts, given.workers, rate, size, disk=disk)
            end, lost, restarts = simulate(costs, given.seed, shards_each=shards_each)
            result = f"{end / 60:.1f} min, {restarts} restarts, {lost:.0f} s of work lost"
            print(f"{way}, disk of {disk / 1e6:,.0f} MB/s: {result}")


if __name__ == "__main__":
    main()
