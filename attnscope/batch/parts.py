"""The parts of a dump that `--shard` wrote: which exist, their progress, and whether they belong together."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from attnscope.base.errors import AttnscopeError, UsageError, listed
from attnscope.batch.dump_reader import decoded
from attnscope.batch.file_errors import naming_errors
from attnscope.batch.formats import format_of
from attnscope.batch.header import END, MAGIC, Header, find_change
from attnscope.batch.journal import unseal
from attnscope.batch.records import End
from attnscope.batch.remote import shown, url_of
from attnscope.batch.sinks import INDEX
from attnscope.findings.codec import decode_json

_END_BYTES = 256  # an end line has fewer
_PIECE = 1 << 20  # bytes that are read at a time
_NAMED = 6  # parts that an error names


@dataclass(frozen=True)
class ShardPart:
    """One part of a dump."""

    path: Path
    header: Header | None  # its header; None if it has none yet
    end: End | None  # its end line; None if it is not finished
    records: int  # number of records; for an unfinished compressed part, the readable ones

    @property
    def lines(self) -> Path:
        """The file that holds its lines."""
        return lines_path(self.path)

    @property
    def shard(self) -> tuple[int, int]:
        """Number and count of its shard."""
        if self.header is None:
            return 1, 1
        return self.header.settings.shard


@dataclass(frozen=True)
class PartSet:
    """Parts of one dump."""

    parts: list[ShardPart]  # the parts that have a header, by the number of their shard
    header: Header
    # numbers of the shards of which no part was given
    missing: list[int] = field(default_factory=list)
    unfinished: list[ShardPart] = field(default_factory=list)
    empty: list[Path] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Number of shards."""
        return self.parts[0].shard[1]

    @property
    def records(self) -> int:
        """Records in all parts."""
        return sum(part.records for part in self.parts)

    @property
    def total(self) -> int:
        """Records that the whole dump will have."""
        settings = self.header.settings
        records = self.header.input.records
        end = records
        if settings.limit is not None:
            end = min(records, settings.skip + settings.limit)
        return max(0, end - settings.skip)

    @property
    def complete(self) -> bool:
        """Every shard is there, and finished."""
        return not (self.missing or self.unfinished or self.empty)

    def describe_gaps(self) -> str:
        """Return which parts are missing or not finished."""
        gaps = []
        if self.missing:
            shards = [f"{shard}/{self.count}" for shard in self.missing]
            gaps.append(f"{len(shards):,} missing ({listed(shards, _NAMED)})")
        if self.unfinished:
            names = [f"{part.path} has {part.records:,} records" for part in self.unfinished]
            gaps.append(f"{len(names):,} unfinished ({listed(names, _NAMED)})")
        if self.empty:
            gaps.append(
                f"{len(self.empty):,} without a header ({listed([str(path) for path in self.empty], _NAMED)})"
            )
        return ", ".join(gaps)


def lines_path(path: Path) -> Path:
    """Return the file with the lines of a dump, which may be a folder."""
    return path / INDEX if path.is_dir() else path


def read_part(path: Path, *, count: bool = False) -> ShardPart:
    """Read header and end of a part, and `count` the records between them if it is not finished."""
    if url_of(path) is not None:
        raise AttnscopeError("is not on this machine", where=shown(path), hint="copy it here first")
    if path.is_dir() and path.suffix == ".parquet":
        hint = "read the folders of all parts as one table, such as dump-part-*.parquet/*.parquet"
        raise UsageError(
            f"'{path}' is a folder of tables, which needs no joining", where="PART", hint=hint
        )
    layout = format_of(path)
    if layout is None or not layout.resumes:
        raise UsageError(
            f"'{path}' is no part of a dump",
            where="PART",
            hint="pass what batch with --shard wrote",
        )
    lines = lines_path(path)
    if not lines.exists():
        raise AttnscopeError("no such file", where=path)
    with naming_errors(lines, reading=True):
        header = _read_header(lines)
        end = None if header is None else read_end(lines)
        if header is None or end is not None:
            return ShardPart(path, header, end, 0 if end is None else end.records)
        if count:
            return _counted(path, lines, header)
        return ShardPart(path, header, None, 0)


