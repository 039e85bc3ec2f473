"""Dumps on a GPU: texts a second against the forward pass alone and against an eager script, in one process.

A part of gpu.py. The model is a Llama of random weights in bfloat16. All contenders have it in memory, and take turns
over texts of one length: the forward pass alone (sdpa); what a user of transformers would write (eager attention, the
five strongest keys and the statistics of every row, one .safetensors file a batch); and `attnscope batch` for what it
may keep and where. Every ratio is that of medians in this run.
"""

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

TOP = 5
# Tokens of a text, texts, and texts of a batch of the peers
LENGTHS = ((64, 4096, 256), (512, 512, 32), (2048, 96, 8))
SMALL_LENGTHS = ((8, 6, 3),)
# What is kept, the output, and at which multiple of which peer it has to be, by tokens of a text.
KEPT = (
    ("heads", "heads", "forward", {64: 0.6, 512: 0.8, 2048: 0.8}),
    ("top,rows", "folder", "eager", {64: 2.0, 512: 2.0, 2048: 5.0}),
    ("brief", "brief.jsonl", "eager", {64: 1.0, 512: 1.0, 2048: 1.0}),
    ("top,rows", "tables.parquet", "folder", {64: 0.5, 512: 0.5, 2048: 0.5}),
)
Say = Callable[..., None]


@dataclass(frozen=True)
class Contest:
    """One length of text.

    Args:
        folder: The checkpoint.
        device: Name for torch.
        length: Tokens of a text.
        texts: How many texts a turn has.
        batch: Texts of a batch of the peers.
    """

    folder: Path
    device: str
    length: int
    texts: int
    batch: int

    def ids(self) -> Any:
        """Return the token ids of all texts, (texts, tokens)."""
        import torch

        generator = torch.Generator().manual_seed(self.length)
        return torch.randint(3, 1000, (self.texts, self.length), generator=generator)

    def synchronize(self) -> None:
        """Wait for the device."""
        import torch

        if self.device.startswith("cuda") and torch.version.cuda is not None:
            torch.cuda.synchronize()


def write_model(folder: Path, *, small: bool) -> Path:
    """Save a Llama of 1B shape, or a tiny one, with a tokenizer of words `w0` … `w999`."""
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
    }
    sizes |= {"num_key_value_heads": 8, "head_dim": 64}
    if small:
        sizes = {
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
        }
        sizes |= {"num_key_value_heads": 2, "head_dim": 8}
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1000, max_position_embeddings=4096, bos_token_id=1, eos_token_id=2, **sizes
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    for layer in model.model.layers:  # large enough that weights differ
        layer.self_attn.q_proj.weight.data.mul_(3)
        layer.self_attn.k_proj.weight.data.mul_(3)
    model.save_pretrained(folder)
    tokenizer = Tokenizer(
        WordLevel({f"w{number}": number for number in range(1000)}, unk_token="w0")
    )
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def forward_alone(contest: Contest) -> Callable[[Path], None]:
    """Return a pass of the model over all texts, with torch's own attention."""
    model, ids = _peer(contest, "sdpa"), contest.ids().to(contest.device)

    def work(_: Path) -> None:
        import torch

        with torch.inference_mode():
            for first in range(0, contest.texts, contest.batch):
                model(ids[first : first + contest.batch])
        contest.synchronize()

    return work


def eager_script(contest: Contest) -> Callable[[Path], None]:
    """Return what a user of transformers would write: the same as `--keep top,rows`, a file a batch."""
    import torch
    from safetensors.torch import save_file

    model, ids = _peer(contest, "eager"), contest.ids().to(contest.device)
    places = torch.arange(contest.length, device=contest.device)
    apart = (places[None] - places[:, None]).abs()

    def statistics(weights: Any) -> dict[str, Any]:
        strongest = weights.topk(min(TOP, contest.length))
        return {
            "keys": strongest.indices.int(),
            "weights": strongest.values,
            "entropy": torch.special.entr(weights).sum(-1),
            "first": weights[..., 0].contiguous(),
            "self": weights.diagonal(dim1=-2, dim2=-1).contiguous(),
            "distance": (weights * apart).sum(-1),
            **{f"within_{n}": (weights * (apart <= n)).sum(-1) for n in (16, 64, 256, 1024)},
        }

    def work(folder: Path) -> None:
        folder.mkdir()
        with torch.inference_mode():
            for first in range(0, contest.texts, contest.batch):
                attentions = model(
                    ids[first : first + contest.batch], output_attentions=True
                ).attentions
                arrays = {
                    f"{layer}.{name}": values.cpu()
                    for layer, weights in enumerate(attentions)
                    for name, values in statistics(weights.float()).items()
                }
                save_file(arrays, folder / f"{first}.safetensors")
        contest.synchronize()

    return work


