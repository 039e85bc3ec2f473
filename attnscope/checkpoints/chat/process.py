"""Client of `sandbox`: starts the process that renders templates, and sends requests."""

import atexit
import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from threading import Lock, Thread
from typing import Any

MEMORY = 1 << 30  # bytes that the process may take
SECONDS = 5  # of computing for one request
_PATIENCE = 6  # times as long is waited, since the machine may be busy


class TookTooLong(Exception):
    """A request exceeded its time limit."""


class TemplateProcess:
    """A process that renders templates; started by the first request, and restarted after a crash.

    A forked copy of this process starts its own.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a request (see sandbox); TookTooLong if there is none in time."""
        with self._lock:
            process = self._running()
            line = json.dumps(request | {"seconds": SECONDS}).encode() + b"\n"
            received: list[bytes] = []

            def converse() -> None:
                """Send a line and receive one; a process that ends in between sends none."""
                assert process.stdin is not None and process.stdout is not None
                with suppress(OSError):
                    process.stdin.write(line)
                    process.stdin.flush()
                    received.append(process.stdout.readline())

            thread = Thread(target=converse, daemon=True)
            thread.start()
            thread.join(SECONDS * _PATIENCE)
            if thread.is_alive() or not received or not received[0].endswith(b"\n"):
                self._end()
                thread.join()
                raise TookTooLong
        answer: dict[str, Any] = json.loads(received[0])
        return answer

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        """End the process, unless it belongs to the process that this one was forked from."""
        process = self._process
        self._process = None
        if process is None:
            return
        if self._owner == os.getpid():
            process.kill()
            process.wait()
        else:
            # Only its parent can wait for it.
            process.returncode = 0
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()

    def _running(self) -> "subprocess.Popen[bytes]":
        if self._process is None or self._owner != os.getpid() or self._process.poll() is not None:
            self._end()
            package = str(Path(__file__).parents[3])
            paths = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "attnscope.checkpoints.chat.sandbox", str(MEMORY)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": paths},
            )
            self._owner = os.getpid()
            atexit.register(self.close)
        return self._process


PROCESS = TemplateProcess()
