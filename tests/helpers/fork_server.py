"""Processes of attnscope that begin where everything is imported, which saves each of them a second.

`Process` and `run` stand for `subprocess.Popen` and `subprocess.run`. A server, one for each process of tests, has
imported all that a run needs and computed nothing; it forks every process that is asked for. Tests of how a process
begins (closed descriptors, encodings, what is imported) start Python itself.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from attnscope.cli import main as attnscope
from tests.helpers import cli_fakes

ROOT = Path(__file__).parents[2]
LIGHT = (
    "pydantic.types", "pydantic.type_adapter", "tokenizers", "attnscope.cli.app", "attnscope.cli.study",
    "attnscope.cli.run_config", "attnscope.cli.deliver", "attnscope.cli.progress", "attnscope.run.plan",
    "attnscope.studies.registry", "attnscope.studies.run.screen", "attnscope.views.terminal",
)  # fmt: skip
LOADED = (
    *LIGHT, "torch", "attnscope.run.analysis", "attnscope.run.session", "attnscope.studies.rollout.measure",
    "attnscope.engines.native", "attnscope.batch.dump", "attnscope.batch.sinks",
    "attnscope.model.checkpoint", "attnscope.model.randomize",
)  # fmt: skip


class Process:
    """A forked process with the part of the interface of `subprocess.Popen` that tests use.

    Args:
        kind: Kind of a fake pipeline; "" for the real one.
        args: What follows the program's name.
        env: Its whole environment.
        cwd: Its folder; None for ours.
        ignored: Signals that it ignores from the beginning.
        stdin: As of `Popen`, as are stdout and stderr.
        hidden: Modules that it cannot import.

    Attributes:
        pid: Its number.
        returncode: As of `Popen`; None while it runs.
        stdout: Reads what it prints, where that goes to a pipe.
        stderr: The same of its errors.
    """

    def __init__(
        self,
        kind: str,
        *args: str,
        env: dict[str, str],
        cwd: Path | None = None,
        ignored: tuple[int, ...] = (),
        stdin: Any = None,
        stdout: Any = None,
        stderr: Any = None,
        hidden: tuple[str, ...] = (),
    ) -> None:
        ours, theirs = socket.socketpair()
        with contextlib.ExitStack() as stack:
            stack.enter_context(theirs)
            (self.stdin, first), (self.stdout, second), (self.stderr, third) = (
                _ends(number, given, stack) for number, given in enumerate((stdin, stdout, stderr))
            )
            request = {"kind": kind, "args": args, "env": env, "cwd": str(cwd or Path.cwd())}
            message = json.dumps({**request, "ignored": ignored, "hidden": hidden}).encode() + b"\n"
            server, _ = _server(LIGHT if kind or hidden else LOADED)
            socket.send_fds(server, [message], [first, second, third, theirs.fileno()])
        self.returncode: int | None = None
        self._replies = ours.makefile("rb")
        self._socket = ours
        self.pid = int(self._replies.readline())

    def poll(self) -> int | None:
        """The return code, or None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float = 60) -> int:
        """Wait for the end.

        Raises:
            subprocess.TimeoutExpired: It still runs.
        """
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._socket, selectors.EVENT_READ)
                if not selector.select(timeout):
                    raise subprocess.TimeoutExpired("attnscope", timeout)
            self.returncode = os.waitstatus_to_exitcode(int(self._replies.readline()))
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def communicate(self, given: bytes = b"", timeout: float = 60) -> tuple[bytes, bytes]:
        """Write to its standard input, read both pipes to their ends, and wait."""
        if self.stdin:
            with contextlib.suppress(BrokenPipeError), self.stdin:
                self.stdin.write(given)
        found = {pipe: b"" for pipe in (self.stdout, self.stderr) if pipe}
        with selectors.DefaultSelector() as selector:
            for pipe in found:
                selector.register(pipe, selectors.EVENT_READ)
            while selector.get_map():
                ready = selector.select(timeout)
                if not ready:
                    raise subprocess.TimeoutExpired("attnscope", timeout)
                for key, _ in ready:
                    data = key.fileobj.read1(65536)  # type: ignore[union-attr]
                    found[key.fileobj] += data
                    if not data:
                        selector.unregister(key.fileobj)
        self.wait(timeout)
        return found.get(self.stdout, b""), found.get(self.stderr, b"")

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in (self.stdin, self.stdout, self.stderr):
            if pipe:
                pipe.close()
        try:
            self.wait()
        finally:
            self._replies.close()
            self._socket.close()


