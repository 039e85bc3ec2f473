"""What runs where locks, signal masks, /proc, glibc and direct files are missing, as on Windows and macOS.

Every test runs a process in which `tests.helpers.other_platform` hides them.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from attnscope.base.system import machine
from attnscope.cli import main

ROOT = Path(__file__).parent.parent.parent
MAIN = """
import json, sys
import tests.helpers.other_platform
from attnscope.cli import main
assert sys.modules["fcntl"] is None
for args in json.loads(sys.argv[1]):
    code = main(args)
    sys.stdout.flush()
    print(code, end=chr(0), flush=True)
"""


def run_hidden(*commands: Sequence[str], cwd: Path) -> list[str]:
    """What commands print, run one after the other in one process, where all of them end well and say no more."""
    found = subprocess.run(
        [sys.executable, "-c", MAIN, json.dumps(commands)], cwd=cwd, capture_output=True, text=True, timeout=100,
        check=False, env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "80"},
    )  # fmt: skip
    assert (found.returncode, found.stderr) == (0, "")
    ends = found.stdout.split("\0")
    assert [end[-1:] for end in ends] == [*("0" for _ in commands), ""]
    return [end[:-1] for end in ends[:-1]]


def test_files_and_the_journal_of_a_dump():
    tests = [
        "tests/files",
        "tests/batch/test_journal.py",
        "tests/batch/test_convert.py",
        "tests/batch/test_reader.py",
    ]
    tests += ["--ignore", "tests/files/test_file_of_texts.py"]  # screens
    options = [
        *"-n 0 --assert plain -p no:cacheprovider -p tests.helpers.other_platform -m".split(),
        "not unix",
    ]
    found = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests], cwd=ROOT, capture_output=True, text=True, timeout=300,
        env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stdout[-3000:] + found.stderr


SCREENS = [
    ["run", "The bank by the river", "--head", "all"],
    ["compare", "The bank by the river", "--mask", "own", "--mask", "causal"],
    ["explain", "The bank by the river", "--query", "bank"],
    ["run", "--file", "texts.txt", "--pool", "4"],
]
BATCH = ["batch", "texts.txt", "--quiet", "--output"]


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A folder with a dump from here and those that were written there, one of them resumed; and what was printed."""
    folder = tmp_path_factory.mktemp("there")
    (folder / "texts.txt").write_text("The bank by the river\nThe river\n" * 20)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("OMP_NUM_THREADS", "1")  # a dump says with how many threads it was written
        assert main([*BATCH, "here.jsonl"]) == 0
    whole = (folder / "here.jsonl").read_bytes()
    (folder / "torn.jsonl").write_bytes(whole[: len(whole) // 2])
    dumps = [*BATCH, "there.jsonl"], [*BATCH, "torn.jsonl"], [*BATCH, "full", "--stage", "weights"]
    return folder, run_hidden(*SCREENS, *dumps, cwd=folder)


def test_screens_are_the_same(there, monkeypatch, capsys):
    folder, screens = there
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "80")
    for command, screen in zip(SCREENS, screens, strict=False):
        assert main(command) == 0
        assert screen == capsys.readouterr().out


def test_a_dump_is_written_resumed_and_the_same(there):
    folder, _ = there
    whole = (folder / "here.jsonl").read_bytes()
    assert (folder / "there.jsonl").read_bytes() == whole
    assert (folder / "torn.jsonl").read_bytes() == whole
    assert list((folder / "full").glob("*.safetensors"))


def test_all_memory_of_the_machine_counts_where_the_free_memory_is_unknown(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "_PROC", tmp_path)
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    assert machine.resident_memory() == 0
    assert machine.available_memory() == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    monkeypatch.delattr(os, "sysconf")
    assert machine.available_memory() == 1 << 62


def test_only_the_folder_system_knows_what_differs():
    words = 'fcntl pthread_sigmask fchmod os.link O_NONBLOCK MADV_ mallopt "/proc /sys/'
    found = [
        f"{path.relative_to(ROOT)}: {word}"
        for path in (ROOT / "attnscope").rglob("*.py")
        for word in words.split()
        if path.parent.name != "system" and word in path.read_text()
    ]
    assert found == []
    assert hasattr(signal, "pthread_sigmask"), (
        "this test runs on Unix, where there is something to hide"
    )
