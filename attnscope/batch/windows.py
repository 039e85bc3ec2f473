"""Form the windows of a dump and compute their records, with the same bits in any process.

Records are taken in windows, sorted by length within one, and put through the model in groups: a group is one forward
pass. Windows and groups depend on the input and the header alone, never on where an earlier run stopped.

Padding must not change a number by more than rounding. Matrix products and sums of short rows add their terms in
another order for another size; from 16 tokens on (a vector of AVX-512), most rows are the same to the last bit,
whatever else is in the batch. A shorter text is therefore only grouped with texts of the same length.
"""

import gc
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Any, Generic, Literal, Protocol, TypeVar

from attnscope.base.errors import (
    AttnscopeError,
    DeviceFailed,
    DeviceMemoryExceeded,
    MemoryExceeded,
    ModelError,
    arg,
)
from attnscope.batch.header import MEASURES, Grouping, Settings
from attnscope.batch.items import Item
from attnscope.batch.records import Record
from attnscope.batch.summary import SlowText
from attnscope.findings.record_parts import numbers_of_head
from attnscope.request.options import on_command_line

_AHEAD = 256  # texts that are tokenized together
MIN_PADDED_TOKENS = 16  # smallest number of tokens of a text that may be padded
MAX_WINDOW_RECORDS = 1 << 14  # records in a window, however little is kept of each

T = TypeVar("T")


@dataclass(frozen=True)
class TextSize:
    """Sizes of a text."""

    tokens: int
    sources: int
    values: int
    # numbers that are held in addition while it is computed, and that a group does not share
    beside: int = 0

    @property
    def longest(self) -> int:
        """The larger of tokens and sources, which determines the padding of a group."""
        return max(self.tokens, self.sources)

    @property
    def held(self) -> int:
        """Numbers that memory holds of it."""
        return self.values + self.beside

    def can_share_group(self, other: "TextSize") -> bool:
        """Tell whether padding the shorter of the two changes no number of it."""
        equal_sizes = (self.tokens, self.sources) == (other.tokens, other.sources)
        return (
            equal_sizes
            or min(self.tokens, self.sources, other.tokens, other.sources) >= MIN_PADDED_TOKENS
        )


def count_values(
    settings: Settings, units: int, sizes: tuple[int, int, int], d_value: int, spans: int
) -> int:
    """Return the count of numbers that a dump keeps of a text with these queries and keys shown, and source tokens."""
    queries, keys, sources = sizes
    return units * numbers_of_head(
        settings.keep,
        rows=queries,
        sources=sources,
        cells=queries * sum(d_value if stage == "output" else keys for stage in settings.stages),
        top=min(settings.top, sources),
        measures=len(MEASURES[settings.by]),
        statistics=len(settings.kept_statistics),
        pool=min(settings.pool, sources),
        place=1,
        spans=spans,
    )


def group_texts(sizes: Sequence[TextSize], bounds: Grouping) -> list[list[int]]:
    """Return places of texts that go together: neighbours in length, as many as the bounds allow, at least one."""
    groups: list[list[int]] = []
    last = TextSize(0, 0, 0)
    values = 0
    for index in sorted(
        range(len(sizes)), key=lambda i: (sizes[i].longest, sizes[i].tokens, sizes[i].sources)
    ):
        size = sizes[index]
        # Texts are sorted by length, so the new text is the longest: the others are padded to its length.
        fits = (
            groups
            and (len(groups[-1]) + 1) * size.longest <= bounds.tokens
            and values + size.values <= bounds.values
        )
        if fits and size.can_share_group(last):
            groups[-1].append(index)
            values += size.values
        else:
            groups.append([index])
            values = size.values
        last = size
    return groups


