"""Page output that is longer than the terminal, as git does: with $PAGER, or `less -FRX`."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
from contextlib import suppress

_LESS = "FRX"  # leave if the text fits, pass colours through, and keep the text on the screen


def write_paged(text: str) -> None:
    """Write text to standard output, through a pager if that is a terminal with fewer lines.

    ATTNSCOPE_PAGER or else PAGER names the pager; empty or `cat` is none.
    """
    command = shlex.split(os.environ.get("ATTNSCOPE_PAGER", os.environ.get("PAGER", "less")))
    lines = shutil.get_terminal_size((80, 24)).lines
    if (
        text.count("\n") < lines
        or not sys.stdout.isatty()
        or not command
        or not shutil.which(command[0])
    ):
        sys.stdout.write(text)
        return
    sys.stdout.flush()
    # Ctrl-C is for the pager, which must not outlive this process.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        environment = {"LESS": _LESS, **os.environ}
        with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment) as pager:
            assert pager.stdin is not None
            # A user who leaves the pager early has seen enough.
            with suppress(BrokenPipeError), pager.stdin as pipe:
                pipe.write(text.encode(sys.stdout.encoding or "utf-8", "backslashreplace"))
    finally:
        signal.signal(signal.SIGINT, before)
