"""Worker processes: the bytes of one process for any number of them, whatever is killed, and whatever a text does."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from attnscope.base.errors import AttnscopeError
from attnscope.batch import dump as dump_module
from attnscope.batch import pool
from attnscope.batch.items import text_item
from attnscope.batch.pool import Task, group_runner
from attnscope.batch.records import encode
from attnscope.batch.windows import Suspects, WindowComputer
from attnscope.cli import main
from tests.helpers.batch_fakes import BLOCKS, BOUNDS, TEXTS, Work, dump
from tests.scale.test_merge import content

MANY = [f"{'word ' * (i * 7 % 5 + 1)}{i}" for i in range(150)]


TIMES = {"kill": 99, "once": 1, "twice": 2}


def computed(folder):
    """How often each text was computed, or begun."""
    path = folder / "computed"
    return (
        Counter(int(number) for number in path.read_text().split()) if path.exists() else Counter()
    )


class Lethal(Work):
    """A text that says `kill` ends its process; one that says `once` or `twice` does so that often, as a file says."""

    def __init__(self, folder, pause=0.0):
        super().__init__(pause)
        self.folder, self.parent = folder, os.getpid()

    def process(self, ready, following=(), meanwhile=None):
        times = computed(self.folder)
        (self.folder / "computed").open("a").write("".join(f"{item.index}\n" for item in ready))
        for item in ready:
            if any(
                word in item.text.text and times[item.index] < most for word, most in TIMES.items()
            ):
                assert os.getpid() != self.parent
                os.kill(os.getpid(), signal.SIGKILL)
        return super().process(ready)


def written(tmp_path, texts=MANY, name="dump.jsonl", **options):
    source = tmp_path / "x.txt"
    source.write_text("".join(f"{text}\n" for text in texts))
    made = dump(source, tmp_path / name, bounds=BLOCKS, **options)
    return content(tmp_path / name), made


@pytest.mark.parametrize(("name", "numbers"), [("dump.jsonl", (1, 2, 3, 7)), ("dump", (1, 3))])
def test_any_number_of_workers_writes_the_same_bytes(tmp_path, name, numbers):
    texts, written_by = TEXTS + MANY[:40], {}
    for workers in (0, *numbers):
        (tmp_path / str(workers)).mkdir()
        made, (summary, _) = written(tmp_path / str(workers), texts, name, workers=workers)
        written_by[workers] = (
            made,
            summary.counts,
            summary.computed,
            summary.tokens,
            summary.failures,
        )
    assert [workers for workers in numbers if written_by[workers] != written_by[0]] == []


def children():
    me = os.getpid()
    return {int(pid) for pid in Path(f"/proc/{me}/task/{me}/children").read_text().split()}


@pytest.fixture
def workers():
    """A function that gives the processes that the test started; helpers of other tests may run since before."""
    before = children()
    return lambda: sorted(children() - before)


def test_workers_that_are_killed_lose_and_double_nothing(tmp_path, monkeypatch, workers):
    """Ten at random moments while one dump is written; another dump only if the first ended before the last kill."""
    monkeypatch.setattr(pool, "_PAUSES", (0.05, 0.2))
    luck, kills = random.Random(3), 0
    (tmp_path / "one").mkdir()
    expected, _ = written(tmp_path / "one")
    while kills < 10:
        stop, sent = threading.Event(), []

        def kill(stop=stop, sent=sent, most=10 - kills):
            while len(sent) < most and not stop.wait(luck.uniform(0.002, 0.03)):
                if alive := workers():
                    sent.append(luck.choice(alive))
                    os.kill(sent[-1], signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            found, (summary, _) = written(tmp_path, workers=3, pause=0.008)
        finally:
            stop.set()
            killer.join()
        assert found == expected
        assert summary.counts == {"ok": len(MANY)}
        kills += len(sent)
        (tmp_path / "dump.jsonl").unlink()
        assert workers() == []


@pytest.mark.parametrize(("text", "deaths"), [("please kill me", 3), ("please kill", 4)])
def test_a_text_that_kills_its_worker_three_times_alone_fails(tmp_path, monkeypatch, text, deaths):
    """The second one has two words, as the text after it, and ends a worker with its group first."""
    monkeypatch.setattr(pool, "_PAUSES", (0.05, 0.2))
    texts = [*MANY[:30], text, *MANY[30:60]]
    (tmp_path / "one").mkdir()
    written(tmp_path / "one", texts)
    _, (summary, _) = written(tmp_path, texts, workers=3, work=Lethal(tmp_path))
    assert summary.counts == {"ok": 60, "failed": 1}
    reason = "ended 3 processes that computed it alone (SIGKILL)"
    assert summary.failures == [f"31: {reason}"]
    records, others = (
        [json.loads(line) for line in path.read_bytes().splitlines()[1:-1]]
        for path in (tmp_path / "dump.jsonl", tmp_path / "one" / "dump.jsonl")
    )
    assert [record["index"] for record in records] == list(range(61))
    assert (records[30]["status"], records[30]["error"]) == ("failed", reason)
    for record, other in zip(records, others, strict=True):
        assert record["index"] == 30 or (record["status"], record["tokens"]) == (
            "ok",
            other["tokens"],
        )
    assert computed(tmp_path)[30] == deaths


@pytest.mark.parametrize("often", ["once", "twice"])
def test_a_text_that_kills_its_worker_less_often_is_done_again(tmp_path, often):
    """In its group, for the same bytes: chance may have killed the worker, as it does here."""
    texts = [*MANY[:30], f"not more than {often}", *MANY[30:60]]
    (tmp_path / "one").mkdir()
    expected, _ = written(tmp_path / "one", texts)
    found, (summary, _) = written(tmp_path, texts, workers=2, work=Lethal(tmp_path))
    assert summary.counts == {"ok": 61}
    assert found == expected


class Numbered(Lethal):
    """Notes the number of each worker that computes."""

    def process(self, ready, following=(), meanwhile=None):
        (self.folder / "numbers").open("a").write(f"{self.number} {os.getpid()}\n")
        return super().process(ready)


def test_a_worker_that_replaces_another_takes_its_number(tmp_path):
    """And with it its GPU."""
    texts = [*MANY[:30], "not more than twice", *MANY[30:60]]
    written(tmp_path, texts, workers=2, work=Numbered(tmp_path))
    seen = {tuple(line.split()) for line in (tmp_path / "numbers").read_text().splitlines()}
    assert len({pid for _, pid in seen}) == len(seen) >= 3  # the last one may find nothing to do
    assert {number for number, _ in seen} == {"0", "1"}


@pytest.mark.parametrize("together", [[[0, 2, 3]], []])
def test_a_text_is_tried_again_after_a_pause_and_all_others_of_its_window(together):
    texts = [
        text_item(*text)
        for text in enumerate(("a b", "c d e f", "g h", "i j", "k l m n", "o", "p q r s"))
    ]
    work, announced = Work(), []
    computer = WindowComputer(work, BOUNDS, holds=200, needs_all_records=True)
    (window,) = computer.windows(texts)
    expected = computer.compute(window, 0)
    assert work.looked == [[5], [0, 2, 3], [1, 4, 6]]
    work.looked, start = [], time.monotonic() + 0.2
    computer.suspects = Suspects({0, 2, 3}, {2: start}, apart=() if together else {3})
    task = Task(suspects=computer.suspects)
    computer.run_group = group_runner(
        task, work, lambda kind, sent: kind == "group" and announced.append([*sent])
    )
    found = computer.compute(window, 0)
    assert time.monotonic() >= start
    assert work.looked == [[5], [1, 4, 6], [0], [3], [2], *together]
    assert announced == [[5], [1, 4, 6], [0], [3], [], [2], *([[], *together] if together else [])]
    assert [record.index for record in found.records] == [*range(7)]
    if together:
        assert [*map(encode, found.records)] == [*map(encode, expected.records)]


class TooMuchTogether(Lethal):
    """A group that ends its process, each text of which can be computed alone."""

    def process(self, ready, following=(), meanwhile=None):
        if len(ready) > 1 and any(item.index == 9 for item in ready):
            (self.folder / "computed").open("a").write("9\n")
            os.kill(os.getpid(), signal.SIGKILL)
        return super().process(ready)


def test_texts_that_kill_their_worker_only_together_are_computed_apart(tmp_path, monkeypatch):
    monkeypatch.setattr(pool, "_PAUSES", (0.01, 0.02))
    _, (summary, _) = written(
        tmp_path, ["two words"] * 18, workers=2, work=TooMuchTogether(tmp_path)
    )
    assert summary.counts == {"ok": 18}
    assert computed(tmp_path)[9] == 8  # with its group, alone, and with its group six times


class DiesAtFirst(Work):
    """Its process ends before it computes anything."""

    def prepare(self, item):
        os._exit(9)


def test_workers_that_cannot_even_begin_end_the_run(tmp_path, workers):
    with pytest.raises(
        AttnscopeError, match=r"10 workers ended before they computed a text \(exit code 9\)"
    ):
        written(tmp_path, workers=2, work=DiesAtFirst())
    assert workers() == []


class Faulty(Work):
    """A bug, or a model that cannot be read, at some text."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def process(self, ready, following=(), meanwhile=None):
        if any(item.index == 40 for item in ready):
            raise self.error
        return super().process(ready)


