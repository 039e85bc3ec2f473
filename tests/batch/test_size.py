"""The line on what a dump will take, before it starts, is near what it takes then."""

import gzip
from pathlib import Path

import pytest

from attnscope.batch import size
from attnscope.batch.dump import write_dump
from attnscope.batch.header import Settings
from attnscope.batch.loading import DumpConfig
from attnscope.cli import main
from attnscope.request.options import BRIEF_DIGITS, BRIEF_STATISTICS
from tests.helpers.requests import requested

GLOSSES = Path(__file__).parents[2] / "benchmarks" / "data" / "glosses.txt.gz"
BRIEF = Settings(statistics=BRIEF_STATISTICS, digits=BRIEF_DIGITS)
CASES = {
    "brief": ("dump.jsonl", BRIEF),
    "a folder": ("dump", Settings()),
    "matrices": ("matrices", Settings(keep=("stages",), stages=("weights",))),
    "averages": ("heads.jsonl", Settings(keep=("heads",))),
    "some rows": ("rows.jsonl", Settings(query="0:3", keep=("rows",))),
}


@pytest.mark.parametrize("case", CASES)
def test_the_estimate_is_near_the_bytes_on_disk(tmp_path, case):
    name, settings = CASES[case]
    texts = [
        text
        for text in gzip.decompress(GLOSSES.read_bytes()).decode().splitlines()
        if len(text.split()) > 3
    ][:40]
    source, path, estimates = tmp_path / "texts.txt", tmp_path / name, []
    source.write_text("".join(f"{text}\n" for text in texts))
    order = DumpConfig(str(source), None, path, settings, requested((), model="riverbank"))
    write_dump(order, lambda summary, total: None, on_size=estimates.append)
    taken = sum(file.stat().st_size for file in (path.iterdir() if path.is_dir() else [path]))
    (estimate,) = estimates
    assert estimate.texts == len(texts)
    assert 0.6 * taken < estimate.bytes < 1.6 * taken
    assert (estimate.bytes == estimate.averages) == (case == "averages")


def test_one_line_before_a_large_dump_and_none_before_a_small_one(tmp_path, monkeypatch, capsys):
    (tmp_path / "texts.txt").write_text("the bank by the river\n" * 20)
    arguments = [
        "batch",
        str(tmp_path / "texts.txt"),
        "-o",
        str(tmp_path / "dump.jsonl"),
        "--keep",
        "top,rows",
    ]
    assert main([*arguments, "--force"]) == 0
    assert "size:" not in capsys.readouterr().err
    monkeypatch.setattr(size, "_WORTH_SAYING", 1000)
    assert main([*arguments, "--force"]) == 0
    first, *_ = capsys.readouterr().err.splitlines()
    assert first.startswith("attnscope: size: about ")
    assert " kB for 20; --keep heads takes " in first
    assert main(arguments) == 0
    assert "size:" not in capsys.readouterr().err, "a dump that goes on is no new one"


def test_sizes_are_spelled_as_disks_count():
    million = size.DumpSize(10_000, 20_000_000_000, 200_000_000)
    assert (
        million.describe("--keep heads")
        == "about 2.0 MB a text, 20 GB for 10,000; --keep heads takes 200 MB"
    )
    assert (
        size.DumpSize(10, 200_000_000, 190_000_000).describe("")
        == "about 20 MB a text, 200 MB for 10"
    )
    assert size.DumpSize(10, 90_000_000, 1).describe("") is None
