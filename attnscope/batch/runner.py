"""Run a worker over the items of an input, in this process, and write every record in input order."""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import groupby, takewhile
from threading import Lock
from typing import Generic, TypeVar

from attnscope.base.errors import AttnscopeError, arg
from attnscope.base.system.signals import finish_at_signal
from attnscope.batch.background import BackgroundWriter, RecordSink
from attnscope.batch.header import Grouping
from attnscope.batch.items import Item
from attnscope.batch.journal import JournalState
from attnscope.batch.records import Record
from attnscope.batch.summary import SlowText, Summary, SummaryCallback
from attnscope.batch.windows import (
    OutOfTime,
    PartialWindow,
    TextWindow,
    TextWorker,
    WindowComputer,
    WindowRecords,
    location,
)

T = TypeVar("T")


@dataclass
class _TimeLimit:
    until: float | None
    submitted: bool = False  # whether the run has a window to show for its time

    def run_group(
        self, indices: tuple[int, ...], compute: Callable[[], list[Record]]
    ) -> list[Record]:
        """Compute a group; OutOfTime if the time is over."""
        if self.until is not None and time.monotonic() >= self.until and self.submitted:
            raise OutOfTime
        return compute()


@dataclass(frozen=True)
class RunOptions:
    """How one run over an input goes on."""

    bounds: Grouping
    # number of values of one text that fit into memory; a window may have four times as many
    holds: int
    before: JournalState
    on_progress: SummaryCallback  # called at the start, and whenever records arrive or are written
    strict: bool = False
    # numbers of earlier records that are computed again while the sink copies the others; None if nothing is rewritten
    again: Collection[int] | None = None
    # when it stops, on the monotonic clock, once something new is written; None for no limit
    until: float | None = None

    def summary(self) -> Summary:
        """Return what is there at the start."""
        if self.again is not None:
            return Summary()
        return Summary(Counter(self.before.counts), resumed=len(self.before.indices))