def test_what_ends_one_process_ends_all(tmp_path, workers):
    from attnscope.base.errors import ModelError

    error = ModelError("cannot be read", where="model.safetensors", hint="copy it again")
    with pytest.raises(ModelError, match="cannot be read") as caught:
        written(tmp_path, workers=3, work=Faulty(error))
    assert caught.value.parts == error.parts
    with pytest.raises(RuntimeError, match=r"a worker failed[\s\S]*ZeroDivisionError: a bug"):
        written(tmp_path, workers=3, work=Faulty(ZeroDivisionError("a bug")))
    assert workers() == []


@pytest.mark.parametrize("name", ["dump.jsonl", "dump"])
def test_strict_stops_where_one_process_does(tmp_path, name):
    texts = [*MANY[:50], "bad", *MANY[50:80]]
    for folder, workers in (("one", 0), ("several", 3)):
        (tmp_path / folder).mkdir()
        with pytest.raises(AttnscopeError, match="is bad"):
            written(tmp_path / folder, texts, name, workers=workers, strict=True)
    assert content(tmp_path / "several" / name) == content(tmp_path / "one" / name)


def test_a_dump_is_resumed_by_any_number_of_workers(tmp_path):
    (tmp_path / "one").mkdir()
    expected, _ = written(tmp_path / "one")
    source, target, luck = tmp_path / "x.txt", tmp_path / "dump.jsonl", random.Random(2)
    source.write_text("".join(f"{text}\n" for text in MANY))
    every = expected.splitlines(keepends=True)
    for workers in (1, 2, 0, 5):
        kept = luck.randrange(1, len(every))
        target.write_bytes(b"".join(every[:kept]) + every[kept][:7])
        dump(source, target, bounds=BLOCKS, workers=workers)
        assert target.read_bytes() == expected


