"""Time what someone who explores waits for: the first screen, and the screen after a key.

    python benchmarks/explore.py [--runs N] [--keys N] [--tokens N] [open] [sample] [keys] [long]

Each part takes about 15 seconds on two cores: name one, or several.

Every walk is a process in a pseudo-terminal. `open`: from the start of the process until a dump of 144 heads × 512
tokens is on the screen, as brief lines, and with the weights of all heads in a folder of shards (at most 1.0 s).
`sample`: from the start until the sample's matrix is there, divided by the time of `attnscope run` with the same text
(at most 1.25). `keys`: from a key until its screen is painted, at the 95th percentile of random keys, in a walk through
12 × 12 heads × 128 tokens (at most 20 ms); `long`: of 8,192 tokens (at most 50 ms). Exits with 1 where one is missed.

Processor time is printed beside each: on a busy machine it is what a quiet one would take (of keys, the median and the
95th percentile).
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from statistics import median

import numpy as np
from measure import choices, machine

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
from tests.explore.pseudo_terminal import PseudoTerminal  # noqa: E402

# The modules of an installed package are compiled once, also where a machine keeps Python from writing what it compiled.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
TEXT = "The bank by the river was not the bank that lent us money"
STACK = """
n_layers = 12
n_heads = 12
d_model = 192
d_mlp = 32
mask = "causal"
positions = "rope"
norm = "rmsnorm"
"""
LIMITS = {"open": 1.0, "sample": 1.25, "keys": 0.020, "long": 0.050}
QUIET = 0.012  # seconds without output after which a screen counts as painted; they are not counted
# What a terminal is asked before the first screen, and what one answers that is black: a silent one is waited for.
QUESTION = b"\x1b]11;?"
ANSWER = b"\x1b]11;rgb:0000/0000/0000\x1b\\\x1b[?62c"
PATIENCE = 0.15  # seconds after which a key is taken to change nothing, as at the end of a row
KEYS = [bytes([key]) for key in b"jkhl][}{ds \r\x7fGg=-ca"]


def write_dump(folder: Path, tokens: int, *options: str) -> Path:
    """Write a dump of one text of so many tokens of a random stack of 144 heads."""
    stack, texts = folder / "stack.toml", folder / "texts.txt"
    stack.write_text(STACK)
    words = np.random.default_rng(1).choice([f"w{n}" for n in range(400)], tokens)
    texts.write_text(" ".join(words) + "\n")
    output = folder / ("dump.jsonl" if not options else "dump")
    command = [
        sys.executable,
        "-m",
        "attnscope",
        "batch",
        str(texts),
        "--config",
        str(stack),
        "-o",
        str(output),
        "--quiet",
    ]
    subprocess.run([*command, *options], env=environment(), check=True)
    return output


def environment() -> dict[str, str]:
    """The environment of the processes."""
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def processor_seconds(number: int) -> float:
    """Seconds of processor time that the threads of a process have taken: what other processes do not slow down."""
    threads = Path(f"/proc/{number}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


def opened(*words: str) -> tuple[float, float]:
    """Seconds from the start of a walk until its matrix is on the screen, and those of processor time."""
    start = time.perf_counter()
    with closing(PseudoTerminal("explore", *words, PYTHONPATH=str(ROOT))) as terminal:
        terminal.wait_for(QUESTION, 120)
        terminal.press(ANSWER)
        terminal.wait_for("▼".encode(), 120)
        took = time.perf_counter() - start, processor_seconds(terminal.process.pid)
        terminal.press(b"q")
        terminal.end(30)
    return took


def ran() -> tuple[float, float]:
    """Seconds of `attnscope run`, and those of processor time."""
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "attnscope", "run", TEXT]
    subprocess.run(command, env=environment(), stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - start, used


def pressed(count: int, *words: str) -> list[tuple[float, float]]:
    """Seconds from each of some random keys until its screen is painted, and those of processor time."""
    rng, found = np.random.default_rng(2), []
    with closing(PseudoTerminal("explore", *words, PYTHONPATH=str(ROOT))) as terminal:
        terminal.wait_for(QUESTION, 300)
        terminal.press(ANSWER)
        terminal.wait_for("▼".encode(), 300)
        terminal.read(1.0)
        for _ in range(count):
            key = KEYS[int(rng.integers(len(KEYS)))]
            start, before = time.perf_counter(), processor_seconds(terminal.process.pid)
            terminal.press(key)
            while not terminal.read(QUIET) and time.perf_counter() - start < PATIENCE:
                pass
            if terminal.last > start:  # the key changes something
                found.append(
                    (terminal.last - start, processor_seconds(terminal.process.pid) - before)
                )
        terminal.press(b"q")
        terminal.end(30)
    return found


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--keys", type=int, default=150)
    parser.add_argument("--tokens", type=int, default=512, help="of the dump that is opened")
    parser.add_argument("--long", type=int, default=8192, help="tokens of the long walk")
    choices(parser, "what", tuple(PARTS))
    given = parser.parse_args()
    print(machine())
    missed = [not part(given) for name, part in PARTS.items() if name in (given.what or PARTS)]
    sys.exit(int(any(missed)))


def measure_open(given: argparse.Namespace) -> bool:
    """Time the opening of dumps."""
    fine = True
    with tempfile.TemporaryDirectory() as name:
        whole = ("--stage", "weights", "--keep", "all", "--top", "5")
        for what, options in (("brief lines", ()), ("shards with weights", whole)):
            path = write_dump(Path(name), given.tokens, *options)
            pairs = [opened(str(path)) for _ in range(given.runs + 1)][1:]
            took, used = (median(each) for each in zip(*pairs, strict=True))
            said = f"{took:.2f} s (limit {LIMITS['open']} s), {used:.2f} s of processor time"
            print(f"open   {what}, 144 heads × {given.tokens} tokens: {said}")
            fine = fine and took <= LIMITS["open"]
    return fine


def measure_sample(given: argparse.Namespace) -> bool:
    """Time the first matrix of the sample against run."""
    opened(TEXT), ran()
    pairs = [(opened(TEXT), ran()) for _ in range(given.runs)]
    walks, runs = (
        [median(each) for each in zip(*times, strict=True)] for times in zip(*pairs, strict=True)
    )
    ratio, of_processor = (walk / run for walk, run in zip(walks, runs, strict=True))
    used = f"{walks[1]:.2f} s against {runs[1]:.2f} s of processor time: {of_processor:.2f}"
    print(
        f"sample {walks[0]:.2f} s, run {runs[0]:.2f} s: {ratio:.2f} (limit {LIMITS['sample']}); {used}"
    )
    return ratio <= LIMITS["sample"]


def measure_keys(given: argparse.Namespace, name: str, tokens: int, *options: str) -> bool:
    """Time keys."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_dump(Path(folder), tokens, *options)
        took, used = zip(*pressed(given.keys, str(path)), strict=True)
    at, limit = float(np.quantile(took, 0.95)), LIMITS[name]
    wall = f"median {1000 * median(took):.0f} ms, 95 % within {1000 * at:.0f} ms (limit {1000 * limit:.0f} ms)"
    processor = f"{1000 * median(used):.1f} and {1000 * float(np.quantile(used, 0.95)):.1f} ms of processor time"
    print(f"{name:6} 144 heads × {tokens:,} tokens: {wall}; {processor}, {len(took)} keys")
    return at <= limit


def measure_short(given: argparse.Namespace) -> bool:
    """Time keys in a text of 128 tokens."""
    return measure_keys(given, "keys", 128, "--stage", "weights", "--keep", "all")


def measure_long(given: argparse.Namespace) -> bool:
    """Time keys in a long text."""
    return measure_keys(given, "long", given.long, "--keep", "all", "--pool", "64")


PARTS = {
    "open": measure_open,
    "sample": measure_sample,
    "keys": measure_short,
    "long": measure_long,
}

if __name__ == "__main__":
    main()
