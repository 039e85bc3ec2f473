"""A default dump is small, and its windows are: what it rounds and leaves out, and how soon it is saved."""

import gc
import threading
import time
import weakref
from contextlib import nullcontext
from itertools import islice
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from attnscope.base.errors import AttnscopeError
from attnscope.base.model_config import ModelConfig
from attnscope.base.system import signals
from attnscope.batch import loading
from attnscope.batch.dump_reader import Dump
from attnscope.batch.items import from_txt
from attnscope.batch.journal import JournalState, RecordSink
from attnscope.batch.records import Record
from attnscope.batch.runner import Runner, RunOptions
from attnscope.batch.shards import pack
from attnscope.cli import main
from attnscope.findings.heads import HeadRef, Top
from attnscope.findings.row_statistics import STATISTICS
from attnscope.findings.tokens import Token
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


def test_blocks_are_written_although_a_later_one_cannot_be_read(tmp_path):
    (tmp_path / "texts").write_text("a b\n" * 40)

    def broken(file):
        for item in islice(from_txt(file, "texts"), 35):
            yield msgspec.structs.replace(item, block=item.index // 10)
        raise AttnscopeError("the disk is gone")

    bounds = msgspec.structs.replace(BOUNDS, window=10**6, window_tokens=40)
    sink = Windows()
    with open(tmp_path / "texts", "rb") as file:
        runner = Runner(Work(), sink, RunOptions(bounds, HOLDS, sink.written, lambda summary: None))
        with pytest.raises(AttnscopeError, match="the disk is gone"):
            runner.run(broken(file))
    assert sink.windows == [list(range(10)), list(range(10, 20))]


@pytest.mark.parametrize("refused", [False, True])
def test_a_signal_waits_for_the_window_that_is_being_written(tmp_path, refused):
    """Also while the run waits for it: the process ends after it, and what follows is computed again."""
    (tmp_path / "texts").write_text("a b\n" * 60)
    ended = []

    class Slow(Windows):
        def write_encoded(self, encoded, new):
            if not self.windows:
                signal.start()
                time.sleep(0.3)  # meanwhile, the run computes the next window, and waits
                assert not ended
            super().write_encoded(encoded, new)
            if refused:
                raise AttnscopeError("the disk is full")

    sink, bounds = Slow(), msgspec.structs.replace(BOUNDS, window=10**6, window_tokens=40)
    signal = threading.Thread(target=lambda: [signals.finish(10), ended.append([*sink.windows])])
    with open(tmp_path / "texts", "rb") as file:
        runner = Runner(Work(), sink, RunOptions(bounds, HOLDS, sink.written, lambda summary: None))
        with pytest.raises(AttnscopeError, match="disk is full") if refused else nullcontext():
            runner.run(from_txt(file, "texts"))
    signal.join()
    windows = [list(range(start, start + 20)) for start in (0, 20, 40)]
    assert sink.windows == windows[: 1 if refused else 3]
    assert ended[0][:1] == windows[:1]


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


def test_ranks_that_a_short_text_lacks_are_none_also_among_large_rounded_numbers():
    records = []
    for index, ranks in enumerate((2, 1)):
        numbers = np.full((1, 2, ranks), 40.25, dtype=np.float32)  # as int16, 40,250 would not fit
        keys = np.zeros((1, 2, ranks), dtype=np.int32)
        top = Top(keys, numbers, value=numbers)
        tokens = [Token(n, "a", "a") for n in range(2)]
        records.append(
            Record(index, index, index + 1, "", "ok", tokens=tokens, queries=[0, 1], units=[HeadRef(0, 0)], top=top)
        )  # fmt: skip
    arrays = {array.name: array for array in pack(records, digits=3)}
    values, keys = arrays["top.value"], arrays["top.keys"]
    assert (values.dtype, keys.dtype) == ("int32", "uint16")
    assert [piece.tolist() for piece in values.pieces] == [
        [[[40_250, 40_250]]] * 2,
        [[[40_250, np.iinfo(np.int32).min]]] * 2,
    ]
    assert [piece[0, 0].tolist() for piece in keys.pieces] == [[0, 0], [0, 65_535]]
