"""How far a dump is, on standard error: a bar in a terminal, a line a minute elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from attnscope.cli.process import print_notice
from attnscope.cli.progress import cursor_kept, remaining_column, rich_progress

if TYPE_CHECKING:
    from attnscope.batch.summary import Summary

_MINUTE = 60.0  # seconds between two lines


@contextmanager
def progress(*, quiet: bool) -> "Iterator[Callable[[Summary, int], None]]":
    """Show a bar that vanishes when the work ends; if it would not be seen, print a line a minute.

    Yields:
        A function of the dump's progress and its total number of records.
    """
    if quiet or sys.stderr is None:
        yield lambda summary, total: None
        return
    if not sys.stderr.isatty():
        yield _Lines().update
        return
    bar = _rich_bar()
    task = bar.add_task("", total=None, rates="", failed="")

    def on_progress(summary: "Summary", total: int) -> None:
        bad = summary.counts["failed"]
        nodes = f"{summary.nodes} nodes" if summary.nodes else ""
        failed = " · ".join(filter(None, [nodes, f"{bad:,} failed" if bad else ""]))
        bar.update(task, completed=summary.reached, total=total, rates=summary.rates, failed=failed)

    with cursor_kept(bar.stop):
        bar.start()
        try:
            yield on_progress
        finally:
            bar.stop()


class _Lines:
    """A line a minute, for a log file."""

    def __init__(self) -> None:
        self._next = time.monotonic() + _MINUTE

    def update(self, summary: "Summary", total: int) -> None:
        """Print the progress, at most once a minute."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _MINUTE
        line = f"{summary.reached:,} of {total:,} texts" if total else "starting"
        if summary.computed:
            left = (total - summary.reached) * summary.seconds / summary.computed
            hours, minutes = divmod(round(left / 60), 60)
            line += f"; {summary.rates}; {hours}:{minutes:02} h left"
        if failed := summary.counts["failed"]:
            line += f"; {failed:,} failed"
        print_notice("progress", line)


def _rich_bar() -> Any:
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.table import Column

    return rich_progress(
        BarColumn(),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[rates]}", markup=False),
        remaining_column(table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[failed]}", markup=False),
    )