class TextWorker(Protocol[T]):
    """Prepares and computes texts."""

    def read_ahead(self, items: Sequence[Item]) -> None:
        """Do for several texts at once what `prepare` would do for each of them."""

    def prepare(self, item: Item) -> "T | Record":
        """Prepare a text, or return the record of one that is skipped."""

    def size(self, ready: T) -> TextSize:
        """Return the size of a prepared text."""

    def warm_up(self) -> None:
        """Do once what the first text would have to wait for."""

    def process(
        self,
        ready: Sequence[T],
        following: Sequence[T] = (),
        meanwhile: Callable[[], bool] = lambda: False,
    ) -> list[Record]:
        """Return the records of some texts that go through the model together.

        Args:
            following: The texts that are processed next, which a GPU may compute meanwhile.
            meanwhile: Does a little of other work, while a GPU is waited for; False if there is no more.

        Raises:
            ModelError: The model cannot be read, so that none can be done.
            MemoryExceeded: The run takes more memory than it may.
            DeviceMemoryExceeded: They do not fit into a GPU's memory together.
            DeviceFailed: The GPU fails, so that none can be done.
        """


# Computes a group, given the numbers of its texts and the function that does it.
GroupRunner = Callable[[tuple[int, ...], Callable[[], list[Record]]], list[Record]]


@dataclass(frozen=True)
class Suspects:
    """Texts that were being computed when a process died."""

    # numbers of the texts that run alone first, since one of their group may have been the cause; if all of a group
    # survive that, it runs together after all, for the last bits of its numbers
    alone: Collection[int] = ()
    # when texts that ended a process alone, or together after each ran alone, are tried again, on the monotonic clock;
    # after all other texts of their window
    retry_at: Mapping[int, float] = field(default_factory=dict)
    # numbers of texts whose group ended too many processes, and is not run together again
    apart: Collection[int] = ()
    # numbers of the texts that are given up, to the reason
    failed: Mapping[int, str] = field(default_factory=dict)

    def start_time(self, indices: Iterable[int]) -> float:
        """Return when texts may be computed, on the monotonic clock; 0 for at once."""
        return max(self.retry_at.get(index, 0.0) for index in indices)


@dataclass(frozen=True)
class TextWindow(Generic[T]):
    """Texts that are sorted by length together."""

    items: list[Item]
    ready: "list[T | Record]"  # prepared texts, or records of texts that are not computed
    sizes: list[TextSize]


@dataclass(frozen=True)
class WindowRecords:
    """Records of a window, in the order of the input, the last of which are new."""

    records: list[Record]
    new: int  # how many of these, the last ones, are not written yet
    times: list[SlowText]  # of those that were computed


class WindowSteps(Iterator[TextWindow[T]]):
    """The windows of some blocks, which are formed text by text, also while something else is waited for.

    Args:
        steps: Yields None after each text, and each window once it is complete.
    """

    def __init__(self, steps: Iterator[TextWindow[T] | None]) -> None:
        self._steps = steps
        self._next: TextWindow[T] | None = None
        self._end: Exception | None = None  # why there is no further window

    def advance(self) -> bool:
        """Prepare another text; False if the next window is complete, or there is none."""
        if self._next is not None or self._end is not None:
            return False
        try:
            self._next = next(self._steps)
        except StopIteration:
            self._end = StopIteration()  # without the frames of this one, which hold the model
        except Exception as e:
            self._end = e
        return True

    def __next__(self) -> TextWindow[T]:
        while self.advance():
            pass
        window = self._next
        if window is None:
            assert self._end is not None
            raise self._end
        self._next = None
        return window


