"""main() is the only error boundary: every way to end has its exit code, and at most one clean line on stderr."""

import fcntl
import os
import re
import shlex
import signal
import subprocess
import sys
import termios
import time

import pytest

from attnscope.cli import main
from tests.helpers import fork_server
from tests.helpers.cli_runner import command, default_signals, environment, on_terminal

TEXT = "The bank by the river"


def one_line(stderr):
    text = stderr.decode()
    assert text.endswith("\n")
    assert text.count("\n") == 1, text
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)
    return text[:-1]


def begun(kind, *args, **options):
    """A process that runs attnscope, with pipes where nothing else is said."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return fork_server.Process(kind, *args, env=environment(), **options)


def test_a_run_that_succeeds_ends_with_0_and_an_empty_stderr(attnscope):
    """From Python's first line on."""
    done = attnscope("fine", "run", TEXT, preexec_fn=default_signals)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"river" in done.stdout


@pytest.mark.parametrize(
    ("kind", "code", "line"),
    [
        ("refuse", 1, "attnscope: error: a\\u202eb/config.json: unknown\\x1b[2J key; remove it"),
        (
            "no-addresses",
            1,
            "attnscope: error: out of address space to load libraries; raise the limit: ulimit -v unlimited",
        ),
        (
            "no-memory",
            1,
            "attnscope: error: out of memory; select fewer layers or heads, a shorter text or a smaller --dtype",
        ),
        (
            "bug",
            70,
            "attnscope: error: internal error (KeyError: 'an\\\\x1b[31m internal\\\\nthing'); "
            "this is a bug, please report it with the traceback that ATTNSCOPE_DEBUG=1 shows",
        ),
        (
            "panic",
            70,
            "attnscope: error: internal error (PanicException: index out of range); "
            "this is a bug, please report it with the traceback that ATTNSCOPE_DEBUG=1 shows",
        ),
    ],
)  # fmt: skip
def test_what_went_wrong_is_one_line(attnscope, kind, code, line):
    done = attnscope(kind, "run", TEXT)
    assert done.returncode == code
    assert done.stdout == b""
    assert one_line(done.stderr) == line


def test_a_file_name_that_the_system_refuses_is_no_bug(capsys):
    assert main(["import", "x" * 300, "out"]) == 1
    assert capsys.readouterr().err == f"attnscope: error: {'x' * 300}: file name too long\n"
    for name in ("a\0.txt", "\ud800.txt"):
        assert main(["batch", name, "-o", "out.jsonl", "--config", "causal"]) == 1
        assert ".txt: cannot be read (" in capsys.readouterr().err


@pytest.mark.parametrize(("kind", "code"), [("bug", 70), ("refuse", 1)])
def test_debug_shows_the_traceback(attnscope, kind, code):
    done = attnscope(kind, "run", TEXT, env={"ATTNSCOPE_DEBUG": "1"})
    assert done.returncode == code
    assert b"Traceback" in done.stderr
    assert b"fakes.py" in done.stderr
    assert b"\x1b" not in done.stderr


def test_a_library_warning_is_one_line(attnscope):
    done = attnscope("warn", "run", TEXT)
    assert done.returncode == 0
    assert one_line(done.stderr) == "attnscope: warning: a driver is too old"


@pytest.mark.parametrize("kind", ["sleep", "deaf", "destructor"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_process_with_its_code_and_without_files(tmp_path, kind, number):
    """Also where a library swallowed the exception: nothing is said, and the code is the signal's."""
    with begun(kind, "run", TEXT, "--output", str(tmp_path / "out.json")) as process:
        assert process.stderr.readline() == b"ready\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (128 + number, b"", b"")
    assert list(tmp_path.iterdir()) == []


def test_nohup_keeps_running():
    with begun("sleep", "run", TEXT, ignored=(signal.SIGHUP,)) as process:
        assert process.stderr.readline() == b"ready\n"
        process.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.5)
        process.terminate()
        assert process.wait(timeout=20) == 128 + signal.SIGTERM


@pytest.mark.parametrize("format", ["json", "table"])
def test_interrupted_while_the_reader_sleeps(format):
    """A full pipe must not hold up the end: what is buffered for it is dropped."""
    read, write = os.pipe()
    process = begun("huge", "run", TEXT, "--format", format, stdout=write)
    os.close(write)
    try:
        with process:
            wait_until_full(read)
            process.send_signal(signal.SIGINT)
            assert ends(process) == 130
    finally:
        os.close(read)


def test_interrupted_with_a_little_left_to_write():
    read, write = os.pipe()
    process = begun("full-pipe", "run", TEXT, stdout=write)
    os.close(write)
    try:
        with process:
            assert process.stderr.readline() == b"ready\n"
            process.send_signal(signal.SIGINT)
            assert ends(process) == 130
    finally:
        os.close(read)


def ends(process):
    """The exit code; a process that hangs is killed, so that a failing test does not hang, too."""
    try:
        return process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        raise


def wait_until_full(pipe):
    held = -1
    for _ in range(200):
        time.sleep(0.05)
        before, held = (
            held,
            int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, b"    "), sys.byteorder),
        )
        if held == before > 0:
            return
    raise AssertionError("the pipe never filled")


