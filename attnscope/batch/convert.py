"""Convert a finished dump to another file format, or to a table, atomically."""

import secrets
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import msgspec

from attnscope.base.errors import AttnscopeError, UsageError, arg
from attnscope.base.files.atomic import check_name, check_not_read, check_target
from attnscope.base.system.checksum import crc32
from attnscope.base.system.file_system import FileSystem, sync_file
from attnscope.base.system.signals import at_signal
from attnscope.batch import tables
from attnscope.batch.compressed import new_packer
from attnscope.batch.dump import DumpProgress, check_output, write_dump
from attnscope.batch.dump_reader import Dump, sealed_end
from attnscope.batch.file_errors import naming_errors
from attnscope.batch.formats import DUMPS, TABLES, DumpFormat, ending_of, format_of
from attnscope.batch.journal import seal
from attnscope.batch.loading import DumpConfig
from attnscope.batch.merge import write_merged
from attnscope.batch.parts import gather_parts_of
from attnscope.batch.records import End, Record, arrays_of, encode
from attnscope.batch.reports import read_report, records_of, settings_of
from attnscope.batch.sinks import open_dump
from attnscope.batch.summary import Summary
from attnscope.batch.windows import MAX_WINDOW_RECORDS
from attnscope.findings.run import Report
from attnscope.run.session import Session


class _Copied(Record, frozen=True, omit_defaults=True):
    """A record whose members of the input are written with the bytes that it has for them, such as 1.50 or \\u00e9."""

    fields: dict[str, msgspec.Raw] = msgspec.field(default_factory=dict)


def _format(path: Path, option: str) -> DumpFormat:
    check_name(path)
    file_format = format_of(path)
    if file_format is None:
        hint = f"use {' '.join(DUMPS + TABLES)}, or a name without extension for a folder"
        raise UsageError(f"'{path}' has no known extension", where=option, hint=hint)
    return file_format


def convert(
    source: Path, target: Path, table: str | None = None, *, force: bool
) -> tuple[int, str]:
    """Convert a finished dump to another file format, or to a table.

    Args:
        source: .jsonl (compressed or not), .json (a dump, or what `run` wrote), or a folder.
        target: The new file; a report of `run` can only become a table, since it holds less than a dump.
        table: Which table; None for the contributors, or the first that there is.

    Returns:
        The number of rows, and their kind: `records`, or the name of the table.
    """
    there = _format(source, "IN")
    here = _format(target, "OUT")
    if there.table:
        hint = f"pass the dump that it was made of; pandas, polars and DuckDB read {' and '.join(TABLES)}"
        raise UsageError(
            f"'{source}' is a table, which holds a part of a dump", where="IN", hint=hint
        )
    if not source.exists():
        raise AttnscopeError("no such file", where=source)
    if not source.is_dir() and not source.is_file():
        raise AttnscopeError(
            "is not a regular file", where=source, hint="save its output to a file first"
        )
    report = read_report(source) if there.ending == ".json" else None
    if report is not None and not here.table:
        raise UsageError(
            "a report is not a dump", where="OUT", hint=f"convert to {', '.join(TABLES)} or .html"
        )
    if here.extra is not None:
        here.extra.require(here.ending)
    if here.layout == "compressed":
        new_packer(target)  # refuses .zst without its library
    with _replacing(target, force=force) as temporary:
        if not here.table:
            writers = {"document": _write_document, "compressed": _write_compressed}
            write_copy = writers.get(here.layout, _write_dump)
            return write_copy(Dump(source, _Copied), temporary), "records"
        what, rows = _rows(report or Dump(source), table)
        return tables.write(rows, here.layout, temporary), what


def _write_dump(dump: Dump, target: Path) -> int:
    """Write one record per line, or a folder of shards, and return the number of records."""
    with open_dump(target, force=True, files=FileSystem()) as (journal, sink):
        journal.start(encode(dump.header))
        counts = Counter[str]()
        for window in _windows(dump):
            sink.write(window, len(window))
            counts.update(record.status for record in window)
        journal.finish(counts)
    return counts.total()


def _windows(dump: Dump) -> Iterator[list[Record]]:
    window = list[Record]()
    values = 0
    for record in dump.records():
        size = sum(array.size for array in arrays_of(record).values())
        if window and (
            values + size > dump.header.grouping.window or len(window) == MAX_WINDOW_RECORDS
        ):
            yield window
            window = []
            values = 0
        window.append(record)
        values += size
    if window:
        yield window


def _write_compressed(dump: Dump, target: Path) -> int:
    """Write compressed lines, which are those of a .jsonl file, and return the number of records."""
    packer = new_packer(target)
    crc = 0
    with naming_errors(target), open(target, "wb") as file:
        for body in _bodies(dump):
            line, crc = seal(body, crc)
            file.write(packer.compress(line))
        file.write(packer.flush())
    assert dump.end is not None
    return dump.end.records


