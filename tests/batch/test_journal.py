"""The journal of a dump by itself: its bytes, torn and damaged lines, and which file replaces which."""

import json
from collections import Counter
from pathlib import Path
from zlib import crc32

import pytest

from attnscope.base.errors import AttnscopeError
from attnscope.base.system.file_system import FileSystem
from attnscope.batch.header import MAGIC
from attnscope.batch.journal import Journal

HEADER = MAGIC + b'1"}'
GOLDEN = (
    MAGIC + b'1","check":"__"}\n'
    b'{"index":0,"hash":"00000000000000aa","status":"ok","check":"__"}\n'
    b'{"index":1,"hash":"00000000000000ab","status":"failed","error":"why","check":"__"}\n'
    b'{"end":true,"records":2,"ok":1,"skipped":0,"failed":1,"check":"__"}\n'
)


def record(index: int, status: str = "ok", **more: str | int) -> bytes:
    fields = {"hash": f"{170 + index:016x}", "status": status, **more}
    return b'{"index":%d,%s}' % (index, json.dumps(fields, separators=(",", ":"))[1:-1].encode())


def golden() -> bytes:
    """The lines above with their checks: each is the CRC-32 of all that stands before it in the file."""
    found = b""
    for part in GOLDEN.split(b"__")[:-1]:
        before = found + part.removesuffix(b',"check":"')
        found += part + b"%08x" % crc32(before)
    return found + GOLDEN.split(b"__")[-1]


def write(path: Path, *, end: bool = True, force: bool = False) -> None:
    with Journal(path, force=force, files=FileSystem()) as journal:
        if journal.written.header is None:
            journal.start(HEADER)
        for index in range(len(journal.written.indices), 2):
            journal.append(record(0) if index == 0 else record(1, "failed", error="why"))
            journal.settle(1)
        if end and not journal.written.ended:
            journal.finish(Counter(ok=1, failed=1))


def state(path: Path) -> tuple[bytes | None, list[int], dict[str, int], bool]:
    with Journal(path, force=False, files=FileSystem()) as journal:
        held = journal.written
        return held.header, list(held.indices), dict(held.counts), held.ended


def test_the_bytes_of_a_journal_are_as_reviewed(tmp_path: Path) -> None:
    write(tmp_path / "dump.jsonl")
    assert (tmp_path / "dump.jsonl").read_bytes() == golden()
    assert state(tmp_path / "dump.jsonl") == (HEADER, [0, 1], {"ok": 1, "failed": 1}, True)


def test_a_tail_torn_anywhere_is_written_again(tmp_path: Path) -> None:
    path, whole = tmp_path / "dump.jsonl", golden()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        header, indices, _, ended = state(path)
        lines = whole[:size].count(b"\n")
        assert (header is not None, len(indices), ended) == (
            lines > 0,
            min(2, max(0, lines - 1)),
            False,
        ), size
        if path.exists():  # a file without a whole line is removed where it was made anew
            assert path.read_bytes() == b"".join(whole.splitlines(keepends=True)[:lines])
        write(path)
        assert path.read_bytes() == whole, size


@pytest.mark.parametrize("line", range(4))
def test_a_line_with_any_other_byte_is_named(line: int, tmp_path: Path) -> None:
    path, lines = tmp_path / "dump.jsonl", golden().splitlines(keepends=True)
    start = len(MAGIC) if line == 0 else 0  # before that it is no dump at all
    for at in range(start, len(lines[line]) - 1):
        spoilt = bytearray(lines[line])
        spoilt[at] ^= 1
        if b"\n" in spoilt[:-1]:
            continue
        path.write_bytes(b"".join([*lines[:line], bytes(spoilt), *lines[line + 1 :]]))
        with pytest.raises(AttnscopeError) as caught:
            state(path)
        assert (caught.value.where, caught.value.message) == (
            f"{path}:{line + 1}",
            "the line is damaged",
        ), at


@pytest.mark.parametrize(
    ("order", "damaged"),
    [([0, 2, 1, 3], 2), ([0, 1, 1, 2, 3], 3), ([0, 2, 3], 2), ([0, 1, 2, 3, 2], 5)],
)
def test_lines_that_are_moved_repeated_or_missing_are_named(
    order: list[int], damaged: int, tmp_path: Path
) -> None:
    path, lines = tmp_path / "dump.jsonl", golden().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[number] for number in order))
    with pytest.raises(AttnscopeError, match="the line is damaged") as caught:
        state(path)
    assert caught.value.where == f"{path}:{damaged}"


def test_another_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "dump.jsonl"
    path.write_bytes(b'{"mine":1}\n')
    with pytest.raises(AttnscopeError, match="exists and is not a dump"):
        state(path)
    assert path.read_bytes() == b'{"mine":1}\n'


@pytest.mark.unix
def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "dump.jsonl"
    with Journal(path, force=False, files=FileSystem()) as journal:
        journal.start(HEADER)
        with pytest.raises(AttnscopeError):
            state(path)
    assert state(path)[0] == HEADER


def test_with_force_the_old_file_stays_until_a_record_is_safe(tmp_path: Path) -> None:
    path = tmp_path / "dump.jsonl"
    write(path)
    with Journal(path, force=True, files=FileSystem()) as journal:
        journal.start(HEADER)
        journal.append(record(0))
        assert path.read_bytes() == golden()
    assert path.read_bytes() == golden(), "a process that ended before that changed nothing"
    assert [one.name for one in tmp_path.iterdir()] == ["dump.jsonl"]
    with Journal(path, force=True, files=FileSystem()) as journal:
        journal.start(HEADER)
        journal.append(record(0))
        journal.settle(1)
        assert path.read_bytes() == b"".join(golden().splitlines(keepends=True)[:2])
    assert state(path) == (HEADER, [0], {"ok": 1}, False)


def test_a_record_that_memory_could_not_hold_is_tried_again_where_it_can(tmp_path: Path) -> None:
    path = tmp_path / "dump.jsonl"
    with Journal(path, force=False, files=FileSystem()) as journal:
        journal.start(HEADER)
        journal.append(record(0))
        journal.append(record(1, "failed", error="it does not fit", needs=1_000))
        journal.append(record(2))
    with Journal(path, force=False, files=FileSystem()) as journal:
        assert journal.written.fitting(999) == set()
        assert journal.written.fitting(1_000) == {1}
        journal.rewrite(HEADER)
        assert journal.copy(1) == {"ok": 1}
        journal.skip(1)
        journal.append(record(1))
        assert journal.copy(1) == {"ok": 1}
        journal.settle(1)
    assert state(path) == (HEADER, [0, 1, 2], {"ok": 3}, False)
