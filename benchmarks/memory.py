"""Stacks and lengths of text in; a table of estimated and measured peak memory, and their ratio, out.

Every run is a process of its own, whose peak resident memory the kernel tells at its end; the estimate is what the
same run would be refused by. Usage: `python benchmarks/memory.py [STACK …]`.
"""

import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import Unigram, WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from attnscope.config import RunConfig, TextInput
from attnscope.memory import readable
from attnscope.model.stack import Stack
from attnscope.request import needed, resolve
from attnscope.selection import PRINTED
from attnscope.source import open_source
from attnscope.stackfile import read_stack

LENGTHS = (128, 512, 2_048, 8_192, 32_768, 65_536)
_WORDS = "the river bank money water stone old tree cold wind runs slowly over under by near nobody noticed how".split()
_SMALL = "d_model = 64\nn_heads = 4\nn_layers = 2\nd_mlp = 128\npositions = 'rope'\nnorm = 'rmsnorm'\n"
_WIDE = "d_model = 512\nn_heads = 8\nn_layers = 2\nn_kv_heads = 2\nd_mlp = 2048\npositions = 'rope'\nnorm = 'rmsnorm'\n"
STACKS = {
    "windowed": _SMALL + "mask = 'causal+window:256'\n",
    "causal": _SMALL + "mask = 'causal'\n",
    "wide": _WIDE + "mask = 'causal+window:256'\n",
    "stored": "d_model = 1024\nn_heads = 8\nn_layers = 6\nd_mlp = 6144\nmask = 'causal'\n"
    "weights = 'stored.safetensors'\ntokenizer = 'stored.json'\n",
    "pieces": _SMALL + "mask = 'causal'\nweights = 'pieces.safetensors'\ntokenizer = 'pieces.json'\n",
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


def measure(stack: str, selection: str, tokens: int, folder: Path, *, reread: bool = False) -> Measured:
    """Estimate one run, and let it run; with `reread`, in a byte less than it needs to keep its weights."""
    config, file = folder / f"{stack}.toml", folder / f"{tokens}.txt"
    config.write_text(STACKS[stack])
    file.write_text(text_of(tokens) + "\n")
    if "weights" in STACKS[stack] and not config.with_suffix(".safetensors").exists():
        _write_checkpoint(config)
    options, most = SELECTIONS[selection], 1 << 60
    if reread:
        most = estimated(config, file, options, most) - 1
    options = [*options, "--max-memory", str(most)]
    found = estimated(config, file, SELECTIONS[selection], most), peak(config, file, options)
    return Measured(stack, f"{selection}, reread" if reread else selection, tokens, *found)


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
    shapes = {name: tuple(parameter.shape) for name, parameter in stack.named_parameters()}
    zeros = {name: torch.zeros(shape) for name, shape in shapes.items()}
    save_file(zeros, config.with_suffix(".safetensors"))


def estimated(config: Path, file: Path, options: Sequence[str], most: int = 1 << 60) -> int:
    """What `attnscope run` holds against the memory that is free, or that it may take."""
    given = dict(zip(options[::2], options[1::2], strict=True))
    as_json = given.pop("--format", None) == "json"
    run = RunConfig(
        (TextInput(file.read_text().strip()),),
        config=str(config),
        window=None if as_json else PRINTED,
        max_memory=most,
        **{name.removeprefix("--"): value for name, value in given.items()},
    )
    source = open_source(None, str(config), run.texts)
    return sum(needed(run, source, resolve(run, source)).values())


def peak(config: Path, file: Path, options: Sequence[str]) -> int:
    """Peak resident memory of `attnscope run` in bytes, as the kernel counts it from the program's start."""
    command = [sys.executable, "-c", _PROGRAM, "run", "--file", str(file), "--config", str(config), *options]
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}  # a second thread only adds its own small buffers
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False, env=alone)
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
                        yield measure(stack, selection, tokens, Path(folder), reread=True)


def main() -> None:
    """Print the table."""
    print(f"{'stack':<10}{'selection':<15}{'tokens':>8}{'estimate':>12}{'peak':>12}{'ratio':>7}")
    for one in grid(sys.argv[1:] or list(STACKS)):
        sizes = f"{readable(one.estimate):>12}{readable(one.peak):>12}{one.ratio:>7.2f}"
        print(f"{one.stack:<10}{one.selection:<15}{one.tokens:>8,}{sizes}", flush=True)


if __name__ == "__main__":
    main()
