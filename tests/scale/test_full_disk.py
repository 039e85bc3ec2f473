"""A real disk that is full: what is written is kept, and the same command goes on once there is space."""

import re
import subprocess
from pathlib import Path

import pytest

from attnscope.cli import main
from tests.scale.test_merge import content, lines

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"


@pytest.fixture
def disk(tmp_path, monkeypatch):
    """A file system of 300 kB in the folder `disk`, and a function that gives it more."""
    (tmp_path / "texts.txt").write_text("".join(f"{line}\n" for line in lines(60)))
    (tmp_path / "disk").mkdir()
    monkeypatch.chdir(tmp_path)

    def mount(options):
        command = ["mount", "-t", "tmpfs", "-o", options, "attnscope", str(tmp_path / "disk")]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    try:
        made = mount("size=300k")
    except FileNotFoundError:
        pytest.skip("there is no program that mounts a file system")
    if made.returncode:
        pytest.skip(f"a file system cannot be mounted: {made.stderr.strip()}")
    yield lambda: mount("remount,size=20m").check_returncode()
    subprocess.run(["umount", str(tmp_path / "disk")], check=True)


@pytest.mark.parametrize("name", ["dump-part-7.jsonl", "dump", "tables.parquet/"])
def test_a_dump_goes_on_after_its_disk_was_full(disk, capsys, name):
    call = [
        "batch",
        "texts.txt",
        "--threads",
        "1",
        "--quiet",
        *([] if "." in name else ["--stage", "weights"]),
        "-o",
    ]
    for workers in ("1", "2"):
        assert main([*call, f"disk/{name}", "--workers", workers]) == 1
        end = re.fullmatch(
            r"attnscope: error: disk/[^.].*(: cannot be written .*)\n", capsys.readouterr().err
        )[1]
        assert f"`dump-part-7.jsonl{end}`" in PAGE.read_text()
    assert main(["batch", "texts.txt", "-o", f"disk/{name}", "--status"]) == 0
    done = int(re.match(r"\d+", capsys.readouterr().out)[0])
    assert 0 < done < 60
    disk()
    assert main([*call, f"disk/{name}"]) == 0
    assert main([*call, name]) == 0
    assert content(Path("disk") / name) == content(Path(name))


def test_a_merge_leaves_nothing_on_a_full_disk(disk, capsys):
    for number in (1, 2):
        assert (
            main(
                ["batch", "texts.txt", "-o", f"{number}.jsonl", "--shard", f"{number}/2", "--quiet"]
            )
            == 0
        )
    assert main(["merge", "1.jsonl", "2.jsonl", "-o", "disk/d.jsonl", "--quiet"]) == 1
    assert capsys.readouterr().err == (
        "attnscope: error: disk/d.jsonl: cannot be written (No space left on device); nothing was written\n"
    )
    assert "`(No space left on device); nothing was written`" in PAGE.read_text()
    assert [*Path("disk").iterdir()] == []
