"""`batch` with its own choice of workers beside one process, on short and on long texts; two actors of Ray.

Each is a whole process, start included; the start of Ray alone is measured and taken off. `--sizes` compares two
workers with one process on so many short texts each, and says which of both `batch` takes there by itself. Run it on a
quiet machine: the load of the last minute is printed.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WORDS = "the bank by river was eroded a that lends money is still and does not mind".split()
SHORT, NEVER, RAY = 1.2, 0.97, 1.15  # speed on short texts and on any, and time of Ray at most


def write(path, count, words):
    """Write texts of up to so many words."""
    luck = random.Random(1)
    lines = (" ".join(luck.choices(WORDS, k=luck.randint(words // 3, words))) for _ in range(count))
    path.write_text("\n".join(lines) + "\n")


def seconds(folder, source, *options):
    """Return how long a dump takes."""
    (folder / "d.jsonl").unlink(missing_ok=True)
    command = [
        sys.executable,
        "-m",
        "attnscope",
        "batch",
        source,
        "-o",
        "d.jsonl",
        "--quiet",
        *options,
    ]
    begun = time.perf_counter()
    subprocess.run(command, cwd=folder, check=True)
    return time.perf_counter() - begun


def processes(dump):
    """Return which of both ways wrote a dump: its header has the number of threads."""
    with open(dump, "rb") as file:
        threads = json.loads(file.readline())["grouping"]["threads"]
    return "workers" if threads == 1 else f"one process of {threads} threads"


def ratio_of(folder, source, other, repeats):
    """Compare one process with other options, in turns: ratios, seconds of both, and who wrote the other dump."""
    took = {("--workers", "0"): [], other: []}
    for turn in range(repeats):
        for options in list(took)[:: 1 - 2 * (turn % 2)]:
            took[options].append(seconds(folder, source, *options))
            if options == other:
                chosen = processes(folder / "d.jsonl")
    ratios = [alone / together for alone, together in zip(*took.values(), strict=True)]
    return ratios, [statistics.median(times) for times in took.values()], chosen


def compare_sizes(folder, sizes, repeats):
    """Print how two workers do on inputs of several sizes."""
    for size in sizes:
        source = f"{size}.txt"
        write(folder / source, size, 20)
        ratios, (alone, together), _ = ratio_of(folder, source, ("--workers", "2"), repeats)
        seconds(folder, source)
        print(
            f"{size:>6,} short texts: two workers have {statistics.median(ratios):.2f} of the speed of one process "
            f"({min(ratios):.2f} to {max(ratios):.2f}; {alone:.1f} and {together:.1f} s); "
            f"batch takes {processes(folder / 'd.jsonl')}; load {os.getloadavg()[0]:.1f}", flush=True,
        )  # fmt: skip


EMPTY = """
import ray
ray.init(address="local", log_to_driver=False)
actors = [ray.remote(num_cpus=1)(type("Empty", (), {"call": lambda self: None})).remote() for _ in range(2)]
ray.get([actor.call.remote() for actor in actors])
ray.shutdown()
"""


def start_of_ray():
    """Return how long Ray takes to start itself and two actors that do nothing, and to stop."""
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", EMPTY], check=True)
    return time.perf_counter() - begun


def main():
    """Print the ratios and their limits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=24_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--ray", action="store_true")
    parser.add_argument("--sizes", type=int, nargs="+", metavar="TEXTS", help="only these")
    given = parser.parse_args()
    missed = False
    with tempfile.TemporaryDirectory(prefix="attnscope-workers-") as name:
        folder = Path(name)
        if given.sizes:
            compare_sizes(folder, given.sizes, given.repeats)
            return False
        write(folder / "short.txt", given.texts, 20)
        write(folder / "long.txt", given.texts // 3, 80)  # 53 words in the mean
        for source, limit in (("short.txt", SHORT), ("long.txt", NEVER)):
            ratios, (_, took), chosen = ratio_of(folder, source, (), given.repeats)
            ratio = statistics.median(ratios)
            missed |= ratio < limit
            spread = f"{min(ratios):.2f} to {max(ratios):.2f}, {took:.0f} s, {chosen}"
            print(
                f"{source}: batch has {ratio:.2f} of the speed of one process ({spread}; limit {limit}; "
                f"load {os.getloadavg()[0]:.1f})", flush=True,
            )  # fmt: skip
        if given.ray:
            workers, actors, starts = [], [], []
            for _ in range(given.repeats):
                workers.append(seconds(folder, "short.txt", "--workers", "2"))
                actors.append(seconds(folder, "short.txt", "--ray", "--actors", "2"))
                starts.append(start_of_ray())
            ratio = (statistics.median(actors) - statistics.median(starts)) / statistics.median(
                workers
            )
            missed |= ratio > RAY
            print(
                f"Ray with two actors takes {ratio:.2f} of the time of two workers beyond its start (limit {RAY})"
            )
    return missed


if __name__ == "__main__":
    sys.exit(main())