def test_a_signal_while_python_holds_everything_else_up():
    """Eight threads in loops: the one that waits for signals gets its turn."""
    with begun("busy", "run", TEXT) as process:
        assert process.stderr.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        assert ends(process) == 130


@pytest.mark.parametrize(
    ("number", "delay"),
    [
        *((signal.SIGINT, delay) for delay in (0.0, 0.03, 0.06, 0.1, 0.2)),
        *((signal.SIGTERM, delay) for delay in (0.0, 0.06)),
        *((signal.SIGHUP, delay) for delay in (0.03, 0.1)),
    ],
)
def test_a_signal_while_it_starts(number, delay):
    """No traceback, and the shell's code; where none of our lines has run yet, Python itself may say something."""
    process = subprocess.Popen(
        [sys.executable, "-c", STARTING], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(),
        preexec_fn=default_signals,
    )  # fmt: skip
    with process:
        assert process.stdout.readline() == b"begins\n"
        time.sleep(delay)
        process.send_signal(number)
        code = ends(process)
        assert process.stderr.read() == b""
    assert code in (128 + number, -number)


STARTING = """
import os, sys
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
os.write(1, b"begins\\n")
sys.argv = ["attnscope", "run", "The bank", "--model", "riverbank", "--quiet", "--layer", "all", "--head", "all"]
signal.signal(signal.SIGINT, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
import runpy
while True:
    try:
        runpy.run_module("attnscope", run_name="__main__")
    except SystemExit:
        signal.pause()
"""


def test_a_removed_working_folder(attnscope, tmp_path):
    folder = tmp_path / "gone"
    folder.mkdir()
    script = (
        f"cd {shlex.quote(str(folder))} && rmdir {shlex.quote(str(folder))} && exec "
        + shlex.join(command("", "run", TEXT))
    )
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, env=environment(), timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (1, b"")
    assert (
        one_line(done.stderr)
        == "attnscope: error: the working directory was removed; change to an existing directory"
    )


def test_an_ending_that_nothing_has_is_refused_before_force_is_offered(attnscope, tmp_path):
    target = tmp_path / "there.gif"
    target.write_bytes(b"there")
    done = attnscope("fine", "run", TEXT, "--output", str(target))
    assert done.returncode == 2
    assert "unknown extension" in one_line(done.stderr)


def test_without_a_home_or_any_variable(tmp_path):
    """As cron starts it: no terminal, no HOME, no TERM, no LANG."""
    done = subprocess.run(
        command("", "run", TEXT, "--head", "0"), capture_output=True, env={}, cwd=tmp_path, timeout=60, check=False,
        stdin=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"river" in done.stdout


@pytest.mark.parametrize(
    "args",
    [
        ("run", TEXT),
        ("run", TEXT, "--format", "json"),
        ("run", TEXT, "--format", "heat"),
        ("run", "--help"),
        ("--version",),
    ],
)
class TestStandardOutput:
    def test_a_reader_that_is_gone_ends_with_141(self, attnscope, args):
        read, write = os.pipe()
        os.close(read)
        try:
            done = attnscope("long", *args, stdout=write)
        finally:
            os.close(write)
        assert (done.returncode, done.stderr) == (141, b"")

    def test_a_closed_stdout_is_one_error_line(self, attnscope, args):
        done = attnscope("fine", *args, preexec_fn=lambda: os.close(1), stdout=None)
        assert done.returncode == 1
        assert (
            one_line(done.stderr)
            == "attnscope: error: standard output is closed; --output FILE writes to a file"
        )

    def test_a_full_disk_behind_stdout_is_one_error_line(self, attnscope, args):
        with open("/dev/full", "wb") as full:
            done = attnscope("long", *args, stdout=full)
        assert done.returncode == 1
        expected = "cannot write to standard output (No space left on device); --output FILE writes to a file"
        assert one_line(done.stderr) == f"attnscope: error: {expected}"


def test_head_in_a_shell():
    line = shlex.join(command("huge", "run", TEXT, "--format", "json"))
    script = f"{line} | head -c 10 >&2; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, env=environment(), timeout=60, check=True
    )
    assert (done.stderr, done.stdout) == (b'{"provenan', b"141\n")


