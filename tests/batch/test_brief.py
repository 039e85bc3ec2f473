"""A default dump is small, and its windows are: what it rounds and leaves out, and how soon it is saved."""

import gc
import threading
import weakref
from itertools import islice
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from attnscope.base.errors import AttnscopeError
from attnscope.base.model_config import ModelConfig
from attnscope.base.system import signals
from attnscope.batch import loading
from attnscope.batch.background import BackgroundWriter, RecordSink
from attnscope.batch.dump_reader import Dump
from attnscope.batch.items import from_txt
from attnscope.batch.journal import JournalState
from attnscope.batch.runner import Runner, RunOptions
from attnscope.cli import main
from attnscope.findings.row_statistics import STATISTICS
from tests.helpers import batch_fakes
from tests.helpers.batch_fakes import BOUNDS, HOLDS, Work

TEXT = "A man who swims in the sea at noon takes care to"
BRIEF = {"entropy", "first", "special", "self"}


def test_a_brief_dump_is_the_whole_one_rounded(tmp_path, monkeypatch, minilm):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.txt").write_text(f"{TEXT}\nRivers erode banks\n")
    for name, more in (("brief", []), ("all", ["--keep", "all"])):
        assert (
            main(["batch", "texts.txt", "-o", f"{name}.jsonl", "-m", str(minilm), "--quiet", *more])
            == 0
        )
    assert len((tmp_path / "brief.jsonl").read_bytes().splitlines()[1]) <= 60_000
    brief, whole = (list(Dump(tmp_path / f"{name}.jsonl").records()) for name in ("brief", "all"))
    assert len(brief[0].tokens) == 15
    assert len(brief[0].units) == 72
    for one, other in zip(brief, whole, strict=True):
        assert (one.columns, one.pooled) == (None, None)
        assert other.columns.shape == (72, len(other.tokens))
        assert other.pooled is not None
        assert {name for name in STATISTICS if getattr(one.rows, name) is not None} == BRIEF
        assert all(getattr(other.rows, name) is not None for name in STATISTICS)
        np.testing.assert_array_equal(one.top.keys, other.top.keys)
        pairs = [(getattr(one.rows, name), getattr(other.rows, name)) for name in sorted(BRIEF)]
        for rounded, exact in [*pairs, (one.top.weight, other.top.weight)]:
            np.testing.assert_allclose(rounded, exact, rtol=0, atol=0.000501)
            np.testing.assert_allclose(rounded * 1000, np.round(rounded * 1000), rtol=0, atol=1e-3)
            assert not np.array_equal(rounded, exact)
    assert main(["convert", "brief.jsonl", "rows.csv", "--table", "rows", "--quiet"]) == 0
    heading = (tmp_path / "rows.csv").read_text().splitlines()[0].split(",")
    assert heading[6:] == ["entropy", "first", "special", "self", "sink", "unselected", "gate"]


def test_brief_beside_exact_findings_is_refused(tmp_path, capsys):
    assert main(["batch", "texts.txt", "-o", str(tmp_path / "x"), "--keep", "brief,columns"]) == 2
    said = "--keep: brief cannot be combined with exact findings; remove brief, or the others"
    assert capsys.readouterr().err == f"attnscope: error: {said}\n"


class Windows(RecordSink):
    """Takes records, and notes which came together."""

    needs_all_records = False

    def __init__(self):
        super().__init__(SimpleNamespace(written=JournalState()))
        self.windows = []

    def encode(self, records, new):
        return records

    def first(self, encoded, count):
        return encoded[:count]

    def write_encoded(self, encoded, new):
        self.windows.append([record.index for record in encoded])


@pytest.mark.parametrize(
    ("most", "windows"), [(0, [[0, 1, 2, 3, 4]]), (5, [[0, 1], [2], [3, 4]]), (1, None)]
)
def test_a_window_has_so_many_tokens_at_most(tmp_path, most, windows):
    (tmp_path / "texts").write_text("a b\nc d e\nf g h i j k\nl\nm n\n")
    sink, bounds = Windows(), msgspec.structs.replace(BOUNDS, window=10**6, window_tokens=most)
    with open(tmp_path / "texts", "rb") as file:
        runner = Runner(Work(), sink, RunOptions(bounds, HOLDS, sink.written, lambda summary: None))
        runner.run(from_txt(file, "texts"))
    assert sink.windows == (windows or [[n] for n in range(5)])


def test_a_run_that_ended_keeps_no_model(tmp_path):
    (tmp_path / "texts").write_text("a b\nc d e\n")
    work = Work()
    kept = weakref.ref(work)
    with open(tmp_path / "texts", "rb") as file:
        runner = Runner(
            work, Windows(), RunOptions(BOUNDS, HOLDS, JournalState(), lambda summary: None)
        )
        runner.run(from_txt(file, "texts"))
    gc.collect()
    gc.disable()  # a collection may be long in coming
    try:
        del work, runner
        assert kept() is None
    finally:
        gc.enable()


