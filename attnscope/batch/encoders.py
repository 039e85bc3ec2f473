"""Processes that write records as JSON, beside a process whose GPU waits for nothing but its own Python.

JSON is written by libraries that hold the interpreter's lock: in a thread, it would only come on top of what launches
the next frame. Here a thread copies the arrays of records to memory that it shares with another process, waits without
the lock, and finds the lines in the same memory.
"""

import io
import os
import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from mmap import mmap
from typing import Any

import numpy as np

from attnscope.base.system.forking import Connection, fork
from attnscope.base.system.machine import count_cpus
from attnscope.batch.records import Record, encode
from attnscope.findings.arrays import Array

_MOST = 16  # processes or threads: more would wait for the one that hands records on
_OTHERS = 2  # threads that a GPU's process keeps busy by itself
_RECORDS = 64  # most records that are handed on at once
_SHARED = 1 << 28  # bytes that each process shares; what has no room there goes through its pipe
_ALIGNED = 64  # bytes

Line = bytes | memoryview
Lines = Callable[[Sequence[Record]], Iterable[Line]]

_Bytes = np.ndarray[Any, np.dtype[np.uint8]]
_Reduced = str | tuple[Any, ...]  # as pickle says it
_Place = tuple[int, int]  # in shared memory, the first byte and the one after the last


def lines_here(records: Sequence[Record]) -> list[bytes]:
    """Return the line of each record, written in this process."""
    return [encode(record) for record in records]


def encoder_count(device_type: str) -> int:
    """Return how many processes or threads encode records: none beside a CPU that computes, or on few CPUs."""
    if device_type == "cpu":
        return 0
    return max(0, min(_MOST, count_cpus() - _OTHERS))


@contextmanager
def encoder_processes(count: int, in_child: Callable[[], None]) -> Iterator[Lines]:
    """Start processes that write JSON, and yield the function that has them write records.

    It yields lines in order; each is there until the next one is asked for. A process that was killed is not replaced:
    what it would have written is written here.

    Args:
        count: Their number, at least 1.
        in_child: Called first in each, to release resources that only the parent may hold.
    """
    encoders: list[_Encoder] = []
    for _ in range(count):
        encoders.append(_Encoder([encoder.pipe for encoder in encoders], in_child))

    def lines(records: Sequence[Record]) -> Iterator[Line]:
        size = max(1, min(_RECORDS, len(records) // (2 * count)))
        busy = deque[_Encoder]()  # in the order of the records
        try:
            for index, start in enumerate(range(0, len(records), size)):
                if len(busy) == count:
                    yield from busy.popleft().received()
                encoder = encoders[index % count]
                encoder.send(records[start : start + size])
                busy.append(encoder)
            while busy:
                yield from busy.popleft().received()
        finally:
            for encoder in busy:  # else a later call would take what this one asked for
                encoder.received()

    try:
        yield lines
    finally:
        for encoder in encoders:
            encoder.pipe.close()
            with suppress(ChildProcessError):
                os.waitpid(encoder.pid, 0)


class _Encoder:
    """A process that writes the lines of some records at a time, beside their arrays in shared memory."""

    def __init__(self, before: Sequence[Connection], in_child: Callable[[], None]) -> None:
        self._memory: _Bytes = np.frombuffer(mmap(-1, _SHARED), dtype=np.uint8)
        self._records: Sequence[Record] = ()
        self.pid, self.pipe = fork(
            partial(_serve, memory=self._memory, before=before, in_child=in_child)
        )

    def send(self, records: Sequence[Record]) -> None:
        """Let it begin to write the lines of some records."""
        places = list[_Place]()

        def placed(array: Array) -> _Reduced:
            """Copy an array to shared memory; what has no room there is among the pickled bytes."""
            start = -(-places[-1][1] // _ALIGNED) * _ALIGNED if places else 0
            end = start + array.nbytes
            if end > len(self._memory):
                return array.__reduce__()
            copied = np.ndarray(array.shape, array.dtype, self._memory, start)
            np.copyto(copied, array)  # releases the lock
            places.append((start, end))
            return copied.__reduce_ex__(pickle.HIGHEST_PROTOCOL)

        self._records = records
        data = io.BytesIO()
        pickler = pickle.Pickler(data, pickle.HIGHEST_PROTOCOL, buffer_callback=lambda _: None)
        # pickle itself puts an array among its bytes whose rows are not side by side
        pickler.dispatch_table = {np.ndarray: placed}
        pickler.dump(records)
        with suppress(OSError):  # it is dead, which `received` finds out
            self.pipe.send((places, data.getvalue()))

    def received(self) -> Sequence[Line]:
        """Return the lines, which are there until something is sent."""
        try:
            lines: list[_Place | bytes] = self.pipe.recv()
        except (EOFError, OSError):
            return lines_here(self._records)
        return [
            line if isinstance(line, bytes) else self._memory[slice(*line)].data for line in lines
        ]


def _serve(
    pipe: Connection,
    memory: _Bytes,
    before: Sequence[Connection],
    in_child: Callable[[], None],
) -> None:
    """Write records until the parent closes its end; the whole life of a process."""
    for other in before:  # else they would not end when the parent closes them
        other.close()
    in_child()
    with suppress(EOFError, OSError):
        while True:
            places, data = pipe.recv()
            records = pickle.loads(data, buffers=[memory[slice(*place)] for place in places])
            end = places[-1][1] if places else 0
            lines = list[_Place | bytes]()
            for line in lines_here(records):
                start, end = end, end + len(line)
                if end <= len(memory):
                    memory[start:end] = np.frombuffer(line, dtype=np.uint8)
                    lines.append((start, end))
                else:
                    lines.append(line)
            pipe.send(lines)
