"""Dumps on a GPU: texts a second against the forward pass alone and against an eager script, in one process.

A part of gpu.py. The model is a Llama of random weights in bfloat16. All contenders have it in memory, and take turns
over texts of one length: the forward pass alone (sdpa); what a user of transformers would write (eager attention, the
five strongest keys and the statistics of every row, one .safetensors file a batch); and `attnscope batch` for what it
may keep and where. Every ratio is that of medians in this run. One text, for which kernels are compiled, and a turn
over few texts do not count; by what that takes, later ones have as many texts as take all contenders 22 seconds. There
are three more, or fewer where the part's time would not suffice for the other lengths. In the uncounted turn, the
kernels of two dumps are timed, which says what limits them. Then whole processes: from start to the first text of a
dump, against importing torch and opening the model. `gpu.md` in the folder $OUT has tables for docs/scale.md, which say
of every bound whether it is met; it is written after every length, so that a run that is cut off leaves them, with the
bounds that it has not measured. A contender that fails is named there, and the others go on.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

TOP = 5
# Tokens of a text, texts, and texts of a batch of the peers
LENGTHS = ((512, 512, 32), (2048, 96, 8), (64, 4096, 256))
SMALL_LENGTHS = ((8, 8, 3),)
# What is kept, the output, and at which multiple of which peer it has to be, by tokens of a text.
KEPT = (
    ("heads", "heads", "forward", {64: 0.6, 512: 0.8, 2048: 0.8}),
    ("top,rows", "folder", "eager", {64: 2.0, 512: 2.0, 2048: 5.0}),
    ("brief", "brief.jsonl", "eager", {64: 1.0, 512: 1.0, 2048: 1.0}),
    ("top,rows", "tables.parquet", "folder", {64: 0.5, 512: 0.5, 2048: 0.5}),
)
OF_DISK = 0.8  # of a folder: instead, this part of the speed at which the disk takes as many bytes
START = 1.3  # times importing torch and opening the model, until a dump has its first text
_ENOUGH = 75.0  # seconds of a length after which no turn begins, at most
_A_TURN = 22.0  # seconds of all contenders, at most
_OF_SHARE = 0.75  # part of a length's time after which no turn begins
_WHOLE = 70.0  # seconds that are left for whole processes
_FIRST = 32  # part of the texts that the first turn has
_PROFILED = (
    "heads",
    "folder",
)  # dumps whose kernels are timed; what others keep is that of a folder
_LIMITING = 0.8  # part of the time from which kernels, or the disk, are what limits a dump
_NOT_MEASURED = "not measured"
_FAILED = "failed"
_TURNS = 3
Work = Callable[
    [Path, int], None
]  # does so many texts, and may write to a folder that is not there yet
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

    def write(self, path: Path, texts: int) -> Path:
        """Write the first texts to a file, one a line."""
        rows = self.ids()[:texts].tolist()
        path.write_text("".join(" ".join(f"w{number}" for number in row) + "\n" for row in rows))
        return path

    def synchronize(self) -> None:
        """Wait for the device."""
        import torch

        if self.device.startswith("cuda") and torch.version.cuda is not None:
            torch.cuda.synchronize()


def write_model(folder: Path, *, small: bool, width: int = 2048) -> Path:
    """Save a Llama of 1B shape, or a tiny one, with a tokenizer of words `w0` … `w999`.

    Args:
        width: Of hidden states; a narrow one has as many heads.
    """
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
    }
    sizes |= {"num_key_value_heads": 8, "head_dim": width // 32}
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


@dataclass(frozen=True)
class Row:
    """What one contender did with texts of one length.

    Attributes:
        who: `--keep` and the output, or the peer.
        rate: Texts a second; 0 if it was not measured.
        peer: Whom it is compared with.
        ratio: Its speed, as a multiple of the peer's.
        least: The smallest ratio that is wanted; 0 for none.
        verdict: Whether that is met.
        limit: What keeps it from being faster.
    """

    length: int
    who: str
    rate: float
    peer: str = ""
    ratio: float = 0.0
    least: float = 0.0
    verdict: str = ""
    limit: str = ""

    def cells(self) -> list[str]:
        """Return its cells in a table."""
        beside = f"{self.ratio:.2f} of {self.peer}" if self.ratio else ""
        wanted = f"at least {self.least:g}" if self.least else ""
        rates = [f"{self.rate:,.1f}", f"{self.length * self.rate:,.0f}"] if self.rate else ["", ""]
        return [f"{self.length:,}", self.who, *rates, beside, wanted, self.verdict, self.limit]


HEAD = ["tokens", "kept, output", "texts/s", "tokens/s/GPU", "ratio", "bound", "", "limited by"]


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def forward_alone(contest: Contest) -> Work:
    """Return a pass of the model over all texts, with torch's own attention."""
    model, ids = _peer(contest.folder, contest.device, "sdpa"), contest.ids().to(contest.device)

    def work(_: Path, texts: int) -> None:
        import torch

        with torch.inference_mode():
            for part in ids[:texts].split(contest.batch):
                model(part)
        contest.synchronize()

    return work


