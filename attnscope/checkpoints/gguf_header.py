"""Read the header of a GGUF file: metadata, and the location of each tensor.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The reader of the library `gguf` maps the whole
file into memory, so that the process would end if the file shrank, and takes seconds for a vocabulary. Only block types
and their arithmetic are taken from it.
"""

import struct
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

from attnscope.base.errors import AttnscopeError
from attnscope.base.files.reading import (
    MB,
    format_value,
    identify_bytes,
    open_regular,
    read_at_most,
)
from attnscope.checkpoints.headers import FileStamp, TensorInfo, sample_digest

MAX_HEADER = 100 * MB
_MOST_ITEMS = 5_000_000  # largest length of an array; the largest vocabularies have a tenth of that
_MAGIC = b"GGUF"
_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING = 8
_ARRAY = 9
_FLOATS = {0: ("F32", 4), 1: ("F16", 2), 28: ("F64", 8), 30: ("BF16", 2)}
_CHUNK = 1 << 20


@dataclass(frozen=True)
class GgufHeader:
    """Header of a GGUF file."""

    metadata: dict[str, Any]
    # its tensors by name, their shapes with the widest step first, as everywhere else
    tensors: dict[str, TensorInfo]
    stamp: FileStamp
    digest: bytes


def read_gguf_header(path: Path) -> GgufHeader:
    """Read and check the header of a GGUF file."""
    with open_regular(path) as (file, status):
        reader = _Reader(file, path)
        if status.st_size < 24:
            raise AttnscopeError(
                f"is not GGUF ({status.st_size:,} bytes)", where=path, hint="download it again"
            )
        start = reader.take(4)
        if reader.data[start:4] != _MAGIC:
            identified = identify_bytes(bytes(reader.data[:512]))
            file_kind, hint = identified or (
                "something else",
                "name a GGUF file, or a model folder",
            )
            raise AttnscopeError(f"is {file_kind}, not GGUF", where=path, hint=hint)
        if (version := reader.scalar("I")) not in (2, 3):
            if version >> 24:
                message = "is big-endian"
            else:
                message = f"is GGUF version {version}"
            raise AttnscopeError(
                message, where=path, hint="convert it with a current llama.cpp to version 3"
            )
        counts = reader.scalar("Q"), reader.scalar("Q")
        metadata: dict[str, Any] = {}
        for _ in range(counts[1]):
            name = reader.text()
            if name in metadata:
                raise AttnscopeError("is given twice", where=f"{path}: {format_value(name)[1:-1]}")
            metadata[name] = reader.value(reader.scalar("I"))
        entries = _entries(reader, counts[0])
        header = bytes(reader.data[: reader.at])
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            message = f"general.alignment is {format_value(alignment)}"
            raise AttnscopeError(message, where=path, hint="expected a power of two")
        base = _aligned(reader.at, alignment)
        digest = sample_digest(file, header, base, status.st_size)
    tensors = _located(entries, base, alignment, status.st_size)
    return GgufHeader(metadata, tensors, FileStamp.of(status), digest)


