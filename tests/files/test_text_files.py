"""Lines of a file or of standard input as texts."""

import io
import os
import sys
import threading
from pathlib import Path

import pytest

from attnscope.base.errors import AttnscopeError
from attnscope.request.run_config import TextInput
from attnscope.request.text_files import MAX_LINE, read_text_file
from tests.helpers.folders import within


def _file(path: Path, data: bytes) -> Path:
    file = path / "texts.txt"
    file.write_bytes(data)
    return file


def test_one_text_per_line_with_its_place(tmp_path: Path) -> None:
    file = _file(tmp_path, "The bank\r\n\n  \n  über 😀 \u2028 x\nlast".encode())
    texts, notes = read_text_file(file)
    assert texts == [
        TextInput("The bank", where=f"{file}:1"),
        TextInput("  über 😀 \u2028 x", where=f"{file}:4"),
        TextInput("last", where=f"{file}:5"),
    ]
    assert notes == [f"{file}: 2 lines: 2, 3 skipped: blank"]


def test_no_blank_line_no_note_and_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    file = _file(tmp_path, b"\xef\xbb\xbfThe bank\n")
    assert read_text_file(file) == ([TextInput("The bank", where=f"{file}:1")], [])


def test_many_blank_lines_make_one_short_note(tmp_path: Path) -> None:
    _, notes = read_text_file(_file(tmp_path, b"x\n" + b"\n" * 1000))
    assert notes[0].endswith("1000 lines: 2, 3, 4, 5, 6, … skipped: blank")


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\n\ntwo\n")))
    texts, notes = read_text_file("-")
    assert [(t.text, t.where) for t in texts] == [("one", "stdin:1"), ("two", "stdin:3")]
    assert notes == ["stdin: line 2 skipped: blank"]


def test_a_pipe_as_the_shell_makes_it() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"one\ntwo\n")
    os.close(writer)
    texts, _ = read_text_file(f"/dev/fd/{reader}")
    os.close(reader)
    assert [t.text for t in texts] == ["one", "two"]


def test_a_pipe_whose_writer_is_slow() -> None:
    reader, writer = os.pipe()
    later = threading.Timer(0.2, lambda: (os.write(writer, b"one\ntwo\n"), os.close(writer)))
    later.start()
    with within(5):
        texts, _ = read_text_file(f"/dev/fd/{reader}")
    later.join()
    os.close(reader)
    assert [t.text for t in texts] == ["one", "two"]


@pytest.mark.unix
def test_a_named_pipe_whose_writer_comes_later(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    later = threading.Timer(0.2, lambda: (tmp_path / "pipe").write_bytes(b"one\ntwo\n"))
    later.start()
    with within(5):
        texts, _ = read_text_file(tmp_path / "pipe")
    later.join()
    assert [t.text for t in texts] == ["one", "two"]


@pytest.mark.unix
def test_a_pipe_that_nobody_writes_to_does_not_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnscope.base.system.file_system.PATIENCE", 0.1)
    os.mkfifo(tmp_path / "pipe")
    with within(5), pytest.raises(AttnscopeError, match="is empty; expected one text per line"):
        read_text_file(tmp_path / "pipe")


@pytest.mark.parametrize(
    ("data", "line", "found", "hint"),
    [
        (b"good\nba\xffd\n", 2, "byte 0xff at byte 2 of the line (7 of the file) is not UTF-8", "save it as UTF-8"),
        (b"cut \xf0\x9f", 1, "byte 0xf0 at byte 4 of the line (4 of the file) is not UTF-8", "save it as UTF-8"),
        (b"x\n\xed\xa0\x80\n", 2, "byte 0xed at byte 0 of the line (2 of the file) is not UTF-8", "save it as UTF-8"),
        ("text\n".encode("utf-16"), 1, "byte 0xff at byte 0 of the line (0 of the file) is not UTF-8",
         "it looks like UTF-16: save it as UTF-8"),
    ],
)  # fmt: skip
def test_invalid_utf8_is_named_by_line_and_byte(
    tmp_path: Path, data: bytes, line: int, found: str, hint: str
) -> None:
    file = _file(tmp_path, data)
    with pytest.raises(AttnscopeError) as e:
        read_text_file(file)
    assert (e.value.where, e.value.message, e.value.hint) == (f"{file}:{line}", found, hint)


def test_a_line_of_10_mb_is_refused(tmp_path: Path) -> None:
    file = _file(tmp_path, b"short\n" + b"long " * 2_000_000)
    with within(5), pytest.raises(AttnscopeError) as e:
        read_text_file(file)
    assert (e.value.where, e.value.message) == (
        f"{file}:2",
        f"the line is longer than {MAX_LINE:,} bytes",
    )


def test_an_endless_device_is_refused() -> None:
    with within(5), pytest.raises(AttnscopeError, match=r"/dev/zero:1: the line is longer"):
        read_text_file("/dev/zero")


@pytest.mark.parametrize(
    ("data", "found"),
    [(b"", "is empty"), (b"\n \n", "has no text"), (b"\xef\xbb\xbf", "has no text")],
)
def test_a_file_without_text_is_refused(tmp_path: Path, data: bytes, found: str) -> None:
    with pytest.raises(AttnscopeError) as e:
        read_text_file(_file(tmp_path, data))
    assert (e.value.message, e.value.hint) == (found, "expected one text per line")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("", "cannot be read (Is a directory)"),
        ("missing", "no such file"),
        ("\0", "cannot be read (embedded null"),  # byte, or character in path
    ],
)
def test_what_is_no_file_is_named(tmp_path: Path, name: str, found: str) -> None:
    with pytest.raises(AttnscopeError) as e:
        read_text_file(tmp_path / name)
    assert e.value.message.replace("open: ", "").startswith(found)
