"""Worker processes that compute blocks of an input, and one writer that puts their records in input order.

Workers are forked once the model is loaded: they share its weights page by page, in whatever type and layout they have
in memory, which a file that is mapped would have to be written for; and one that replaces another starts in
milliseconds. A worker gets a whole block and forms its windows and groups itself, so that it computes the same bits as
a single process. This process only reads texts and writes records.

A worker may be killed at any time. Another one goes on with its block, after the groups that have arrived. It
names the texts of each group before it computes them: texts that were being computed together at a death run alone
first, and only deaths of processes that compute one text alone count against that text. At the third, it is given up.
A text that ends its process does so at every try; what kills processes from outside comes at any moment, often several
times in a few seconds. Therefore the second and third try wait, come after all other texts of their window, and begin
in a process that has computed a text before: the first one takes longer.
"""

import os
import pickle
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import groupby
from multiprocessing.connection import wait
from typing import Any, Generic, TypeVar

from attnscope.base.errors import AttnscopeError, ErrorParts, arg
from attnscope.base.system.forking import Connection, fork
from attnscope.base.system.signals import at_signal, defer_signals, finish_at_signal
from attnscope.batch.background import BackgroundWriter, RecordSink
from attnscope.batch.items import Item
from attnscope.batch.records import Record
from attnscope.batch.runner import (
    RunOptions,
    check_same,
    slow_texts,
    strict_failure,
    too_many_records,
)
from attnscope.batch.summary import SlowText, Summary
from attnscope.batch.windows import GroupRunner, Suspects, TextWorker, WindowComputer, WindowRecords

T = TypeVar("T")
_DEATHS = 3  # of processes that compute a text alone
_TOGETHER = 6  # of processes that compute texts together, each of which was computed alone
_PAUSES = (0.5, 2.0)  # seconds before the second try and before later ones
_IDLE_DEATHS = 10  # of processes in the same block that had not begun to compute
_BUFFERED = 1 << 28  # bytes of records that wait for those of an earlier block
_TICK = 0.5  # seconds after which the time limit is looked at


