"""The process that reads pickled weights, played in this one: Python and torch take a second and a half to start."""

import json
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from attnscope.checkpoints.convert_pickle import folder, unpickle


def unpickle_here(patch: pytest.MonkeyPatch) -> None:
    """Convert pickles in this process, without limits on memory and time."""

    def read(command: list[str], **_: Any) -> "subprocess.CompletedProcess[bytes]":
        memory, seconds, *paths = command[command.index("-m") + 2 :]
        answers = unpickle.main(int(memory), int(seconds), *paths)
        return subprocess.CompletedProcess(command, 0, json.dumps(answers).encode())

    patch.setattr(unpickle, "limit_process", lambda memory, seconds: None)
    names = {name: getattr(subprocess, name) for name in ("DEVNULL", "TimeoutExpired")}
    patch.setattr(folder, "subprocess", SimpleNamespace(run=read, **names))
