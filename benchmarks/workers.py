"""`batch --workers auto` beside one process, on short and on long texts, and two actors of Ray beside two workers.

Each is a whole process, start included; the start of Ray alone is measured and taken off. Run it on a quiet machine.
"""

import argparse
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
    command = [sys.executable, "-m", "attnscope", "batch", source, "-o", "d.jsonl", "--quiet", *options]
    begun = time.perf_counter()
    subprocess.run(command, cwd=folder, check=True)
    return time.perf_counter() - begun


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
    parser.add_argument("--texts", type=int, default=12_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--ray", action="store_true")
    given = parser.parse_args()
    missed = False
    with tempfile.TemporaryDirectory(prefix="attnscope-workers-") as name:
        folder = Path(name)
        write(folder / "short.txt", given.texts, 20)
        write(folder / "long.txt", given.texts // 3, 80)  # at most 128 tokens, which the sample has room for
        for source, limit in (("short.txt", SHORT), ("long.txt", NEVER)):
            pairs = [
                (seconds(folder, source), seconds(folder, source, "--workers", "auto")) for _ in range(given.repeats)
            ]
            ratio = statistics.median(alone for alone, _ in pairs) / statistics.median(auto for _, auto in pairs)
            missed |= ratio < limit
            print(f"{source}: --workers auto has {ratio:.2f} of the speed of one process (limit {limit})")
        if given.ray:
            workers, actors, starts = [], [], []
            for _ in range(given.repeats):
                workers.append(seconds(folder, "short.txt", "--workers", "2"))
                actors.append(seconds(folder, "short.txt", "--ray", "--actors", "2"))
                starts.append(start_of_ray())
            ratio = (statistics.median(actors) - statistics.median(starts)) / statistics.median(workers)
            missed |= ratio > RAY
            print(f"Ray with two actors takes {ratio:.2f} of the time of two workers beyond its start (limit {RAY})")
    return missed


if __name__ == "__main__":
    sys.exit(main())
