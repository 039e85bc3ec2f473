"""Processes that write records as JSON, beside a process whose GPU waits for nothing but its own Python.

JSON is written by libraries that hold the interpreter's lock: in a thread, it would only come on top of what launches
the next frame. Here a thread hands records on as the bytes of their arrays, and waits without the lock.
"""

import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from threading import local

from attnscope.base.system.forking import Connection, fork
from attnscope.base.system.machine import count_cpus
from attnscope.batch.records import Record, encode

_MOST = 8  # processes: more would wait for the one that hands records on
_OTHERS = 2  # threads that a GPU's process keeps busy by itself
_RECORDS = 64  # most records that are handed on at once

Lines = Callable[[Sequence[Record]], list[bytes]]


def lines_here(records: Sequence[Record]) -> list[bytes]:
    """Return the line of each record, written in this process."""
    return [encode(record) for record in records]


def encoder_count(device_type: str) -> int:
    """Return how many processes write JSON: none beside a CPU that computes, or where there are few CPUs."""
    if device_type == "cpu":
        return 0
    return max(0, min(_MOST, count_cpus() - _OTHERS))


@contextmanager
def encoder_processes(count: int, in_child: Callable[[], None]) -> Iterator[Lines]:
    """Start processes that write JSON, and yield the function that has them write records.

    A process that was killed is not replaced: what it would have written is written here.

    Args:
        count: Their number; 0 to write in this process.
        in_child: Called first in each, to release resources that only the parent may hold.
    """
    if not count:
        yield lines_here
        return
    children: list[tuple[int, Connection]] = []
    for _ in range(count):
        before = [pipe for _, pipe in children]
        children.append(fork(partial(_serve, before=before, in_child=in_child)))
    idle = [pipe for _, pipe in children]
    of_thread = local()

    def begin() -> None:
        of_thread.pipe = idle.pop()

    def write(records: Sequence[Record]) -> list[bytes]:
        if of_thread.pipe is not None:
            try:
                of_thread.pipe.send_bytes(pickle.dumps(records, pickle.HIGHEST_PROTOCOL))
                return pickle.loads(of_thread.pipe.recv_bytes())  # type: ignore[no-any-return]
            except (EOFError, OSError):
                of_thread.pipe = None
        return lines_here(records)

    with ThreadPoolExecutor(count, "attnscope-json", begin) as threads:

        def lines(records: Sequence[Record]) -> list[bytes]:
            size = max(1, min(_RECORDS, len(records) // (2 * count)))
            parts = [records[start : start + size] for start in range(0, len(records), size)]
            return [line for part in threads.map(write, parts) for line in part]

        try:
            yield lines
        finally:
            threads.shutdown(wait=True)
            for pid, pipe in children:
                pipe.close()
                with suppress(ChildProcessError):
                    os.waitpid(pid, 0)


def _serve(pipe: Connection, before: Sequence[Connection], in_child: Callable[[], None]) -> None:
    """Write records until the parent closes its end; the whole life of a process."""
    for other in before:  # else they would not end when the parent closes them
        other.close()
    in_child()
    with suppress(EOFError, OSError):
        while True:
            records: list[Record] = pickle.loads(pipe.recv_bytes())
            pipe.send_bytes(pickle.dumps(lines_here(records), pickle.HIGHEST_PROTOCOL))
