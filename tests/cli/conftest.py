"""How the tests of the command line run it: as a process, or in this one."""

import subprocess
import sys

import pytest

from tests.helpers import cli_fakes, fork_server
from tests.helpers.cli_runner import command, environment


@pytest.fixture
def attnscope():
    """A function that runs attnscope as a process: kind of fake, arguments, env, and options of subprocess.run.

    It is forked from one that has imported everything; where it is prepared by a function, it begins with Python.
    """

    def run(kind, *args, env=None, **options):
        options = {
            "stdout": subprocess.PIPE,
            "stdin": subprocess.DEVNULL,
            "stderr": subprocess.PIPE,
            **options,
        }
        options["env"] = environment(**(env or {}))
        if "preexec_fn" in options:
            return subprocess.run(command(kind, *args), timeout=60, check=False, **options)
        return fork_server.run(kind, *args, **options)

    return run


@pytest.fixture
def pipeline(monkeypatch):
    """A function that puts a fake of some kind into this process, and gives the list of what it will be asked."""

    def install(kind):
        asked = []
        for name in ("attnscope.run.session", "attnscope.studies.rollout.measure"):
            monkeypatch.setitem(sys.modules, name, None)
        cli_fakes.install(kind, asked)
        return asked

    return install