def test_a_window_is_written_although_the_next_cannot_be_read(tmp_path):
    (tmp_path / "texts").write_text("a b\n" * 40)

    def broken(file):
        yield from islice(from_txt(file, "texts"), 35)
        raise AttnscopeError("the disk is gone")

    bounds = msgspec.structs.replace(BOUNDS, window=10**6, window_tokens=40)
    sink = Windows()
    with open(tmp_path / "texts", "rb") as file:
        runner = Runner(Work(), sink, RunOptions(bounds, HOLDS, sink.written, lambda summary: None))
        with pytest.raises(AttnscopeError, match="the disk is gone"):
            runner.run(broken(file))
    assert sink.windows == [list(range(20))]


def test_a_signal_saves_nothing_after_records_that_could_not_be_written():
    class Full(Windows):
        def write_encoded(self, encoded, new):
            super().write_encoded(encoded, new)
            raise AttnscopeError("the disk is full")

    sink = Full()
    with BackgroundWriter(sink) as writer:
        writer.submit(lambda: sink.write_encoded([SimpleNamespace(index=0)], 1), lambda: None)
        writer.finish([SimpleNamespace(index=1)], 10)
    assert sink.windows == [[0]]


class Interrupted(BaseException):
    """The process ends here."""


class Signalled(Work):
    """A signal comes while the given group is computed."""

    def __init__(self, group):
        super().__init__()
        self.left = group

    def process(self, ready, following=(), meanwhile=None):
        if not self.left:
            signal = threading.Thread(target=signals.finish, args=(10,))
            signal.start()
            signal.join()
            raise Interrupted
        self.left -= 1
        return super().process(ready)


@pytest.mark.parametrize(
    ("group", "strict", "saved"), [(1, False, 2), (2, False, 3), (2, True, 1), (3, False, 5)]
)
def test_a_signal_saves_the_texts_that_are_done_up_to_the_first_that_is_not(
    tmp_path, monkeypatch, group, strict, saved
):
    """Groups are computed in the order of length: three words wait until one and two words are done."""
    (tmp_path / "texts").write_text("a\nbad b\nc c\nd d d\ne\nf f f f\ng\n")
    monkeypatch.setattr(
        batch_fakes, "BOUNDS", msgspec.structs.replace(BOUNDS, values=10**6, window=10**6)
    )
    batch_fakes.dump(tmp_path / "texts", tmp_path / "whole.jsonl")
    work = Signalled(group)
    with monkeypatch.context() as patched:
        patched.setattr(batch_fakes, "Work", lambda pause: work)
        with pytest.raises(Interrupted):
            batch_fakes.dump(tmp_path / "texts", tmp_path / "cut.jsonl", strict=strict)
    lines = (tmp_path / "whole.jsonl").read_bytes().splitlines(keepends=True)
    assert (tmp_path / "cut.jsonl").read_bytes() == b"".join(lines[: 1 + saved])
    batch_fakes.dump(tmp_path / "texts", tmp_path / "cut.jsonl")
    assert (tmp_path / "cut.jsonl").read_bytes() == b"".join(lines)


@pytest.mark.parametrize(
    ("layers", "d_model", "device", "tokens"),
    [
        (6, 384, "cpu", (64, 18838)),
        (30, 960, "cpu", (64, 603)),
        (30, 960, "cuda", (64, 602816)),
        (40, 5120, "cuda", (0, 16384)),
        (40, 5120, "cpu", (0, 1024)),
    ],
    ids=["MiniLM", "300M", "on a GPU", "13B on a GPU", "13B"],
)
def test_a_window_is_done_in_seconds_and_large_models_have_whole_groups(
    layers, d_model, device, tokens
):
    sizes = {
        "n_heads": 4,
        "n_kv_heads": 4,
        "d_head": d_model // 4,
        "d_value": d_model // 4,
        "d_mlp": 4 * d_model,
    }
    config = ModelConfig(
        vocab_size=10, n_layers=layers, d_model=d_model, out_projection=True, **sizes
    )
    source = SimpleNamespace(config=config)
    bounds = msgspec.structs.replace(BOUNDS, tokens=16384 if device == "cuda" else 1024)
    assert loading._window_tokens(source, bounds, device, 0) == pytest.approx(tokens, rel=0.01)
    # where every head is cut, a text costs a pass for each
    first, most = loading._window_tokens(source, bounds, device, 99)
    assert first <= most <= max(1, loading._window_tokens(source, bounds, device, 0)[1] // 50)
