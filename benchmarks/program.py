"""The whole program against transformers, on a GPT-2-small-shaped checkpoint: loading, forward pass, process, memory.

    python benchmarks/program.py [eager|long|sdpa ...] [--runs N] [--busy N] [--tokens N] [--layers N] [--width N]

Weights are random, written once to a temporary folder; the tokenizer makes one token of a word.

`eager`: 2,048 tokens, the five strongest sources and row statistics of all 144 heads, by `attnscope batch`, against a
script with `output_attentions=True` and `topk` that writes an .npz of that. `long`: 8,192 tokens, attnscope alone: the
peer's weights would take 38 GB. `sdpa`: 4,096 tokens against transformers without any attention output at all. Stages
are measured within processes of their own (stages.py), imports outside; transformers maps weights and reads them in
its forward pass, so that loading and forward pass are also added up. Exits with 1 where a limit is missed.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median

from measure import Ran, Table, attnscope, busy, choices, machine, script
from models import write_gpt2, write_text

STAGES = Path(__file__).parent / "stages.py"


def stages(kind: str, folder: Path, text: Path) -> Ran:
    """Loading, forward pass and writing in a process of their own."""
    return script(STAGES, kind, folder / "gpt2", text, folder / f"{kind}.npz")


def batch(folder: Path, text: Path) -> Ran:
    """What a user types."""
    return attnscope(
        *(
            "batch",
            text,
            "-o",
            folder / "dump.jsonl",
            "--model",
            folder / "gpt2",
            "--top",
            5,
            "--quiet",
            "--force",
        )
    )


def interleaved(contenders: Mapping[str, Callable[[], Ran]], runs: int) -> dict[str, Ran]:
    """Medians of everything that several runs of each say."""
    found: dict[str, list[Ran]] = {name: [] for name in contenders}
    for _ in range(runs):
        for name, run in contenders.items():
            found[name].append(run())
    return {name: _middle(ran) for name, ran in found.items()}


def _middle(ran: list[Ran]) -> Ran:
    facts = {name: median(one.facts[name] for one in ran) for name in ran[0].facts}
    return Ran(median(one.seconds for one in ran), median(one.peak for one in ran), facts)


def eager(folder: Path, runs: int, tokens: int | None, whole: float) -> bool:
    """Against attention weights as transformers gives them; `whole` is the limit of the whole process."""
    tokens = tokens or 2048
    text = write_text(folder / f"{tokens}.txt", tokens)
    table = Table("attnscope", "eager")
    contenders = {
        "ours": partial(stages, "ours", folder, text),
        "theirs": partial(stages, "eager", folder, text),
        "batch": partial(batch, folder, text),
    }
    found = interleaved(contenders, runs)
    ours, theirs = found["ours"].facts, found["theirs"].facts
    table.row(
        f"forward pass with top-5, {tokens:,} tokens",
        ours["forward"],
        theirs["forward"],
        "s",
        1 / 3,
    )
    table.row(
        "loading, imports done (theirs maps, reads later)", ours["load"], theirs["load"], "s", 1 / 3
    )
    table.row("start to loaded, imports included", ours["loaded"], theirs["loaded"], "s", 1 / 3)
    a, b = (facts["load"] + facts["forward"] for facts in (ours, theirs))
    table.row("loading and forward pass", a, b, "s", 1 / 3)
    table.row(
        "whole process: attnscope batch",
        found["batch"].seconds,
        found["theirs"].seconds,
        "s",
        whole,
    )
    table.row("largest memory of it", found["batch"].peak, found["theirs"].peak, "MiB", 1 / 3)
    return table.missed


def long(folder: Path, runs: int, tokens: int | None) -> bool:
    """A text whose weights as a matrix would take 38 GB."""
    tokens = tokens or 8192
    found = batch(folder, write_text(folder / f"{tokens}.txt", tokens))
    table = Table("attnscope", "")
    table.fact(f"whole process, {tokens:,} tokens", found.seconds, "s")
    table.fact("largest memory", found.peak, "MiB", 2048)
    return table.missed


def sdpa(folder: Path, runs: int, tokens: int | None) -> bool:
    """Against the forward pass alone."""
    tokens = tokens or 4096
    text = write_text(folder / f"{tokens}.txt", tokens)
    table = Table("attnscope", "sdpa")
    contenders = {
        "ours": partial(stages, "ours", folder, text),
        "theirs": partial(stages, "sdpa", folder, text),
    }
    found = interleaved(contenders, runs)
    ours, theirs = found["ours"].facts, found["theirs"].facts
    table.row(
        f"forward pass with top-5, {tokens:,} tokens", ours["forward"], theirs["forward"], "s", 1.6
    )
    table.row("loading", ours["load"], theirs["load"], "s")
    return table.missed


def main() -> int:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    choices(parser, "what", ["eager", "long", "sdpa"])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--busy", type=int, default=0, help="processes that spin meanwhile")
    parser.add_argument(
        "--tokens", type=int, help="of every text, instead of 2,048, 8,192 and 4,096"
    )
    parser.add_argument("--layers", type=int, default=12, help="of the checkpoint")
    parser.add_argument("--width", type=int, default=768, help="of the checkpoint")
    asked = parser.parse_args()
    whole = partial(eager, whole=0.40 if asked.busy else 0.35)
    measures: dict[str, Callable[[Path, int, int | None], bool]] = {
        "eager": whole,
        "long": long,
        "sdpa": sdpa,
    }
    print(machine())
    with tempfile.TemporaryDirectory() as temporary, busy(asked.busy):
        folder = Path(temporary)
        write_gpt2(folder / "gpt2", layers=asked.layers, width=asked.width)
        missed = [
            measures[what](folder, asked.runs, asked.tokens) for what in asked.what or measures
        ]
    return int(any(missed))


if __name__ == "__main__":
    sys.exit(main())