def test_records_that_now_fit_into_memory_are_done_again(tmp_path):
    texts = [*MANY[:20], "long " * 60, *MANY[20:50]]
    for folder, workers in (("one", 0), ("several", 2)):
        (tmp_path / folder).mkdir()
        _, (summary, _) = written(tmp_path / folder, texts, workers=workers)
        assert summary.counts == {"ok": 50, "failed": 1}
        _, (summary, _) = written(tmp_path / folder, texts, workers=workers, holds=4000)
        assert summary.counts == {"ok": 51}
    assert content(tmp_path / "several" / "dump.jsonl") == content(tmp_path / "one" / "dump.jsonl")


def test_workers_of_the_command_line_write_the_bytes_of_one_process(folder, capsys):
    options = ["--keep", "top,rows", "--stage", "weights", "--layer", "1", "--threads", "1"]
    assert main(["batch", "texts.txt", "-o", "one.jsonl", *options]) == 0
    capsys.readouterr()
    assert main(["batch", "texts.txt", "-o", "three.jsonl", "--workers", "3", *options]) == 0
    assert "\nattnscope: wrote: three.jsonl (148 texts ok, 2 skipped; " in capsys.readouterr().err
    assert content(folder / "three.jsonl") == content(folder / "one.jsonl")
    assert main(["batch", "texts.txt", "-o", "auto.jsonl", "--workers", "auto", *options]) == 0
    assert content(folder / "auto.jsonl") == content(folder / "one.jsonl")


def test_workers_end_with_their_parent(folder):
    command = [
        sys.executable,
        "-m",
        "attnscope",
        "batch",
        "texts.txt",
        "-o",
        "d.jsonl",
        "--workers",
        "2",
        "--quiet",
    ]
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})
    path, deadline = (
        Path(f"/proc/{process.pid}/task/{process.pid}/children"),
        time.monotonic() + 300,
    )
    try:
        while len(workers := path.read_text().split()) < 2 and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.005)
    finally:
        process.kill()
        process.wait()
    while any(Path(f"/proc/{pid}").exists() for pid in workers):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    # processes of their own, too: this one has shorter blocks, as the fixture of this folder says
    for name in ("d.jsonl", "whole.jsonl"):
        arguments = ["batch", "texts.txt", "-o", name, "--quiet", "--threads", "1"]
        subprocess.run([sys.executable, "-m", "attnscope", *arguments], check=True)
    assert content(folder / "d.jsonl") == content(folder / "whole.jsonl")


