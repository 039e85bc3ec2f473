"""Read a finished dump of any format: header, records with their arrays, end line, all checked."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from attnscope.base.errors import AttnscopeError
from attnscope.base.system.checksum import crc32
from attnscope.batch.compressed import bounded_lines, open_lines
from attnscope.batch.formats import format_of
from attnscope.batch.header import END, MAGIC, MEASURES, SCHEMA, Header, Settings
from attnscope.batch.journal import unseal
from attnscope.batch.records import End, Record
from attnscope.batch.shards import DTYPES, TEXTS, Shard
from attnscope.batch.sinks import INDEX
from attnscope.findings.axes import arrays_in, faults, gathered
from attnscope.findings.codec import decode_json, restore_forbidden
from attnscope.findings.heads import STAGES
from attnscope.findings.row_statistics import ROW_STATISTICS

_UNFINISHED = "is not finished"
_RESTORE = "restore it from a backup"
_GO_ON = "to resume, run the command that started it again"


_Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


class _Place(msgspec.Struct):
    dtype: Literal["F32", "I32", "I16", "U16", "I64"]
    shape: list[_Size]
    data_offsets: tuple[_Size, _Size]


class _Document(msgspec.Struct):
    header: msgspec.Raw
    records: list[msgspec.Raw]
    end: msgspec.Raw


_SEAL = len(b',"check":"00000000"}\n')


def sealed_end(checksum: int) -> bytes:
    """Return the last bytes of a document: the CRC-32 of all bytes before."""
    return b',"check":"%08x"}\n' % checksum


@dataclass
class Dump:
    """A dump that is being read."""

    path: Path  # the .jsonl (.jsonl.gz, .jsonl.zst) or .json file, or the folder
    record_type: type[Record] = Record
    header: Header = field(init=False)
    end: End | None = None
    _last_shard: tuple[str, Shard] | None = None

    def __post_init__(self) -> None:
        file_format = format_of(self.path)
        read = dump_lines
        if file_format is not None and file_format.layout == "document":
            read = read_document
        self._lines: Iterator[bytes] = read(self.path)
        header_line = next(self._lines, None)
        if header_line is None or not header_line.startswith(MAGIC):
            raise AttnscopeError(
                "is not a dump", where=self.path, hint="create one with attnscope batch"
            )
        self.header = decoded(header_line, Header, self.path)
        if self.header.schema != SCHEMA:
            raise AttnscopeError(
                f"schema is '{self.header.schema}'",
                where=self.path,
                hint=f"this version reads '{SCHEMA}'",
            )

    def record_bodies(self) -> Iterator[bytes]:
        """Yield the JSON of every record, unchanged."""
        for count, body in enumerate(self._lines):
            if body.startswith(END):
                end = self.end = decoded(body, End, self.path)
                if next(self._lines, None) is not None:
                    raise AttnscopeError("has data after its end", where=self.path)
                if end.records != count:
                    message = f"has {count:,} records, but its end says {end.records:,}"
                    raise AttnscopeError(message, where=self.path, hint=_RESTORE)
                return
            yield body
        raise AttnscopeError(_UNFINISHED, where=self.path, hint=_GO_ON)

    def records(self) -> Iterator[Record]:
        """Yield every record, with its arrays."""
        yield from map(self.record, self.record_bodies())

    def record(self, body: bytes) -> Record:
        """Return a record with its arrays, from its JSON."""
        record: Record = decoded(body, self.record_type, self.path)
        restore_forbidden(record)
        if record.shard is not None:
            if self._last_shard is None or self._last_shard[0] != record.shard:
                self._last_shard = record.shard, self._shard(record)
            record = _with_arrays(record, self._last_shard[1], self.path / record.shard)
        check_record(record, self.header.settings, self.path)
        return record

    def _shard(self, record: Record) -> Shard:
        name = str(record.shard)
        if "/" in name or "\\" in name or not name.endswith(".safetensors"):
            raise AttnscopeError(
                f"refers to the shard '{name}'", where=self.path, hint="expected a plain file name"
            )
        data = _read(self.path / name)
        if f"{crc32(data):08x}" != record.shard_check:
            raise AttnscopeError("the shard is damaged", where=self.path / name, hint=_RESTORE)
        return read_shard(memoryview(data), self.path / name, self.header.settings.digits)


def read_shard(data: Any, path: Path, digits: int | None) -> Shard:
    """Return the arrays of a shard as views of its bytes; see `shards`."""
    start = 8 + int.from_bytes(data[:8], "little")
    places = decoded(bytes(data[8:start]), dict[str, _Place], path)
    arrays = {
        name: _array(data[start:], entry, f"{path}: {name}") for name, entry in places.items()
    }
    if TEXTS not in arrays:
        raise AttnscopeError(f"has no array '{TEXTS}'", where=path, hint=_RESTORE)
    return Shard(arrays, digits)


def read_document(path: Path) -> Iterator[bytes]:
    """Yield the JSON of header, records and end of a dump that is one document."""
    data = _read(path)
    document = decoded(data, _Document, path)
    if data[-_SEAL:] != sealed_end(crc32(memoryview(data)[:-_SEAL])):
        raise AttnscopeError(
            "the document is damaged: its checksum is another", where=path, hint=_RESTORE
        )
    yield from (bytes(document.header), *map(bytes, document.records), bytes(document.end))


def dump_lines(path: Path) -> Iterator[bytes]:
    """Yield the checked lines of a dump, or of a folder's index, without checksums."""
    if not path.exists():
        raise AttnscopeError("no such file", where=path)
    path = path / INDEX if path.is_dir() else path
    if not path.exists():
        raise AttnscopeError(
            f"is no dump: it has no {INDEX}",
            where=path.parent,
            hint="create one with attnscope batch",
        )
    crc = 0
    try:
        with open_lines(path) as file:
            for line_number, line in enumerate(bounded_lines(file, path), 1):
                if not line.endswith(b"\n"):
                    raise AttnscopeError(_UNFINISHED, where=path, hint=_GO_ON)
                unsealed = unseal(line, crc)
                if unsealed is None:
                    if line_number > 1:
                        raise AttnscopeError(
                            "the line is damaged", where=f"{path}:{line_number}", hint=_RESTORE
                        )
                    hint = f"pass a file that attnscope batch wrote; if it is one, {_RESTORE}"
                    raise AttnscopeError(
                        "is not a dump, or its first line is damaged", where=path, hint=hint
                    )
                body, crc = unsealed
                yield body
    except OSError as e:
        raise AttnscopeError(f"cannot be read ({e.strerror})", where=path) from e


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as e:
        raise AttnscopeError(f"cannot be read ({e.strerror})", where=path) from e


