"""Verify a dump: every checksum and count, the header against the input, and every record against its text."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from attnscope.base.errors import AttnscopeError
from attnscope.batch.blocks import SelectedItems
from attnscope.batch.dump_reader import Dump, decoded
from attnscope.batch.header import Header
from attnscope.batch.parquet_sink import files_checksum, manifest_path, part_files, verify_folder
from attnscope.batch.reader import InputReader
from attnscope.batch.records import Record

_RESTORE = "restore it from a backup"
_OTHER = "pass the file that the dump was made of"
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Verified:
    """Result of a verification."""

    header: Header
    counts: "Counter[str]"
    input: str | None  # the input that every record was compared with; None if it was not looked at


def verify(
    path: Path, source: str | None, on_progress: Progress = lambda done, total: None
) -> Verified:
    """Read a whole dump, and compare it with its input: `source`, or the file that the header names, if it exists."""
    folder = path if path.suffix == ".parquet" and path.is_dir() else None
    dump = Dump(path if folder is None else manifest_path(folder))
    records = dump.records() if folder is None else _with_tables(dump, folder)
    facts = dump.header.input
    name = source or facts.name
    if source is None and not Path(name).exists():
        counts = Counter[str]()
        for record in records:
            counts[record.status] += 1
            on_progress(counts.total(), facts.records)
        return Verified(dump.header, _compared(dump, counts), None)
    settings = dump.header.settings
    with InputReader(name, facts.format, settings.column) as reader:
        now = reader.facts()
        if (now.sha256, now.records) != (facts.sha256, facts.records):
            what = "differs from"
            if now.records == facts.records:
                what = "has changed since, or is another file than"
            message = f"{what} the input of {path} ({facts.records:,} texts, SHA-256 {facts.sha256[:12]}…)"
            raise AttnscopeError(message, where=name, hint=_OTHER)
        selected = SelectedItems(reader, settings)
        counts = Counter[str]()
        total = selected.count(dump.header.grouping)
        texts = selected.select(dump.header.grouping)
        for record in records:
            item = next(texts, None)
            if item is None:
                raise AttnscopeError(
                    f"has more records than the {total:,} texts of {name}",
                    where=path,
                    hint=_RESTORE,
                )
            for member in ("index", "id", "line", "hash"):
                if (there := getattr(record, member)) != (here := getattr(item, member)):
                    message = f"record {record.index}: {member} is {there!r}, but that of the input is {here!r}"
                    raise AttnscopeError(message, where=path, hint=_OTHER)
            counts[record.status] += 1
            on_progress(counts.total(), total)
        if counts.total() != total:
            message = f"has {counts.total():,} records, but {name} has {total:,} texts"
            raise AttnscopeError(message, where=path, hint=_RESTORE)
    return Verified(dump.header, _compared(dump, counts), name)


def _with_tables(dump: Dump, folder: Path) -> Iterator[Record]:
    """Yield the records of a manifest, and check the part files that they name."""
    last = None
    part_names = set[str]()
    for body in dump.record_bodies():
        record = decoded(body, Record, dump.path)
        if record.shard is not None and record.shard != last:
            last = record.shard
            paths = part_files(folder, record.shard)
            part_names.add(last)
            if not paths:
                raise AttnscopeError(
                    f"the part {record.shard} is missing", where=folder, hint=_RESTORE
                )
            if files_checksum(paths) != record.shard_check:
                raise AttnscopeError(
                    f"the part {record.shard} is damaged", where=folder, hint=_RESTORE
                )
        yield record
    verify_folder(folder, dump.header.settings, part_names)


def _compared(dump: Dump, counts: "Counter[str]") -> "Counter[str]":
    end = dump.end
    assert end is not None
    for status in ("ok", "skipped", "failed"):
        if counts[status] != getattr(end, status):
            message = f"has {counts[status]:,} {status} records, but its end says {getattr(end, status):,}"
            raise AttnscopeError(message, where=dump.path, hint=_RESTORE)
    return counts
