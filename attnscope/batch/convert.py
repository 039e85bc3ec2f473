"""Convert a finished dump or table to another file format, atomically."""

import secrets
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from attnscope.batch import tables
from attnscope.batch.dump import DumpConfig, DumpProgress, check_output, write_dump
from attnscope.batch.dump_reader import Dump
from attnscope.batch.file_errors import naming_errors
from attnscope.batch.frames import COMPRESSED_LINES, ending_of
from attnscope.batch.journal import Journal
from attnscope.batch.records import Record, encode
from attnscope.batch.reports import read_report, records_of, settings_of
from attnscope.batch.runner import MAX_WINDOW_RECORDS, Summary
from attnscope.batch.sinks import INDEX, JsonlSink, SafetensorsSink, arrays_of
from attnscope.errors import AttnscopeError, UsageError
from attnscope.files.atomic import check_name, check_target
from attnscope.report import Report
from attnscope.system.file_system import FileSystem, sync_file
from attnscope.system.shutdown import at_signal

TABLES, DUMPS = (".csv", ".parquet"), (".jsonl", *COMPRESSED_LINES, ".json")


def kind(path: Path, option: str) -> str:
    """Return the ending that says what a file is; empty for a folder.

    Raises:
        UsageError: The ending says nothing.
    """
    check_name(path)
    if path.is_dir() or ending_of(path) in ("", *DUMPS, *TABLES):
        return "" if path.is_dir() else ending_of(path)
    hint = f"use {' '.join(DUMPS + TABLES)}, or a name without extension for a folder"
    raise UsageError(f"'{path}' has no known extension", where=option, hint=hint)


def convert(source: Path, target: Path, table: tables.Kind | None = None, *, force: bool) -> tuple[int, str]:
    """Make another kind of file of a finished dump.

    Args:
        source: .jsonl (compressed or not), .json (a dump, or what `run` wrote), a folder, .parquet or .csv.
        target: Likewise; a table, or what `run` wrote, becomes only another table, for it holds less.
        table: Which table; None for the contributors, or the first that there is.
        force: Replace an existing file.

    Returns:
        How many, and what: `records`, or the rows of which table.

    Raises:
        AttnscopeError: The source is damaged or not finished, or the target cannot be written.
        UsageError: An ending says nothing, or a table shall become a dump.
    """
    there, here = kind(source, "IN"), kind(target, "OUT")
    if table is not None and (here not in TABLES or there in TABLES):
        found = "IN is already a table" if there in TABLES else "OUT is not a table"
        raise UsageError(found, where="--table", hint="--table needs a .csv or .parquet OUT")
    if there in TABLES and here not in TABLES:
        raise UsageError("a table does not hold a whole dump", where="OUT", hint="convert to .csv or .parquet")
    if not source.exists():
        raise AttnscopeError("no such file", where=source)
    if not source.is_dir() and not source.is_file():
        raise AttnscopeError("is not a regular file", where=source, hint="save its output to a file first")
    report = read_report(source) if there == ".json" else None
    if report is not None and here not in TABLES:
        raise UsageError("a report is not a dump", where="OUT", hint="convert to .csv or .parquet")
    with _replacing(target, force=force) as temporary:
        if here in TABLES:
            what, names, parts = _table(source) if there in TABLES else _parts(report or Dump(source), table)
            return _write_table(names, parts, temporary, here), what
        return _write_dump(Dump(source), temporary, here), "records"


def write_document(order: DumpConfig, on_progress: DumpProgress) -> Summary:
    """Write a dump as one JSON document; unlike the other kinds, it is there as a whole or not at all.

    Args:
        order: What the user asked; its output ends in .json.
        on_progress: See `write_dump`.

    Raises:
        AttnscopeError: As `write_dump`, or the output cannot be written.
    """
    check_output(order)
    with _replacing(order.output, force=order.force) as temporary, _temporary_folder() as folder:
        lines = folder / "dump.jsonl"
        summary = write_dump(replace(order, output=lines), on_progress)
        _write_document(Dump(lines), temporary)
    return summary


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="attnscope-") as name, at_signal(lambda: _remove(Path(name))):
        yield Path(name)


_Parts = tuple[str, list[str], Iterator[tables.Table]]  # what it holds, columns, and the parts of a table


def _table(source: Path) -> _Parts:
    return "rows", *tables.read_table(source)


def _parts(source: Report | Dump, asked: tables.Kind | None) -> _Parts:
    settings = settings_of(source) if isinstance(source, Report) else source.header.settings
    chosen = tables.kind_of(settings, asked)
    records = records_of(source) if isinstance(source, Report) else source.records()
    parts = (part for record in records if record.status == "ok" for part in tables.tables(chosen, record))
    what = "rows" if chosen == "rows" else f"rows of {chosen}"
    return what, tables.columns(chosen, settings), parts


def _write_table(names: list[str], parts: Iterator[tables.Table], target: Path, here: str) -> int:
    count = Counter[str]()

    def counted() -> Iterator[tables.Table]:
        for part in parts:
            count["rows"] += len(part["index"])
            yield part

    if here == ".parquet":
        tables.write_parquet(target, names, counted())
    else:
        with naming_errors(target), open(target, "wb") as file:
            file.writelines(tables.csv_bytes(names, counted()))
    return count["rows"]


def _write_dump(dump: Dump, target: Path, here: str) -> int:
    if here == ".json":
        return _write_document(dump, target)
    files = FileSystem()
    if here == "":
        files.make_folder(target)
    path = target / INDEX if here == "" else target
    with Journal(path, force=True, files=files) as journal:
        journal.start(encode(dump.header))
        sink = SafetensorsSink(journal, files) if here == "" else JsonlSink(journal)
        counts = Counter[str]()
        for records in _windows(dump):
            sink.write(records, len(records), [[record] for record in records])
            counts.update(record.status for record in records)
        journal.finish(counts)
    return counts.total()


def _windows(dump: Dump) -> Iterator[list[Record]]:
    """Yield as many records at a time as the dump itself was written by."""
    window: list[Record] = []
    values = 0
    for record in dump.records():
        size = sum(array.size for array in arrays_of(record).values())
        if window and (values + size > dump.header.grouping.window or len(window) == MAX_WINDOW_RECORDS):
            yield window
            window, values = [], 0
        window.append(record)
        values += size
    if window:
        yield window


def _write_document(dump: Dump, target: Path) -> int:
    """Return one JSON document: header, records, end."""
    count = 0
    with naming_errors(target), open(target, "wb") as file:
        file.write(b'{"header":' + encode(dump.header) + b',"records":[')
        for record in dump.records():
            file.write((b",\n" if count else b"\n") + encode(record))
            count += 1
        assert dump.end is not None
        file.write(b'\n],"end":' + encode(dump.end) + b"}\n")
    return count


@contextmanager
def _replacing(target: Path, *, force: bool) -> Iterator[Path]:
    """Provide a name to write to that becomes the target once everything is safe on disk."""
    if target.is_dir() or (target.suffix == "" and target.exists()):
        raise AttnscopeError("exists", where=target, hint="choose a new folder")
    check_target(target, force=force)
    temporary = target.parent / f".attnscope-{secrets.token_hex(6)}{ending_of(target)}"
    files = FileSystem()
    with at_signal(lambda: _remove(temporary)):
        try:
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


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()
