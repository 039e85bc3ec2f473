"""Read the header of a safetensors file: names, types, shapes and byte ranges of its tensors.

The format: 8 bytes (length of the header, little-endian), a JSON object, the tensors' bytes without gaps
(https://github.com/huggingface/safetensors#format).
"""

import hashlib
import os
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

from attnscope.base.errors import AttnscopeError
from attnscope.base.files.reading import (
    MB,
    as_object,
    format_value,
    identify_bytes,
    open_regular,
    parse_json,
    read_at_most,
)

MAX_HEADER = 100 * MB  # the format's own limit
DTYPE_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip
_SAMPLES = 16
_SAMPLE_BYTES = 4096


@dataclass(frozen=True)
class TensorInfo:
    """Location of a tensor."""

    name: str
    file: Path
    # element type in safetensors' spelling, such as `BF16`, or a block type of GGUF, such as `Q4_K`
    dtype: str
    shape: tuple[int, ...]
    start: int  # first byte, counted from the start of the file
    end: int
    # numbers and bytes of a block; None if numbers are not stored in blocks
    block: tuple[int, int] | None = None
    # number of heads whose rows are stored in rotary pairs (0, d/2, 1, d/2 + 1, …), as Llama's queries and keys in
    # GGUF; 0 if rows are in order
    paired_heads: int = 0
    offset: float = 0.0
    low_rank: "LowRank | None" = None
    # exponents of the blocks, if they are in a separate tensor (MXFP4); else None
    scales: "TensorInfo | None" = None


@dataclass(frozen=True)
class LowRank:
    """Addition of a LoRA adapter to a tensor: scale · B·A (Hu et al., 2021)."""

    a: TensorInfo  # (rank, in)
    b: TensorInfo  # (out, rank)
    scale: float
    turned: bool  # the tensor is stored as (in, out)
    # norm of every row of the sum, (out,), if trained (DoRA, Liu et al., 2024)
    magnitude: TensorInfo | None = None


@dataclass(frozen=True)
class FileStamp:
    """Identity of an unchanged file: size, modification time, inode."""

    size: int
    mtime_ns: int
    inode: int
    device: int

    @classmethod
    def of(cls, status: os.stat_result) -> "FileStamp":
        """Return the stamp of an open file."""
        return cls(status.st_size, status.st_mtime_ns, status.st_ino, status.st_dev)


@dataclass(frozen=True)
class SafetensorsHeader:
    """Header of a safetensors file."""

    tensors: dict[str, TensorInfo]
    metadata: dict[str, str]
    stamp: FileStamp
    # SHA-256 over the header and sixteen small samples of the data, which distinguish two trainings of one architecture
    # apart
    digest: bytes


def read_header(path: Path) -> SafetensorsHeader:
    """Read and check the header of a safetensors file."""
    with open_regular(path) as (file, status):
        raw = _header_bytes(file, status.st_size, path)
        digest = sample_digest(file, raw, 8 + len(raw), status.st_size)
    entries = as_object(parse_json(raw, f"{path}: header"), f"{path}: header")
    raw_metadata = entries.pop("__metadata__", None)
    where = f"{path}: __metadata__"
    metadata = as_object({} if raw_metadata is None else raw_metadata, where)
    for key, text in metadata.items():
        if not isinstance(text, str):
            raise AttnscopeError(
                f"is {format_value(text)}, not text", where=f"{where}.{format_value(key)[1:-1]}"
            )
    base = 8 + len(raw)
    tensors = {
        name: _tensor(name, entry, base, status.st_size, path) for name, entry in entries.items()
    }
    _check_cover(tensors, base, status.st_size, path)
    return SafetensorsHeader(tensors, metadata, FileStamp.of(status), digest)