class WindowComputer(Generic[T]):
    """Forms windows and computes their records.

    Args:
        holds: Number of values of one text that fit into memory; a window may have four times as many.
        needs_all_records: Compute those records of a window, too, that are written.
    """

    def __init__(
        self, work: TextWorker[T], bounds: Grouping, *, holds: int, needs_all_records: bool
    ) -> None:
        self._work = work
        self._bounds = bounds
        self._holds = holds
        self._needs_all = needs_all_records
        self.suspects = Suspects()
        self.run_group: GroupRunner = lambda indices, compute: compute()
        self._meanwhile: Callable[[], bool] = lambda: False

    def windows(self, items: Iterable[Item]) -> WindowSteps[T]:
        """Return the windows of some blocks of the input; while a GPU computes one, the next is prepared."""
        windows = WindowSteps(self._steps(items))
        self._meanwhile = windows.advance
        return windows

    def _steps(self, items: Iterable[Item]) -> Iterator[TextWindow[T] | None]:
        items_of = list[Item]()
        ready_of = list[T | Record]()
        sizes = list[TextSize]()
        values = tokens = 0
        bounds = self._bounds
        for item in self._read_ahead(items):
            ready = self._prepare(item)
            if isinstance(ready, Record):
                size = TextSize(0, 0, 0)
            else:
                size = self._work.size(ready)
            full = (
                values + size.values > bounds.window
                or 0 < bounds.window_tokens < tokens + size.longest
            )
            if items_of and (
                full or len(items_of) == MAX_WINDOW_RECORDS or item.block != items_of[-1].block
            ):
                yield TextWindow(items_of, ready_of, sizes)
                items_of = []
                ready_of = []
                sizes = []
                values = tokens = 0
            items_of.append(item)
            ready_of.append(ready)
            sizes.append(size)
            values = values + size.values
            tokens = tokens + size.longest
            yield None
        if items_of:
            yield TextWindow(items_of, ready_of, sizes)

    def _read_ahead(self, items: Iterable[Item]) -> Iterator[Item]:
        unread = iter(items)
        failure = None
        while failure is None:
            texts = list[Item]()
            try:
                texts.extend(islice(unread, _AHEAD))  # keeps what comes before an error
            except Exception as e:
                failure = e
            if not texts:
                break
            self._work.read_ahead(texts)
            yield from texts
        if failure is not None:
            raise failure

    def _prepare(self, item: Item) -> "T | Record":
        if item.text is None:
            return record_of(item, "failed", error=str(item.error))
        try:
            return self._work.prepare(item)
        except AttnscopeError as e:
            return record_of(item, "failed", error=_without_location(e, item))

    def compute(self, window: TextWindow[T], done: int) -> WindowRecords:
        """Compute the last records of a window."""
        start = 0 if self._needs_all else done
        by_place = {
            index: ready for index, ready in enumerate(window.ready) if isinstance(ready, Record)
        }
        places = [index for index in range(len(window.items)) if index not in by_place]
        seconds = dict[int, float]()
        self._check_room(
            [size.values for size in window.sizes if size.held <= self._holds], 4 * self._holds
        )

        groups = group_texts([window.sizes[index] for index in places], self._bounds)
        chosen_groups = [[places[i] for i in group] for group in groups]
        computed = []
        for group_indices in sorted(
            chosen_groups, key=lambda group: self._start_time(window, group)
        ):
            size = window.sizes[group_indices[0]]
            # in a group all the same, so that others don't change
            if len(group_indices) == 1 and size.held > self._holds:
                error = f"{size.held:,} numbers are more than memory holds"
                item = window.items[group_indices[0]]
                by_place[group_indices[0]] = record_of(item, "failed", error=error, needs=size.held)
            elif max(group_indices) >= start:
                computed.append(group_indices)
        for group_indices, following in pairwise([*computed, []]):
            self._check_room([window.sizes[index].values for index in group_indices], self._holds)
            group_records = self._group_records(window, group_indices, following, seconds)
            by_place |= zip(group_indices, group_records, strict=True)
        records = [by_place[index] for index in range(start, len(window.items))]
        times = [
            SlowText(seconds[record.index], record.line, len(record.tokens))
            for record in records
            if record.index in seconds
        ]
        return WindowRecords(records, len(window.items) - done, times)

    def _start_time(self, window: TextWindow[T], places: list[int]) -> float:
        return self.suspects.start_time(window.items[index].index for index in places)

    def _check_room(self, values: list[int], max_values: int) -> None:
        """Refuse a window or group that memory does not hold now: smaller ones would give another dump."""
        if sum(values) > max_values:
            message = f"{sum(values):,} numbers of {len(values):,} texts are kept at a time, but memory holds {max_values:,}"
            again = f"start a new dump with {arg('max_memory')} to keep fewer"
            hint = f"run the same command with more free memory, or {again}"
            raise AttnscopeError(message, hint=hint)

    def _group_records(
        self,
        window: TextWindow[T],
        group_indices: list[int],
        following: list[int],
        seconds: dict[int, float],
    ) -> list[Record]:
        """Compute a group's records; texts that may have ended a process run alone first, or are given up.

        The following group may be launched meanwhile, unless texts are suspected.
        """
        indices = {window.items[index].index for index in group_indices}
        suspects = self.suspects
        divided = not indices.isdisjoint(suspects.apart) or not indices.isdisjoint(suspects.failed)
        if len(group_indices) > 1 and (divided or not indices.isdisjoint(suspects.alone)):
            singles = sorted(group_indices, key=lambda index: self._start_time(window, [index]))
            by_place = {
                index: self._run_together(window, [index], [], seconds)[0] for index in singles
            }
            if divided:
                return [by_place[index] for index in group_indices]
        unsuspected = suspects == Suspects()
        return self._run_together(window, group_indices, following if unsuspected else [], seconds)

    def _run_together(
        self,
        window: TextWindow[T],
        places: list[int],
        following: list[int],
        seconds: dict[int, float],
    ) -> list[Record]:
        items = [window.items[index] for index in places]
        if items[0].index in self.suspects.failed:
            return [record_of(items[0], "failed", error=self.suspects.failed[items[0].index])]

        def compute() -> list[Record]:
            begun = time.perf_counter()
            group = list(zip(items, (window.ready[index] for index in places), strict=True))
            records = self._process(group, [window.ready[index] for index in following])
            took = time.perf_counter() - begun
            lengths = [window.sizes[index].longest for index in places]
            for item, length in zip(items, lengths, strict=True):
                seconds[item.index] = took * length / max(1, sum(lengths))
            return records

        return self.run_group(tuple(item.index for item in items), compute)

    def _process(
        self, group: "list[tuple[Item, T | Record]]", following: "Sequence[T | Record]" = ()
    ) -> list[Record]:
        """Compute a group's records; if one text fails, compute each text alone, or halves if a GPU is full."""
        ready = [prepared for _, prepared in group if not isinstance(prepared, Record)]
        next_ready = [prepared for prepared in following if not isinstance(prepared, Record)]
        try:
            return self._work.process(ready, next_ready, self._meanwhile)
        except (ModelError, MemoryExceeded, DeviceFailed):
            raise
        except AttnscopeError as e:
            if len(group) == 1:
                return [record_of(group[0][0], "failed", error=_without_location(e, group[0][0]))]
            device_is_full = isinstance(e, DeviceMemoryExceeded)
        if device_is_full:
            # The error is gone by now, but what its traceback holds on the device may be part of a reference cycle.
            gc.collect()
        size = -(-len(group) // 2) if device_is_full else 1
        parts = [group[start : start + size] for start in range(0, len(group), size)]
        return [record for part in parts for record in self._process(part)]


def record_of(item: Item, status: Literal["ok", "skipped", "failed"], **contents: Any) -> Record:
    """Return the record of a text with its findings, or with an `error`."""
    text = item.text
    return Record(
        item.index,
        item.id,
        item.line,
        item.hash,
        status,
        text=None if text is None or (text.chat and not text.rendered) else text.text,
        pair=None if text is None else text.pair,
        context=None if text is None else text.context,
        fields=item.fields,
        **contents,
    )


def location(item: Item) -> str:
    """Return the place of a text in the input."""
    if item.text is not None:
        return item.text.where
    return f"line {item.line}"


def _without_location(error: AttnscopeError, item: Item) -> str:
    where = None if error.parts.where == location(item) else error.parts.where
    return AttnscopeError(error.parts.message, where=where, hint=error.parts.hint).line(
        on_command_line
    )
