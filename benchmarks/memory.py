"""Compare estimated with measured peak memory, over stacks and lengths of text.

Every run is a process of its own, whose peak resident memory the kernel tells at its end; the estimate is what the
same run would be refused by. Usage: `python benchmarks/memory.py [STACK …]`; or, for so many random stacks, texts and
selections (`draws.py`), each limited to its own estimate: `python benchmarks/memory.py --drawn 200 [--seed N]`.
"""

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from unittest.mock import patch

import torch
from tokenizers import Tokenizer
from tokenizers.models import Unigram, WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from attnscope.base.errors import AttnscopeError
from attnscope.checkpoints.stack_file import read_stack
from attnscope.cli import main as attnscope
from attnscope.engines.opening import open_source
from attnscope.model.stack import Stack
from attnscope.request.memory import format_bytes
from attnscope.request.run_config import RunConfig
from attnscope.run.plan import RunPlan, bytes_needed, make_plan, memory_demand
from benchmarks.draws import Draw, draw
from benchmarks.measure import choices

LENGTHS = (128, 512, 2_048, 8_192, 32_768, 65_536)
_WORDS = "the river bank money water stone old tree cold wind runs slowly over under by near nobody noticed how".split()
_SMALL = (
    "d_model = 64\nn_heads = 4\nn_layers = 2\nd_mlp = 128\npositions = 'rope'\nnorm = 'rmsnorm'\n"
)
_WIDE = "d_model = 512\nn_heads = 8\nn_layers = 2\nn_kv_heads = 2\nd_mlp = 2048\npositions = 'rope'\nnorm = 'rmsnorm'\n"
STACKS = {
    "windowed": _SMALL + "mask = 'causal+window:256'\n",
    "causal": _SMALL + "mask = 'causal'\n",
    "wide": _WIDE + "mask = 'causal+window:256'\n",
    "stored": "d_model = 1024\nn_heads = 8\nn_layers = 6\nd_mlp = 6144\nmask = 'causal'\n"
    "weights = 'stored.safetensors'\ntokenizer = 'stored.json'\n",
    "pieces": _SMALL
    + "mask = 'causal'\nweights = 'pieces.safetensors'\ntokenizer = 'pieces.json'\n",
}
_PIECES = 50_000
_PROGRAM = """
import sys
from attnscope.cli import main
code = main(sys.argv[1:])
sys.stdout.flush()
print(open("/proc/self/status").read(), file=sys.stderr)
sys.exit(code)
"""
SELECTIONS: dict[str, list[str]] = {
    "one head": ["--layer", "0", "--head", "0"],
    "last layer": ["--layer", "1", "--head", "0"],
    "rows, as JSON": ["--layer", "0", "--head", "0", "--query", "10:20", "--format", "json"],
    "all layers": ["--layer", "all", "--head", "0", "--query", "1"],
    "in 16 bits": ["--layer", "all", "--head", "0", "--query", "1", "--dtype", "bfloat16"],
}
_SHARES = {"lowest": 0.0, "5 %": 0.05, "median": 0.5, "95 %": 0.95, "highest": 1.0}
# which a run has to set itself
_CACHE_LIMITS = ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY")
_ALL_LAYERS = ("all layers", "in 16 bits")


@dataclass(frozen=True)
class Measured:
    """One run.

    Attributes:
        stack: Its stack.
        selection: What was asked.
        tokens: Length of its text.
        estimate: Bytes that were estimated.
        peak: Bytes that it took.
    """

    stack: str
    selection: str
    tokens: int
    estimate: int
    peak: int

    @property
    def ratio(self) -> float:
        """Estimate over peak."""
        return self.estimate / self.peak


def text_of(tokens: int) -> str:
    """So many words, the same ones every time."""
    chosen = random.Random(tokens)
    return " ".join(chosen.choice(_WORDS) for _ in range(tokens))


def measure(
    stack: str, selection: str, tokens: int, folder: Path, *, streamed: bool = False
) -> Measured:
    """Estimate one run, and let it run; with `streamed`, in a byte less than it needs to keep its weights."""
    config, file = folder / f"{stack}.toml", folder / f"{tokens}.txt"
    config.write_text(STACKS[stack])
    file.write_text(text_of(tokens) + "\n")
    if "weights" in STACKS[stack] and not config.with_suffix(".safetensors").exists():
        _write_checkpoint(config)
    arguments = ["run", "--file", str(file), "--config", str(config), *SELECTIONS[selection]]
    most = estimated(arguments) - 1 if streamed else 1 << 60
    found = estimated(arguments, most), peak([*arguments, "--max-memory", str(most)])
    return Measured(stack, f"{selection}, reread" if streamed else selection, tokens, *found)


