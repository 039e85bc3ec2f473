"""The thread of a walk: Esc ends what a key asked for, and a cell that is explained is that of the cursor."""

import subprocess
import sys
import threading

import pytest

pytest.importorskip("textual", reason="textual is not installed")

from attnscope.views.explore.worker import Job, Worker
from attnscope.views.terminal import as_text
from attnscope.views.walk.scene import Variant
from tests.explore.subjects import live


def test_what_runs_for_a_key_ends_when_it_is_dropped_and_shows_nothing():
    """An explanation appeared over the screen long after Esc."""
    shown = []
    for looks in (True, False):
        worker = Worker(lambda call: call(), lambda *_: None)
        began, may_end, ended = (threading.Event() for _ in range(3))

        def explain(progress, looks=looks, began=began, may_end=may_end):
            began.set()
            may_end.wait(10)
            if looks:
                progress("attending", 1, 2)
            return looks

        worker.start()
        worker.post(Job("explain", explain, shown.append))
        worker.post(Job("write", lambda _progress: None, shown.append))
        assert began.wait(10)
        assert worker.drop() == ["explain", "write"]
        worker.post(Job("pick", lambda _progress: None, lambda _, ended=ended: ended.set()))
        may_end.set()
        assert ended.wait(10) and worker.stop()
    assert shown == []


def test_what_the_screen_lacks_is_not_dropped():
    shown, began, may_end = [], threading.Event(), threading.Event()

    def compute(_progress):
        began.set()
        return may_end.wait(10)

    worker = Worker(lambda call: call(), lambda *_: None)
    worker.start()
    worker.post(Job("compute", compute, shown.append))
    assert began.wait(10) and worker.drop() == []
    may_end.set()
    worker.post(Job("pick", lambda _progress: None, shown.append))
    while worker.busy:
        threading.Event().wait(0.001)
    assert shown == [True, None] and worker.stop()


def test_the_explained_cell_is_called_that_of_the_cursor():
    """It was called `--key`, which nobody had typed."""
    source = live("The bank by the river", model="riverbank")
    variant = Variant(0, source.masks[0])
    source.compute(variant, 0, 0, "weights", (0, 0), lambda *_: None)
    text = source.explain(
        variant, 1, 2, (3, 1), lambda shown: as_text(shown, width=100, colours=0), lambda *_: None
    )
    assert "(under the cursor)" in text and "--key)" not in text


def test_python_ends_cleanly_under_a_thread_that_is_in_torch():
    """C++ aborted the process (`terminate called without an active exception`)."""
    script = """
import threading, torch
from attnscope.views.explore.worker import Job, Worker

began = threading.Event()

def compute(progress):
    square = torch.ones(700, 700)
    while True:
        square @ square
        began.set()
        progress("attending", 1, 2)

worker = Worker(lambda call: call(), lambda *_: None)
worker.start()
worker.post(Job("compute", compute, print))
began.wait()
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, b"")
