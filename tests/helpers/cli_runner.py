"""How the tests of the command line run it as a process: in pipes, or on a terminal."""

import os
import pty
import select
import signal
import sys
from pathlib import Path

from tests.helpers.fork_server import Process

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PROGRAM = """
import sys
sys.path[:0] = {paths!r}
from tests.helpers import cli_fakes as fakes
if {kind!r}:
    fakes.install({kind!r})
from attnscope.cli import main
sys.exit(main())
"""


def command(kind, *args):
    """The command line of a process that runs attnscope, with a fake pipeline of some kind, or the real one ("")."""
    return [sys.executable, "-c", PROGRAM.format(paths=[str(ROOT), str(HERE)], kind=kind), *args]


def environment(**changes):
    """Ours without whatever would change the output, and with these changes; None removes."""
    unset = (
        "COLUMNS",
        "LINES",
        "NO_COLOR",
        "ATTNSCOPE_MODEL",
        "ATTNSCOPE_DEBUG",
        "PYTHONWARNINGS",
        "FORCE_COLOR",
    )
    kept = {name: value for name, value in os.environ.items() if name not in unset}
    return {**kept, **{name: value for name, value in changes.items() if value is not None}}


def default_signals():
    """What a child of a shell begins with: the user who runs the tests may ignore them (nohup, a background job)."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def on_terminal(kind, *args, env, stop_at=None):
    """Run with standard output and error on a terminal; the exit code, and what it got to see.

    Ctrl-C follows where it has seen `stop_at`.
    """
    ours, theirs = pty.openpty()
    env = {"PAGER": "", **env}  # a pager would wait for a key
    changed = {
        name: value for name, value in environment(**env).items() if env.get(name, "") is not None
    }
    process = Process(kind, *args, stdin=theirs, stdout=theirs, stderr=theirs, env=changed)
    os.close(theirs)
    seen = b""
    while True:
        ready, _, _ = select.select([ours], [], [], 30)
        try:
            data = os.read(ours, 65536) if ready else b""
        except OSError:  # the other side is gone
            data = b""
        if not data:
            break
        seen += data
        if stop_at is not None and stop_at in seen:
            process.send_signal(signal.SIGINT)
            stop_at = None
    os.close(ours)
    with process:
        return process.wait(timeout=20), seen