def eager_script(contest: Contest) -> Work:
    """Return what a user of transformers would write: the same as `--keep top,rows`, a file a batch."""
    import torch
    from safetensors.torch import save_file

    model, ids = _peer(contest.folder, contest.device, "eager"), contest.ids().to(contest.device)
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

    def work(folder: Path, texts: int) -> None:
        folder.mkdir()
        with torch.inference_mode():
            for number, part in enumerate(ids[:texts].split(contest.batch)):
                attentions = model(part, output_attentions=True).attentions
                arrays = {
                    f"{layer}.{name}": values.cpu()
                    for layer, weights in enumerate(attentions)
                    for name, values in statistics(weights.float()).items()
                }
                save_file(arrays, folder / f"{number}.safetensors")
        contest.synchronize()

    return work


@cache
def _peer(folder: Path, device: str, attention: str) -> Any:
    import torch
    from transformers import AutoModel

    model = AutoModel.from_pretrained(folder, attn_implementation=attention, dtype=torch.bfloat16)
    return model.to(device).eval()


@cache
def _session(folder: Path) -> Any:
    from attnscope.run.session import Session

    return Session(())


def dump(contest: Contest, keep: str, name: str) -> Work:
    """Return `attnscope batch`, whose model is open after the first call, as the peers' models are."""
    from attnscope.batch.dump import write_dump
    from attnscope.batch.header import Settings
    from attnscope.batch.loading import DumpConfig
    from attnscope.request.options import BRIEF_DIGITS, BRIEF_STATISTICS
    from attnscope.request.run_config import RunConfig

    session = _session(contest.folder)
    run = RunConfig(texts=(), model=str(contest.folder), device=contest.device, dtype="bfloat16")
    brief = {"statistics": BRIEF_STATISTICS, "digits": BRIEF_DIGITS} if keep == "brief" else {}
    settings = Settings(keep=("top", "rows") if brief else tuple(keep.split(",")), top=TOP, **brief)  # type: ignore[arg-type]

    def work(folder: Path, texts: int) -> None:
        folder.mkdir()
        source = contest.write(folder / "texts.txt", texts)
        order = DumpConfig(str(source), None, folder / name, settings, run, workers=0)
        write_dump(order, lambda summary, total: None, session=session)
        contest.synchronize()

    return work


def disk_seconds(size: int, folder: Path) -> float:
    """Return the seconds that a plain file of so many bytes takes, safe on disk."""
    block, started = os.urandom(1 << 22), time.perf_counter()
    with open(folder / "plain", "wb") as file:
        for _ in range(max(1, size >> 22)):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    return time.perf_counter() - started


