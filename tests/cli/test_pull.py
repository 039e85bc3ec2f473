"""`attnscope pull` against a server on this machine that speaks the hub's API."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from attnscope.checkpoints.samples import samples_folder
from tests.helpers import fork_server
from tests.helpers.hub_server import COMMIT, serve

MODEL = {
    name: (samples_folder("sample_weights") / "riverbank" / name).read_bytes()
    for name in ("config.json", "tokenizer.json", "model.safetensors")
}
INDEX = {"weight_map": {"a": "model-00001.safetensors", "b": "model-00002.safetensors"}}
REPOSITORIES = {
    "org/name": {**MODEL, "pytorch_model.bin": b"x", "onnx/model.onnx": b"x", "consolidated.safetensors": b"x"},
    "sharded": {"config.json": b"{}", "model.safetensors.index.json": json.dumps(INDEX).encode(),
                "model-00001.safetensors": b"1", "model-00002.safetensors": b"2", "vocab.txt": b"a"},
    "org/sentences": {"modules.json": json.dumps([{"type": "x.models.Transformer", "path": "0_Transformer"}]).encode(),
                      **{f"0_Transformer/{name}": data for name, data in MODEL.items()}},
    "org/pickles": {"config.json": b"{}", "pytorch_model.bin": b"x"},
    "org/gguf": {"model.Q4_0.gguf": b"x"},
    "org/ggufs": {f"{n}.gguf": b"x" for n in range(4)},
    "org/lacking": {"config.json": b"{}", "model.safetensors.index.json": json.dumps(INDEX).encode()},
    "org/gated": MODEL,
}  # fmt: skip


def environment(folder: Path, url: str) -> dict[str, str]:
    given = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HF_", "TRANSFORMERS_"))
    }
    return given | {"HF_HOME": str(folder), "HF_ENDPOINT": url, "NO_PROXY": "127.0.0.1"}


def attnscope(folder: Path, url: str, *args: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a process that cannot import torch, which nothing here needs."""
    given = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "hidden": ("torch",),
    }
    done = fork_server.run("", *args, env=environment(folder, url) | more, **given)
    return subprocess.CompletedProcess(
        args, done.returncode, done.stdout.decode(), done.stderr.decode()
    )


def fetched(asked: list[str]) -> list[str]:
    return [
        line.partition("/resolve/main/")[2]
        for line in asked
        if line.startswith("GET") and "/resolve/" in line
    ]


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("org/name", {"config.json", "tokenizer.json", "model.safetensors"}),
        (
            "sharded",
            {
                "config.json",
                "vocab.txt",
                "model.safetensors.index.json",
                *INDEX["weight_map"].values(),
            },
        ),
        ("org/sentences", {"modules.json", *(f"0_Transformer/{name}" for name in MODEL)}),
    ],
)
def test_what_is_read_is_fetched_and_nothing_else(
    tmp_path: Path, name: str, files: set[str]
) -> None:
    with serve(REPOSITORIES) as (url, asked):
        ran = attnscope(tmp_path, url, "pull", name)
    folder = tmp_path / "hub" / f"models--{name.replace('/', '--')}" / "snapshots" / COMMIT
    assert (ran.returncode, ran.stdout) == (0, f"{folder}\n"), ran.stderr
    assert sorted(fetched(asked)) == sorted(files)
    assert {
        str(file.relative_to(folder)) for file in folder.rglob("*.*") if file.is_file()
    } == files
    for file in files:
        assert (folder / file).read_bytes() == REPOSITORIES[name][file]


def test_what_was_pulled_is_found_by_its_name(tmp_path: Path) -> None:
    with serve(REPOSITORIES) as (url, asked):
        assert attnscope(tmp_path, url, "pull", "org/sentences", "--quiet").stderr == ""
        count = len(asked)
        ran = attnscope(tmp_path, url, "info", "--model", "org/sentences")
        assert len(asked) == count, "info has asked the network"
    assert ran.returncode == 0, ran.stderr
    assert "0_Transformer" in ran.stdout


REFUSED = {
    "org/none": "org/none: there is no such repository; check its name",
    "org/gated": "org/gated: is gated; accept its terms at https://huggingface.co/org/gated, and log in: hf auth login",
    "org/pickles": "has its weights only as pickles (pytorch_model.bin); run: hf download org/pickles, then attnscope",
    "org/gguf": "has no config.json, but model.Q4_0.gguf; run: hf download org/gguf model.Q4_0.gguf, and pass",
    "org/ggufs": "has no config.json, but 0.gguf, 1.gguf, 2.gguf, …; run: hf download org/ggufs 0.gguf, and pass",
    "org/lacking": "has no model-00001.safetensors, which model.safetensors.index.json lists",
    "a b": "'a b' is not the name of a repository; use a name such as org/name",
}


def test_what_cannot_be_fetched_is_refused_in_one_line(tmp_path: Path) -> None:
    code = "import sys; from attnscope.cli import main; print(*(main(['pull', name]) for name in sys.argv[1:]))"
    with serve(REPOSITORIES, gated=("org/gated",)) as (url, _):
        command = [sys.executable, "-c", code, *REFUSED]
        ran = subprocess.run(
            command, env=environment(tmp_path, url), capture_output=True, text=True
        )
    assert ran.stdout.split() == ["1"] * 6 + ["2"]
    for line, said in zip(ran.stderr.splitlines(), REFUSED.values(), strict=True):
        assert line.startswith("attnscope: error: ") and said in line


def test_no_network_and_offline_mode(tmp_path: Path) -> None:
    with serve(REPOSITORIES) as (url, asked):
        ran = attnscope(tmp_path, url, "pull", "org/name", HF_HUB_OFFLINE="1")
        assert (ran.returncode, asked) == (1, [])
        assert "in offline mode; unset HF_HUB_OFFLINE" in ran.stderr
    ran = attnscope(tmp_path, url, "pull", "org/name")
    assert ran.returncode == 1
    assert "cannot be downloaded (" in ran.stderr and ran.stderr.count("\n") == 1