def _read_header(lines: Path) -> Header | None:
    with open(lines, "rb") as file:
        line = file.readline(1 << 16)
    if not line.endswith(b"\n") and MAGIC.startswith(line[: len(MAGIC)]):
        return None
    unsealed = None
    if line.startswith(MAGIC) and line.endswith(b"\n"):
        unsealed = unseal(line, 0)
    if unsealed is None:
        raise AttnscopeError("is not a dump", where=lines, hint="create one with attnscope batch")
    return decoded(unsealed[0], Header, lines)  # type: ignore[no-any-return]


def read_end(lines: Path) -> End | None:
    """Return the end line of a plain file; whether its check is right is found out when all of it is read."""
    with open(lines, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _END_BYTES))
        return end_of(file.read())


def end_of(tail: bytes) -> End | None:
    """Return the end line in the last bytes of a dump; None if their last line is another one."""
    last = tail.removesuffix(b"\n").rpartition(b"\n")[2]
    try:
        return decode_json(last, End) if last.startswith(END) else None
    except ValueError:
        return None


def _counted(path: Path, lines: Path, header: Header) -> ShardPart:
    """Count the records of a part by its lines, of which the first is the header and the last may be cut off."""
    count = -1
    last = b""
    with open(lines, "rb") as file:
        while piece := file.read(_PIECE):
            count += piece.count(b"\n")
            last = (last + piece)[-_END_BYTES:]
    end = end_of(last) if last.endswith(b"\n") else None
    return ShardPart(path, header, end, max(0, count) if end is None else end.records)


def gather_parts_of(paths: Sequence[Path], *, count: bool = False) -> PartSet:
    """Read all parts, and check that they belong to one dump."""
    every = [read_part(path, count=count) for path in paths]
    parts = sorted((part for part in every if part.header is not None), key=lambda part: part.shard)
    empty = [part.path for part in every if part.header is None]
    if not parts or parts[0].header is None:
        raise AttnscopeError(
            "none of the parts has a header yet",
            where=paths[0],
            hint="wait until batch has started",
        )
    base = parts[0]
    header = whole_header(parts[0].header)
    seen: dict[int, ShardPart] = {}
    for part in parts:
        assert part.header is not None
        shard, shards = part.shard
        if shards != base.shard[1]:
            message = f"is shard {shard} of {shards}, but {base.path} is shard {base.shard[0]} of {base.shard[1]}"
            raise AttnscopeError(message, where=part.path, hint="merge the parts of one run")
        if shard in seen:
            message = f"is shard {shard}/{shards}, as is {seen[shard].path}"
            raise AttnscopeError(message, where=part.path, hint="pass each shard once")
        seen[shard] = part
        change = find_change(header, whole_header(part.header))
        if change is not None:
            message = f"does not belong to the same dump as {base.path}: {change.replace('now it is', 'this one')}"
            raise AttnscopeError(
                message, where=part.path, hint="run batch with the same options for every shard"
            )
    return PartSet(
        parts,
        header,
        [shard for shard in range(1, base.shard[1] + 1) if shard not in seen],
        [part for part in parts if part.end is None],
        empty,
    )


def whole_header(header: Header) -> Header:
    """Return the header of the dump that a part belongs to."""
    return msgspec.structs.replace(
        header, settings=msgspec.structs.replace(header.settings, shard=(1, 1))
    )


def describe_status(part_set: PartSet, *, alone: bool = False) -> str:
    """Return the progress of parts as one line; of one `alone`, only its own share of the records is waited for."""
    part_count = part_set.count
    total = part_set.total
    about = ""
    if alone and part_count > 1 and part_set.parts[0].end is not None:
        total = part_set.records
    elif alone and part_count > 1:
        total = round(total / part_count)
        about = "about "
    percent = 100 * part_set.records // total if total else 100
    line = [f"{part_set.records:,} of {about}{total:,} texts ({percent} %)"]
    finished = sum(part.end is not None for part in part_set.parts)
    if not alone:
        line.append(f"{finished:,} of {part_count:,} parts finished")
        if not part_set.complete:
            line.append(part_set.describe_gaps())
    else:
        line.append("finished" if finished else "not finished")
    if failed := sum(part.end.failed for part in part_set.parts if part.end is not None):
        line.append(f"{failed:,} failed")
    if finished < len(part_set.parts):
        age = time.time() - max(part.lines.stat().st_mtime for part in part_set.parts)
        line.append(f"last written {max(0, age):,.0f} s ago")
    return " · ".join(line)