class _Reader:
    """A file's first bytes, taken one after the other."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self.file = file
        self.path = path
        self.data = bytearray()
        self.at = 0

    def take(self, count: int) -> int:
        """Skip a number of bytes, and return the offset at which they start."""
        start = self.at
        end = self.at + count
        if end > len(self.data):
            if end > MAX_HEADER:
                raise AttnscopeError(
                    f"the header is longer than {MAX_HEADER:,} bytes", where=self.path
                )
            self.data += read_at_most(self.file, max(end - len(self.data), _CHUNK))
            if end > len(self.data):
                hint = "download it again"
                raise AttnscopeError("is truncated within its header", where=self.path, hint=hint)
        self.at = end
        return start

    def scalar(self, code: str) -> Any:
        start = self.take(struct.calcsize(f"<{code}"))
        return struct.unpack_from(f"<{code}", self.data, start)[0]

    def text(self) -> str:
        length = self.scalar("Q")
        start = self.take(length)
        try:
            return self.data[start : start + length].decode()
        except UnicodeDecodeError as e:
            raise AttnscopeError("a string in its header is not UTF-8", where=self.path) from e

    def value(self, value_type: int) -> Any:
        if value_type in _SCALARS:
            return self.scalar(_SCALARS[value_type])
        if value_type == _STRING:
            return self.text()
        if value_type != _ARRAY:
            raise AttnscopeError(
                f"a value of its header has the unknown type {value_type}", where=self.path
            )
        inner = self.scalar("I")
        count = self.scalar("Q")
        if count > _MOST_ITEMS:
            message = f"an array of its header has {count:,} items; expected at most"
            raise AttnscopeError(f"{message} {_MOST_ITEMS:,}", where=self.path)
        if inner == _STRING:
            return [self.text() for _ in range(count)]
        if inner not in _SCALARS:
            raise AttnscopeError(
                f"an array of its header has the unknown type {inner}", where=self.path
            )
        code = _SCALARS[inner]
        start = self.take(count * struct.calcsize(f"<{code}"))
        return list(struct.unpack_from(f"<{count}{code}", self.data, start))


def _entries(reader: _Reader, count: int) -> list[TensorInfo]:
    """Return every tensor, its place counted from the start of the data."""
    entries: dict[str, TensorInfo] = {}
    for _ in range(count):
        name = reader.text()
        where = f"{reader.path}: {format_value(name)[1:-1]}"
        dimensions = reader.scalar("I")
        if name in entries or dimensions > 4:
            if name in entries:
                message = "is given twice"
            else:
                message = f"has {dimensions} dimensions"
            raise AttnscopeError(
                message, where=where, hint="the file is damaged: download it again"
            )
        shape = tuple(reader.scalar("Q") for _ in range(dimensions))[::-1]
        dtype, block = _tensor_type(reader.scalar("I"), where)
        numbers, size = block or (1, {name: size for name, size in _FLOATS.values()}[dtype])
        if shape[-1:] and shape[-1] % numbers:
            message = f"has rows of {shape[-1]} numbers, but {dtype} has blocks of {numbers}"
            raise AttnscopeError(
                message, where=where, hint="the file is damaged: download it again"
            )
        start = reader.scalar("Q")
        end = start + prod(shape) // numbers * size
        entries[name] = TensorInfo(name, reader.path, dtype, shape, start, end, block)
    return list(entries.values())


def _tensor_type(type_id: int, where: str) -> tuple[str, tuple[int, int] | None]:
    """Return the name of a type, with the numbers and bytes of a block if it has blocks."""
    if type_id in _FLOATS:
        return _FLOATS[type_id][0], None
    try:
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
    except ImportError as e:
        hint = "pip install 'attnscope[gguf]'"
        raise AttnscopeError(
            f"is quantised, and gguf cannot be imported ({e})", where=where, hint=hint
        ) from e
    try:
        tensor_type = GGMLQuantizationType(type_id)
        return tensor_type.name, GGML_QUANT_SIZES[tensor_type]
    except (ValueError, KeyError) as e:
        hint = "pip install -U gguf, or use a file of another type, such as Q4_K_M"
        raise AttnscopeError(
            f"has the type {type_id}, which gguf does not know", where=where, hint=hint
        ) from e


def _aligned(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment


def _located(
    entries: list[TensorInfo], base: int, alignment: int, size: int
) -> dict[str, TensorInfo]:
    """Return the tensors with their places in the file, which must follow one another up to its end."""
    reached = base
    for info in sorted(entries, key=lambda entry: (entry.start, entry.end)):
        where = f"{info.file}: {format_value(info.name)[1:-1]}"
        if base + info.start != reached:
            message = f"starts at byte {base + info.start:,}, but the tensor before it ends at {reached:,}"
            raise AttnscopeError(
                message, where=where, hint="the file is damaged: download it again"
            )
        if base + info.end > size:
            message = f"ends at byte {base + info.end:,}, but the file has {size:,}"
            raise AttnscopeError(
                message, where=where, hint="the file is truncated: download it again"
            )
        reached = _aligned(base + info.end, alignment)
    return {
        info.name: replace(info, start=base + info.start, end=base + info.end) for info in entries
    }