def decoded(data: bytes | msgspec.Raw, line_type: Any, path: Path) -> Any:
    """Return a line of a dump as the Header, Record or End that `line_type` names."""
    try:
        return decode_json(data, line_type)
    except ValueError as e:  # msgspec.DecodeError is one
        raise AttnscopeError(
            f"is not a dump ({e})", where=path, hint="create one with attnscope batch"
        ) from e


def _with_arrays(record: Record, shard: Shard, path: Path) -> Record:
    try:
        arrays = shard.of_record(record.index, len(record.key_tokens))
        if not arrays:
            raise AttnscopeError(f"has no arrays for record {record.index}", where=path)
        units = record.units or shard.units
        return msgspec.structs.replace(
            record, units=units, shard=None, shard_check=None, **gathered(Record, arrays)
        )
    # an additional name, or a missing one, or another shape
    except (TypeError, ValueError, LookupError) as e:
        raise AttnscopeError(
            f"its arrays do not match its records ({e})", where=path, hint=_RESTORE
        ) from e


def _array(data: Any, entry: _Place, where: str) -> Any:
    low, high = entry.data_offsets
    dtype = np.dtype(DTYPES[entry.dtype])
    if high > len(data) or dtype.itemsize * prod(entry.shape) != high - low:
        raise AttnscopeError("its size does not match its shape", where=where, hint=_RESTORE)
    return np.frombuffer(data[low:high], dtype=dtype).reshape(entry.shape)


_LARGEST = 1 << 62
_HINT = "another program wrote or changed it: restore it from a backup"


def check_record(record: Record, settings: Settings, path: Path) -> None:
    """Refuse a record whose positions, counts and array shapes contradict each other, or that lacks kept arrays."""
    for where, fault in _faults(record, settings):
        raise AttnscopeError(f"record {record.index}: {where} {fault}", where=path, hint=_HINT)


def _faults(record: Record, settings: Settings) -> Iterator[tuple[str, str]]:
    if not 0 <= record.index <= _LARGEST:
        yield "index", f"is not from 0 to {_LARGEST}"
    if record.status != "ok":
        return
    for part in settings.keep:
        if getattr(record, part) is None:
            yield part, "is missing"
    if record.rows is not None and "rows" in settings.keep:
        for row in ROW_STATISTICS:
            # Dumps of older versions lack statistics that were added later.
            if (
                row.name in settings.kept_statistics
                and not row.added
                and getattr(record.rows, row.name) is None
            ):
                yield f"rows.{row.name}", "is missing"
    for name in MEASURES[settings.by] if record.top is not None else ():
        if getattr(record.top, name) is None:
            yield f"top.{name}", "is missing"
    for stage in settings.stages if "stages" in settings.keep else ():
        if stage not in record.stages or stage not in STAGES:
            yield f"stages.{stage[:40]}", "is missing"
    for name, along, array in arrays_in(record):
        if array.dtype != (np.int32 if along.whole else np.float32):
            yield name, f"holds {array.dtype}"
    yield from faults(record, {})
