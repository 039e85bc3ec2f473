"""After any interruption the same command resumes a dump, and the file is the same as without one."""

import errno
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from attnscope.base.errors import AttnscopeError
from attnscope.base.system.file_system import FileSystem
from attnscope.batch.header import Settings
from tests.helpers.batch_fakes import BLOCKS, TEXTS, dump
from tests.helpers.draws import drawn
from tests.helpers.faulty_files import Crash, Faulty

ROOT = Path(__file__).parent.parent.parent
KILLS = drawn(15)
EVERY = max(1, 2 // drawn(1))  # of the calls that fail below, every other one; in CI, each


def content(target):
    """What lies at a path: a file's bytes, or the bytes of every file in a folder."""
    if target.is_dir():
        return {path.name: path.read_bytes() for path in target.iterdir()}
    return target.read_bytes()


def journal_of(target):
    return target / "index.jsonl" if target.is_dir() else target


def lines_of(target):
    """The lines of a dump, also of one that is cut off."""
    return journal_of(target).read_bytes()


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("input") / "texts.txt"
    path.write_text("".join(f"{text}\n" for text in TEXTS))
    return path


@pytest.fixture(
    scope="module",
    params=["dump.jsonl", "dump"],
    ids=["lines", "shards"],
)
def name(request):
    return request.param


def test_a_part_that_cannot_be_written_is_named_as_it_was_asked_for(source, tmp_path):
    """And not by the name that it has until the manifest names it."""
    dump(source, tmp_path / "whole.parquet", files=(counting := Faulty()), settings=Settings())
    names = set()
    for at in (n for n, call in enumerate(counting.calls) if call == "write"):
        with pytest.raises(AttnscopeError, match="No space") as refused:
            dump(
                source, folder := tmp_path / f"{at}.parquet", files=Faulty(at), settings=Settings()
            )
        names.add(refused.value.where.removeprefix(str(folder)))
    parts = {f"/{path.name}" for path in (tmp_path / "whole.parquet").iterdir()}
    assert names == {".manifest.jsonl", *parts} and "/_SUCCESS.parquet" in parts


@pytest.fixture(scope="module")
def whole(source, name, tmp_path_factory):
    target = tmp_path_factory.mktemp("whole") / name
    dump(source, target)
    return content(target)


@pytest.fixture(scope="module")
def calls(source, name, tmp_path_factory):
    files = Faulty()
    dump(source, tmp_path_factory.mktemp("calls") / name, files=files)
    return files.calls


@pytest.mark.parametrize("how", ["refuse", "torn", "crash", "power", "short"])
def test_every_system_call_may_fail(source, name, whole, calls, tmp_path, how):
    """Fail the Nth call, for every N: one error, and the same command completes the dump."""
    assert len(calls) >= 30
    for at in places(calls, how):
        target = tmp_path / f"{at}-{name}"
        files = Faulty(at, how, errno.EIO if at % 2 else errno.ENOSPC)
        if how == "short":
            dump(source, target, files=files)
        else:
            with pytest.raises((Crash, AttnscopeError)):
                dump(source, target, files=files)
            if how == "power":
                files.lose()
            dump(source, target)
        assert content(target) == whole, f"call {at}: {calls[at]}"


@pytest.fixture(scope="module")
def older(source, name, tmp_path_factory):
    """A whole dump of other texts, and these; more windows than the new one has."""
    folder = tmp_path_factory.mktemp("older")
    (folder / "old.txt").write_text("".join(f"old {text}\n" for text in 2 * TEXTS))
    dump(folder / "old.txt", folder / name)
    return folder / "old.txt", folder / name


def places(calls, how):
    """Indices of the calls that can fail in this way: only a write can be torn or short."""
    return [at for at, call in enumerate(calls) if how not in ("torn", "short") or call == "write"]


def put_back(older, target):
    """The old dump, under another name."""
    if target.is_dir():
        shutil.rmtree(target)
    (shutil.copytree if older.is_dir() else shutil.copyfile)(older, target)


@pytest.mark.parametrize("how", ["refuse", "torn", "crash", "power"])
def test_a_forced_dump_leaves_the_old_one_or_one_that_goes_on(
    source, older, name, whole, tmp_path, how
):
    """Fail the Nth call: either dump is there, never neither."""
    old_source, old = older
    files, target = Faulty(), tmp_path / name
    put_back(old, target)
    dump(source, target, files=files, force=True)
    assert content(target) == whole
    kept = 0
    for at in places(files.calls, how)[len(how) % EVERY :: EVERY]:
        put_back(old, target)
        failing = Faulty(at, how, errno.EIO if at % 2 else errno.ENOSPC)
        with pytest.raises((Crash, AttnscopeError)):
            dump(source, target, files=failing, force=True)
        if how == "power":
            failing.lose()
        with suppress(AttnscopeError):
            dump(old_source, target)  # which it leaves as it is, where it is whole
        if content(target) == content(old):
            kept += 1
            continue
        dump(source, target)
        assert content(target) == whole, f"call {at}: {files.calls[at]}"
    assert 0 < kept < len(places(files.calls, how)) / EVERY


@pytest.mark.parametrize("how", ["refuse", "torn", "crash", "power"])
def test_what_memory_could_not_hold_is_tried_again(source, name, tmp_path, how):
    """With more memory, the dump becomes what it would have been; whatever fails meanwhile, nothing is lost."""
    target, roomy = tmp_path / name, tmp_path / f"roomy-{name}"
    dump(source, roomy, bounds=BLOCKS, holds=1000)
    dump(source, tmp_path / f"poor-{name}", bounds=BLOCKS)
    put_back(tmp_path / f"poor-{name}", target)
    assert dump(source, target, bounds=BLOCKS) is None  # no more than before
    files = Faulty()
    summary, _ = dump(source, target, files=files, bounds=BLOCKS, holds=1000)
    assert content(target) == content(roomy) != content(tmp_path / f"poor-{name}")
    assert summary.counts == {"ok": 20, "skipped": 1, "failed": 2}
    assert summary.resumed > 10
    for at in places(files.calls, how)[len(how) % EVERY :: EVERY]:
        put_back(tmp_path / f"poor-{name}", target)
        failing = Faulty(at, how, errno.EIO if at % 2 else errno.ENOSPC)
        with pytest.raises((Crash, AttnscopeError)):
            dump(source, target, files=failing, bounds=BLOCKS, holds=1000)
        if how == "power":
            failing.lose()
        lines = lines_of(target)
        assert lines.count(b"\n") == len(TEXTS) + 2 or b"more than memory" not in lines
        dump(source, target, bounds=BLOCKS, holds=1000)
        assert content(target) == content(roomy), f"call {at}: {files.calls[at]}"


def test_a_dump_that_is_replaced_while_another_process_waits_is_not_written_to(
    source, tmp_path, monkeypatch
):
    """The file that the other one has opened, and locks at last, has no name any more."""
    target = tmp_path / "dump.jsonl"
    dump(source, target)
    real = FileSystem.lock

    def late(self, descriptor):
        monkeypatch.setattr(FileSystem, "lock", real)
        dump(source, target, force=True)
        real(self, descriptor)

    monkeypatch.setattr(FileSystem, "lock", late)
    with pytest.raises(AttnscopeError, match="another process is writing to it"):
        dump(source, target)


def test_failing_again_and_again(source, name, whole, tmp_path):
    """A disk that fails every few calls, until the dump is done."""
    target, luck = tmp_path / name, random.Random(1)
    for _ in range(500):
        try:
            dump(
                source, target, files=Faulty(luck.randrange(4, 30), luck.choice(["torn", "crash"]))
            )
            break
        except (Crash, AttnscopeError):
            continue
    assert content(target) == whole


def test_truncated_anywhere(source, name, whole, tmp_path):
    """A file that was cut off at any byte is completed to the same bytes."""
    luck = random.Random(2)
    target = tmp_path / name
    dump(source, target)
    journal = journal_of(target)
    data = journal.read_bytes()
    edges = [i for i, byte in enumerate(data) if byte == 10]
    for size in {
        0,
        1,
        *edges,
        *(e + 1 for e in edges),
        *(luck.randrange(len(data)) for _ in range(60)),
    }:
        journal.write_bytes(data[:size])
        dump(source, target)
        assert content(target) == whole, size


def test_killed_at_any_time(source, name, whole, tmp_path):
    """Kill −9, again and again, after a random time; a dump is completed by as many processes as that takes."""
    luck, kills, target = random.Random(3), 0, tmp_path / name
    arguments = [
        sys.executable,
        "-m",
        "tests.helpers.batch_fakes",
        str(source),
        str(target),
        "0.03",
    ]
    while kills < KILLS // 3:  # for lines, frames and shards together
        process = subprocess.Popen(arguments, cwd=ROOT)
        deadline = time.monotonic() + 20
        while process.poll() is None and not target.exists() and time.monotonic() < deadline:
            time.sleep(0.002)  # start-up is not what is under test
        time.sleep(luck.random() * 0.25)
        process.kill()
        kills += process.wait() == -signal.SIGKILL
        if process.returncode == 0:
            assert content(target) == whole
            for path in sorted(target.iterdir()) if target.is_dir() else [target]:
                path.unlink()
            if target.is_dir():
                target.rmdir()
    dump(source, target)
    assert content(target) == whole


def test_a_damaged_line_is_refused(source, tmp_path):
    """One flipped bit anywhere in a whole line is found before anything is written."""
    target, luck = tmp_path / "dump.jsonl", random.Random(4)
    dump(source, target)
    data = target.read_bytes()
    for _ in range(40):
        at = luck.randrange(30, len(data) - 1)
        damaged = bytearray(data[: data.rindex(b"\n", 0, -1) + 1] if luck.random() < 0.5 else data)
        damaged[at % len(damaged)] ^= 1 << luck.randrange(7)
        target.write_bytes(damaged)
        with pytest.raises(AttnscopeError, match=r"damaged|not a dump"):
            dump(source, target)
        assert target.read_bytes() == damaged


@pytest.mark.parametrize("change", ["drop", "repeat", "swap"])
def test_moved_lines_are_refused(source, tmp_path, change):
    target = tmp_path / "dump.jsonl"
    dump(source, target)
    lines = target.read_bytes().splitlines(keepends=True)
    changed = {
        "drop": lines[:3] + lines[4:],
        "repeat": lines[:4] + lines[3:],
        "swap": [*lines[:3], lines[4], lines[3], *lines[5:]],
    }[change]
    target.write_bytes(b"".join(changed))
    with pytest.raises(AttnscopeError, match="damaged"):
        dump(source, target)


def test_another_input_is_refused(source, tmp_path):
    target, other = tmp_path / "dump.jsonl", tmp_path / "other.txt"
    dump(source, target)
    data = target.read_bytes()
    target.write_bytes(data[: data.index(b"\n", len(data) // 2) + 1])
    other.write_text(
        source.read_text().replace("word 1\n", "bird 1\n").replace("word word", "bird word")
    )
    with pytest.raises(AttnscopeError, match="is for another text"):
        dump(other, target)
    other.write_text("\n".join(TEXTS[:2]))
    with pytest.raises(AttnscopeError, match=r"another text|more records"):
        dump(other, target)


def test_a_missing_shard_is_refused(source, tmp_path):
    target = tmp_path / "dump"
    dump(source, target)
    index = target / "index.jsonl"
    index.write_bytes(b"".join(index.read_bytes().splitlines(keepends=True)[:-1]))
    next(target.glob("*.safetensors")).unlink()
    with pytest.raises(AttnscopeError, match="is missing"):
        dump(source, target)


def test_what_is_there_already_is_not_done_again(source, name, tmp_path):
    target = tmp_path / name
    with pytest.raises(Crash):
        dump(
            source,
            target,
            files=Faulty({"dump.jsonl": 22, "dump": 48}[name], "crash"),
        )
    summary, work = dump(source, target)
    assert summary.resumed > 0
    assert summary.records == len(TEXTS)
    first = min(min(group) for group in work.looked)
    assert first > 0
    assert dump(source, target) is None
