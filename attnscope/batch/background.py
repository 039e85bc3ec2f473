"""Write each window of records in a background thread while the model computes the next one."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Any

from attnscope.batch.journal import Journal, JournalState
from attnscope.batch.records import Record


class RecordSink:
    """Destination of records, whose lines are in a journal.

    Attributes:
        needs_all_records: Whether it needs every record of a window, including those written before.
        whole_windows: Whether it writes each window as one piece (a shard), which a later run cannot extend.
    """

    needs_all_records = whole_windows = True

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    @property
    def written(self) -> JournalState:
        """State of the records that were written before."""
        return self._journal.written

    def copy(self, count: int) -> "Counter[str]":
        """Copy the next records of the old dump to the new one and count them by status."""
        replacing = self._journal.beside
        statuses = self._journal.copy(count)
        self._settle(replacing)
        return statuses

    def skip(self, count: int) -> None:
        """Skip the next records, which are written already."""
        self._journal.skip(count)

    def encode(self, records: Sequence[Record], new: int) -> Any:
        """Encode a window, of which the last `new` records are not written yet; may run in another process."""
        raise NotImplementedError

    def first(self, encoded: Any, count: int) -> Any:
        """Return the first new records of an encoded window, unless windows are written as a whole."""
        raise NotImplementedError

    def write_encoded(self, encoded: Any, new: int) -> None:
        """Write what `encode` returned of a window, and make it safe."""
        raise NotImplementedError

    def write(self, records: Sequence[Record], new: int) -> None:
        """Write a window and make it safe; see `encode`."""
        self.write_encoded(self.encode(records, new), new)

    def finish(self) -> None:
        """Mark the dump as complete, once its journal is."""

    def _append(self, lines: Iterable[bytes], new: int) -> None:
        replacing = self._journal.beside
        for line in lines:
            self._journal.append(line)
        self._journal.sync()
        self._journal.settle(new)
        self._settle(replacing)

    def _settle(self, replacing: bool) -> None:
        """Name files finally once the journal, written beside an old one until now, has its own name."""
        if replacing and not self._journal.beside:
            self._place()

    def _place(self) -> None:
        """Rename files to the names in the journal."""


class BackgroundWriter:
    """Write one window at a time, so that memory holds two at most; raise an error when the next window arrives.

    Encoding, checksums, writing and waiting for the disk take up to a fifth of the time of the forward pass.
    """

    def __init__(self, sink: RecordSink) -> None:
        self._sink = sink
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

    def finish(self, records: Sequence[Record], seconds: float) -> None:
        """Write the submitted window and the first records of the next one, as far as the time allows."""
        pending = None if self._pending is None else self._pending[0]

        def write() -> None:
            if pending is not None:
                # Nothing comes after records that could not be written.
                pending.result()
            if records:
                self._sink.write(records, len(records))

        wait([self._pool.submit(write)], seconds)

    def __enter__(self) -> "BackgroundWriter":
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """Wait until the current window is written, also after an error, so that no line is torn."""
        self._pool.shutdown(wait=True)
