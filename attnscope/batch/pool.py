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
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait
from typing import Any, Generic, TypeVar

from attnscope.base.errors import AttnscopeError, ErrorParts, arg
from attnscope.base.system.forking import Connection, fork
from attnscope.base.system.signals import at_signal, defer_signals, finish_at_signal
from attnscope.batch.items import Item
from attnscope.batch.journal import RecordSink
from attnscope.batch.records import Record
from attnscope.batch.runner import (
    BackgroundWriter,
    BlockRunner,
    InputBlock,
    RunOptions,
    WindowResult,
)
from attnscope.batch.summary import Summary
from attnscope.batch.windows import GroupRunner, Suspects, TextWorker, WindowComputer

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


@dataclass
class _Block(InputBlock):
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


class PoolRunner(BlockRunner, Generic[T]):
    """One run over an input with several processes.

    Args:
        work: Returns what looks into texts, in the process of a worker, by the worker's number from 0.
        in_child: Called first in each worker, to release resources that only the parent may hold.
    """

    block_type = _Block

    def __init__(
        self,
        work: Callable[[int], TextWorker[T]],
        sink: RecordSink,
        options: RunOptions,
        *,
        workers: int,
        in_child: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(sink, options)
        self._work = work
        self._in_child = in_child
        self._count = workers
        self._processes = list[_Process]()
        self._waiting = deque[_Block]()  # without a worker, in input order
        self._buffered = 0
        self.summary.workers = workers

    def run(self, items: Iterable[Item]) -> Summary:
        """Process every item that is not written yet."""
        self._options.on_progress(self.summary)
        unread = self._unwritten(items)
        with (
            BackgroundWriter() as writer,
            finish_at_signal(writer.finish),
            at_signal(self._kill),
        ):
            try:
                while self._feed(unread) or self._blocks:
                    self._receive()
                    self._write(writer)
                    if self._out_of_time():
                        break
                writer.wait()
            finally:
                self._kill()
        return self._finish()

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
        return next(unread, None)

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
            content.size = size
            self._add(block, content)
            self._buffered += size
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

    def _hand_on(self, block: InputBlock, window: WindowResult, writer: BackgroundWriter) -> None:
        self._buffered -= window.size
        super()._hand_on(block, window, writer)

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
                block = InputBlock(task.items, task.done, task.done, copied=False)
                for window in computer.windows(task.items):
                    if (done := block.done(window)) < len(window.items):
                        found = computer.compute(window, done)
                        encoded = self._sink.encode(found.records, found.new)
                        send("window", WindowResult.of(found, encoded))
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
    tries, limit = (len(reasons), _DEATHS) if is_alone else (len(reasons) - 1, _TOGETHER)
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
