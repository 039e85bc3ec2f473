"""A progress bar for dumps on standard error, with rates, time left and failures."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from attnscope.cli.progress import cursor_kept, rich_progress

if TYPE_CHECKING:
    from attnscope.batch.runner import Summary


@contextmanager
def progress(*, quiet: bool) -> "Iterator[Callable[[Summary, int], None]]":
    """Show a bar that vanishes when the work ends.

    Args:
        quiet: Show none.

    Yields:
        What takes how far the dump is, and how many records it will have.
    """
    if quiet or sys.stderr is None or not sys.stderr.isatty():
        yield lambda summary, total: None
        return
    bar = _rich_bar()
    task = bar.add_task("", total=None, rates="", failed="")

    def on_progress(summary: "Summary", total: int) -> None:
        bad = summary.counts["failed"]
        failed = f"{bad:,} failed" if bad else ""
        bar.update(task, completed=summary.reached, total=total, rates=summary.rates, failed=failed)

    with cursor_kept(bar.stop):
        bar.start()
        try:
            yield on_progress
        finally:
            bar.stop()


def _rich_bar() -> Any:
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.table import Column

    return rich_progress(
        BarColumn(),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[rates]}", markup=False),
        TimeRemainingColumn(table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[failed]}", markup=False),
    )
