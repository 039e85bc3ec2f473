"""Dumps against plain transformers scripts: speed and the same numbers; matrices against save_file; memory over texts.

    python benchmarks/batch.py [speed|matrices|memory ...] [--texts N]

`speed`: 2,000 glosses of WordNet (5 to 120 tokens) through MiniLM, top-5 and row statistics of all 72 heads to .jsonl:
at least 5.5 times the texts/s of one text at a time, 6.5 times those of 32 padded ones, and 0.55 times those of forward
passes alone, of texts sorted by length. `matrices`: all heads' matrices of 8 and of 96 texts of some 240 tokens (a
dozen glosses each) to .safetensors, 0.24 and 3 GB, at 75 % of the speed of `safetensors.torch.save_file` alone.
`memory`: flat from 1,000 to 100,000.
The contenders take turns over parts of the texts, so that a busy moment hits them alike. Exits with 1 where one misses.
"""

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from measure import choices, real_model
from safetensors.torch import load_file, save_file

from attnscope.batch.dump import write_dump
from attnscope.batch.header import Settings
from attnscope.batch.loading import DumpConfig
from attnscope.batch.sinks import SafetensorsSink
from attnscope.findings.row_statistics import STATISTICS
from attnscope.model.recorders import PackedMatrices
from attnscope.request.run_config import RunConfig
from attnscope.run.session import Session

HERE = Path(__file__).parent
PART = 500  # texts of a turn of `speed`
JOINED = 12  # glosses of a text of `matrices`
LONG = {8: 7, 96: 3}  # how many such texts, and turns, since the difference of two times counts


def glosses(count: int) -> list[str]:
    """Texts of mixed length."""
    return (
        gzip.decompress((HERE / "data" / "glosses.txt.gz").read_bytes())
        .decode()
        .splitlines()[:count]
    )


def seconds(work: Callable[..., Any], *given: Any) -> float:
    """How long something takes."""
    started = time.perf_counter()
    work(*given)
    return time.perf_counter() - started


class Ours:
    """attnscope batch, with the model open already, as the transformers model is."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.run = settings, RunConfig(texts=(), model=str(real_model("minilm")))
        self.session = Session(())

    def dump(self, texts: list[str], output: Path) -> None:
        """Dump some texts."""
        source = output.with_name("texts.txt")
        source.write_text("".join(f"{text}\n" for text in texts))
        order = DumpConfig(str(source), None, output, self.settings, self.run, force=True)
        write_dump(order, lambda summary, total: None, session=self.session)


class Bare:
    """Forward passes of transformers without any attention output, over texts sorted by length."""

    def __init__(self) -> None:
        from transformers import AutoModel, AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(real_model("minilm"))
        self.model = AutoModel.from_pretrained(
            real_model("minilm"), attn_implementation="sdpa"
        ).eval()

    @torch.inference_mode()
    def forward(self, texts: list[str], output: Path) -> None:
        """Up to 1,024 tokens at a time, padding included."""
        ids = sorted(self.tokenizer(texts)["input_ids"], key=len)
        while ids:
            n = next((n for n in range(1, len(ids)) if (n + 1) * len(ids[n]) > 1024), len(ids))
            self.model(**self.tokenizer.pad({"input_ids": ids[:n]}, return_tensors="pt"))
            ids = ids[n:]


def speed(count: int, folder: Path) -> bool:
    """Texts per second of four contenders."""
    from plain import TOP, Plain

    # Eager attention of transformers gives no scores.
    kept = tuple(name for name in STATISTICS if name != "max_score")
    texts, ours, plain = (
        glosses(count),
        Ours(Settings(top=TOP, statistics=kept)),
        Plain(real_model("minilm")),
    )
    contenders: dict[str, Callable[[list[str], Path], None]] = {
        "attnscope batch": ours.dump,
        "transformers, one by one": plain.one_by_one,
        "transformers, 32 padded": plain.padded,
        "forward passes alone": Bare().forward,
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
        worst = max(
            worst, *(difference(paths["attnscope batch"], paths[n]) for n in list(contenders)[1:3])
        )
    for name, time_taken in took.items():
        print(f"{name:28s} {len(texts) / time_taken:8.1f} texts/s")
    alone, padded, bare = (took[name] / took["attnscope batch"] for name in list(contenders)[1:])
    print(
        f"ratio {alone:.2f} (at least 5.5, aim 6.5), {padded:.2f} (at least 6.5, aim 7) and {bare:.2f} (at least 0.55); "
        f"largest difference {worst:.1e}"
    )
    return alone >= 5.5 and padded >= 6.5 and bare >= 0.55 and worst <= 2e-5


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
                worst = max(
                    worst,
                    float(np.abs(np.array(found).reshape(72, n, -1) - expected).max()) / scale,
                )
            same = np.array(one["top"]["keys"]) == np.array(two["keys"]).reshape(72, n, -1)
            strong = np.array(one["top"]["weight"])
            ties = np.abs(strong - np.array(two["weight"]).reshape(72, n, -1)) < 1e-6
            assert (same | ties).all() and same.mean() > 0.999, "other contributors"
    return worst


_put = PackedMatrices.put


def keep_nothing(
    packed: PackedMatrices, stage: str, part: torch.Tensor, units: Any, first: int
) -> None:
    """Make room for a tile's rows, and leave it as it is."""
    _put(packed, stage, part[:, :, :0], units, first)