class Runner(Generic[T]):
    """One run over an input."""

    def __init__(self, work: TextWorker[T], sink: RecordSink, options: RunOptions) -> None:
        holds = options.holds
        everything = sink.needs_all_records
        self._computer = WindowComputer(
            work, options.bounds, holds=holds, needs_all_records=everything
        )
        # its method, not one of this run: the model goes as the run does
        self._limit = _TimeLimit(options.until)
        self._computer.run_group = self._limit.run_group
        self._sink = sink
        self._options = options
        self._done = len(options.before.indices)
        self._place = 0  # of the next window's first record among those of this run
        # A signal keeps it: nothing is handed on any more.
        self._handing_on = Lock()
        self.summary = options.summary()

    def run(self, items: Iterable[Item]) -> Summary:
        """Process every item that is not written yet."""
        self._options.on_progress(self.summary)
        with (
            BackgroundWriter(self._sink) as writer,
            finish_at_signal(lambda s: self._save_finished(writer, s)),
        ):
            windows = self._computer.windows(self._unwritten(items))
            window = next(windows, None)
            while window is not None:
                position = self._place
                done = min(max(0, self._done - position), len(window.items))
                check_same(window.items[:done], position, self._options.before)
                if self._options.again is not None:
                    done = self._taken_over([item.index for item in window.items[:done]], writer)
                try:
                    finished = None
                    if done < len(window.items):
                        finished = self._compute(window, done)
                except OutOfTime:
                    self._save_finished(writer, None)
                    self.summary.stopped = True
                    return self.summary
                self._place += len(window.items)
                try:
                    # Tokenize before the writer starts: they share one interpreter, computing
                    # needs it far less.
                    following = next(windows, None)
                finally:
                    if finished is not None:
                        self._write(finished, writer)
                window = following
            writer.wait()
        if self._place < self._done:
            raise too_many_records()
        return self.summary

    def _unwritten(self, items: Iterable[Item]) -> Iterator[Item]:
        """Skip blocks that are completely written: their texts need not be tokenized."""
        if not self._done or self._options.again is not None:
            yield from items
            return
        position = 0
        for _, texts in groupby(items, lambda item: item.block):
            block = list(texts)
            if position + len(block) <= self._done:
                check_same(block, position, self._options.before)
                self._place += len(block)
            else:
                yield from block
            position += len(block)

    def _taken_over(self, indices: list[int], writer: BackgroundWriter) -> int:
        """Copy a window's earlier records, and return their number; 0 if one is computed again.

        All are computed again then, because a shard holds a whole window.
        """
        writer.wait()
        if not set(indices).isdisjoint(self._options.again or ()):
            self._sink.skip(len(indices))
            return 0
        self.summary.counts += self._sink.copy(len(indices))
        self.summary.resumed += len(indices)
        self._options.on_progress(self.summary)
        return len(indices)

    def _compute(self, window: TextWindow[T], done: int) -> WindowRecords:
        computed = self.summary.computed
        tokens = self.summary.tokens

        def on_records(new: list[Record]) -> None:
            self.summary.computed = computed + len(new)
            self.summary.tokens = tokens + sum(len(record.tokens) for record in new)
            self._options.on_progress(self.summary)

        return self._computer.compute(window, done, on_records)

    def _write(self, window: WindowRecords, writer: BackgroundWriter) -> None:
        """Queue a window's last records, and stop before a failure that ends the dump."""
        records = window.records
        items = window.items
        fresh = len(records) - window.new
        failed = (
            at
            for at in range(fresh, len(records))
            if self._options.strict and records[at].status == "failed"
        )
        end = bad = next(failed, len(records))
        if bad < len(records) and self._sink.whole_windows:
            end = fresh
        self.summary.time_texts(slow_texts(window))

        def then() -> None:
            for record, item in zip(records[fresh:end], items[fresh:end], strict=True):
                self.summary.count(record.status, record.error, item)
            self._options.on_progress(self.summary)

        with self._handing_on:
            self._computer.partial = PartialWindow()
            if end > fresh:
                self._limit.submitted = True
                writer.submit(partial(self._sink.write, records[:end], end - fresh), then)
        if bad < len(records):
            writer.wait()
            raise strict_failure(records[bad].error, items[bad])

    def _save_finished(self, writer: BackgroundWriter, seconds: float | None) -> None:
        """Save the first records of the current window within seconds; with None, without haste, and count them."""
        until = None if seconds is None else time.monotonic() + seconds
        if not self._handing_on.acquire(timeout=-1 if seconds is None else seconds):
            return
        partial = self._computer.partial
        records = partial.records
        places = [] if self._sink.whole_windows else partial.places
        finished = [records[index] for index in takewhile(records.__contains__, places)]
        if self._options.strict:
            finished = list(takewhile(lambda record: record.status != "failed", finished))
        if until is not None:
            writer.finish(finished, until - time.monotonic())
            return
        writer.wait()
        if finished:
            self._sink.write(finished, len(finished))
        self.summary.counts.update(record.status for record in finished)
        self.summary.computed = self.summary.records - self.summary.resumed
        self._options.on_progress(self.summary)


def check_same(items: list[Item], position: int, state: JournalState) -> None:
    """Refuse to resume a dump of other texts; the first of these has this place among its records."""
    for at, item in enumerate(items[: max(0, len(state.indices) - position)], position):
        if (item.index, int(item.hash, 16)) != (state.indices[at], state.hashes[at]):
            message = f"record {item.index} of the dump is for another text"
            raise AttnscopeError(message, hint=f"pass {arg('force', True)} to start over")


def too_many_records() -> AttnscopeError:
    """Return the error about a dump that has more records than its input has texts."""
    return AttnscopeError(
        "the dump has more records than the input", hint=f"pass {arg('force', True)} to start over"
    )


def strict_failure(error: str | None, item: Item) -> AttnscopeError:
    """Return the error that ends a strict run."""
    return AttnscopeError(
        str(error), where=location(item), hint=f"remove {arg('strict')} to skip failed records"
    )


def slow_texts(window: WindowRecords) -> list[SlowText]:
    """Return the times of a window's texts."""
    texts = zip(window.items, window.records, strict=True)
    return [
        SlowText(window.seconds[item.index], item.line, len(record.tokens))
        for item, record in texts
        if item.index in window.seconds
    ]
