"""Items and something that looks into texts in; every record, in the order of the input, in a sink out.

Records are taken in windows, sorted by length within one, and put through the model in groups. Windows and groups
depend on the input and the header alone, never on where an earlier run stopped: the numbers come out with the same
bits.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from attnscope.batch.behind import Behind, Sink
from attnscope.batch.groups import Size, groups
from attnscope.batch.header import Grouping
from attnscope.batch.items import Item
from attnscope.batch.journal import Written, too_large
from attnscope.batch.records import Record
from attnscope.errors import AttnscopeError, MemoryExceeded, ModelError

MOST = 2048  # records in a window, however little is kept of each

T = TypeVar("T")


class Work(Protocol[T]):
    """What looks into texts."""

    def prepare(self, item: Item) -> "T | Record":
        """A text made ready, or the record that says why there is nothing to look at.

        Raises:
            AttnscopeError: The text cannot be looked into.
        """

    def size(self, ready: T) -> Size:
        """How large it is."""

    def begin(self) -> None:
        """A new window begins."""

    def look(self, ready: Sequence[T]) -> list[Record]:
        """The records of some texts that go through the model together.

        Raises:
            ModelError: The model cannot be read, so that none can be done.
            MemoryExceeded: The run takes more memory than it may.
            AttnscopeError: One of them at least cannot be done.
        """


@dataclass
class Summary:
    """How a run went.

    Attributes:
        counts: Records in the dump by status.
        resumed: Records that were there before.
        tokens: Tokens looked into now.
        failures: The first failures, `line: why` each.
        started: When the run began, on the monotonic clock.
    """

    counts: "Counter[str]" = field(default_factory=Counter)
    resumed: int = 0
    tokens: int = 0
    failures: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    @property
    def records(self) -> int:
        """Records in the dump."""
        return sum(self.counts.values())

    @property
    def rates(self) -> str:
        """Texts and tokens per second of this run."""
        seconds = max(time.monotonic() - self.started, 1e-3)
        return f"{(self.records - self.resumed) / seconds:,.0f} texts/s · {self.tokens / seconds:,.0f} tokens/s"

    @property
    def speed(self) -> str:
        """The same with the time it took, as the end of a sentence; nothing where nothing was done."""
        return f"; {time.monotonic() - self.started:,.1f} s, {self.rates}" if self.tokens else ""


Tell = Callable[[Summary], None]
_LISTED = 20


class Runner(Generic[T]):
    """One run over an input.

    Args:
        work: Looks into texts.
        sink: Takes records.
        bounds: How large groups and windows may be.
        strict: Stop at the first failure.
        tell: Called whenever records have been written.
        holds: Numbers that memory holds of one text; a window may have four times as many.
        before: What was written before; None for what the sink says.
        again: Numbers of records among these that are tried again; the sink goes through what was written before.
    """

    def __init__(
        self,
        work: Work[T],
        sink: Sink,
        bounds: Grouping,
        *,
        strict: bool,
        tell: Tell,
        holds: int,
        before: Written | None = None,
        again: Collection[int] = (),
    ) -> None:
        self._work, self._sink, self._bounds, self._holds = work, sink, bounds, holds
        self._strict, self._tell, self._again = strict, tell, again
        self._written = before or sink.written
        self._done = len(self._written.indices)
        self._place = 0  # of the next window's first record among those of this run
        self.summary = Summary() if again else Summary(Counter(self._written.counts), resumed=self._done)

    def run(self, items: Iterable[Item]) -> Summary:
        """Look into every item that is not written yet.

        Raises:
            AttnscopeError: The dump belongs to another input, cannot be written, or with `strict` a record failed.
        """
        with Behind(self._sink) as behind:
            for window in self._windows(items):
                done = min(max(0, self._done - self._place), len(window))
                self._check_same(window[:done])
                if self._again:
                    done = self._taken_over([item.index for item, _, _ in window[:done]], behind)
                if done < len(window):
                    self._flush(window, done, behind)
                self._place += len(window)
            behind.wait()
        if self._place < self._done:
            raise AttnscopeError("the dump has more records than the input", hint="give --force to start anew")
        return self.summary

    def _taken_over(self, indices: list[int], behind: Behind) -> int:
        """Take a window's records over from what was written before; how many: none where one is tried again.

        All of them are done again then, for a shard holds a whole window.
        """
        behind.wait()
        if not set(indices).isdisjoint(self._again):
            self._sink.skip(len(indices))
            return 0
        self.summary.counts += self._sink.copy(len(indices))
        self.summary.resumed += len(indices)
        self._tell(self.summary)
        return len(indices)

    def _windows(self, items: Iterable[Item]) -> "Iterator[list[tuple[Item, T | Record, Size]]]":
        window: list[tuple[Item, T | Record, Size]] = []
        values = 0
        for item in items:
            ready = self._prepared(item)
            size = Size(0, 0, 0) if isinstance(ready, Record) else self._work.size(ready)
            if window and (values + size.values > self._bounds.window or len(window) == MOST):
                yield window
                window, values = [], 0
            window.append((item, ready, size))
            values += size.values
        if window:
            yield window

    def _prepared(self, item: Item) -> "T | Record":
        if item.text is None:
            return failed(item, str(item.error))
        try:
            ready = self._work.prepare(item)
        except AttnscopeError as e:
            return failed(item, _without_place(e, item))
        return ready

    def _check_same(self, window: "Sequence[tuple[Item, T | Record, Size]]") -> None:
        """Refuse to go on with a dump of other texts."""
        written = self._written
        for place, (item, _, _) in enumerate(window, self._place):
            if (item.index, int(item.hash, 16)) != (written.indices[place], written.hashes[place]):
                found = f"record {item.index} of the dump belongs to another text"
                raise AttnscopeError(found, hint="give --force to start anew")

    def _flush(self, window: "list[tuple[Item, T | Record, Size]]", done: int, behind: Behind) -> None:
        first = 0 if self._sink.whole else done
        found = {place: ready for place, (_, ready, _) in enumerate(window) if isinstance(ready, Record)}
        places = [place for place in range(len(window)) if place not in found]
        together = []
        self._check_room([v for _, _, size in window if (v := size.values) <= self._holds], 4 * self._holds)
        self._work.begin()
        for group in groups([window[place][2] for place in places], self._bounds):
            chosen = [places[i] for i in group]
            item, _, size = window[chosen[0]]
            if len(chosen) == 1 and size.values > self._holds:  # in a group all the same, so that others don't change
                found[chosen[0]] = failed(item, too_large(size.values))
                continue
            if max(chosen) >= first:
                self._check_room([window[place][2].values for place in chosen], self._holds)
                together.append(self._looked([window[place] for place in chosen]))
                found |= dict(zip(chosen, together[-1], strict=True))
        items = [item for item, _, _ in window[first:]]
        records = [found[place] for place in range(first, len(window))]
        self._write(records, items, len(window) - done, together, behind)

    def _check_room(self, values: list[int], most: int) -> None:
        """Refuse a window or group that memory does not hold now: smaller ones would give another dump.

        Raises:
            AttnscopeError: What is written stays.
        """
        if sum(values) > most:
            found = f"{sum(values):,} numbers of {len(values):,} texts are kept at a time, memory holds {most:,}"
            hint = "the same command goes on where there is more; a new dump with --max-memory takes fewer at a time"
            raise AttnscopeError(found, hint=hint)

    def _looked(self, group: "list[tuple[Item, T | Record, Size]]") -> list[Record]:
        """A group's records; where one text spoils it, each text alone."""
        ready = [one for _, one, _ in group if not isinstance(one, Record)]
        try:
            return self._work.look(ready)
        except (ModelError, MemoryExceeded):
            raise
        except AttnscopeError as e:
            if len(group) == 1:
                return [failed(group[0][0], _without_place(e, group[0][0]))]
        return [self._looked([one])[0] for one in group]

    def _write(
        self, records: list[Record], items: list[Item], new: int, together: list[list[Record]], behind: Behind
    ) -> None:
        """Hand a window's last records on, and stop before a failure that may not be."""
        fresh, end = len(records) - new, len(records)
        if self._strict:
            end = next((i for i in range(fresh, end) if records[i].status == "failed"), end)

        def then() -> None:
            for record, item in zip(records[fresh:end], items[fresh:end], strict=True):
                self._note(record, item)
            self._tell(self.summary)

        if end < len(records):
            last = records[end].index
            together = [[record for record in group if record.index < last] for group in together]
        behind.put(records[:end], end - fresh, together, then)
        if end < len(records):
            behind.wait()
            hint = "without --strict the rest goes on"
            raise AttnscopeError(str(records[end].error), where=_place(items[end]), hint=hint)

    def _note(self, record: Record, item: Item) -> None:
        self.summary.counts[record.status] += 1
        self.summary.tokens += len(record.tokens)
        if record.status == "failed" and len(self.summary.failures) < _LISTED:
            self.summary.failures.append(f"{item.line}: {record.error}")


def failed(item: Item, why: str) -> Record:
    """The record of a text that could not be done."""
    return without_findings(item, "failed", why)


def without_findings(item: Item, status: str, why: str) -> Record:
    """The record of a text without findings."""
    text = item.text
    return Record(
        item.index,
        item.id,
        item.line,
        item.hash,
        "skipped" if status == "skipped" else "failed",
        error=why,
        text=None if text is None else text.text,
        pair=None if text is None else text.pair,
        context=None if text is None else text.context,
        fields=item.fields,
    )


def _place(item: Item) -> str:
    return item.text.where if item.text is not None else f"line {item.line}"


def _without_place(error: AttnscopeError, item: Item) -> str:
    """The error, without repeating where the item stands."""
    where = None if error.where == _place(item) else error.where
    return str(AttnscopeError(error.found, where=where, hint=error.hint))
