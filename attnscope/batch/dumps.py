"""A finished dump of any kind in; its header, its records with their arrays, and its end line, each checked, out."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
import numpy as np

from attnscope.batch.header import MAGIC, SCHEMA, Header
from attnscope.batch.journal import opened
from attnscope.batch.records import End, Record, RowArrays, TopArrays, decode
from attnscope.batch.sinks import INDEX
from attnscope.errors import AttnscopeError

_DTYPES = {"F32": np.float32, "I32": np.int32}
_UNFINISHED = "is not finished"
_GO_ON = "the command that began it goes on from there"


class _Document(msgspec.Struct):
    header: msgspec.Raw
    records: list[msgspec.Raw]
    end: msgspec.Raw


@dataclass
class Dump:
    """A dump that is being read.

    Attributes:
        path: The .jsonl or .json file, or the folder.
        header: What it says about itself.
        end: The end line, once every record has been read.
    """

    path: Path
    header: Header = field(init=False)
    end: End | None = None

    def __post_init__(self) -> None:
        self._lines = self._bodies()
        first = next(self._lines, None)
        if first is None or not first.startswith(MAGIC):
            raise AttnscopeError("is not a dump", where=self.path, hint="attnscope batch writes one")
        self.header = _decoded(first, Header, self.path)
        if self.header.schema != SCHEMA:
            raise AttnscopeError(
                f"schema is '{self.header.schema}'", where=self.path, hint=f"this version reads '{SCHEMA}'"
            )

    def bodies(self) -> Iterator[bytes]:
        """The JSON of every record, as it stands there.

        Raises:
            AttnscopeError: A line is damaged, or the end is missing.
        """
        for body in self._lines:
            if body.startswith(b'{"end":'):
                self.end = _decoded(body, End, self.path)
                if next(self._lines, None) is not None:
                    raise AttnscopeError("something follows its end", where=self.path)
                return
            yield body
        raise AttnscopeError(_UNFINISHED, where=self.path, hint=_GO_ON)

    def records(self) -> Iterator[Record]:
        """Every record, with its arrays.

        Raises:
            AttnscopeError: A line or shard is damaged, or the end is missing.
        """
        shard: tuple[str, bytes] | None = None
        for body in self.bodies():
            record = _decoded(body, Record, self.path)
            if record.shard is not None:
                if shard is None or shard[0] != record.shard:
                    shard = record.shard, self._shard(record)
                record = _with_arrays(record, shard[1], self.path / record.shard)
            yield record

    def _bodies(self) -> Iterator[bytes]:
        if self.path.suffix == ".json":
            document = _decoded(self._read(self.path), _Document, self.path)
            yield from (bytes(document.header), *map(bytes, document.records), bytes(document.end))
            return
        path = self.path / INDEX if self.path.is_dir() else self.path
        crc = 0
        try:
            with open(path, "rb") as file:
                for number, line in enumerate(file, 1):
                    if not line.endswith(b"\n"):
                        raise AttnscopeError(_UNFINISHED, where=path, hint=_GO_ON)
                    whole = opened(line, crc)
                    if whole is None:
                        what = "the line is damaged" if number > 1 else "is not a dump"
                        raise AttnscopeError(what, where=f"{path}:{number}", hint="restore it from a copy")
                    body, crc = whole
                    yield body
        except OSError as e:
            raise AttnscopeError(f"cannot be read ({e.strerror})", where=path) from e

    def _read(self, path: Path) -> bytes:
        try:
            return path.read_bytes()
        except OSError as e:
            raise AttnscopeError(f"cannot be read ({e.strerror})", where=path) from e

    def _shard(self, record: Record) -> bytes:
        name = str(record.shard)
        if "/" in name or "\\" in name or not name.endswith(".safetensors"):
            raise AttnscopeError(f"names a shard '{name}'", where=self.path, hint="expected a plain file name")
        data = self._read(self.path / name)
        if f"{crc32(data):08x}" != record.shard_check:
            raise AttnscopeError("the shard is damaged", where=self.path / name, hint="restore it from a copy")
        return data


def _decoded(data: bytes, kind: Any, path: Path) -> Any:
    try:
        return decode(data, kind)
    except (msgspec.DecodeError, ValueError) as e:
        raise AttnscopeError(f"is not a dump ({e})", where=path, hint="attnscope batch writes one") from e


def _with_arrays(record: Record, data: bytes, path: Path) -> Record:
    """A record whose arrays lie in a shard, with these."""
    start = 8 + int.from_bytes(data[:8], "little")
    header = msgspec.json.decode(data[8:start])
    found: dict[str, dict[str, Any]] = {}
    prefix = f"{record.index}/"
    for name, place in header.items():
        if name.startswith(prefix):
            part, _, key = name.removeprefix(prefix).partition(".")
            low, high = place["data_offsets"]
            array = np.frombuffer(data[start + low : start + high], dtype=_DTYPES[place["dtype"]])
            found.setdefault(part, {})[key] = array.reshape(place["shape"])
    if not found:
        raise AttnscopeError(f"holds nothing of record {record.index}", where=path)
    arrays: dict[str, Any] = {part: value.get("", value) for part, value in found.items()}
    if "top" in arrays:
        arrays["top"] = TopArrays(**arrays["top"])
    if "rows" in arrays:
        arrays["rows"] = RowArrays(**arrays["rows"])
    return msgspec.structs.replace(record, shard=None, shard_check=None, **arrays)
