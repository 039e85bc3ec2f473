"""A copy of the tree in which tests run on forks of one process that has torch imported already."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings

_MEMORY = 16 << 30  # bytes of address space: torch alone reserves several GiB
_IMPORTED = ("torch", "transformers", "tokenizers", "safetensors.torch", "numpy", "typer", "rich.table", "jsonschema")


class Sandbox:
    """A folder with a copy of the tree, where mutants are written and tests run.

    Attributes:
        tree: The copy.
    """

    def __init__(self, root: Path, folder: Path) -> None:
        """Copy what git knows or would add; the copy of an earlier run goes."""
        self.folder, self.tree = folder, folder / "tree"
        shutil.rmtree(self.tree, ignore_errors=True)
        listed = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=root, capture_output=True, check=True
        )
        for name in filter(None, listed.stdout.decode().split("\0")):
            if (root / name).is_file():
                (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, self.tree / name)
        subprocess.run([sys.executable, "-m", "compileall", "-q", "attnscope"], cwd=self.tree, check=True)
        for name in _IMPORTED:
            __import__(name)

    def mutate(self, path: str, source: str) -> None:
        """Write a file of the copy; compiled code that is as old and as long must not stand for it."""
        file = self.tree / path
        for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
            compiled.unlink()
        file.write_text(source)

    def pytest(self, files: list[str], plugin: Any, limit: float, before: Callable[[], None] = lambda: None) -> str:
        """Run pytest on test files in a fork; "passed", "failed", or "timeout" after `limit` seconds.

        Args:
            files: From the root of the tree.
            plugin: Chooses and orders tests, or measures them.
            limit: Seconds until the process and all of its children end.
            before: Called in the fork before pytest.

        Raises:
            RuntimeError: Pytest found no test.
        """
        pid = os.fork()
        if not pid:
            try:
                self._enter()
                before()
                options = ["-x", "-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
                options.append(f"--basetemp={self.folder / 'tmp'}")
                failed = 0
                for some in filter(None, (files[:1], files[1:3], files[3:])):  # most need no more than the first
                    failed = failed or int(pytest.main([*options, *some], plugins=[plugin, _NoShrinking()]))
            except BaseException as e:
                print(repr(e), file=sys.stderr)
                failed = 1
            sys.stdout.flush()
            os._exit(failed)
        code = self._wait(pid, limit)
        if code == pytest.ExitCode.NO_TESTS_COLLECTED:
            raise RuntimeError(f"pytest found no test: see {self.folder / 'pytest.txt'}")
        return {0: "passed", None: "timeout", -signal.SIGALRM: "timeout"}.get(code, "failed")

    def _enter(self) -> None:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        out = os.open(self.folder / "pytest.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for number in (1, 2):
            os.dup2(out, number)
        os.chdir(self.tree)
        sys.path.insert(0, str(self.tree))
        for name in [name for name in sys.modules if name == "tests" or name.startswith("tests.")]:
            del sys.modules[name]  # the tests of the copy, not those of the tree that this command belongs to

    @staticmethod
    def _wait(pid: int, limit: float) -> int | None:
        until, code = time.monotonic() + limit, None
        while code is None and time.monotonic() < until:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                code = os.waitstatus_to_exitcode(status)
            else:
                time.sleep(0.02)
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # with what it has started
        if code is None:
            os.waitpid(pid, 0)
        return code


class _NoShrinking:
    """Whether a test fails is asked, not how small an example of it becomes."""

    def pytest_collection(self) -> None:
        quick = settings(settings.get_profile("attnscope"), phases=(Phase.explicit, Phase.generate))
        settings.register_profile("mutation", quick)
        settings.load_profile("mutation")


def load(path: Path) -> Any:
    """JSON of a file; an empty table where there is none."""
    return json.loads(path.read_bytes()) if path.exists() else {}
