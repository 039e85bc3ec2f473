"""A terminal without a window, in which a process of attnscope runs."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

ROOT = str(Path(__file__).parent.parent.parent)
# The process takes its terminal itself: with a function that is called before, it would be forked from this one, which
# takes a tenth of a second for each GB that tests have used.
START = """
import fcntl, runpy, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
_, name, *sys.argv[1:] = sys.argv
if name == "attnscope":
    runpy.run_module(name, run_name="__main__", alter_sys=True)
else:
    runpy.run_path(name, run_name="__main__")
"""


class PseudoTerminal:
    """A process in a terminal.

    Args:
        words: The command line, without `attnscope`.
        size: Columns and lines.
        script: A script of Python to run instead.
        settings: Environment variables that are set beside those of the tests.
    """

    def __init__(self, *words, size=(120, 40), script=None, **settings):
        self.master, self._slave = pty.openpty()
        self.resize(*size, tell=False)
        self.before = termios.tcgetattr(self._slave)
        environment = {
            **os.environ,
            "TERM": "xterm-256color",
            "COLORTERM": "truecolor",
            "PYTHONUTF8": "1",
            "PYTHONPATH": ROOT,
            **settings,
        }
        environment.pop("NO_COLOR", None) if "NO_COLOR" not in settings else None
        self.process = subprocess.Popen(
            [sys.executable, "-c", START, "attnscope" if script is None else str(script), *words],
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            env=environment,
            start_new_session=True,
        )
        self.written, self.last = b"", 0.0

    def resize(self, columns, lines, *, tell=True):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        if tell:
            self.process.send_signal(signal.SIGWINCH)

    def read(self, seconds):
        """Read what is written until nothing has been for some time; return it. `last` is when the last of it came."""
        new = b""
        while select.select([self.master], [], [], seconds)[0]:
            try:
                data = os.read(self.master, 1 << 16)
            except OSError:  # nobody has it open any more
                break
            if not data:
                break
            new, self.last = new + data, time.perf_counter()
        self.written += new
        return new

    def wait_for(self, words, seconds=60.0):
        """Read until something has been written."""
        until = time.monotonic() + seconds
        while words not in self.written:
            assert time.monotonic() < until and self.process.poll() is None, self.written[-2000:]
            self.read(0.05)

    def press(self, keys):
        os.write(self.master, keys)

    def end(self, seconds=10.0):
        """Wait for the end; return the exit code, below 0 for a signal."""
        until = time.monotonic() + seconds
        while self.process.poll() is None:
            assert time.monotonic() < until, "it does not end"
            self.read(0.05)
        self.read(0.1)
        return self.process.returncode

    def is_as_before(self):
        """Tell whether the terminal's settings are those from before, and its screen, mouse and cursor are put back."""
        last = {
            name: self.written.rfind(f"\x1b[?{name}".encode())
            for name in ("1049l", "25h", "1000l", "2004l")
        }
        first = {
            name: self.written.rfind(f"\x1b[?{name}".encode())
            for name in ("1049h", "25l", "1000h", "2004h")
        }
        put_back = all(on < off for on, off in zip(first.values(), last.values(), strict=True))
        return put_back and termios.tcgetattr(self._slave) == self.before

    def close_master(self):
        os.close(self.master)
        self.master = -1

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for descriptor in (self.master, self._slave):
            if descriptor >= 0:
                os.close(descriptor)