def run(
    kind: str, *args: str, input: bytes | None = None, **options: Any
) -> "subprocess.CompletedProcess[bytes]":
    """Run one process to its end, as `subprocess.run` does; a process that takes too long is killed."""
    if input is not None:
        options["stdin"] = subprocess.PIPE
    with Process(kind, *args, **options) as process:
        try:
            out, err = process.communicate(input or b"")
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(args, process.wait(), out, err)


def _ends(number: int, given: Any, stack: contextlib.ExitStack) -> tuple[Any, int]:
    """Our end of a pipe, if there is one, and the process's descriptor, which `stack` closes if it is new."""
    if given == subprocess.PIPE:
        read, write = os.pipe()
        ours, theirs = (write, read) if number == 0 else (read, write)
        stack.callback(os.close, theirs)
        return open(ours, "wb" if number == 0 else "rb"), theirs
    if given == subprocess.DEVNULL:
        theirs = os.open(os.devnull, os.O_RDWR)
        stack.callback(os.close, theirs)
        return None, theirs
    if given is None:
        return None, number
    return None, given if isinstance(given, int) else given.fileno()


@cache
def _server(imported: tuple[str, ...]) -> "tuple[socket.socket, subprocess.Popen[bytes]]":
    """Start a server, which ends with this process; what it is asked through, and the server itself."""
    ours, theirs = socket.socketpair()
    with theirs:
        command = [
            sys.executable,
            "-m",
            "tests.helpers.fork_server",
            str(theirs.fileno()),
            *imported,
        ]
        server = subprocess.Popen(command, cwd=ROOT, pass_fds=[theirs.fileno()])
    atexit.register(lambda: (ours.close(), server.wait(10)))
    return ours, server


def _requests(asked: socket.socket) -> Iterator[dict[str, Any]]:
    """In the server: fork for every request. In a process that it forks: give the request."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(asked, 1 << 16, 4)
        while message and not message.endswith(b"\n"):
            message += asked.recv(1 << 16)
        if not message:
            os._exit(0)  # the tests are done
        *standard, told = descriptors
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of threads, which wait for work or for a process
            pid = os.fork()
        if not pid:
            for number, descriptor in enumerate(standard):
                os.dup2(descriptor, number)
            for descriptor in (*descriptors, asked.detach()):
                os.close(descriptor)
            yield json.loads(message)
        for descriptor in standard:
            os.close(descriptor)
        threading.Thread(target=_tell_end, args=(pid, told)).start()


def _tell_end(pid: int, told: int) -> None:
    """Write a process's number, wait for it, and write how it ended."""
    with contextlib.suppress(BrokenPipeError), open(told, "wb", buffering=0) as file:
        file.write(f"{pid}\n".encode())
        file.write(f"{os.waitpid(pid, 0)[1]}\n".encode())


def _become(request: dict[str, Any]) -> None:
    """Take over what a process begins with: environment, folder, signals, modules, arguments and standard streams."""
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN if number in request["ignored"] else default)
    for name in request["hidden"]:
        assert name not in sys.modules
        sys.modules[name] = None  # type: ignore[assignment]
    sys.argv = ["attnscope", *request["args"]]
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(  # noqa: SIM115
        2, "w", buffering=1, errors="backslashreplace", closefd=False
    )


def main() -> int:
    """Serve, and in each forked process run attnscope with a fake pipeline of some kind, or the real one ("")."""
    asked = socket.socket(fileno=int(sys.argv[1]))
    for name in sys.argv[2:]:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    request = next(_requests(asked))
    _become(request)
    if request["kind"]:
        cli_fakes.install(request["kind"])
    code = attnscope()
    if "torch" in sys.modules:  # to take it apart takes longer than all else
        sys.stdout.flush()
        os._exit(code)
    return code


if __name__ == "__main__":
    sys.exit(main())
