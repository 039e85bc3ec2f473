"""What a dump beside a GPU asks of the host, without a GPU: passes that take no time.

    python benchmarks/host.py [--only TOKENS:OUTPUT …] [--runs N]

A Llama of 16 layers of 32 heads, as in gpu_dumps.py, but narrow. One pass of every size is computed; then it takes the
place of all others of its size, so that all that is timed is what the host does for a text: it is read, tokenized and
padded, what was recorded is cut into records, and these are written. Groups are a fourth of those beside a GPU. Launching
a pass's kernels is not timed: some 5 ms for a frame of 16,384 tokens (docs/decisions.md).

Beside the texts a second, the table has processor time of all threads, and how many texts a second a dump needs on an
H200 to hold its bound, by the passes and the script that were timed there. The peer is a plain file of as many bytes.
"""

import argparse
import shutil
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

from gpu_dumps import KEPT, Contest, disk_seconds, dump, write_model
from measure import commit, machine

TEXTS = {64: 512, 512: 64, 2048: 16}
# texts a second of an H200: a pass alone, and a script that writes
H200 = {64: {"forward": 3129, "eager": 337}, 512: {"forward": 398, "eager": 28}, 2048: {"forward": 94, "eager": 7}}  # fmt: skip
_WIDTH = 256


class Replay:
    """The first pass of every size, in place of all others."""

    def __init__(self, start_frame: Any) -> None:
        self._start_frame = start_frame
        self._frames: dict[object, Any] = {}

    def __call__(self, plan: Any, batch: Any, engine: Any, record_spec: Any) -> Any:
        """Return a pass over as many texts that are as long."""
        key = len(batch.texts), max(batch.tokens.lengths), record_spec.parts
        if key not in self._frames:
            frame = self._start_frame(plan, batch, engine, record_spec)
            frame.trace.block.to_cpu(rows_first=record_spec.rows_first)  # as a GPU leaves it
            self._frames[key] = frame
        return self._frames[key]


def measure(contest: Contest, keep: str, output: str, runs: int, folder: Path) -> list[str]:
    """Return the row of one kind of dump."""
    from attnscope.batch import dump as dumps
    from attnscope.batch import loading, worker

    limits = loading._ON_GPU.halved().halved()
    beside_gpu = dumps.encoder_count("cuda")
    took = []
    with (
        patch.object(loading, "_ON_CPU", limits),
        patch.object(dumps, "encoder_count", lambda _: beside_gpu),
        patch.object(worker, "start_frame", Replay(worker.start_frame)),
    ):
        work = dump(contest, keep, output)
        for _ in range(runs + 1):
            out = folder / "out"
            shutil.rmtree(out, ignore_errors=True)
            wall, processor = time.perf_counter(), time.process_time()
            work(out, contest.texts)
            took.append((time.perf_counter() - wall, time.process_time() - processor))
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    plain = disk_seconds(size, folder)
    shutil.rmtree(out)
    wall = median(wall for wall, _ in took[1:])
    processor = median(processor for _, processor in took[1:])
    needs = needed(contest.length, output)
    rate = contest.texts / wall
    return [
        f"{contest.length:,}", f"`--keep {keep} -o {output}`", f"{rate:,.0f}", f"{needs:,.0f}",
        f"{1e3 * processor / contest.texts:.2f} ms", f"{size / contest.texts / 1e3:,.0f} kB", f"{plain / wall:.2f}",
    ]  # fmt: skip


def needed(length: int, output: str) -> float:
    """Return the texts a second that a dump needs on an H200 to hold its bound."""
    (peer, bounds) = next((peer, bounds) for _, who, peer, bounds in KEPT if who == output)
    rate = needed(length, peer) if peer == "folder" else H200[length][peer]
    return rate * bounds[length]


def main() -> None:
    """Print the table, row by row."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="*", default=[], metavar="TOKENS:OUTPUT")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--texts", type=int, help="of each length")
    options = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    print(f"<!-- host.py; {machine()}; commit {commit()} -->\n")
    head = [
        "tokens",
        "kept, output",
        "texts/s",
        "an H200 needs",
        "processor a text",
        "bytes a text",
        "of a plain file",
    ]
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = write_model(folder / "llama", small=False, width=_WIDTH)
        for length, texts in TEXTS.items():
            contest = Contest(model, "cpu", length, options.texts or texts, 1)
            for keep, output, _, _ in KEPT:
                if not options.only or f"{length}:{output}" in options.only:
                    print(
                        f"| {' | '.join(measure(contest, keep, output, options.runs, folder))} |",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