def _write_checkpoint(config: Path) -> None:
    """What a stack of stored weights names: a tokenizer of our words, and zeros, for only their number counts."""
    words = list(dict.fromkeys(_WORDS))
    if config.stem == "pieces":
        others = (word + str(number) for number in range(_PIECES // len(words)) for word in words)
        tokenizer = Tokenizer(Unigram([(piece, -1.0) for piece in (*words, *others)], unk_id=0))
    else:
        tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="the"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(str(config.with_suffix(".json")))
    with torch.device("meta"):
        stack = Stack(read_stack(config).config(tokenizer.get_vocab_size()))
    header, size = {}, 0
    for name, parameter in stack.named_parameters():
        end = size + 4 * parameter.numel()
        header[name] = {"dtype": "F32", "shape": list(parameter.shape), "data_offsets": [size, end]}
        size = end
    said = json.dumps(header).encode()
    with open(config.with_suffix(".safetensors"), "wb") as file:
        file.write(len(said).to_bytes(8, "little") + said)
        file.truncate(8 + len(said) + size)  # nothing but zeros, which take no room on disk


def estimated(arguments: Sequence[str], most: int = 1 << 60) -> int:
    """What `attnscope run` holds against the memory that is free, or that it may take."""
    asked: list[RunConfig] = []

    def note(run: RunConfig, *_: object) -> None:
        asked.append(run)
        raise AttnscopeError("its command line is all that is wanted")

    with patch("attnscope.run.session.inspect", note), redirect_stderr(StringIO()):
        attnscope([*arguments, "--max-memory", str(most)])
    (run,) = asked
    source = open_source(run, run.texts)
    return sum(required_memory(make_plan(run, source)).values())


def required_memory(plan: RunPlan) -> dict[str, int]:
    """What the plan of a run is estimated to take, by purpose."""
    return bytes_needed(plan.run, plan.source, memory_demand(plan), {})


def peak(arguments: Sequence[str]) -> int:
    """Peak resident memory of `attnscope run` in bytes, as the kernel counts it from the program's start."""
    command = [sys.executable, "-c", _PROGRAM, *arguments]
    environment = {name: value for name, value in os.environ.items() if name not in _CACHE_LIMITS}
    done = subprocess.run(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        env=environment,
    )
    found = re.search(r"VmHWM:\s+(\d+) kB", done.stderr)
    if done.returncode or found is None:
        raise RuntimeError(f"{' '.join(command[3:])} ended with {done.returncode}: {done.stderr}")
    return int(found[1]) * 1024


def grid(stacks: Sequence[str]) -> Iterator[Measured]:
    """Every stack, selection and length; full causal attention of the longest texts would only take long.

    Only stored weights can be read again.
    """
    with tempfile.TemporaryDirectory() as folder:
        for stack in stacks:
            for selection in SELECTIONS:
                for tokens in LENGTHS:
                    if stack not in ("causal", "stored", "pieces") or tokens <= 8_192:
                        yield measure(stack, selection, tokens, Path(folder))
                    if stack == "stored" and tokens <= 2_048 and selection in _ALL_LAYERS:
                        yield measure(stack, selection, tokens, Path(folder), streamed=True)


def measure_drawn(one: Draw) -> tuple[int, int]:
    """Estimate a random run, and let it run in so much memory: its estimate and its peak.

    Raises:
        RuntimeError: It was stopped, or failed in another way.
    """
    with tempfile.TemporaryDirectory() as folder:
        arguments = [*one.arguments(Path(folder)), "--quiet"]
        estimate = estimated(arguments)
        return estimate, peak([*arguments, "--max-memory", str(estimate)])


def _draw_and_print(seed: int, count: int, first: int) -> None:
    """Print a line for every random run, and at the end how their ratios are spread."""
    ratios = []
    for number in range(first, first + count):
        one = draw(seed, number)
        try:
            estimate, taken = measure_drawn(one)
        except RuntimeError as e:
            print(f"{number:>4} FAILED  {one}\n{str(e).splitlines()[0]}", flush=True)
            continue
        ratios.append(estimate / taken)
        print(
            f"{number:>4} {ratios[-1]:5.2f} {format_bytes(estimate):>11} {format_bytes(taken):>11}  {one}",
            flush=True,
        )
    ratios.sort()
    at = {name: ratios[int(share * (len(ratios) - 1))] for name, share in _SHARES.items()}
    print(
        f"{len(ratios)} runs, estimate/peak: "
        + ", ".join(f"{name} {ratio:.2f}" for name, ratio in at.items())
    )


def main() -> None:
    """Print the table, or the random runs."""
    parser = argparse.ArgumentParser()
    choices(parser, "stacks", STACKS)
    parser.add_argument("--drawn", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    if asked.drawn:
        _draw_and_print(asked.seed, asked.drawn, asked.first)
        return
    print(f"{'stack':<10}{'selection':<15}{'tokens':>8}{'estimate':>12}{'peak':>12}{'ratio':>7}")
    for one in grid(asked.stacks or list(STACKS)):
        sizes = f"{format_bytes(one.estimate):>12}{format_bytes(one.peak):>12}{one.ratio:>7.2f}"
        print(f"{one.stack:<10}{one.selection:<15}{one.tokens:>8,}{sizes}", flush=True)


if __name__ == "__main__":
    main()
