"""A progress bar on standard error, shown only on a terminal and only for steps that take long."""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from attnscope.base.system.escape import escape_control
from attnscope.base.system.signals import at_signal

_PATIENCE = 0.5  # seconds that a step may take before a bar appears: for less it would only flicker
# the same before the first step, where importing torch takes more than a second at the best of times
_START = 2.5

_ECHO = 3  # columns that stay free: for ^C, and the cursor behind it

ProgressCallback = Callable[[str, int, int], None]


@contextmanager
def progress(*, quiet: bool) -> Iterator[ProgressCallback | None]:
    """Show a bar that vanishes when the work ends.

    Yields:
        A callback of (step, parts done, parts in all), or None if the bar would not be seen. Text after ` · ` is the
        progress within the step.
    """
    if quiet or sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    bar = _Bar()
    try:
        yield bar
    finally:
        bar.close()


@contextmanager
def cursor_kept(stop: Callable[[], object]) -> Iterator[None]:
    """Clear the line of a bar and show the cursor again when a signal ends the process.

    Args:
        stop: Stops the bar. Otherwise it would be drawn again, by its own thread or below the next message.
    """
    # 2 itself leads nowhere while a tokenizer is called.
    terminal = os.dup(2)
    show = b"\r\x1b[K\x1b[?25h"
    if os.environ.get("TERM") in (None, "dumb", "unknown"):
        show = b""
    try:
        with at_signal(lambda: os.write(terminal, show)), at_signal(stop):
            yield
    finally:
        os.close(terminal)


class _Bar:
    """One line for the running step; drawn by a timer, because a long step may report nothing."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bar: Any = None
        self._task: Any = None
        self._closed = False
        self._shown = ExitStack()
        self._step: tuple[str, int, int | None] = ("starting", 0, None)
        self._timer = self._wait(_START)

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show a step; see `progress`."""
        with self._lock:
            is_new = _step_name(what) != _step_name(self._step[0])
            self._step = (what, done, total)
            if self._bar is not None:
                self._draw()
            elif is_new:
                self._timer.cancel()
                self._timer = self._wait(_PATIENCE)

    def pause(self) -> None:
        """Clear the line until the next step, before something is written to the same terminal."""
        with self._lock:
            self._timer.cancel()
            if self._bar is not None:
                self._bar.stop()
            self._shown.close()
            self._bar = None
            self._step = ("", 0, None)

    def close(self) -> None:
        """Clear the line."""
        self.pause()
        self._closed = True

    def _wait(self, seconds: float) -> threading.Timer:
        timer = threading.Timer(seconds, self._show)
        timer.daemon = True
        timer.start()
        return timer

    def _show(self) -> None:
        with self._lock:
            if self._bar is None and not self._closed:
                self._bar = _rich_bar()
                self._task = self._bar.add_task("", total=None)
                self._draw()
                self._shown.enter_context(cursor_kept(self._bar.stop))
                self._bar.start()

    def _draw(self) -> None:
        what, done, total = self._step
        total = None if total == 1 else total  # a step of one part says nothing on its way
        self._bar.update(self._task, description=escape_control(what), completed=done, total=total)


def _step_name(what: str) -> str:
    """Return the name of a step, without its progress."""
    return what.partition(" · ")[0]


def rich_progress(*columns: Any) -> Any:
    """Return a line of progress on standard error that vanishes when it is stopped."""
    from rich.console import Console
    from rich.constrain import Constrain
    from rich.progress import Progress
    from rich.theme import Theme

    # rich's yellow and cyan are hard to read on white
    plain = Theme({"progress.elapsed": "", "progress.remaining": ""})
    console = Console(file=sys.stderr, markup=False, highlight=False, theme=plain)

    class Line(Progress):
        def get_renderable(self) -> Constrain:
            # the terminal writes ^C behind the line: were that a second line, the first could not be cleared
            return Constrain(super().get_renderable(), console.width - _ECHO)

    return Line(*columns, console=console, transient=True, refresh_per_second=4)


def remaining_column(**layout: Any) -> Any:
    """Return a column with the time that is left; empty as long as that is not known."""
    from rich.progress import Task, TimeRemainingColumn
    from rich.text import Text

    class Remaining(TimeRemainingColumn):
        def render(self, task: Task) -> Text:
            if task.time_remaining is None:
                return Text()
            return super().render(task).append(" left")

    return Remaining(compact=True, **layout)


def _rich_bar() -> Any:
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

    return rich_progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        TaskProgressColumn("{task.percentage:>3.0f}%", markup=False),
        TimeElapsedColumn(),
        remaining_column(),
    )
