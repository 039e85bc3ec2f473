"""Write the records of a finished dump as another dump."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from attnscope.base.system.file_system import FileSystem
from attnscope.batch.dump_reader import Dump
from attnscope.batch.file_errors import naming_errors
from attnscope.batch.journal import Journal
from attnscope.batch.records import Record, arrays_of, encode
from attnscope.batch.runner import write_window
from attnscope.batch.sinks import INDEX, JsonlSink, SafetensorsSink
from attnscope.batch.windows import MAX_WINDOW_RECORDS


def write_lines(dump: Dump, target: Path) -> int:
    """Write one record per line, compressed as the name says, and return their number."""
    with Journal(target, force=True, files=FileSystem()) as journal:
        return _write(dump, journal, JsonlSink(journal))


def write_shards(dump: Dump, target: Path) -> int:
    """Write a folder of shards, and return the number of records."""
    files = FileSystem()
    files.make_folder(target)
    with Journal(target / INDEX, force=True, files=files) as journal:
        return _write(dump, journal, SafetensorsSink(journal, files))


def _write(dump: Dump, journal: Journal, sink: JsonlSink | SafetensorsSink) -> int:
    journal.start(encode(dump.header))
    counts = Counter[str]()
    for records in _windows(dump):
        write_window(sink, records, len(records), [[record] for record in records])
        counts.update(record.status for record in records)
    journal.finish(counts)
    return counts.total()


def _windows(dump: Dump) -> Iterator[list[Record]]:
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


def write_document(dump: Dump, target: Path) -> int:
    """Write one JSON document of header, records and end, and return the number of records."""
    count = 0
    with naming_errors(target), open(target, "wb") as file:
        file.write(b'{"header":' + encode(dump.header) + b',"records":[')
        for record in dump.records():
            file.write((b",\n" if count else b"\n") + encode(record))
            count += 1
        assert dump.end is not None
        file.write(b'\n],"end":' + encode(dump.end) + b"}\n")
    return count


WRITERS = {"lines": write_lines, "shards": write_shards, "document": write_document}  # by layout of a format