def _header_bytes(file: BinaryIO, size: int, path: Path) -> bytes:
    """Return the JSON part; if its length is impossible, the error names the actual kind of file."""
    start = read_at_most(file, 512)
    length = int.from_bytes(start[:8], "little")
    if len(start) < 10 or length > MAX_HEADER or length + 8 > size or start[8:9] != b"{":
        if wrong := identify_bytes(start):
            raise AttnscopeError(f"is {wrong[0]}, not safetensors", where=path, hint=wrong[1])
        if len(start) >= 10 and length > MAX_HEADER:
            raise AttnscopeError(
                f"header length {length:,} exceeds the format's limit of {MAX_HEADER:,}", where=path
            )
        if len(start) >= 10 and length + 8 > size:
            message = f"the header should have {length:,} bytes, the file has {size:,}"
            raise AttnscopeError(
                message, where=path, hint="the file is truncated or damaged: download it again"
            )
        hint = "download it again, or convert it"
        raise AttnscopeError(f"is not safetensors ({size:,} bytes)", where=path, hint=hint)
    file.seek(8)
    raw = read_at_most(file, length)
    if len(raw) < length:
        raise AttnscopeError("was truncated while it was read", where=path)
    return raw


def sample_digest(file: BinaryIO, header: bytes, start: int, size: int) -> bytes:
    """Return the SHA-256 of a header and sixteen small samples of the data between `start` and the end of the file."""
    digest = hashlib.sha256(header)
    room = max(size - start - _SAMPLE_BYTES, 0)
    for i in range(_SAMPLES):
        file.seek(start + room * i // (_SAMPLES - 1))
        digest.update(read_at_most(file, _SAMPLE_BYTES))
    return digest.digest()


def _tensor(name: str, entry: Any, base: int, size: int, path: Path) -> TensorInfo:
    """Return one entry of the header, checked by itself."""
    where = f"{path}: {format_value(name)[1:-1]}"
    fields = as_object(entry, where)
    if set(fields) != {"dtype", "shape", "data_offsets"}:
        message = f"has the fields {', '.join(map(format_value, list(fields)[:6])) or 'none'}"
        raise AttnscopeError(message, where=where, hint="expected dtype, shape, data_offsets")
    dtype = fields["dtype"]
    shape = fields["shape"]
    offsets = fields["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        raise AttnscopeError(
            f"dtype is {format_value(dtype)}", where=where, hint=f"known: {', '.join(DTYPE_BYTES)}"
        )
    if not _are_sizes(shape) or len(shape) > 8:
        raise AttnscopeError(
            f"shape is {_format_list(shape)}", where=where, hint="expected at most 8 whole numbers"
        )
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise AttnscopeError(
            f"data_offsets is {_format_list(offsets)}", where=where, hint="expected [start, end]"
        )
    if offsets[1] > size - base:
        message = f"ends at byte {format_value(offsets[1])} of the data, of which the file has {size - base:,}"
        raise AttnscopeError(
            message, where=where, hint="the file is truncated or damaged: download it again"
        )
    needed_bytes = prod(shape) * DTYPE_BYTES[dtype]
    actual_bytes = offsets[1] - offsets[0]
    if needed_bytes != actual_bytes or max(shape, default=0) > size:
        needs = f"{dtype} of shape {_format_list(shape)} needs {format_value(needed_bytes)} bytes"
        message = f"{needs}, data_offsets give it {actual_bytes:,}"
        raise AttnscopeError(message, where=where, hint="the file is damaged: download it again")
    return TensorInfo(name, path, dtype, tuple(shape), base + offsets[0], base + offsets[1])


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(v) is int and v >= 0 for v in values)


def _format_list(values: Any) -> str:
    """Return a list of sizes for an error line; the sizes themselves where that is possible."""
    if not isinstance(values, list):
        return format_value(values)
    return f"[{', '.join(map(format_value, values[:8]))}{', …' if len(values) > 8 else ''}]"


def _check_cover(tensors: dict[str, TensorInfo], base: int, size: int, path: Path) -> None:
    """Refuse overlaps, holes and bytes that belong to no tensor."""
    reached = base
    before = "the header"
    for info in sorted(tensors.values(), key=lambda t: (t.start, t.end)):
        if info.start != reached:
            what = "overlaps" if info.start < reached else "leaves a gap after"
            where = format_value(info.name)[1:-1]
            raise AttnscopeError(
                f"{what} {before}", where=f"{path}: {where}", hint="download the file again"
            )
        reached = info.end
        before = format_value(info.name)
    if reached != size:
        message = f"{size - reached:,} bytes belong to no tensor"
        raise AttnscopeError(message, where=path, hint="download the file again")
