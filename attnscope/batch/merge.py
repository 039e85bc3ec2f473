"""Join the parts of a dump: byte for byte the file that one process writes, in flat memory.

The records of a part are runs of neighbours (a block of the input), so lines are taken in large chunks. A line keeps
its bytes except for its check, which covers the file so far and is replaced by that of the new file. One
thread reads and checks, another writes.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from heapq import heapify, heappop, heappush
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from attnscope.base.errors import AttnscopeError
from attnscope.base.system.checksum import crc32
from attnscope.base.system.file_system import FileSystem
from attnscope.batch.file_errors import naming_errors
from attnscope.batch.journal import sealing
from attnscope.batch.part_lines import END_LINE, RESTORE, OutOfOrder, PartLines
from attnscope.batch.parts import PartSet
from attnscope.batch.records import End, encode
from attnscope.batch.sinks import INDEX
from attnscope.batch.summed_writer import SummedWriter
from attnscope.findings.codec import decode_json

_PIECE = 1 << 20  # bytes of a shard that are copied at a time
Progress = Callable[[int], None]


class _Shard(msgspec.Struct, frozen=True):
    """The members of an index line that locate a record's arrays."""

    shard: Annotated[str, msgspec.Meta(pattern=r"^[0-9]+\.safetensors$")] | None = None
    shard_check: str | None = None


class _Target:
    """Writer of the new dump's lines, in a thread of its own."""

    def __init__(self, path: Path) -> None:
        self._crc = 0
        files = FileSystem()
        self._descriptor = files.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        self._blocks = SummedWriter(files)
        self._blocks.start(self._descriptor)
        self._pool = ThreadPoolExecutor(1, "attnscope-merge")
        self._pending = Future[None]()
        self._pending.set_result(None)

    def put(self, bodies: list[bytes]) -> None:
        """Write lines with the check of this file, while the next ones are read."""
        pieces: list[bytes | memoryview] = []
        for body in bodies:
            start = memoryview(body)[:-1]
            tail, self._crc = sealing(start, self._crc)
            pieces += (start, tail)
        self._pending.result()
        self._pending = self._pool.submit(self._write, pieces)

    def _write(self, pieces: list[bytes | memoryview]) -> None:
        self._blocks.put(np.frombuffer(b"".join(pieces), dtype=np.uint8))

    def finish(self) -> None:
        self._pending.result()
        self._blocks.finish()

    def close(self) -> None:
        self._pool.shutdown()
        self._blocks.abandon()
        os.close(self._descriptor)


def write_merged(part_set: PartSet, target: Path, on_progress: Progress) -> End:
    """Join the finished parts of a dump to a new file of lines or, of folders, a new folder; return the end line."""
    folders = part_set.parts[0].path.is_dir()
    done = 0
    if folders:
        target.mkdir()
    with naming_errors(target), closing(_Target(target / INDEX if folders else target)) as lines:
        lines.put([encode(part_set.header)])
        parts = [PartLines(part.lines) for part in part_set.parts]
        try:
            for part_index, bodies in _in_input_order(parts, part_set):
                if folders:
                    _copy_shards(part_set.parts[part_index].path, target, bodies)
                lines.put(bodies)
                done += len(bodies)
                on_progress(done)
        except OutOfOrder:
            for part in parts:
                # A damaged line of another one may be the cause.
                part.compare_rest()
            raise
        end = _joined_end(part_set, parts)
        lines.put([encode(end)])
        lines.finish()
    return end


def _in_input_order(parts: list[PartLines], part_set: PartSet) -> Iterator[tuple[int, list[bytes]]]:
    """Yield chunks of records, and the number of the part of each; OutOfOrder if one is missing or there twice."""
    order = [(part.next_index, part_index) for part_index, part in enumerate(parts)]
    heapify(order)
    due = part_set.header.settings.skip
    end = due + part_set.total
    while order[0][0] < END_LINE:
        index, part_index = heappop(order)
        following = min(order[0][0], end) if order else end
        if index != due or following <= index:
            if index > due:
                what = f"record {due} is missing"
            else:
                what = f"record {index} is there twice"
            raise OutOfOrder(what, where=parts[part_index].path, hint=RESTORE)
        for bodies in parts[part_index].runs(following - index):
            yield part_index, bodies
        heappush(order, (parts[part_index].next_index, part_index))
        due = following


def _joined_end(part_set: PartSet, parts: list[PartLines]) -> End:
    counts = dict.fromkeys(("records", "ok", "skipped", "failed"), 0)
    for part, lines in zip(part_set.parts, parts, strict=True):
        lines.finish()
        assert part.end is not None
        if part.end.records != lines.records:
            message = f"has {lines.records:,} records, but its end says {part.end.records:,}"
            raise AttnscopeError(message, where=part.path, hint=RESTORE)
        counts = {name: count + getattr(part.end, name) for name, count in counts.items()}
    if counts["records"] != part_set.total:
        message = f"the parts have {counts['records']:,} records, but the input has {part_set.total:,} texts"
        raise AttnscopeError(message, where=part_set.parts[0].path, hint=RESTORE)
    return End(True, **counts)


def _copy_shards(source: Path, target: Path, bodies: list[bytes]) -> None:
    for shard in dict.fromkeys(decode_json(body, _Shard) for body in bodies):
        if shard.shard is None or (target / shard.shard).exists():
            continue
        path = source / shard.shard
        crc = 0
        with (
            naming_errors(path, reading=True),
            open(path, "rb") as file,
            open(target / shard.shard, "wb") as copy,
        ):
            while piece := file.read(_PIECE):
                crc = crc32(piece, crc)
                copy.write(piece)
        if f"{crc:08x}" != shard.shard_check:
            raise AttnscopeError("the shard is damaged", where=path, hint=RESTORE)