def test_auto_takes_workers_where_a_run_is_long(folder, monkeypatch):
    from msgspec.structs import replace

    from attnscope.batch import loading
    from attnscope.batch.blocks import SelectedItems
    from attnscope.batch.header import Settings
    from attnscope.batch.reader import InputReader

    monkeypatch.setattr(loading, "count_cpus", lambda: 2)
    monkeypatch.setattr(loading, "limit_threads", lambda wanted: wanted or 2)
    new = replace(BLOCKS, threads=0, tokens=1000, values=400, window=800)  # 2,000 numbers a worker
    much = 10**9  # numbers that memory holds of a text
    with InputReader("texts.txt", None, "text") as given:
        given.facts()

        def chosen(bounds, a_token=0.0, threads=None, holds=much, shard=(1, 1)):
            items = SelectedItems(given, Settings(shard=shard))
            workers, bounds = loading.choose_workers(bounds, threads, items, a_token, holds)
            return workers, bounds.threads

        tokens = sum(given.costs) / 4  # characters of a token
        two_seconds = 5e10 * (2 / tokens - 1e-4)  # multiplications of a token
        assert chosen(new, 1.01 * two_seconds) == (2, 1)
        assert chosen(new, 0.99 * two_seconds) == (0, 2)
        assert chosen(replace(new, block_characters=10**9), 1.01 * two_seconds) == (0, 2)
        assert chosen(new, 10 * two_seconds, threads=2) == (0, 2), "two threads on two CPUs"
        assert chosen(replace(new, threads=1)) == (2, 1), "a resumed dump keeps its threads"
        assert chosen(replace(new, threads=2), 1.01 * two_seconds) == (0, 2)
        assert chosen(new, 10 * two_seconds, holds=1) == (1, 1), "little memory, the same threads"
        blocks = len({item.block for item in SelectedItems(given, Settings()).select(new)})
        assert SelectedItems(given, Settings()).count_blocks(new) == blocks > 2
        shards = [(number, blocks // 2) for number in range(1, blocks // 2 + 1)]
        assert {chosen(new, 10**14, shard=shard) for shard in shards} == {(2, 1)}, (
            "parts are joined"
        )
        monkeypatch.setattr(loading, "count_cpus", lambda: 1000)
        assert chosen(new, 1.01 * two_seconds)[0] == blocks
        assert chosen(new, 1.01 * two_seconds, holds=1500) == (3, 1)
        long = replace(new, tokens=1)
        assert chosen(long, 1.01 * two_seconds) == (4, 1), "a text may take a fourth of the memory"
        monkeypatch.setattr(loading, "count_cpus", lambda: 1)
        assert chosen(new, 1.01 * two_seconds) == (0, 2)


@pytest.mark.parametrize(
    ("device", "options", "variables", "alone"),
    [
        ("cpu", [], {}, False),
        ("cpu", ["--threads", "1"], {}, True),
        ("cpu", ["--workers", "0"], {}, True),
        ("cpu", ["--workers", "auto", "--threads", "1"], {}, False),
        ("cpu", [], {"OMP_NUM_THREADS": "1"}, True),
        ("auto", [], {}, False),
        ("cpu", ["--stage", "weights"], {}, True),
    ],
)
def test_batch_takes_workers_unless_threads_are_limited(
    folder, monkeypatch, device, options, variables, alone
):
    from attnscope.base.system import machine
    from attnscope.batch import loading

    for module in (machine, loading):
        monkeypatch.setattr(module, "count_cpus", lambda: 3)
    monkeypatch.setattr(loading, "has_gpu_driver", lambda: False)
    monkeypatch.setattr(loading, "_WORTH_WORKERS", 0.0)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    processes = []

    class Counted(dump_module.PoolRunner):
        def __init__(self, *arguments, workers, **named):
            processes.append(workers)
            super().__init__(*arguments, workers=workers, **named)

    monkeypatch.setattr(dump_module, "PoolRunner", Counted)
    command = ["batch", "texts.txt", "-o", "d.jsonl", "--device", device, *options]
    assert main(command) == 0
    assert processes == ([] if alone else [3])
    plain = ["batch", "texts.txt", "-o", "plain.jsonl", "--device", "cpu", "--workers", "0"]
    threads = json.loads(Path("d.jsonl").read_bytes().splitlines()[0])["grouping"]["threads"]
    kept = options if "--stage" in options else []
    assert main([*plain, "--threads", str(threads), *kept]) == 0
    assert content(folder / "d.jsonl") == content(folder / "plain.jsonl")
