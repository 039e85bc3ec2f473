"""What runs where locks, signal masks, /proc, glibc and direct files are missing, as on Windows and macOS.

Every test runs a process in which `tests.helpers.other_platform` hides them.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from attnscope.system import cgroups, memory

ROOT = Path(__file__).parent.parent.parent
MAIN = """
import sys
import tests.helpers.other_platform
from attnscope.cli import main
assert sys.modules["fcntl"] is None
sys.exit(main())
"""


def run(*args: str | Path, cwd: Path, hidden: bool = True) -> subprocess.CompletedProcess[str]:
    program = ["-c", MAIN] if hidden else ["-m", "attnscope"]
    return subprocess.run(
        [sys.executable, *program, *map(str, args)], cwd=cwd, capture_output=True, text=True, timeout=100, check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "80"},
    )  # fmt: skip


def test_files_and_the_journal_of_a_dump():
    tests = ["tests/files", "tests/batch/test_journal.py", "tests/batch/test_convert.py", "tests/batch/test_reader.py"]
    options = ["-n", "0", "-p", "no:cacheprovider", "-p", "tests.helpers.other_platform", "-m", "not unix"]
    found = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests], cwd=ROOT, capture_output=True, text=True, timeout=300,
        env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stdout[-3000:] + found.stderr


@pytest.mark.parametrize(
    "args",
    [
        ["run", "The bank by the river", "--head", "all"],
        ["compare", "The bank by the river", "--mask", "own", "--mask", "causal"],
        ["explain", "The bank by the river", "--query", "bank"],
    ],
)
def test_screens_are_the_same(tmp_path, args):
    here, there = run(*args, cwd=tmp_path, hidden=False), run(*args, cwd=tmp_path)
    assert (there.returncode, there.stderr) == (0, "")
    assert there.stdout == here.stdout


def test_a_dump_is_written_resumed_and_the_same(tmp_path):
    (tmp_path / "texts.txt").write_text("The bank by the river\nThe river\n" * 20)
    for name, hidden in (("here.jsonl", False), ("there.jsonl", True)):
        found = run("batch", "texts.txt", "--output", name, cwd=tmp_path, hidden=hidden)
        assert found.returncode == 0, found.stderr
    whole = (tmp_path / "here.jsonl").read_bytes()
    assert (tmp_path / "there.jsonl").read_bytes() == whole
    (tmp_path / "there.jsonl").write_bytes(whole[: len(whole) // 2])
    assert run("batch", "texts.txt", "--output", "there.jsonl", cwd=tmp_path).returncode == 0
    assert (tmp_path / "there.jsonl").read_bytes() == whole
    full = ["--stage", "weights", "--output", "full"]
    assert run("batch", "texts.txt", *full, cwd=tmp_path).returncode == 0
    assert list((tmp_path / "full").glob("*.safetensors"))


def test_all_memory_of_the_machine_counts_where_the_free_memory_is_unknown(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "_PROC", tmp_path)
    monkeypatch.setattr(cgroups, "ROOT", tmp_path)
    assert memory.resident_memory() == 0
    assert memory.available_memory() == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    monkeypatch.delattr(os, "sysconf")
    assert memory.available_memory() == 1 << 62


def test_only_the_folder_system_knows_what_differs():
    words = (
        "fcntl",
        "pthread_sigmask",
        "fchmod",
        "os.link",
        "O_DIRECT",
        "O_NONBLOCK",
        "MADV_",
        "mallopt",
        '"/proc',
        "/sys/",
    )
    found = [
        f"{path.relative_to(ROOT)}: {word}"
        for path in (ROOT / "attnscope").rglob("*.py")
        for word in words
        if path.parent.name != "system" and word in path.read_text()
    ]
    assert found == []
    assert hasattr(signal, "pthread_sigmask"), "this test runs on Unix, where there is something to hide"
