"""Time the GPU against the CPU, and compare their numbers; exits with 1 without CUDA.

    python benchmarks/gpu.py [--only tests,attention,commands] [--tokens N] [--runs N]

`tests`: those that are marked cuda, among them every family's parity. `attention`: 32 query heads of width 128 over 8
key/value heads, causal, 32,768 tokens, bfloat16. Ours: `attend()` with the five strongest sources and row statistics
of every row; scores and softmax are float32. Peer: `scaled_dot_product_attention` held to its flash kernel, the output
alone. Aim: 1.5 times as long. `commands`: `run`, `batch` and `heads` as whole processes, of a checkpoint of GPT-2's
shape, on the GPU against the CPU of the same machine.
"""

import argparse
import subprocess
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.nn.functional as F
from measure import ROOT, Table, attnscope, machine, seconds, take_turns
from models import write_gpt2, write_text
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnscope.findings.row_statistics import KEY_TOKENS
from attnscope.model.attention import attend
from attnscope.model.inputs import AttentionInputs, AttentionSpec
from attnscope.model.recorders import KeyTokens, RowRecorder, TopRecorder
from attnscope.request.masks.terms import Causal

HEADS, GROUPS, WIDTH, TOP, AIM = 32, 8, 128, 5, 1.5
PARTS = ("tests", "attention", "commands")


def wait_for(device: str) -> None:
    """Let the device finish what it was given."""
    if device != "cpu":
        torch.cuda.synchronize()


@torch.inference_mode()
def ours(inputs: AttentionInputs) -> None:
    """Output, top contributors and row statistics."""
    heads, rows = range(HEADS), range(inputs.q.shape[2])
    real = torch.ones(1, len(rows), dtype=torch.bool, device=inputs.q.device)
    top = TopRecorder(TOP, "weight", heads, rows, real, ("weight",))
    attend(inputs, [top, RowRecorder(heads, rows, KeyTokens(dict.fromkeys(KEY_TOKENS, torch.zeros_like(real)), real))])
    wait_for(inputs.q.device.type)


@torch.inference_mode()
def theirs(inputs: AttentionInputs) -> None:
    """The output alone."""
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        F.scaled_dot_product_attention(inputs.q, inputs.k, inputs.v, is_causal=True, enable_gqa=True)
    wait_for(inputs.q.device.type)


def attention(device: str, tokens: int, runs: int) -> bool:
    """Seconds and memory of `attend()` against the flash kernel, and whether the aim is missed."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, n, tokens, WIDTH, dtype=torch.bfloat16, device=device) for n in (HEADS, GROUPS, GROUPS))
    inputs, table = AttentionInputs(0, q, k, v, AttentionSpec(WIDTH**-0.5, Causal())), Table("ours", "flash")
    works = {"ours": partial(ours, inputs), "flash": partial(theirs, inputs)}
    took = take_turns({name: partial(seconds, work) for name, work in works.items()}, runs)
    table.row(f"causal, {tokens:,} tokens", took["ours"] * 1000, took["flash"] * 1000, "ms", AIM)
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        ours(inputs)
        table.fact("memory besides the input", (torch.cuda.max_memory_allocated() - before) / 2**20, "MiB")
    return table.missed


def commands(device: str, runs: int, *, layers: int, width: int) -> bool:
    """Seconds of whole processes on the GPU and on the CPU."""
    with TemporaryDirectory() as folder:
        model = write_gpt2(Path(folder, "gpt2"), layers=layers, width=width, positions=2048)
        text = write_text(Path(folder, "text.txt"), 2000)
        words = " ".join(text.read_text().split()[:14])
        works = {
            "run, 14 tokens": ["run", words, "--layer", "all", "--head", "all"],
            "batch, 2,000 tokens, all heads": [
                "batch",
                text,
                "--keep",
                "top,rows",
                "-o",
                f"{folder}/out.jsonl",
                "--force",
            ],
            "heads": ["heads"],
        }
        table = Table("GPU", "CPU")
        for name, arguments in works.items():
            both = {place: [*arguments, "--model", model, "--device", place, "--quiet"] for place in (device, "cpu")}
            took = take_turns({place: partial(_seconds, command) for place, command in both.items()}, runs)
            table.row(name, took[device], took["cpu"], "s")
    return table.missed


def _seconds(command: list[str | Path]) -> float:
    return attnscope(*command).seconds


def tests() -> bool:
    """Run the tests that need CUDA; whether one of them failed."""
    command = [sys.executable, "-m", "pytest", "-m", "cuda", "-q", "-n", "0", "-p", "no:cacheprovider", "--no-header"]
    done = subprocess.run([*command, "tests"], cwd=ROOT, capture_output=True, text=True)
    print(
        "\n".join(line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR")) or " in " in line)
    )
    return done.returncode != 0


def main() -> int:
    """Measure where there is CUDA."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--device", default="cuda", help=argparse.SUPPRESS)  # cpu: whether the benchmark itself works
    parser.add_argument("--layers", type=int, default=12, help=argparse.SUPPRESS)
    parser.add_argument("--width", type=int, default=768, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.device != "cpu" and not torch.cuda.is_available():
        print("there is no CUDA device here, which this benchmark is about", file=sys.stderr)
        return 1
    parts, missed = asked.only.split(","), False
    print(f"{torch.cuda.get_device_name() if asked.device != 'cpu' else 'no GPU'}; {machine()}", flush=True)
    if "tests" in parts:
        missed |= tests()
    if "attention" in parts:
        missed |= attention(asked.device, asked.tokens, asked.runs)
    if "commands" in parts:
        missed |= commands(asked.device, asked.runs, layers=asked.layers, width=asked.width)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
