"""Files appear whole or not at all, and a file that the user did not give up stays as it was."""

import errno
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from attnscope.base.errors import AttnscopeError
from attnscope.base.files.atomic import check_target, write_atomic


def left_behind(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_new_file_has_the_permissions_of_umask(tmp_path):
    umask = os.umask(0o027)
    try:
        write_atomic(tmp_path / "out.json", [b"data"], force=False)
    finally:
        os.umask(umask)
    assert (tmp_path / "out.json").read_bytes() == b"data"
    assert stat.S_IMODE((tmp_path / "out.json").stat().st_mode) == 0o640
    assert left_behind(tmp_path) == ["out.json"]


@pytest.mark.unix
def test_force_replaces_and_keeps_the_permissions(tmp_path):
    target = tmp_path / "out.json"
    target.write_bytes(b"old")
    target.chmod(0o604)
    write_atomic(target, [b"new"], force=True)
    assert target.read_bytes() == b"new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o604
    assert left_behind(tmp_path) == ["out.json"]


def test_a_name_in_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_atomic(Path("out.json"), [b"data"], force=False)
    assert left_behind(tmp_path) == ["out.json"]


def a_folder(target):
    target.mkdir()


def an_old_file(target):
    target.write_bytes(b"old")


def a_read_only_file(target):
    target.write_bytes(b"old")
    target.chmod(0o444)


def a_link(target):
    (target.parent / "real").write_bytes(b"old")
    target.symlink_to("real")


def a_dangling_link(target):
    target.symlink_to("gone\x1b[2J")


def a_fifo(target):
    os.mkfifo(target)


@pytest.mark.parametrize(
    ("make", "force", "line"),
    [
        (a_folder, False, "is a folder; add a file name"),
        (a_folder, True, "is a folder; add a file name"),
        (an_old_file, False, "exists; pass force=True to overwrite it"),
        (a_read_only_file, True, "is read-only; make it writable, or choose another name"),
        (a_link, False, "is a symbolic link to 'real'; use the file itself, or remove the link"),
        (a_link, True, "is a symbolic link to 'real'; use the file itself, or remove the link"),
        (
            a_dangling_link,
            True,
            r"is a symbolic link to 'gone\x1b[2J'; use the file itself, or remove the link",
        ),
        (a_fifo, True, "is not a regular file; choose another name"),
    ],
)
def test_a_target_that_exists_is_refused_and_stays(tmp_path, make, force, line):
    target = tmp_path / "out.json"
    make(target)
    before = left_behind(tmp_path)
    for refuse in (
        lambda: check_target(target, force=force),
        lambda: write_atomic(target, [b"new"], force=force),
    ):
        with pytest.raises(AttnscopeError) as error:
            refuse()
        assert str(error.value) == f"{target}: {line}"
        assert error.value.code == 1
    assert left_behind(tmp_path) == before
    for name in ("out.json", "real"):
        if (tmp_path / name).is_file():
            assert (tmp_path / name).read_bytes() == b"old"


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("gone/out.json", "gone: no such folder; use an existing folder"),
        (
            "file/out.json",
            "file/out.json: cannot be written (Not a directory); choose a folder you can write to",
        ),
        ("x" * 300, f"{'x' * 300}: the name is too long; choose another name"),
    ],
)
def test_no_such_place(tmp_path, name, line):
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(AttnscopeError) as error:
        check_target(tmp_path / name, force=False)
    assert str(error.value) == f"{tmp_path}/{line}"


def test_a_read_only_folder(tmp_path, monkeypatch):
    """Made up, because tests may run as root, whom no folder refuses."""

    def refuse(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("attnscope.base.files.atomic.os.open", refuse)
    with pytest.raises(AttnscopeError, match=r"cannot be written \(Permission denied\)"):
        write_atomic(tmp_path / "out.json", [b"data"], force=False)


@pytest.mark.unix
@pytest.mark.parametrize(
    ("force", "step"),
    [
        (False, "write"),
        (True, "write"),
        (False, "fsync"),
        (True, "fsync"),
        (False, "link"),
        (True, "replace"),
    ],
)
def test_a_failing_disk_leaves_the_old_file(tmp_path, monkeypatch, force, step):
    target = tmp_path / "out.json"
    if force:
        target.write_bytes(b"old")

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    class Full:
        def __init__(self, descriptor, mode):
            self.file = os.fdopen(descriptor, mode)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        write = fail

    if step == "write":
        monkeypatch.setattr("builtins.open", Full)
    else:
        monkeypatch.setattr(f"attnscope.base.files.atomic.os.{step}", fail)
    with pytest.raises(AttnscopeError, match="No space left on device"):
        write_atomic(target, [b"new"], force=force)
    monkeypatch.undo()
    assert left_behind(tmp_path) == (["out.json"] if force else [])
    assert not force or target.read_bytes() == b"old"


@pytest.mark.unix
def test_without_hard_links_it_is_renamed(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr("attnscope.base.files.atomic.os.link", fail)
    write_atomic(tmp_path / "out.json", [b"data"], force=False)
    assert left_behind(tmp_path) == ["out.json"]


@pytest.mark.unix
def test_a_file_that_appears_meanwhile_stays(tmp_path, monkeypatch):
    target = tmp_path / "out.json"
    monkeypatch.setattr("attnscope.base.files.atomic.check_target", lambda path, force: None)
    target.write_bytes(b"theirs")
    with pytest.raises(AttnscopeError, match="exists"):
        write_atomic(target, [b"ours"], force=False)
    assert target.read_bytes() == b"theirs"
    assert left_behind(tmp_path) == ["out.json"]


def test_a_signal_leaves_no_temporary_file(tmp_path):
    program = """
import os, signal, sys, time
from pathlib import Path
from attnscope.base.files import atomic as output
from attnscope.base.system.signals import end_on_signals
def wait(descriptor):
    print("writing", flush=True)
    time.sleep(30)
output.os.fsync = wait
with end_on_signals():
    output.write_atomic(Path(sys.argv[1]), [b"data"], force=False)
"""
    root = str(Path(__file__).parent.parent.parent)
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "out.json")], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": root},
    )  # fmt: skip
    with process:
        assert process.stdout.readline() == b"writing\n"
        assert len(left_behind(tmp_path)) == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 143
    assert left_behind(tmp_path) == []