@dataclass(frozen=True)
class Task:
    """A block for a worker."""

    items: list[Item] = field(default_factory=list)
    done: int = 0
    suspects: Suspects = field(default_factory=Suspects)
    # records of the groups that a dead worker had computed, pickled, by the numbers of their texts
    groups: dict[tuple[int, ...], bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class _WindowResult:
    encoded: Any
    new: int
    # status, error and number of tokens of each new record
    outcomes: Sequence[tuple[str, str | None, int]]
    slowest: list[SlowText]


@dataclass
class _Block:
    items: list[Item]
    received: int
    written: int
    copied: bool = False
    # windows that have arrived but are not written, and the size of each
    windows: "deque[tuple[_WindowResult, int]]" = field(default_factory=deque)
    ended: bool = False
    # how each worker ended that died while it computed a group, by the numbers of the group's texts
    deaths: dict[tuple[int, ...], list[str]] = field(default_factory=dict)
    # how often one died before it began to compute, since the last one that began
    idle_deaths: int = 0
    suspects: Suspects = field(default_factory=Suspects)
    # groups of the window that is being computed; see Task
    groups: dict[tuple[int, ...], bytes] = field(default_factory=dict)


@dataclass
class _Process:
    number: int  # its number among the workers, from 0; one that replaces it has the same
    pid: int
    pipe: Connection
    block: _Block | None = None  # the block that it computes; None if it waits
    group: tuple[int, ...] = ()


class PoolRunner(Generic[T]):
    """One run over an input with several processes.

    Args:
        work: Returns what looks into texts, in the process of a worker, by the worker's number from 0.
        in_child: Called first in each worker, to release resources that only the parent may hold.
    """

    def __init__(
        self,
        work: Callable[[int], TextWorker[T]],
        sink: RecordSink,
        options: RunOptions,
        *,
        workers: int,
        in_child: Callable[[], None] = lambda: None,
    ) -> None:
        self._work = work
        self._sink = sink
        self._options = options
        self._in_child = in_child
        self._done = len(options.before.indices)
        self._count = workers
        self._processes = list[_Process]()
        self._blocks = deque[_Block]()  # in input order, the first of which is being written
        self._waiting = deque[_Block]()  # without a worker, in input order
        self._buffered = self._seen = 0
        self._submitted = False
        self.summary = options.summary()
        self.summary.workers = workers

    def run(self, items: Iterable[Item]) -> Summary:
        """Process every item that is not written yet."""
        self._options.on_progress(self.summary)
        unread = self._unwritten(items)
        with (
            BackgroundWriter(self._sink) as writer,
            finish_at_signal(lambda seconds: writer.finish([], seconds)),
            at_signal(self._kill),
        ):
            try:
                while self._feed(unread) or self._blocks:
                    self._receive()
                    self._write(writer)
                    if (
                        self._options.until is not None
                        and time.monotonic() >= self._options.until
                        and self._submitted
                    ):
                        self.summary.stopped = True
                        break
                writer.wait()
            finally:
                self._kill()
        if self._seen < self._done and not self.summary.stopped:
            raise too_many_records()
        return self.summary

    def _unwritten(self, items: Iterable[Item]) -> Iterator[_Block]:
        """Yield the blocks that are not written yet; all of them if the file is rewritten."""
        for _, texts in groupby(items, lambda item: item.block):
            block = list(texts)
            check_same(block, self._seen, self._options.before)
            done = min(max(0, self._done - self._seen), len(block))
            self._seen += len(block)
            if self._options.again is not None and done:
                if any(item.index in self._options.again for item in block[:done]):
                    reused = 0
                else:
                    reused = done
                yield _Block(block, reused, reused, bool(reused))
            elif done < len(block):
                yield _Block(block, done, done)

    def _feed(self, unread: Iterator[_Block]) -> bool:
        """Give every worker without work a block, and tell whether one has work."""
        while len(self._processes) < self._count:
            self._processes.append(self._start())
        for process in self._processes:
            if process.block is None and (block := self._next(unread)) is not None:
                self._send(process, block)
        return any(process.block is not None for process in self._processes)

    def _next(self, unread: Iterator[_Block]) -> _Block | None:
        if self._waiting:
            return self._waiting.popleft()
        if self._buffered > _BUFFERED:
            return None
        for block in unread:
            self._blocks.append(block)
            block.ended = block.received == len(block.items)
            if not block.ended:
                return block
        return None

    def _send(self, process: _Process, block: _Block) -> None:
        process.block = block
        process.group = ()
        # it is dead, which `_receive` finds out
        with suppress(BrokenPipeError, ConnectionResetError):
            process.pipe.send(Task(block.items, block.received, block.suspects, block.groups))

    def _receive(self) -> None:
        """Receive messages from workers, and replace dead ones."""
        first_block = self._blocks[0] if self._blocks else None
        full = self._buffered > _BUFFERED
        busy = {
            p.pipe: p
            for p in self._processes
            if p.block is not None and (not full or p.block is first_block)
        }
        for pipe in wait(list(busy), timeout=_TICK):
            process = busy[pipe]  # type: ignore[index]
            try:
                data = process.pipe.recv_bytes()
            except (EOFError, OSError):
                self._bury(process)
                continue
            message_kind, content = pickle.loads(data)
            self._take(process, message_kind, content, len(data))

    def _take(self, process: _Process, message_kind: str, content: Any, size: int) -> None:
        block = process.block
        assert block is not None
        if message_kind == "group":
            process.group = content
            block.idle_deaths = 0
        elif message_kind == "computed":
            process.group = ()
            indices, records = content
            block.groups[indices] = records
        elif message_kind == "window":
            block.groups = {}
            block.windows.append((content, size))
            block.received += content.new
            self._buffered += size
            self.summary.computed += content.new
            self.summary.tokens += sum(tokens for _, _, tokens in content.outcomes)
            self.summary.time_texts(content.slowest)
            self._options.on_progress(self.summary)
        elif message_kind == "end":
            block.ended = True
            process.block = None
        elif message_kind == "error":
            error, (message, where, hint) = content
            raise error(message, where=where, hint=hint)
        else:
            raise RuntimeError(f"a worker failed\n{content}")

    def _bury(self, process: _Process) -> None:
        """Give the block of a dead worker to another one."""
        with defer_signals():  # after a signal, which killed it, only the end follows
            process.pipe.close()
            status = os.waitpid(process.pid, 0)[1]
        code = os.waitstatus_to_exitcode(status)
        reason = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        self._processes.remove(process)
        block = process.block
        group = process.group
        assert block is not None
        self._waiting.append(block)
        self._waiting = deque(sorted(self._waiting, key=lambda waiting: waiting.items[0].index))
        if not group:
            block.idle_deaths += 1
            if block.idle_deaths == _IDLE_DEATHS:
                hint = f"run the same command with {arg('workers', 0)} to see why; what was written is kept"
                raise AttnscopeError(
                    f"{_IDLE_DEATHS} workers ended before they computed a text ({reason})",
                    hint=hint,
                )
            return
        block.deaths.setdefault(group, []).append(reason)
        block.suspects = _suspects(block, group)

    def _write(self, writer: BackgroundWriter) -> None:
        """Hand on all that has come and has nothing missing before it."""
        while self._blocks:
            block = self._blocks[0]
            if block.copied:
                writer.wait()
                self.summary.counts += self._sink.copy(block.written)
                self.summary.resumed += block.written
                block.copied = False
            while block.windows:
                window, size = block.windows.popleft()
                self._buffered -= size
                self._hand_on(block, window, writer)
            if not block.ended:
                return
            self._blocks.popleft()

    def _hand_on(self, block: _Block, window: _WindowResult, writer: BackgroundWriter) -> None:
        """Queue a window to be written, and stop before a failure that ends the dump."""
        items = block.items[block.written : block.written + window.new]
        statuses = [status for status, _, _ in window.outcomes]
        if self._options.strict and "failed" in statuses:
            bad = statuses.index("failed")
        else:
            bad = len(items)
        end = 0 if bad < len(items) and self._sink.whole_windows else bad
        if self._options.again is not None:
            writer.wait()
            last_old = self._options.before.indices[-1] if self._done else -1
            self._sink.skip(sum(item.index <= last_old for item in items[:end]))
        block.written += window.new

        def then() -> None:
            for item, (status, error, _) in zip(items[:end], window.outcomes[:end], strict=True):
                self.summary.count(status, error, item)
            self._options.on_progress(self.summary)

        if end:
            if end == len(items):
                encoded = window.encoded
            else:
                encoded = self._sink.first(window.encoded, end)
            writer.submit(lambda: self._sink.write_encoded(encoded, end), then)
            self._submitted = True
        if bad < len(items):
            writer.wait()
            raise strict_failure(window.outcomes[bad][1], items[bad])

    def _start(self) -> _Process:
        taken = {process.number for process in self._processes}
        index = next(index for index in range(self._count) if index not in taken)
        return _Process(index, *fork(lambda pipe: self._serve(pipe, index)))

    def _serve(self, pipe: Connection, index: int) -> None:
        """Compute blocks until the parent has no more; the whole life of a worker."""
        for process in self._processes:
            process.pipe.close()
        self._in_child()

        def send(message_kind: str, content: Any) -> None:
            pipe.send_bytes(pickle.dumps((message_kind, content), pickle.HIGHEST_PROTOCOL))

        try:
            work = self._work(index)
            options = self._options
            everything = self._sink.needs_all_records
            computer = WindowComputer(
                work, options.bounds, holds=options.holds, needs_all_records=everything
            )
            while True:
                task: Task = pipe.recv()
                computer.suspects = task.suspects
                computer.run_group = group_runner(task, work, send)
                position = 0
                for window in computer.windows(task.items):
                    done = min(max(0, task.done - position), len(window.items))
                    position += len(window.items)
                    if done < len(window.items):
                        send("window", _result(computer.compute(window, done), self._sink))
                send("end", None)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return  # the parent is gone
        except AttnscopeError as e:
            send("error", (type(e), tuple(ErrorParts(*e.parts))))
        except Exception:
            send("bug", traceback.format_exc())

    def _kill(self) -> None:
        processes = self._processes
        self._processes = []
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        for process in processes:
            with suppress(ChildProcessError):
                os.waitpid(process.pid, 0)
            process.pipe.close()


def _suspects(block: _Block, group: tuple[int, ...]) -> Suspects:
    """Return the suspects in a block after a worker died that computed a group."""
    suspects = block.suspects
    reasons = block.deaths[group]
    is_alone = len(group) == 1
    if not is_alone and len(reasons) == 1:
        return replace(suspects, alone={*suspects.alone, *group})
    if is_alone:
        tries = len(reasons)
        limit = _DEATHS
    else:
        tries = len(reasons) - 1
        limit = _TOGETHER
    if tries < limit:
        retry_at = time.monotonic() + _PAUSES[tries > 1]
        return replace(suspects, retry_at={**suspects.retry_at, **dict.fromkeys(group, retry_at)})
    if not is_alone:
        return replace(suspects, apart={*suspects.apart, *group})
    error = (
        f"ended {_DEATHS} processes that computed it alone ({', '.join(dict.fromkeys(reasons))})"
    )
    return replace(suspects, failed={**suspects.failed, group[0]: error})


def group_runner(
    task: Task, work: TextWorker[Any], send: Callable[[str, Any], None]
) -> GroupRunner:
    """Return a function that announces each group, and sends its records, which so outlive this worker."""

    def run_group(indices: tuple[int, ...], compute: Callable[[], list[Record]]) -> list[Record]:
        if indices in task.groups:
            return pickle.loads(task.groups[indices])  # type: ignore[no-any-return]
        if (start := task.suspects.start_time(indices)) > 0:
            send("group", ())
            work.warm_up()
            time.sleep(max(0.0, start - time.monotonic()))
        send("group", indices)
        records = compute()
        send("computed", (indices, pickle.dumps(records, pickle.HIGHEST_PROTOCOL)))
        return records

    return run_group


def _result(window: WindowRecords, sink: RecordSink) -> _WindowResult:
    fresh = window.records[len(window.records) - window.new :]
    outcomes = [(record.status, record.error, len(record.tokens)) for record in fresh]
    encoded = sink.encode(window.records, window.new)
    slowest = sorted(slow_texts(window), reverse=True)[:3]
    return _WindowResult(encoded, window.new, outcomes, slowest)
