"""Run a worker over the items of an input and write every record in input order.

Records are taken in windows, sorted by length within one, and put through the model in groups. Windows and groups
depend on the input and the header alone, never on where an earlier run stopped: the numbers come out with the same
bits.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from threading import Lock
from typing import Any, Generic, Literal, Protocol, TypeVar

from attnscope.base.errors import AttnscopeError, DeviceMemoryExceeded, MemoryExceeded, ModelError, arg
from attnscope.base.system.shutdown import finish_at_signal
from attnscope.batch.background import BackgroundWriter, RecordSink
from attnscope.batch.groups import TextSize, group_texts
from attnscope.batch.header import Grouping
from attnscope.batch.items import Item
from attnscope.batch.journal import JournalState
from attnscope.batch.records import Record
from attnscope.request.options import on_command_line

MAX_WINDOW_RECORDS = 2048  # records in a window, however little is kept of each

T = TypeVar("T")


class TextWorker(Protocol[T]):
    """What looks into texts."""

    def prepare(self, item: Item) -> "T | Record":
        """Prepare a text, or return the record of one that is skipped.

        Raises:
            AttnscopeError: The text cannot be looked into.
        """

    def size(self, ready: T) -> TextSize:
        """Return the size of a prepared text."""

    def start_window(self) -> None:
        """Start a new window."""

    def process(self, ready: Sequence[T]) -> list[Record]:
        """Return the records of some texts that go through the model together.

        Raises:
            ModelError: The model cannot be read, so that none can be done.
            MemoryExceeded: The run takes more memory than it may.
            DeviceMemoryExceeded: They do not fit into a GPU's memory together.
            AttnscopeError: One of them at least cannot be done.
        """


@dataclass
class Summary:
    """How a run went.

    Attributes:
        counts: Records in the dump by status.
        resumed: Records that were there before.
        computed: Records computed now; the last of these may not be written yet.
        tokens: Tokens of the records computed now.
        failures: The first failures, `line: why` each.
        started: When the run began, on the monotonic clock.
    """

    counts: "Counter[str]" = field(default_factory=Counter)
    resumed: int = 0
    computed: int = 0
    tokens: int = 0
    failures: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    @property
    def records(self) -> int:
        """Records in the dump."""
        return sum(self.counts.values())

    @property
    def reached(self) -> int:
        """Records that were there before or are computed."""
        return self.resumed + self.computed

    @property
    def rates(self) -> str:
        """Texts and tokens per second of this run."""
        seconds = max(time.monotonic() - self.started, 1e-3)
        return f"{self.computed / seconds:,.0f} texts/s · {self.tokens / seconds:,.0f} tokens/s"

    @property
    def speed(self) -> str:
        """The same with the time it took, as the end of a sentence; nothing where nothing was done."""
        return f"; {time.monotonic() - self.started:,.1f} s, {self.rates}" if self.tokens else ""


@dataclass(frozen=True)
class _Unfinished:
    """A window that is being computed.

    Attributes:
        places: Places of its records that are not written yet.
        found: Its records so far, by place.
    """

    places: range = range(0)
    found: dict[int, Record] = field(default_factory=dict)


SummaryCallback = Callable[[Summary], None]
_LISTED = 20


class Runner(Generic[T]):
    """One run over an input.

    Args:
        work: Looks into texts.
        sink: Takes records.
        bounds: How large groups and windows may be.
        strict: Stop at the first failure.
        on_progress: Called at the start, whenever records are computed, and when they are written.
        holds: Number of values of one text that fit into memory; a window may have four times as many.
        before: State of the records written before; None for the sink's own.
        again: Numbers of records among these that are tried again; the sink goes through what was written before.
    """

    def __init__(
        self,
        work: TextWorker[T],
        sink: RecordSink,
        bounds: Grouping,
        *,
        strict: bool,
        on_progress: SummaryCallback,
        holds: int,
        before: JournalState | None = None,
        again: Collection[int] = (),
    ) -> None:
        self._work, self._sink, self._bounds, self._holds = work, sink, bounds, holds
        self._strict, self._on_progress, self._again = strict, on_progress, again
        self._written = before or sink.written
        self._done = len(self._written.indices)
        self._place = 0  # of the next window's first record among those of this run
        self._unfinished = _Unfinished()
        self._handing_on = Lock()  # a signal keeps it: nothing is handed on any more
        self.summary = Summary() if again else Summary(Counter(self._written.counts), resumed=self._done)

    def run(self, items: Iterable[Item]) -> Summary:
        """Process every item that is not written yet.

        Raises:
            AttnscopeError: The dump belongs to another input, cannot be written, or with `strict` a record failed.
        """
        self._on_progress(self.summary)
        with BackgroundWriter(self._sink) as writer, finish_at_signal(lambda s: self._save_finished(writer, s)):
            windows = self._windows(items)
            window = next(windows, None)
            while window is not None:
                done = min(max(0, self._done - self._place), len(window))
                self._check_same(window[:done])
                if self._again:
                    done = self._taken_over([item.index for item, _, _ in window[:done]], writer)
                finished = self._compute(window, done) if done < len(window) else None
                try:  # tokenize before the writer starts: they share one interpreter, computing needs it far less
                    following = next(windows, None)
                finally:
                    if finished is not None:
                        self._write(*finished, writer)
                self._place += len(window)
                window = following
            writer.wait()
        if self._place < self._done:
            raise AttnscopeError(
                "the dump has more records than the input", hint=f"pass {arg('force', True)} to start over"
            )
        return self.summary

    def _taken_over(self, indices: list[int], writer: BackgroundWriter) -> int:
        """Copy a window's records from what was written before, and return their number; 0 where one is tried again.

        All of them are done again then, for a shard holds a whole window.
        """
        writer.wait()
        if not set(indices).isdisjoint(self._again):
            self._sink.skip(len(indices))
            return 0
        self.summary.counts += self._sink.copy(len(indices))
        self.summary.resumed += len(indices)
        self._on_progress(self.summary)
        return len(indices)

    def _windows(self, items: Iterable[Item]) -> "Iterator[list[tuple[Item, T | Record, TextSize]]]":
        window: list[tuple[Item, T | Record, TextSize]] = []
        values = tokens = number = 0
        bounds = self._bounds
        for item in items:
            ready = self._prepared(item)
            size = TextSize(0, 0, 0) if isinstance(ready, Record) else self._work.size(ready)
            costly = values + size.values > bounds.window or 0 < bounds.most_tokens(number) < tokens + size.longest
            if window and (costly or len(window) == MAX_WINDOW_RECORDS):
                yield window
                window, values, tokens, number = [], 0, 0, number + 1
            window.append((item, ready, size))
            values, tokens = values + size.values, tokens + size.longest
        if window:
            yield window

    def _prepared(self, item: Item) -> "T | Record":
        if item.text is None:
            return record_of(item, "failed", error=str(item.error))
        try:
            ready = self._work.prepare(item)
        except AttnscopeError as e:
            return record_of(item, "failed", error=_without_location(e, item))
        return ready

    def _check_same(self, window: "Sequence[tuple[Item, T | Record, TextSize]]") -> None:
        """Refuse to resume a dump of other texts."""
        written = self._written
        for place, (item, _, _) in enumerate(window, self._place):
            if (item.index, int(item.hash, 16)) != (written.indices[place], written.hashes[place]):
                found = f"record {item.index} of the dump is for another text"
                raise AttnscopeError(found, hint=f"pass {arg('force', True)} to start over")

    def _compute(
        self, window: "list[tuple[Item, T | Record, TextSize]]", done: int
    ) -> tuple[list[Record], list[Item], int, list[list[Record]]]:
        """Return a window's last records, their items, how many of them are new, and the records by group."""
        first = 0 if self._sink.needs_all_records else done
        found = {place: ready for place, (_, ready, _) in enumerate(window) if isinstance(ready, Record)}
        places = [place for place in range(len(window)) if place not in found]
        self._unfinished = _Unfinished(range(done, len(window)), found)
        by_group = []
        self._check_room([size.values for _, _, size in window if size.held <= self._holds], 4 * self._holds)
        self._work.start_window()
        computed, tokens = self.summary.computed, self.summary.tokens

        def report_progress() -> None:
            new = [record for place, record in found.items() if place >= done]
            self.summary.computed = computed + len(new)
            self.summary.tokens = tokens + sum(len(record.tokens) for record in new)
            self._on_progress(self.summary)

        for group in group_texts([window[place][2] for place in places], self._bounds):
            chosen = [places[i] for i in group]
            item, _, size = window[chosen[0]]
            if len(chosen) == 1 and size.held > self._holds:  # in a group all the same, so that others don't change
                error = f"{size.held:,} numbers are more than memory holds"
                found[chosen[0]] = record_of(item, "failed", error=error, needs=size.held)
                continue
            if max(chosen) >= first:
                self._check_room([window[place][2].values for place in chosen], self._holds)
                by_group.append(self._process_group([window[place] for place in chosen]))
                found |= dict(zip(chosen, by_group[-1], strict=True))
            report_progress()
        report_progress()  # of those that were skipped or failed, too
        items = [item for item, _, _ in window[first:]]
        records = [found[place] for place in range(first, len(window))]
        return records, items, len(window) - done, by_group

    def _check_room(self, values: list[int], most: int) -> None:
        """Refuse a window or group that memory does not hold now: smaller ones would give another dump.

        Raises:
            AttnscopeError: What is written stays.
        """
        if sum(values) > most:
            found = f"{sum(values):,} numbers of {len(values):,} texts are kept at a time, but memory holds {most:,}"
            again = f"start a new dump with {arg('max_memory')} to keep fewer"
            hint = f"run the same command with more free memory, or {again}"
            raise AttnscopeError(found, hint=hint)

    def _process_group(self, group: "list[tuple[Item, T | Record, TextSize]]") -> list[Record]:
        """Compute a group's records; if one text fails, compute each text alone, or halves if a GPU is full."""
        ready = [one for _, one, _ in group if not isinstance(one, Record)]
        try:
            return self._work.process(ready)
        except (ModelError, MemoryExceeded):
            raise
        except AttnscopeError as e:
            if len(group) == 1:
                return [record_of(group[0][0], "failed", error=_without_location(e, group[0][0]))]
            size = -(-len(group) // 2) if isinstance(e, DeviceMemoryExceeded) else 1
        # the error, whose traceback holds what the group had on the device, is gone by now
        parts = [group[first : first + size] for first in range(0, len(group), size)]
        return [record for part in parts for record in self._process_group(part)]

    def _write(
        self, records: list[Record], items: list[Item], new: int, by_group: list[list[Record]], writer: BackgroundWriter
    ) -> None:
        """Queue a window's last records, and stop before a failure that ends the dump."""
        fresh = len(records) - new
        end = bad = next(
            (i for i in range(fresh, len(records)) if self._strict and records[i].status == "failed"), len(records)
        )
        if bad < len(records) and self._sink.whole_windows:
            end = fresh

        def then() -> None:
            for record, item in zip(records[fresh:end], items[fresh:end], strict=True):
                self.summary.counts[record.status] += 1
                if record.status == "failed" and len(self.summary.failures) < _LISTED:
                    self.summary.failures.append(f"{item.line}: {record.error}")
            self._on_progress(self.summary)

        with self._handing_on:
            self._unfinished = _Unfinished()
            if end > fresh:
                writer.submit(records[:end], end - fresh, by_group, then)
        if bad < len(records):
            writer.wait()
            hint = f"remove {arg('strict')} to skip failed records"
            raise AttnscopeError(str(records[bad].error), where=_location(items[bad]), hint=hint)

    def _save_finished(self, writer: BackgroundWriter, seconds: float) -> None:
        """Save the first records of the window that is being computed, before a signal ends the process.

        Args:
            writer: Writes the window before it.
            seconds: How long that may take.
        """
        until = time.monotonic() + seconds
        if not self._handing_on.acquire(timeout=seconds):
            return
        found, places = self._unfinished.found, [] if self._sink.whole_windows else self._unfinished.places
        finished = [found[place] for place in takewhile(found.__contains__, places)]
        if self._strict:
            finished = list(takewhile(lambda record: record.status != "failed", finished))
        writer.finish(finished, until - time.monotonic())


def record_of(item: Item, status: Literal["ok", "skipped", "failed"], **found: Any) -> Record:
    """Return the record of a text, with what was found, or why there is nothing (`error`)."""
    text = item.text
    return Record(
        item.index,
        item.id,
        item.line,
        item.hash,
        status,
        text=None if text is None else text.text,
        pair=None if text is None else text.pair,
        context=None if text is None else text.context,
        fields=item.fields,
        **found,
    )


def _location(item: Item) -> str:
    return item.text.where if item.text is not None else f"line {item.line}"


def _without_location(error: AttnscopeError, item: Item) -> str:
    """Return the error message without the item's location."""
    where = None if error.parts.where == _location(item) else error.parts.where
    return AttnscopeError(error.parts.message, where=where, hint=error.parts.hint).line(on_command_line)
