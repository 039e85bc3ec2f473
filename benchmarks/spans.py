"""Time and memory of the weights between spans, beside the statistics that a dump keeps, and beside a map.

    python benchmarks/spans.py [time] [memory] [--tokens N] [--runs N] [--layers N] [--width N] [--lengths 10000,100000]

`time`: a random checkpoint of GPT-2-small's shape with `--layers` layers and a text of `--tokens` tokens in 20 spans,
the model open. `heads --role receiver`, which sums the weights between all spans in every head, and `heads --query SPAN
--key SPAN` may each take at most 1.1 times the processor time of the same pass with the contributors and statistics of
a dump, of every row and head; `run --spans` is there for comparison. All take turns; a time is the median.
`memory`: peak memory of `run` over a stack of 2 layers and 4 heads with a window of 256, with `--pool 64`, and with 20
spans beside it. From the shortest to the longest text, the latter may grow by at most 1.1 times as much: every token
has the number of its span. The weights of every span and head of the longest text have to sum to 1 within 1e-6.
Exits with 1 where a limit is missed.
"""

import argparse
import json
import sys
import tempfile
import time as clock
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from measure import Table, attnscope, choices, machine, take_turns
from models import words, write_gpt2

from attnscope.batch.header import Settings
from attnscope.batch.items import Item
from attnscope.batch.loading import open_worker
from attnscope.batch.preparing import PreparedText
from attnscope.request.run_config import RunConfig, TextInput
from attnscope.request.selection import parse_indices, parse_positions
from attnscope.request.spans import SpanRange, SpanRequest
from attnscope.run.session import Session, inspect
from attnscope.studies.heads.question import ask_heads
from attnscope.studies.heads.run import SurveyOptions, survey_heads

SPANS, LIMIT, GROWTH = 20, 1.1, 1.1
STACK = "d_model = 64\nn_heads = 4\nn_layers = 2\nd_mlp = 128\npositions = 'rope'\nmask = 'causal+window:256'\nseed = 7\n"


def time(tokens: int, layers: int, width: int, runs: int) -> bool:
    """Processor time of commands with spans, and of a dump's statistics; whether a limit is missed."""
    table = Table("s", "")
    with tempfile.TemporaryDirectory() as folder:
        path = write_gpt2(Path(folder) / "gpt2", layers=layers, width=width, positions=tokens)
        text = TextInput(words(tokens, 0), spans=_ranges(tokens))
        plain = RunConfig((TextInput(text.text),), str(path), max_memory=8 << 30)
        divided = RunConfig((text,), str(path), spans=SpanRequest("ranges"), max_memory=8 << 30)
        session = Session(plain.texts)
        worker, _, _ = open_worker(Settings(keep=("top", "rows")), plain, session)
        ready = worker.prepare(Item(0, 1, 1, "0" * 16, plain.texts[0]))
        assert isinstance(ready, PreparedText), ready
        assert len(ready.text_plan.tokens) == tokens, len(ready.text_plan.tokens)
        pair = _with(divided, query=parse_positions("part 19"), key=parse_positions("part 4"))
        alone = _with(
            divided,
            layer=parse_indices("0", "layer"),
            head=parse_indices("0", "head"),
            stages=(),
            pool=64,
        )
        receiver = SurveyOptions(("receiver",))
        ways = {
            "statistics of a dump": lambda: worker.process([ready]),
            "heads --role receiver": lambda: survey_heads(divided, receiver, session=session),
            "heads --query SPAN --key SPAN": lambda: ask_heads(pair, "weight", session=session),
            "run --spans": lambda: inspect(alone, session=session),
        }
        took = take_turns({name: partial(_processor_time, way) for name, way in ways.items()}, runs)
    for name, spent in took.items():
        limit = LIMIT if name.startswith("heads") else None
        table.fact(f"{name}, {layers} × 12 heads, {tokens:,} tokens", spent, "s")
        table.fact("  / statistics of a dump", spent / took["statistics of a dump"], "", limit)
    return table.missed


def _processor_time(work: Callable[[], object]) -> float:
    """Seconds of all threads of this process: what other processes do meanwhile counts less."""
    started = clock.process_time()
    work()
    return clock.process_time() - started


def _with(run: RunConfig, **changes: object) -> RunConfig:
    import msgspec

    return msgspec.structs.replace(run, **changes)


def _ranges(tokens: int) -> tuple[SpanRange, ...]:
    bounds = [n * tokens // SPANS for n in range(SPANS + 1)]
    return tuple(SpanRange(f"part {n}", bounds[n], bounds[n + 1], "tokens") for n in range(SPANS))


def memory(lengths: Sequence[int]) -> bool:
    """Peak memory of runs with a map, and with spans as well; whether a limit is missed."""
    table, peaks = Table("MiB", ""), dict[str, list[float]]()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "stack.toml").write_text(STACK)
        for tokens in lengths:
            text, spans, report = folder / "text.txt", folder / "spans.json", folder / "report.npz"
            text.write_text(" ".join(f"w{i * i % 997}" for i in range(tokens)) + "\n")
            ranges = [
                {"name": one.name, "start": one.start, "end": one.end, "unit": "tokens"}
                for one in _ranges(tokens)
            ]
            spans.write_text(json.dumps(ranges))
            run = (
                "run",
                "--file",
                text,
                "--config",
                folder / "stack.toml",
                "--pool",
                64,
                "--quiet",
                "--force",
            )
            for name, more in {"--pool 64": (), "--pool 64 --spans": ("--spans", spans)}.items():
                ran = attnscope(*run, *more, "--output", report)
                peaks.setdefault(name, []).append(ran.peak)
                table.fact(f"{name}, {tokens:,} tokens", ran.peak, "MiB")
        with np.load(report) as arrays:
            sums = (
                next(arrays[name] for name in arrays.files if name.endswith("spans.weights"))
                .astype(np.float64)
                .sum(-1)
            )
        table.fact(
            f"largest error of a row of spans, {lengths[-1]:,} tokens, × 1e-6",
            float(abs(sums - 1).max()) * 1e6,
            "",
            1,
        )
    grown = [each[-1] - each[0] for each in peaks.values()]
    table.fact("growth with spans / growth with a map", grown[1] / grown[0], "", GROWTH)
    return table.missed


def main() -> int:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    both = ["time", "memory"]
    choices(parser, "what", both)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--lengths", default="10000,100000")
    asked = parser.parse_args()
    what, missed = asked.what or both, False
    print(machine())
    if "time" in what:
        missed |= time(asked.tokens, asked.layers, asked.width, asked.runs)
    if "memory" in what:
        missed |= memory([int(length) for length in asked.lengths.split(",")])
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