def test_closed_stdout_is_not_needed_for_a_file(attnscope, tmp_path):
    """With 1 closed, the next file opened would become standard output and get what is printed there."""
    target = tmp_path / "out.json"
    done = attnscope(
        "stray", "run", TEXT, "--output", str(target), preexec_fn=lambda: os.close(1), stdout=None
    )
    assert done.returncode == 0
    assert target.read_bytes().startswith(b'{"provenance"')


@pytest.mark.parametrize(("kind", "code"), [("fine", 0), ("refuse", 1), ("bug", 70)])
def test_stderr_may_be_closed_or_full(attnscope, kind, code):
    assert (
        attnscope(kind, "run", TEXT, preexec_fn=lambda: os.close(2), stderr=None).returncode == code
    )
    with open("/dev/full", "wb") as full:
        assert attnscope(kind, "run", TEXT, stderr=full).returncode == code


def test_ascii_loses_nothing(attnscope):
    how = {
        "env": {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C"},
        "preexec_fn": default_signals,
    }
    done = attnscope("unicode", "run", TEXT, **how)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.isascii()
    assert b"\\xe9" in done.stdout
    assert b"\\u6f22\\u5b57" in done.stdout
    info = attnscope("", "info", "--config", "causal", **how)
    assert (info.returncode, info.stderr) == (0, b"")
    assert b"q.k / sqrt 8 (head width)" in info.stdout
    as_json = attnscope("unicode", "run", TEXT, "--format", "json", **how)
    assert as_json.returncode == 0
    assert "漢字" in as_json.stdout.decode()


@pytest.mark.parametrize("columns", ["0", "1", "20", "80", "100000", "-3", "x", "9" * 40])
def test_any_width_loses_nothing(attnscope, columns):
    done = attnscope(
        "long", "run", TEXT, "--stage", "scores,masked,weights", env={"COLUMNS": columns}
    )
    assert (done.returncode, done.stderr) == (0, b"")
    text = done.stdout.decode()
    for i in range(30):
        assert f"word{i}" in text
    assert len(re.findall(r"-?\d\.\d\d", text)) >= 3 * 30 * 30


@pytest.mark.parametrize("env", [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}])
@pytest.mark.parametrize("format", ["table", "heat"])
def test_no_escapes_in_a_pipe(attnscope, env, format):
    done = attnscope("fine", "run", TEXT, "--format", format, env=env)
    assert done.returncode == 0
    assert b"\x1b" not in done.stdout


@pytest.mark.parametrize(
    ("env", "args", "colour"),
    [
        ({}, (), True),
        ({"NO_COLOR": "1"}, (), False),
        ({"NO_COLOR": ""}, (), True),
        ({"TERM": "dumb"}, (), False),
        ({"TERM": None}, (), False),
        ({}, ("--color", "never"), False),
        ({"NO_COLOR": "1"}, ("--color", "always"), True),
    ],
)
def test_colour_on_a_terminal(env, args, colour):
    code, out = on_terminal("fine", "run", TEXT, *args, env={"TERM": "xterm-256color", **env})
    assert code == 0
    assert (b"\x1b[" in out) == colour


@pytest.mark.parametrize("env", [{}, {"NO_COLOR": "1"}])
def test_always_colours_a_pipe(attnscope, env):
    out = attnscope("fine", "run", TEXT, "--color", "always", env=env).stdout
    assert re.search(rb"\x1b\[[0-9;]*4[0-7]", out)  # a background, not bold letters alone


def test_progress_on_a_terminal():
    code, out = on_terminal("slow", "run", TEXT, env={"TERM": "xterm"})
    assert code == 0
    assert b"attending" in out


def test_quiet_shows_no_progress():
    code, out = on_terminal("slow", "run", TEXT, "--quiet", env={"TERM": "xterm"})
    assert code == 0
    assert b"attending" not in out


def test_no_progress_in_a_pipe(attnscope):
    assert attnscope("slow", "run", TEXT).stderr == b""


def test_a_signal_is_heard_while_a_text_is_tokenized():
    """Rust's panics are kept from stderr meanwhile; what the process says at its end is not."""
    code = (
        "import os; from pathlib import Path; from attnscope.base.system.signals import clean_up\n"
        "from attnscope.checkpoints.tokenization.rust import call_rust\n"
        "def signalled():\n"
        "    os.write(2, b'hidden')\n"
        "    clean_up(0.1)\n"
        "    os.write(2, b'stopped')\n"
        "call_rust(signalled, Path('t'), 'fails')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"stopped")
