"""Run a worker over the items of an input, in this process, and write every record in input order."""

import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Generic, TypeVar

from attnscope.base.errors import AttnscopeError, arg
from attnscope.base.system.signals import finish_at_signal
from attnscope.batch.header import Grouping
from attnscope.batch.items import Item
from attnscope.batch.journal import JournalState, RecordSink
from attnscope.batch.summary import SlowText, Summary, SummaryCallback
from attnscope.batch.windows import (
    TextWindow,
    TextWorker,
    WindowComputer,
    WindowRecords,
    location,
)

T = TypeVar("T")


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


class BackgroundWriter:
    """Write one window at a time, so that memory holds two at most; raise an error when the next window arrives.

    Encoding, checksums, writing and waiting for the disk take up to a fifth of the time of the forward pass.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "attnscope-writer")
        self._pending: tuple[Future[None], Callable[[], None]] | None = None

    def submit(self, write: Callable[[], None], then: Callable[[], None]) -> None:
        """Queue a window to be written; `then` is called in the caller's thread once the records are safe."""
        self.wait()
        self._pending = self._pool.submit(write), then

    def wait(self) -> None:
        """Wait for the last window."""
        if self._pending is not None:
            future, then = self._pending
            self._pending = None
            future.result()
            then()

    def finish(self, seconds: float) -> None:
        """Wait for the submitted window, as far as the time allows."""
        wait([self._pool.submit(int)], seconds)  # there is one thread: this comes after it

    def __enter__(self) -> "BackgroundWriter":
        return self

    def __exit__(self, *_: object) -> None:
        """Wait until the current window is written, also after an error, so that no line is torn."""
        self._pool.shutdown(wait=True)


@dataclass
class WindowResult:
    """What was computed of a window and is not written yet."""

    encoded: Any  # see RecordSink.encode
    new: int
    # status, error and number of tokens of each new record
    outcomes: Sequence[tuple[str, str | None, int]]
    times: list[SlowText]
    size: int = 0  # bytes in which it came from another process

    @classmethod
    def of(cls, window: WindowRecords, encoded: Any) -> "WindowResult":
        """Return what was computed of a window."""
        fresh = window.records[len(window.records) - window.new :]
        outcomes = [(record.status, record.error, len(record.tokens)) for record in fresh]
        return cls(encoded, window.new, outcomes, window.times)


@dataclass
class InputBlock:
    """A block of the input that is not written yet; see blocks.py."""

    items: list[Item]
    received: int  # records that were written before, or have been computed
    written: int
    copied: bool  # whether those that were written before have to be copied
    windows: deque[WindowResult] = field(default_factory=deque)  # computed, and not written yet
    ended: bool = False  # whether all is computed

    def done(self, window: TextWindow[Any]) -> int:
        """Return how many of the first records of a window are there."""
        position = window.items[0].index - self.items[0].index
        return min(max(0, self.received - position), len(window.items))