def compare(contest: Contest, turns: int, seconds: float, folder: Path, say: Say) -> list[Row]:
    """Compare all contenders over texts of one length, in about so many seconds."""
    failed: set[str] = set()

    def attempt(who: str, work: Callable[[], Any]) -> Any:
        """Do something of a contender; one that fails takes no further part, and the others go on."""
        try:
            return work()
        except Exception as error:
            failed.add(who)
            say(f"{contest.length} tokens: {who}", _FAILED, error=f"{error!r:.400}")

    kept = [row for row in KEPT if not row[1].endswith(".parquet") or find_spec("pyarrow")]
    makers = {"forward": partial(forward_alone, contest), "eager": partial(eager_script, contest)}
    makers |= {who: partial(dump, contest, keep, who) for keep, who, _, _ in kept}
    contenders = {who: attempt(who, make) for who, make in makers.items()}
    took: dict[str, list[float]] = {who: [] for who in contenders}
    kernels: dict[str, float] = {}
    disk = 0.0
    begun = started_all = time.perf_counter()
    texts = 1
    for turn in range(-1, turns + 1):
        passed = time.perf_counter() - begun
        spent = time.perf_counter() - started_all
        if turn > 1 and (passed > _ENOUGH or spent > _OF_SHARE * seconds):
            break
        if turn == 0:
            texts = max(1, contest.texts // _FIRST)
            begun = time.perf_counter()
        if turn == 1:
            a_turn = min(_A_TURN, max(1.0, seconds - spent) / (turns + 1))
            share = min(1.0, a_turn / (_FIRST * passed))
            texts = max(contest.batch, int(contest.texts * share))
            for who in set(_PROFILED) - failed:
                with suppress(Exception):  # a profiler that does not work here
                    kernels[who] = kernel_seconds(contest, contenders[who], folder)
        for who, work in contenders.items():
            if who in failed:
                continue
            with tempfile.TemporaryDirectory(dir=folder) as name:
                started = time.perf_counter()
                attempt(who, partial(work, Path(name, "out"), texts))
                took[who] += [time.perf_counter() - started] * (turn > 0 and who not in failed)
                if turn > 0 and who == "folder":
                    files = [path for path in Path(name).rglob("*") if path.is_file()]
                    disk = disk_seconds(sum(path.stat().st_size for path in files), Path(name))
    medians = {who: median(times) for who, times in took.items() if times and who not in failed}
    rows = []
    for who in [who for who in ("forward", "eager") if who in medians]:
        rows.append(Row(contest.length, who, texts / medians[who]))
        say(f"{contest.length} tokens: {who}", round(rows[-1].rate, 1), "texts/s")
    for keep, who, peer, bounds in KEPT:
        least = bounds.get(contest.length, bounds[64])
        if not medians.keys() >= {who, peer}:
            verdict = _FAILED if failed & {who, peer} else _NOT_MEASURED
            rows.append(unmeasured(contest.length, keep, who, peer, least, verdict))
            continue
        rate, ratio = texts / medians[who], medians[peer] / medians[who]
        busy = kernels.get(who, kernels.get("folder", 0.0)) * rate
        of_disk = disk / medians[who] if who == "folder" else 0.0
        holds = ratio >= least or of_disk >= OF_DISK
        by = "GPU" if busy >= _LIMITING else "disk" if of_disk >= _LIMITING else "host"
        limit = f"{by} (kernels {busy:.2f}" + (f", disk {of_disk:.2f})" if of_disk else ")")
        limit = limit if kernels else "unknown: its kernels could not be timed"
        verdict = "met" if holds else "MISSED"
        label = f"`--keep {keep} -o {who}`"
        rows.append(Row(contest.length, label, rate, peer, ratio, least, verdict, limit))
        say(
            f"{contest.length} tokens: --keep {keep} -o {who}", round(rate, 1), "texts/s",
            tokens=round(contest.length * rate), texts=texts, peer=peer, ratio=round(ratio, 2), least=least,
            of_disk=round(of_disk, 2), kernels=round(busy, 2), bound=verdict, turns=len(took[who]),
        )  # fmt: skip
    return rows


def unmeasured(
    length: int, keep: str, who: str, peer: str, least: float, verdict: str = _NOT_MEASURED
) -> Row:
    """Return a bound that is not known to be met or missed."""
    return Row(length, f"`--keep {keep} -o {who}`", 0.0, peer, least=least, verdict=verdict)


def kernel_seconds(contest: Contest, work: Work, folder: Path) -> float:
    """Return the seconds of a GPU that the kernels of a text take; on a CPU, those of its operators."""
    import torch
    from gpu_frames import kernels_of

    texts = contest.batch
    real = contest.device.startswith("cuda") and torch.version.cuda is not None
    with tempfile.TemporaryDirectory(dir=folder) as name:
        milliseconds, _, _ = kernels_of(lambda: work(Path(name, "out"), texts), real)
    return milliseconds / 1e3 / texts


OPEN = """
import sys, torch
from transformers import AutoModel
AutoModel.from_pretrained(sys.argv[1], dtype=torch.bfloat16).to(sys.argv[2])
"""


def start(contest: Contest, turns: int, until: float, folder: Path, say: Say) -> list[str]:
    """Compare whole processes: a dump of one text, and importing torch and opening the model."""
    texts = contest.write(folder / "one.txt", 1)
    words = [
        "batch",
        str(texts),
        "-m",
        str(contest.folder),
        "--keep",
        "heads",
        "--quiet",
        "--force",
    ]
    words += ["--device", contest.device.partition(":")[0], "--dtype", "bfloat16"]
    words += ["-o", str(folder / "one.jsonl")]
    commands = {
        "start to first text": ["-m", "attnscope", *words],
        "import torch, from_pretrained": ["-c", OPEN, str(contest.folder), contest.device],
    }
    took: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(turns + 1):
        if turn > 1 and time.monotonic() + 3 * max(map(max, took.values())) > until:
            break
        for name, command in commands.items():
            started = time.perf_counter()
            done = subprocess.run([sys.executable, *command], capture_output=True, text=True)
            if done.returncode:
                say(name, "failed", error=done.stderr[-400:])
                return [name, "", "", "", f"at most {START}", "failed"]
            took[name] += [time.perf_counter() - started] * bool(turn)
    ours, peer = map(median, took.values())
    say("import torch, from_pretrained", round(peer, 2), "s")
    verdict = "met" if ours <= START * peer else "MISSED"
    say(
        "start to first text", round(ours, 2), "s", ratio=round(ours / peer, 2), most=START,
        bound=verdict,
    )  # fmt: skip
    return [
        "start to first text", f"{ours:.2f} s", f"{peer:.2f} s", f"{ours / peer:.2f}", f"at most {START}", verdict,
    ]  # fmt: skip


def dumps(bench: Any, say: Say) -> None:
    """Compare texts of every length, and whole processes; say of each bound whether it is met."""
    import torch
    from measure import commit, machine

    turns = min(_TURNS, bench.runs)
    real = bench.cuda and torch.version.cuda is not None
    gpu = torch.cuda.get_device_name() if real else bench.device
    origin = f"<!-- gpu.py dumps; {gpu}; {machine()}; commit {commit()} -->"
    lengths = SMALL_LENGTHS if bench.small else LENGTHS
    rows = {
        length: [
            unmeasured(length, keep, who, peer, bounds.get(length, bounds[64]))
            for keep, who, peer, bounds in KEPT
        ]
        for length, _, _ in lengths
    }
    whole = ["start to first text", "", "", "", f"at most {START}", _NOT_MEASURED]

    def write() -> str:
        """Write what is known by now, and return it."""
        cells = [row.cells() for length in sorted(rows) for row in rows[length]]
        processes = table(
            ["", "attnscope", "torch, from_pretrained", "ratio", "bound", ""], [whole]
        )
        text = "\n\n".join((origin, table(HEAD, cells), processes)) + "\n"
        Path(os.environ.get("OUT", "."), "gpu.md").write_text(text)
        return text

    write()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = write_model(folder / "llama", small=bench.small)
        contests = [Contest(model, bench.device, *row) for row in lengths]
        for index, contest in enumerate(contests):
            seconds = bench.until - time.monotonic() - _WHOLE
            share = max(1.0, seconds / (len(contests) - index))
            rows[contest.length] = compare(contest, turns, share, folder, say)
            write()
        whole = start(contests[0], turns, bench.until, folder, say)
        print(write())
        if real:
            say("memory at most", round(torch.cuda.max_memory_allocated() / 2**30, 1), "GiB")
    every = [row for found in rows.values() for row in found]
    verdicts = [*(row.verdict for row in every if row.verdict), whole[-1]]
    say("bounds", f"{verdicts.count('met')} of {len(verdicts)} met")