def in_memory(shard: Path) -> dict[str, torch.Tensor]:
    """What lies in a shard; not its pages in the file, which the next program that uses them would have to read."""
    return {name: tensor.clone() for name, tensor in load_file(shard).items()}


def save(shards: list[dict[str, torch.Tensor]], folder: Path, *, safe: bool) -> None:
    """What safetensors' own function does with the same matrices; `safe` waits for the disk, as a dump does."""
    for i, tensors in enumerate(shards):
        target = folder / f"{i}.safetensors"
        save_file(tensors, target)
        if safe:
            with open(target, "rb") as file:
                os.fsync(file.fileno())


def forward_alone(ours: Ours, texts: list[str], output: Path) -> float:
    """Seconds of a dump whose matrices are neither kept nor written."""
    with (
        patch.object(PackedMatrices, "put", keep_nothing),
        patch.object(SafetensorsSink, "_write", lambda *_: 0),
    ):
        return seconds(ours.dump, texts, output)


def matrices(count: int, folder: Path) -> bool:
    """Bytes per second into .safetensors, of few texts and of many, the forward pass subtracted."""
    return all([_matrices(min(count, texts), turns, folder) for texts, turns in LONG.items()])


def _matrices(count: int, turns: int, folder: Path) -> bool:
    """Bytes per second of one dump.

    The forward pass is the same dump, of the same groups and tiles, whose matrices are neither kept nor written.
    """
    every = glosses(count * JOINED)
    texts = [" ".join(every[first::count]) for first in range(count)]
    ours = Ours(Settings(keep=("stages",), stages=("weights",)))
    ours.dump(texts, folder / "warm")
    took: dict[str, list[float]] = {"attnscope batch": [], "save_file": [], "save_file, fsync": []}
    for turn in range(turns):
        # everybody writes new files, and removes no old ones
        with tempfile.TemporaryDirectory(dir=folder) as new:
            full, before, after = (Path(new) / name for name in ("matrices", "before", "after"))
            passed = forward_alone(ours, texts, before)
            dumped = seconds(ours.dump, texts, full)
            # a machine that slows down slows both
            passed = (passed + forward_alone(ours, texts, after)) / 2
            took["attnscope batch"].append(dumped - passed)
            shards = [in_memory(shard) for shard in sorted(full.glob("*.safetensors"))]
        peers = ["save_file", "save_file, fsync"]
        for name in peers if turn % 2 else reversed(peers):
            with tempfile.TemporaryDirectory(dir=folder) as new:
                os.sync()  # what was removed before must not be paid for here
                time.sleep(0.5)
                took[name].append(seconds(lambda: save(shards, Path(new), safe="fsync" in name)))  # noqa: B023
    size = sum(tensor.nbytes for tensors in shards for tensor in tensors.values()) / 1e6
    for name, times in took.items():
        print(
            f"{name:18s} {size:.0f} MB of matrices in {median(times):.3f} s, {size / median(times):.0f} MB/s"
        )
    own, alone, safe = map(median, took.values())
    print(
        f"ratio {alone / own:.2f} to save_file (at least 0.75), {safe / own:.2f} to the same with fsync"
    )
    return alone / own >= 0.75


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
        arguments = [
            "batch",
            str(source),
            "-o",
            str(folder / f"{texts}.jsonl"),
            "--config",
            "single-head",
            "--quiet",
            "--workers",
            "0",
        ]
        done = subprocess.run(
            [sys.executable, "-c", _PEAK, *arguments], capture_output=True, text=True, check=True
        )
        peaks.append(int(done.stdout.split()[-1]) / 1024)
        print(f"{texts:8,d} texts: at most {peaks[-1]:.0f} MiB")
    print(f"ratio {max(peaks) / min(peaks):.2f} (at most 1.15)")
    return max(peaks) <= 1.15 * min(peaks)


def main() -> int:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    measures = {"speed": speed, "matrices": matrices, "memory": memory}
    choices(parser, "what", measures)
    parser.add_argument("--texts", type=int, default=2000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        good = [measures[what](asked.texts, Path(folder)) for what in asked.what or measures]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
