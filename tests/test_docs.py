"""Run every example of the README and of docs/, compare every screen with the real one, and follow every link.

`ATTNSCOPE_SNAPSHOTS=write python -m pytest tests/test_docs.py` rewrites the screens and `docs/screen.svg`; read the
diff. The Python and SQL of `docs/dumps.md` is run by `tests/batch/test_scripting.py`, that of `docs/python.md` and
`docs/doctor.md` by tests of their own, and all of `docs/rxnmapper.md` by `tests/rxnmapper`.
"""

import gzip
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file

from attnscope import inspect
from attnscope.cli import main
from attnscope.cli.commands import COMMANDS, load
from attnscope.findings.row_statistics import STATISTICS
from attnscope.studies.registry import present
from attnscope.views.terminal import draw
from tests.explore.headless import walk_without_terminal
from tests.helpers import architectures, fork_server, gguf_files, hybrids
from tests.helpers.hub_server import serve
from tests.helpers.tiny_models import TABLE
from tests.helpers.tiny_sound import noise, write_tiny_sound
from tests.helpers.tiny_vision import VISION, picture
from tests.helpers.tiny_vlm import PROMPTS
from tests.helpers.unpickling import unpickle_here

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
DOCS = ROOT / "docs"
PAGES = [README, *sorted(DOCS.glob("*.md"))]
LINKED = [*PAGES, *(ROOT / name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"))]
REWRITE = os.environ.get("ATTNSCOPE_SNAPSHOTS") == "write"
TEXTS = "the cat sleeps\nthe small dog runs fast\n"
MODELS = {
    "my-bert": "bert",
    "my-llama": "llama",
    "my-opt": "opt",
    "my-t5": "t5",
    "my-marian": "marian",
}
PULLED = "google-bert/bert-base-uncased"  # from a server on this machine
OPTIONAL = {
    "transformers": "--engine transformers",
    "PIL": "--image",
    "pyarrow": ".parquet",
    "typst": ".pdf",
}

named = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def blocks(page, language):
    """The fenced blocks of a page in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def commands(page):
    """Every command line that a page shows and that is run here; jq's one-liner is run by test_scripting.py."""
    lines = [
        line
        for block in blocks(page, "sh")
        for line in block.splitlines()
        if not line.startswith(("#", "jq "))
    ]
    return list(dict.fromkeys(lines))


def screens(page):
    """Every command with the output that a page shows for it."""
    return [
        re.fullmatch(r"\$ (.+)\n((?:.*\n)*)", block).groups() for block in blocks(page, "console")
    ]


def examples():
    return {name: load(name).examples for name in COMMANDS}


def save_weights(folder):
    """Weights that are no safetensors, and an adapter."""
    shutil.copytree(folder / "my-bert", folder / "old-bert")
    (folder / "old-bert" / "model.safetensors").unlink()
    torch.save(
        load_file(folder / "my-bert" / "model.safetensors"),
        folder / "old-bert" / "pytorch_model.bin",
    )
    gguf_files.write(folder / "my-llama.gguf", "llama", "Q4_0")
    (folder / "my-lora").mkdir()
    made = {"lora_A": torch.full((2, 32), 0.1), "lora_B": torch.full((32, 2), 0.1)}
    name = "base_model.model.layers.0.self_attn.q_proj"
    save_file(
        {f"{name}.{part}.weight": t for part, t in made.items()},
        folder / "my-lora" / "adapter_model.safetensors",
    )
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}
    (folder / "my-lora" / "adapter_config.json").write_text(json.dumps(config))


def save_chats(folder):
    """A chat template, the chat of the page, the same with its documents in another order, and a file of both."""
    (row,) = (row for row in TABLE if row.name == "gpt2")  # with an output head
    row.save(folder / "my-gpt2")
    architectures.write_tokenizer(folder / "my-gpt2")
    for model in ("my-llama", "my-gpt2"):
        shutil.copyfile(
            ROOT / "tests/chat/templates/phi3.jinja", folder / model / "chat_template.jinja"
        )
    (chat,) = (json.loads(block) for block in blocks(DOCS / "chats.md", "json"))
    system, user = chat["messages"]
    other = [system, user | {"content": [user["content"][n] for n in (1, 0, 2)]}]
    for name, value in (("chat.json", chat), ("other.json", other)):
        (folder / name).write_text(json.dumps(value))
    (folder / "chats.jsonl").write_text(f"{json.dumps(chat)}\n{json.dumps(other)}\n")


def save_vision(folder):
    """A vision model with its image processor, and a picture."""
    from PIL import Image

    next(row for row in VISION if row.name == "dinov2_with_registers").save(folder / "my-dinov2")
    next(row for row in PROMPTS if row.name == "qwen2_vl").save(
        folder / "my-qwen2-vl", template=True
    )
    Image.fromarray(picture(300, 440)).save(folder / "cat.png")
    first, second = (Image.fromarray(picture(32, 48, seed=seed)) for seed in (0, 1))
    first.save(folder / "clip.gif", save_all=True, append_images=[second, first, second])
    (tiny,) = blocks(DOCS / "images.md", "python")
    exec(tiny.replace('"my-vit"', repr(str(folder / "my-vit"))))


def save_sound(folder):
    """Models that hear, and a sound."""
    for name in ("whisper", "wav2vec2"):
        write_tiny_sound(name, folder / f"my-{name}")
    soundfile.write(folder / "talk.wav", noise(2), 16_000)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """A folder with every file and model that the examples name."""
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "texts.txt").write_text(TEXTS)
    (folder / "texts.txt.gz").write_bytes(gzip.compress(TEXTS.encode()))
    lines = "".join(f'{{"text": "{text}"}}\n' for text in TEXTS.splitlines())
    (folder / "texts.jsonl").write_text(lines)
    (folder / "texts.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (folder / "reviews.csv").write_text("stars,review\n5,the cat sleeps\n1,the dog runs\n")
    kinds = {**architectures.ONE_PART, **architectures.TWO_PARTS}
    for name, kind in MODELS.items():
        architectures.save(folder / name, architectures.make(kind, kinds[kind]))
    shutil.copytree(folder / "my-llama", folder / "my-llama-tuned")
    hybrids.save_hybrid(
        folder / "my-hybrid", hybrids.with_long_states(hybrids.make_hybrid("qwen3_next"))
    )
    hybrids.save_hybrid(folder / "my-mamba", hybrids.make_mamba())
    save_weights(folder)
    save_chats(folder)
    save_vision(folder)
    save_sound(folder)
    (folder / "batch.json").write_text(
        '{"input_ids": [[5, 6, 7, 8], [9, 10, 0, 0]], "attention_mask": [[1, 1, 1, 1], [1, 1, 0, 0]]}'
    )
    for name in ("report.json", "before.json", "after.json", "golden.json"):
        assert (
            main(
                [
                    "run",
                    "The bank by the river",
                    "--layer",
                    "3",
                    "--quiet",
                    "--output",
                    str(folder / name),
                ]
            )
            == 0
        )
    q, k, v = np.random.default_rng(0).normal(size=(3, 2, 4, 8)).astype(np.float32)
    arrays = {"layer.0.q": q, "layer.0.k": k, "layer.0.v": v}
    np.savez(
        folder / "qkv.npz", **arrays, tokens=["The", "bank", "by", "the"], mask="causal", scale=0.35
    )
    q, k, v = np.random.default_rng(1).normal(size=(3, 2, 4, 4, 8)).astype(np.float32)
    np.savez(folder / "vllm.npz", q=q, k=k, v=v, text="the cat sleeps")
    texts = str(folder / "texts.txt")
    assert main(["batch", texts, "--quiet", "-o", str(folder / "dump.jsonl")]) == 0
    for number in (1, 2, 3):
        part = str(folder / f"part-{number}.jsonl")
        assert main(["batch", texts, "--quiet", "-o", part, "--shard", f"{number}/3"]) == 0
    assert (
        main(["batch", texts, "--quiet", "--stage", "weights", "-o", str(folder / "matrices")]) == 0
    )
    for part in ("heads", "effects"):
        assert (
            main(["batch", texts, "--quiet", "--keep", part, "-o", str(folder / f"{part}.jsonl")])
            == 0
        )
    spans = ["--keep", "spans", "--spans", "sentences", "-o", str(folder / "spans.jsonl")]
    assert main(["batch", texts, "--quiet", *spans]) == 0
    return folder


def link_or_copy(source, target):
    """Another name of a file, or a copy where that is on another disk."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


@pytest.fixture
def folder(inputs, tmp_path, monkeypatch):
    """A working folder of its own with the inputs."""
    # Links take a tenth of the time of copies; attnscope replaces files and never writes into one but a dump.
    shutil.copytree(inputs, tmp_path, dirs_exist_ok=True, copy_function=os.link)
    shutil.copytree(DOCS, tmp_path / "docs", copy_function=link_or_copy)
    unpickle_here(monkeypatch)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTHONUTF8", "1")
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("NO_COLOR", "FORCE_COLOR", "ATTNSCOPE_MODEL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shell(line, given=None):
    ran = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line], input=given, capture_output=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def attnscope(words, given=None):
    """What a process of attnscope prints; forked from one that has imported everything, which saves two seconds."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    ran = fork_server.run("", *words, input=given, env=dict(os.environ), **pipes)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def pipe(line):
    """What the last of the processes of a pipe prints, which run one after the other."""
    data = None
    for part in line.split(" | "):
        words = shlex.split(part, comments=True)
        data = attnscope(words[1:], data) if words[0] == "attnscope" else shell(part, data)
    return data.decode()


def test_the_readme_is_short():
    assert len(README.read_bytes()) <= 12 * 1024


@named
def test_every_block_is_of_a_kind_that_is_run(page):
    known = {"sh", "console", "toml"} | {
        "README.md": {"python"},
        "python.md": {"python"},
        "doctor.md": {"python"},
        "dumps.md": {"python", "sql"},
        "chats.md": {"json"},
        "images.md": {"python"},
        "rxnmapper.md": {"bash", "python"},
        "other-engines.md": {"python", "cpp"},
    }.get(page.name, set())
    assert (
        set(re.findall(r"^```(\w*)\n.*?^```$", page.read_text(), re.MULTILINE | re.DOTALL)) <= known
    )


@pytest.mark.parametrize("command", examples())
def test_every_command_has_a_section_with_the_examples_of_its_help(command):
    section = (
        (DOCS / "commands.md")
        .read_text()
        .partition(f"\n## attnscope {command}\n")[2]
        .partition("\n## ")[0]
    )
    block, *_ = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    assert block.splitlines() == examples()[command].strip().splitlines()


@pytest.mark.parametrize("line", dict.fromkeys(line for page in PAGES for line in commands(page)))
def test_every_command_that_is_shown_runs(line, folder, capsys, monkeypatch):
    if line.startswith("attnscope explore "):
        walk_without_terminal(monkeypatch)
    for package, word in OPTIONAL.items():
        if word in line:
            pytest.importorskip(package, reason=f"{package} is not installed")
    if "| jq " in line and shutil.which("jq") is None:
        pytest.skip("jq is not installed")
    if PULLED in line:
        files = {file.name: file.read_bytes() for file in (folder / "my-bert").iterdir()}
        for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_CACHE"):
            monkeypatch.delenv(name, raising=False)
        with serve({PULLED: files}) as (url, _):
            monkeypatch.setenv("HF_ENDPOINT", url)
            monkeypatch.setenv("HF_HOME", str(folder / "cache"))
            attnscope(["pull", PULLED])
            pipe(line)
        return
    command, _, then = line.partition(" | ")
    words = shlex.split(line, comments=True)
    if "-o" in words:  # the dump that is there is one of other texts
        made = folder / words[words.index("-o") + 1]
        shutil.rmtree(made) if made.is_dir() else made.unlink(missing_ok=True)
    if words[0] == "attnscope":  # without a process, which takes a second
        assert main(shlex.split(command, comments=True)[1:]) == 0, capsys.readouterr().err
        if then:
            shell(then, capsys.readouterr().out.encode())
    else:
        pipe(line)


def test_the_padded_batch_of_the_walkthrough_shows_two_texts(folder, capsys):
    lines = [line for line in commands(DOCS / "walkthroughs.md") if "--file texts.txt" in line]
    (printf,) = (line for line in commands(DOCS / "walkthroughs.md") if line.startswith("printf "))
    shell(printf)
    assert (folder / "texts.txt").read_text() == TEXTS
    assert [line.endswith("--show-padding") for line in lines] == [False, False, True]
    for line in lines:
        assert main(shlex.split(line)[1:]) == 0
        out = capsys.readouterr().out
        assert out.count("L0H0") == 2
        assert ("(pad)" in out) == line.endswith("--show-padding")


@pytest.mark.parametrize("page", [p for p in PAGES if screens(p)], ids=lambda page: page.name)
def test_every_screen_is_what_a_terminal_of_80_columns_shows(page, folder, capsys):
    """A screen that ends in `…` is the beginning of a longer one."""
    for command, shown in screens(page):
        lines, cut = shown.splitlines(), shown.endswith("…\n")
        words = shlex.split(command)
        if words[0] == "attnscope" and "|" not in words:  # without a process, which takes a second
            assert main(words[1:]) == 0, capsys.readouterr().err
            seen = capsys.readouterr().out
        else:
            seen = pipe(command)
        real = [line.rstrip() for line in seen.rstrip().splitlines()]
        real = [*real[: len(lines) - 1], "…"] if cut else real
        if REWRITE:
            text = page.read_text()
            page.write_text(
                text.replace(f"$ {command}\n{shown}```", "\n".join([f"$ {command}", *real, "```"]))
            )
        else:
            assert lines == real
            assert len(lines) > 4


def drawn(source):
    """Texts with their colours, and coloured cells, of a picture; what else is in it is the affair of rich."""
    styles = dict(re.findall(r"^\s*\.[\w-]+-(r\d+) \{ (.*?) ?\}$", source, re.MULTILINE))
    found = []
    for node in ET.fromstring(source).iter():
        tag = node.tag.rpartition("}")[2]
        if (
            tag == "text"
            and "x" in node.attrib
            and node.get("class", "").rpartition("-")[2] in styles
        ):
            style = styles[node.get("class").rpartition("-")[2]]
            found.append((node.text.strip(), style, node.get("x"), node.get("y")))
        elif tag == "rect" and node.get("fill", "").startswith("#"):
            found.append((node.get("fill"), node.get("x"), node.get("y"), node.get("width")))
        elif tag == "path":
            found.append((node.get("fill"), node.get("d")))
    return found


def test_the_picture_is_what_the_tool_draws():
    console = Console(
        file=io.StringIO(),
        width=120,
        color_system="truecolor",
        force_terminal=True,
        record=True,
        legacy_windows=False,
    )
    draw(present(inspect("The bank by the river").data), console)
    # A picture loads nothing, also no font.
    picture = re.sub(
        r"@font-face\s*\{.*?\}\s*", "", console.export_svg(title="attnscope"), flags=re.DOTALL
    )
    if REWRITE:
        (DOCS / "screen.svg").write_text(picture)
    shown = drawn((DOCS / "screen.svg").read_text())
    assert shown == drawn(picture)
    assert len({row[0] for row in shown if row[0].startswith("#")}) > 5  # it is in colour
    assert any(row[0] == "0.97" for row in shown)


def test_the_stack_of_the_page_runs(folder, capsys):
    (block,) = blocks(DOCS / "stacks.md", "toml")
    Path("my.toml").write_text(block)
    assert main(["run", "The bank by the river", "--config", "my.toml"]) == 0, (
        capsys.readouterr().err
    )
    assert "random" in capsys.readouterr().out


def test_the_table_of_rows_names_every_statistic():
    (row,) = re.findall(r"^\| `rows` \|.*$", (DOCS / "dumps.md").read_text(), re.MULTILINE)
    assert {name for name in STATISTICS if not name.startswith("within_")} <= set(
        re.findall(r"`(\w+)`", row)
    )


def test_the_python_of_the_readme_prints_what_its_comments_say(folder, capsys):
    (block,) = blocks(README, "python")
    exec(block, {})
    promised = [line.split("  # ")[1] for line in block.splitlines() if "  # " in line]
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == len(promised) > 0
    for line, comment in zip(printed, promised, strict=True):
        assert re.fullmatch(re.escape(comment).replace("…", ".*"), line)


def anchors(page):
    """The anchors that a page's headings have on the web."""
    headings = re.findall(
        r"^#+ (.+)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.MULTILINE
    )
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page):
    """The targets of a page's links, those to the web aside."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    return [target for target in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in target]


@pytest.mark.parametrize("page", LINKED, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page):
    for target in links(page):
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.is_file() and there.is_relative_to(ROOT), target
        assert not anchor or anchor in anchors(there), target


def test_the_readme_leads_to_every_page():
    assert {f"docs/{page.name}" for page in DOCS.glob("*.md")} <= set(links(README))