def _bodies(dump: Dump) -> Iterator[bytes]:
    """Yield the JSON of header, records and end, with the arrays of the records."""
    yield encode(dump.header)
    yield from map(encode, dump.records())
    assert dump.end is not None
    yield encode(dump.end)


def _write_document(dump: Dump, target: Path) -> int:
    """Write one JSON document of header, records, end and checksum, and return the number of records."""
    checksum = 0
    with naming_errors(target), open(target, "wb") as file:
        for piece in _document_pieces(dump):
            file.write(piece)
            checksum = crc32(piece, checksum)
        file.write(sealed_end(checksum))
    assert dump.end is not None
    return dump.end.records


def _document_pieces(dump: Dump) -> Iterator[bytes]:
    """Yield a document without its checksum."""
    yield b'{"header":' + encode(dump.header) + b',"records":['
    separator = b"\n"
    for record in dump.records():
        yield separator + encode(record)
        separator = b",\n"
    assert dump.end is not None
    yield b'\n],"end":' + encode(dump.end)


def write_document(
    order: DumpConfig, on_progress: DumpProgress, session: Session | None = None
) -> Summary:
    """Write a dump as one JSON document, which appears as a whole or not at all."""
    check_output(order)
    with (
        _replacing(order.output, force=order.force) as temporary,
        tempfile.TemporaryDirectory(prefix="attnscope-") as name,
        at_signal(lambda: _remove(Path(name))),
    ):
        folder = Path(name)
        lines = folder / "dump.jsonl"
        with _about(
            folder, folder, "set TMPDIR to a folder with more free space; nothing was written"
        ):
            summary = write_dump(replace(order, output=lines), on_progress, session=session)
        _write_document(Dump(lines, _Copied), temporary)
    return summary


def merge(
    paths: Sequence[Path],
    target: Path,
    *,
    force: bool,
    on_progress: Callable[[int, int], None] | None = None,
) -> End:
    """Join the parts of a dump, atomically: `attnscope merge`.

    Args:
        target: The new dump: a file of lines, or a folder if the parts are folders.
    """
    part_set = gather_parts_of(paths)
    here = _format(target, arg("output"))
    there = "shards" if paths[0].is_dir() else "lines"
    if here.layout != there or any(path.is_dir() != paths[0].is_dir() for path in paths):
        hint = "use a name without extension" if there == "shards" else "use .jsonl"
        kinds = "folders" if there == "shards" else "files"
        raise UsageError(
            f"'{target}' cannot hold parts that are {kinds}", where=arg("output"), hint=hint
        )
    if not part_set.complete:
        part_set = gather_parts_of(paths, count=True)
    if not part_set.complete:  # some may have been finished meanwhile
        hint = f"run batch for each again with its {arg('shard')}; a part that is not finished goes on where it stopped"
        raise AttnscopeError(f"not all parts are finished: {part_set.describe_gaps()}", hint=hint)
    check_not_read(target, [str(path) for path in paths])
    total = part_set.total
    with _replacing(target, force=force) as temporary:
        return write_merged(
            part_set, temporary, lambda done: on_progress and on_progress(done, total)
        )


def _rows(source: Report | Dump, table: str | None) -> tuple[str, tables.TableRows]:
    if isinstance(source, Report):
        settings = settings_of(source)
    else:
        settings = source.header.settings
    table_kind = tables.kind_of(settings, table)
    records = records_of(source) if isinstance(source, Report) else source.records()
    what = "rows" if table_kind == "rows" else f"rows of {table_kind}"
    return what, tables.TableRows(
        tables.columns(table_kind, settings), tables.rows_of(table_kind, records)
    )


@contextmanager
def _replacing(target: Path, *, force: bool) -> Iterator[Path]:
    """Provide a temporary path that replaces the target once everything is safe on disk."""
    if target.is_dir() or (target.suffix == "" and target.exists()):
        raise AttnscopeError("exists", where=target, hint="choose a new folder")
    check_target(target, force=force)
    temporary = target.parent / f".attnscope-{secrets.token_hex(6)}{ending_of(target)}"
    files = FileSystem()
    with at_signal(lambda: _remove(temporary)):
        try:
            with _about(temporary, target, "nothing was written"):
                yield temporary
            with naming_errors(target):
                for path in temporary.iterdir() if temporary.is_dir() else [temporary]:
                    sync_file(path)
                if temporary.is_dir():
                    files.sync_folder(temporary)
                files.replace(temporary, target)
                files.sync_folder(target.parent)
        finally:
            with suppress(OSError):
                _remove(temporary)


@contextmanager
def _about(temporary: Path, path: Path, hint: str) -> Iterator[None]:
    """Name the target in errors about temporary files, with a hint that does not mention these."""
    try:
        yield
    except AttnscopeError as e:
        if e.where is None or not Path(e.where).is_relative_to(temporary):
            raise
        raise AttnscopeError(e.parts.message, where=path, hint=hint) from e


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()