class BlockRunner:
    """One run over an input: which blocks are left, and what is written of them, in input order."""

    block_type: type[InputBlock] = InputBlock

    def __init__(self, sink: RecordSink, options: RunOptions) -> None:
        self._sink = sink
        self._options = options
        self._done = len(options.before.indices)
        self._blocks = deque[Any]()  # in input order, the first of which is being written
        self._seen = 0  # items
        self._submitted = False  # whether the run has a window to show for its time
        self.summary = options.summary()

    def _unwritten(self, items: Iterable[Item]) -> Iterator[Any]:
        """Yield the blocks that have something to compute; of the others, no text need be tokenized."""
        for _, texts in groupby(items, lambda item: item.block):
            block = list(texts)
            _check_same(block, self._seen, self._options.before)
            done = min(max(0, self._done - self._seen), len(block))
            self._seen += len(block)
            again = self._options.again
            copied = again is not None and done > 0
            if again and any(item.index in again for item in block[:done]):
                # all are computed again, because a shard holds a whole window
                done = 0
                copied = False
            if copied or done < len(block):
                ended = done == len(block)
                self._blocks.append(self.block_type(block, done, done, copied, ended=ended))
                if not ended:
                    yield self._blocks[-1]

    def _add(self, block: InputBlock, window: WindowResult) -> None:
        block.windows.append(window)
        block.received += window.new
        self.summary.computed += window.new
        self.summary.tokens += sum(tokens for _, _, tokens in window.outcomes)
        self.summary.time_texts(window.times)
        self._options.on_progress(self.summary)

    def _write(self, writer: BackgroundWriter) -> None:
        """Hand on all that has come and has nothing missing before it."""
        while self._blocks:
            block = self._blocks[0]
            if block.copied:
                writer.wait()
                self.summary.counts += self._sink.copy(block.written)
                self.summary.resumed += block.written
                self._options.on_progress(self.summary)
                block.copied = False
            while block.windows:
                self._hand_on(block, block.windows.popleft(), writer)
            if not block.ended:
                return
            self._blocks.popleft()

    def _hand_on(self, block: InputBlock, window: WindowResult, writer: BackgroundWriter) -> None:
        """Queue a window to be written, and stop before a failure that ends the dump."""
        items = block.items[block.written : block.written + window.new]
        statuses = [status for status, _, _ in window.outcomes]
        bad = len(items)
        if self._options.strict and "failed" in statuses:
            bad = statuses.index("failed")
        end = bad
        if bad < len(items) and self._sink.whole_windows:
            end = 0
        if self._options.again is not None:
            writer.wait()
            last_old = self._options.before.indices[-1] if self._done else -1
            self._sink.skip(sum(item.index <= last_old for item in items[:end]))
        block.written += window.new

        def write() -> None:
            encoded = self._encoded(window)
            if end < len(items):
                encoded = self._sink.first(encoded, end)
            self._sink.write_encoded(encoded, end)

        def then() -> None:
            for item, (status, error, _) in zip(items[:end], window.outcomes[:end], strict=True):
                self.summary.count(status, error, item)
            self._options.on_progress(self.summary)

        if end:
            writer.submit(write, then)
            self._submitted = True
        if bad < len(items):
            writer.wait()
            raise _strict_failure(window.outcomes[bad][1], items[bad])

    def _encoded(self, window: WindowResult) -> Any:
        return window.encoded

    def _out_of_time(self) -> bool:
        until = self._options.until
        self.summary.stopped = self._submitted and until is not None and time.monotonic() >= until
        return self.summary.stopped

    def _finish(self) -> Summary:
        if self._seen < self._done and not self.summary.stopped:
            hint = f"pass {arg('force', True)} to start over"
            raise AttnscopeError("the dump has more records than the input", hint=hint)
        return self.summary


class Runner(BlockRunner, Generic[T]):
    """One run over an input in this process."""

    def __init__(self, work: TextWorker[T], sink: RecordSink, options: RunOptions) -> None:
        super().__init__(sink, options)
        self._computer = WindowComputer(
            work, options.bounds, holds=options.holds, needs_all_records=sink.needs_all_records
        )

    def run(self, items: Iterable[Item]) -> Summary:
        """Process every item that is not written yet."""
        self._options.on_progress(self.summary)
        with BackgroundWriter() as writer, finish_at_signal(writer.finish):
            unread = (item for block in self._unwritten(items) for item in block.items)
            windows = self._computer.windows(unread)
            window = next(windows, None)
            while window is not None and not self._out_of_time():
                self._compute(window)
                try:
                    # Tokenize before the writer starts: they share one interpreter, computing
                    # needs it far less.
                    window = next(windows, None)
                finally:
                    self._write(writer)
            self._write(writer)
            writer.wait()
        return self._finish()

    def _compute(self, window: TextWindow[T]) -> None:
        """Compute what is not there of a window."""
        block = next(block for block in self._blocks if not block.ended)
        done = block.done(window)
        if done < len(window.items):
            found = self._computer.compute(window, done)
            self._add(block, WindowResult.of(found, found))
        block.ended = window.items[-1].index == block.items[-1].index

    def _encoded(self, window: WindowResult) -> Any:
        """Encode a window, in the thread that writes it."""
        return self._sink.encode(window.encoded.records, window.new)


def _check_same(items: list[Item], position: int, state: JournalState) -> None:
    """Refuse to resume a dump of other texts; the first of these has this place among its records."""
    for at, item in enumerate(items[: max(0, len(state.indices) - position)], position):
        if (item.index, int(item.hash, 16)) != (state.indices[at], state.hashes[at]):
            message = f"record {item.index} of the dump is for another text"
            raise AttnscopeError(message, hint=f"pass {arg('force', True)} to start over")


def _strict_failure(error: str | None, item: Item) -> AttnscopeError:
    """Return the error that ends a strict run."""
    return AttnscopeError(
        str(error), where=location(item), hint=f"remove {arg('strict')} to skip failed records"
    )
