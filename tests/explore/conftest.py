"""Tests of explore wait less."""

from importlib.util import find_spec

import pytest


@pytest.fixture(autouse=True)
def _soon_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let textual's pilot look every 4 ms whether an application is idle, not every 20: else tests mostly sleep."""
    if find_spec("textual"):
        monkeypatch.setattr("textual._wait.SLEEP_GRANULARITY", 0.004)
        monkeypatch.setattr("textual._wait.SLEEP_IDLE", 0.0004)
