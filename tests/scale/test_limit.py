"""A limit that grows: the dump goes on, and comes out as one that was never limited to less."""

from pathlib import Path

import pytest

from attnscope.cli import main
from tests.scale.test_merge import QUIET, content


def write(output, *options):
    return main(["batch", "texts.txt", "-o", output, *QUIET, *options])


@pytest.mark.parametrize("ending", [".jsonl", "", ".parquet/"])
def test_a_limit_may_grow(folder, ending):
    """From within a block, twice, with workers and without, and at last to the whole input."""
    for limit in (97, None):
        options = [] if limit is None else ["--limit", str(limit)]
        assert write(f"{limit}{ending}", "--skip", "3", *options) == 0
    output = f"d{ending}"
    assert write(output, "--skip", "3", "--limit", "60") == 0
    assert write(output, "--skip", "3", "--limit", "97") == 0
    assert content(folder / output) == content(folder / f"97{ending}")
    assert write(output, "--skip", "3", "--workers", "2") == 0
    assert content(folder / output) == content(folder / f"None{ending}")


def test_a_part_of_a_limit_may_grow(folder):
    for number in (1, 2):
        assert write(f"part-{number}.jsonl", "--shard", f"{number}/2", "--limit", "60") == 0
        assert write(f"part-{number}.jsonl", "--shard", f"{number}/2", "--limit", "97") == 0
    assert main(["merge", "part-1.jsonl", "part-2.jsonl", "-o", "d.jsonl", "--quiet"]) == 0
    assert write("alone.jsonl", "--limit", "97") == 0
    assert content(folder / "d.jsonl") == content(folder / "alone.jsonl")


def test_an_unfinished_dump_may_grow(folder):
    assert write("alone.jsonl", "--limit", "97") == 0
    assert write("d.jsonl", "--limit", "60") == 0
    path = folder / "d.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:41])[:-7])
    assert write("d.jsonl", "--limit", "97") == 0
    assert content(path) == content(folder / "alone.jsonl")


def test_a_limit_does_not_shrink(folder, capsys):
    assert write("d.jsonl", "--limit", "60") == 0
    old = Path("d.jsonl").read_bytes()
    assert write("d.jsonl", "--limit", "59") == 1
    assert "was started with --limit 60, now it is --limit 59" in capsys.readouterr().err
    assert Path("d.jsonl").read_bytes() == old
