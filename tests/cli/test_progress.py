"""A bar appears on a terminal, for what takes long, and vanishes."""

import io
import re
import time

import pytest

from attnscope.cli import progress as module
from attnscope.cli.progress import progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(module, "_PATIENCE", 0.05)
    monkeypatch.setattr(module, "_START", 0.1)

    def install():  # in the test itself, for pytest replaces sys.stderr after the fixtures are made
        screen = Terminal()
        monkeypatch.setattr("sys.stderr", screen)
        return screen

    return install


def wait_for(screen, text):
    for _ in range(100):
        if text in screen.getvalue():
            return
        time.sleep(0.02)
    raise AssertionError(f"{text!r} never appeared in {screen.getvalue()!r}")


def test_a_step_that_says_nothing(terminal):
    screen = terminal()
    with progress(quiet=False) as on_progress:
        on_progress("load\x1b[31ming", 0, 1)
        wait_for(screen, r"load\x1b[31ming")


def test_progress_shows_the_percentage_of_each_step(terminal):
    screen = terminal()
    with progress(quiet=False) as on_progress:
        on_progress("attending", 1, 8)
        wait_for(screen, "12%")
        on_progress("attending", 3, 8)
        wait_for(screen, "38%")
        on_progress("writing", 1, 2)
        wait_for(screen, "writing")
    assert screen.getvalue().endswith("\x1b[2K")  # the line is wiped


def test_a_slow_start(terminal):
    screen = terminal()
    with progress(quiet=False):
        wait_for(screen, "starting")


def test_nothing_for_quick_work(terminal):
    screen = terminal()
    with progress(quiet=False) as on_progress:
        for done in range(9):
            on_progress("attending", done, 8)
    time.sleep(0.2)
    assert screen.getvalue() == ""


def test_nothing_where_nobody_looks(terminal, monkeypatch):
    terminal()
    with progress(quiet=True) as on_progress:
        assert on_progress is None
    monkeypatch.setattr("sys.stderr", io.StringIO())
    with progress(quiet=False) as on_progress:
        assert on_progress is None
    monkeypatch.setattr("sys.stderr", None)
    with progress(quiet=False) as on_progress:
        assert on_progress is None


def test_how_far_a_step_is_stands_in_words_and_as_time_left(terminal):
    screen = terminal()
    with progress(quiet=False) as on_progress:
        for done in range(1, 40):
            on_progress(f"attending · layer 2 of 4 · tile {done}", done, 1000)
            time.sleep(0.01)
        wait_for(screen, "layer 2 of 4 · tile 39")
        wait_for(screen, " 4%")
        plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
        assert re.search(r" 4% 0:00:\d\d [\d:-]+ left", plain)


def test_a_step_whose_words_change_is_still_one_step(terminal):
    """Otherwise every tile would put the bar off again."""
    screen = terminal()
    with progress(quiet=False) as on_progress:
        for done in range(40):
            on_progress(f"attending · tile {done}", done, 40)
            time.sleep(0.01)
        wait_for(screen, "tile 39")


def test_the_time_that_is_left_has_its_name_or_is_not_there(terminal):
    screen = terminal()
    with progress(quiet=False) as bar:
        bar("layers", 0, 1)
        wait_for(screen, "layers")
    assert "left" not in screen.getvalue()
    screen = terminal()
    with progress(quiet=False) as bar:
        bar("layers", 0, 100)
        wait_for(screen, "layers")
        bar("layers", 50, 100)
        bar("layers", 51, 100)
        wait_for(screen, " left")
    assert re.search(r"\d\d:\d\d left", re.sub(r"\x1b\[[\d;]*m", "", screen.getvalue()))
