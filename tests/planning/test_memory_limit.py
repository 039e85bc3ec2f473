"""A run that takes more memory than it may stops itself, whatever its estimate said."""

from pathlib import Path

import pytest
import torch

from attnscope.base.errors import MemoryExceeded
from attnscope.base.system.machine import resident_memory
from attnscope.batch import loading
from attnscope.batch.dump import write_dump
from attnscope.batch.header import Settings
from attnscope.batch.loading import DumpConfig
from attnscope.cli import main
from attnscope.model.recorders import RowRecorder
from attnscope.request.memory import MemoryLimit
from attnscope.request.run_config import TextInput
from attnscope.run import plan as run_plan
from attnscope.run.session import inspect
from tests.helpers.requests import requested

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="only Linux tells what a process holds"
)
HELD = 128 << 20  # bytes that the recorder below keeps of every tile
MODEL = {"config": "bidirectional"}


@pytest.fixture
def hoard(monkeypatch):
    """What recorders of rows keep of every tile in addition, which no estimate knows."""
    held, see = [], RowRecorder.update

    def see_and_keep(self, tile):
        held.append(torch.ones(HELD // 4))
        see(self, tile)

    monkeypatch.setattr(RowRecorder, "update", see_and_keep)
    return held


@pytest.fixture
def tight(monkeypatch):
    """A run may take as much as it was estimated to, and what two tiles keep."""
    real = run_plan.spare_memory

    def room(*args, **options):
        spare, streamed, memory = real(*args, **options)
        estimated = memory.estimate
        return spare, streamed, MemoryLimit(estimated + 2 * HELD, "--max-memory", estimated)

    for module in (run_plan, loading):
        monkeypatch.setattr(module, "spare_memory", room)


def test_it_ends_within_a_few_tiles_and_says_what_it_reached(hoard, tight, capsys):
    text = " ".join("river" if i % 2 else "bank" for i in range(4000))
    assert (
        main(
            [
                "run",
                text,
                "--config",
                "sliding-window",
                "--layer",
                "0",
                "--head",
                "all",
                "--pool",
                "4",
            ]
        )
        == 1
    )
    # five without a system that takes unread pages back, which makes a process smaller while it runs
    assert 2 <= len(hoard) <= 9 < 4000 // 256
    said = capsys.readouterr().err.splitlines()[-1]
    assert "stopped at " in said
    assert "--max-memory is " in said
    assert "(the estimate was about " in said
    assert said.endswith("; raise --max-memory, and please report the estimate")


def test_what_was_there_before_is_not_the_runs(tight):
    ballast = torch.ones(4 * HELD // 4)
    assert inspect(requested((TextInput("the bank"),), **MODEL)).texts
    assert ballast.sum() == len(ballast)


def test_a_layer_that_nobody_watches_is_a_boundary_too(tight, monkeypatch):
    calls = []
    monkeypatch.setattr(MemoryLimit, "check", lambda self: calls.append(resident_memory()))
    inspect(requested((TextInput("the bank"),), layer="-1", head="0", **MODEL))
    assert len(calls) >= 4  # two layers, a tile and a report


def test_a_batch_ends_and_goes_on_later(hoard, tight, tmp_path, monkeypatch):
    source = tmp_path / "texts.txt"
    # ten tiles: systems that take unread pages of programs back make a process smaller while it runs
    source.write_text("".join("bank " * n + "\n" for n in range(1, 6)))
    given = requested((), max_memory=4 << 30, **MODEL)

    def write(name):
        write_dump(
            DumpConfig(str(source), None, tmp_path / name, Settings(), given), lambda *_: None
        )

    with pytest.raises(MemoryExceeded):  # and not five records that failed
        write("dump.jsonl")
    assert b'"failed"' not in (tmp_path / "dump.jsonl").read_bytes()
    monkeypatch.undo()
    write("dump.jsonl")
    write("whole.jsonl")
    assert (tmp_path / "dump.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