def _peer(contest: Contest, attention: str) -> Any:
    import torch
    from transformers import AutoModel

    model = AutoModel.from_pretrained(
        contest.folder, attn_implementation=attention, dtype=torch.bfloat16
    )
    return model.to(contest.device).eval()


def dump(contest: Contest, keep: str, name: str) -> Callable[[Path], None]:
    """Return `attnscope batch`, whose model is open after the first call, as the peers' models are."""
    from attnscope.batch.dump import write_dump
    from attnscope.batch.header import Settings
    from attnscope.batch.loading import DumpConfig
    from attnscope.request.options import BRIEF_DIGITS, BRIEF_STATISTICS
    from attnscope.request.run_config import RunConfig
    from attnscope.run.session import Session

    session = Session(())
    run = RunConfig(texts=(), model=str(contest.folder), device=contest.device, dtype="bfloat16")
    brief = {"statistics": BRIEF_STATISTICS, "digits": BRIEF_DIGITS} if keep == "brief" else {}
    settings = Settings(keep=("top", "rows") if brief else tuple(keep.split(",")), top=TOP, **brief)  # type: ignore[arg-type]

    def work(folder: Path) -> None:
        folder.mkdir()
        source = folder / "texts.txt"
        lines = [" ".join(f"w{number}" for number in row) for row in contest.ids().tolist()]
        source.write_text("\n".join(lines) + "\n")
        order = DumpConfig(str(source), None, folder / name, settings, run)
        write_dump(order, lambda summary, total: None, session=session)
        contest.synchronize()

    return work


def disk_rate(size: int, folder: Path) -> float:
    """Return the seconds that a plain file of so many bytes takes, safe on disk."""
    block, started = os.urandom(1 << 22), time.perf_counter()
    with open(folder / "plain", "wb") as file:
        for _ in range(max(1, size >> 22)):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    return time.perf_counter() - started


def dumps(bench: Any, say: Say) -> None:
    """Compare all contenders, length by length."""
    import torch

    with tempfile.TemporaryDirectory() as name:
        model = write_model(Path(name, "llama"), small=bench.small)
        for length, texts, batch in SMALL_LENGTHS if bench.small else LENGTHS:
            contest = Contest(model, bench.device, length, texts, batch)
            contenders = {"forward": forward_alone(contest), "eager": eager_script(contest)}
            kept = [row for row in KEPT if not row[1].endswith(".parquet") or find_spec("pyarrow")]
            contenders |= {who: dump(contest, keep, who) for keep, who, _, _ in kept}
            took: dict[str, list[float]] = {who: [] for who in contenders}
            size = 0
            for turn in range(min(3, bench.runs) + 1):  # the first one does not count
                for who, work in contenders.items():
                    with tempfile.TemporaryDirectory(dir=name) as folder:
                        started = time.perf_counter()
                        work(Path(folder, "out"))
                        took[who] += [time.perf_counter() - started] * bool(turn)
                        if who == "folder":
                            size = sum(
                                path.stat().st_size
                                for path in Path(folder).rglob("*")
                                if path.is_file()
                            )
                            plain = disk_rate(size, Path(folder))
            seconds = {who: median(times) for who, times in took.items()}
            for who in ("forward", "eager"):
                say(f"{length} tokens: {who}", round(texts / seconds[who], 1), "texts/s")
            for keep, who, peer, least in kept:
                ratio = seconds[peer] / seconds[who]
                of_disk = {"of_disk": round(plain / seconds[who], 2)} if who == "folder" else {}
                say(
                    f"{length} tokens: --keep {keep} -o {who}", round(texts / seconds[who], 1), "texts/s",
                    tokens=round(length * texts / seconds[who]), peer=peer, ratio=round(ratio, 2),
                    least=least.get(length, 0.0), **of_disk,
                )  # fmt: skip
        if bench.cuda and torch.version.cuda is not None:
            say("memory at most", round(torch.cuda.max_memory_allocated() / 2**30, 1), "GiB")
