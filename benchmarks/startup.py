"""Start-up as a user waits for it: whole processes against their floor, interleaved, medians of several runs.

    python benchmarks/startup.py [RUNS [OPTIONS OF RUN ...]]

prints two ratios: `attnscope --help` against importing what it is made of (at most 3), and `attnscope run TEXT` against
importing torch (at most 1.25). Exits with 1 where one of them is missed.
"""

import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parent.parent
ATTNSCOPE = [sys.executable, "-m", "attnscope"]
TEXT = "The bank by the river"
PAIRS = (
    ("attnscope --help", [*ATTNSCOPE, "--help"], "import typer, rich.table", 3.0),
    ("attnscope run", [*ATTNSCOPE, "run", TEXT, *sys.argv[2:]], "import torch", 1.25),
)


def seconds(command: list[str]) -> float:
    """How long a process takes, from start to end."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    started = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, env=environment, check=True)
    return time.perf_counter() - started


def measure(ours: list[str], floor: list[str], runs: int) -> tuple[float, float]:
    """Medians of both; they take turns, so that a busy moment hits both alike."""
    seconds(ours), seconds(floor)  # what is compiled and cached on first use is no start-up
    pairs = [(seconds(ours), seconds(floor)) for _ in range(runs)]
    return median(a for a, _ in pairs), median(b for _, b in pairs)


def main() -> int:
    """Measure, print, and judge."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    missed = False
    for name, ours, floor, limit in PAIRS:
        a, b = measure(ours, [sys.executable, "-c", floor], runs)
        missed |= a > limit * b
        print(f"{name:<17}{a * 1000:6.0f} ms   python -c '{floor}' {b * 1000:6.0f} ms   {a / b:.2f} (at most {limit})")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
