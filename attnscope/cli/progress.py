"""Steps of the work in; a bar on standard error out, where somebody watches and it takes long enough to see."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from attnscope.visible import visible

_PATIENCE = 0.5  # seconds before a bar appears: shorter work would only flicker

Tell = Callable[[str, int, int], None]


@contextmanager
def progress(*, quiet: bool) -> Iterator[Tell | None]:
    """A bar that vanishes when the work ends.

    Args:
        quiet: Show none.

    Yields:
        What takes (what is done, steps done, steps in all), or None where nobody would see it.
    """
    if quiet or sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    bar = _Bar()
    try:
        yield bar.tell
    finally:
        bar.close()


class _Bar:
    def __init__(self) -> None:
        self._started = time.monotonic()
        self._bar: Any = None
        self._tasks: dict[str, Any] = {}

    def tell(self, what: str, done: int, total: int) -> None:
        if self._bar is None and time.monotonic() - self._started < _PATIENCE:
            return
        if self._bar is None:
            self._bar = _rich_bar()
            self._bar.start()
        if what not in self._tasks:
            self._tasks[what] = self._bar.add_task(visible(what), total=total)
        self._bar.update(self._tasks[what], completed=done, total=total)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()


def _rich_bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    return Progress(*columns, console=Console(file=sys.stderr), transient=True)
