"""Read tensors of a checkpoint one at a time, finite and exactly as their header says."""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from mmap import ACCESS_COPY, mmap
from pathlib import Path
from typing import BinaryIO

import torch

from attnscope.base.errors import AttnscopeError, ModelError
from attnscope.base.files.reading import open_regular
from attnscope.checkpoints.folder import Folder
from attnscope.checkpoints.headers import FileStamp, LowRank, TensorInfo

_DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2, "U16": torch.uint16, "I16": torch.int16, "F16": torch.float16,
    "BF16": torch.bfloat16, "U32": torch.uint32, "I32": torch.int32, "F32": torch.float32,
    "U64": torch.uint64, "I64": torch.int64, "F64": torch.float64,
}  # fmt: skip
# E2M1
_FP4 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]
_CHUNK = 1 << 20
_OWN_PAGES = 1 << 18  # bytes from which on a tensor has pages of its own


def read_tensors(
    folder: Folder,
    names: Iterable[str],
    dtype: torch.dtype | None = None,
    transposed: Container[str] = (),
) -> Iterator[tuple[str, torch.Tensor]]:
    """Read the named tensors, each file opened once, in their order on disk.

    The bytes come through ordinary reads at the offsets that `open_folder` checked, into the tensor's own memory. A
    memory map would end the process (SIGBUS) if a file shrinks while it is read. Without `dtype`, tensors have the
    stored type (float32 for block types). ModelError says that a file has changed since its header was read, or that a
    tensor holds NaN or infinity.
    """
    files: dict[Path, list[TensorInfo]] = {}
    for info in sorted(
        {folder.tensors[name] for name in names}, key=lambda t: (str(t.file), t.start)
    ):
        files.setdefault(info.file, []).append(info)
    for path, infos in files.items():
        with _open_unchanged(path, folder.stamps[path]) as file:
            for info in infos:
                turned = info.name in transposed
                if info.scales is None:
                    tensor = _read(file, info, dtype or _stored_dtype(info), turned)
                else:
                    tensor = _read_mxfp4(
                        file, info, info.scales, dtype or _stored_dtype(info), turned, folder.stamps
                    )
                if info.low_rank is not None:
                    _add_low_rank(
                        tensor.mT if turned != info.low_rank.turned else tensor,
                        info.low_rank,
                        folder.stamps,
                    )
                yield info.name, tensor


@contextmanager
def _open_unchanged(path: Path, stamp: FileStamp) -> Iterator[BinaryIO]:
    """Open a file that has to be, before and afterwards, as it was when its header was read."""
    try:
        with open_regular(path) as (file, status):
            if FileStamp.of(status) != stamp:
                raise _changed(path)
            yield file
            # the file that is open, and the one that now has its name
            with open_regular(path) as (_, now):
                if FileStamp.of(now) != stamp:
                    raise _changed(path)
    except AttnscopeError as e:
        if isinstance(e, ModelError):
            raise
        raise ModelError(e.parts.message, where=e.parts.where, hint=e.parts.hint) from e


def empty_pages(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return a CPU tensor without values, whose memory is returned to the system as soon as it is no longer used.

    malloc would keep much of the memory that a thread frees, and layers that come and go would take twice their size.
    """
    size = prod(shape) * dtype.itemsize
    if size < _OWN_PAGES:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(mmap(-1, size, access=ACCESS_COPY), dtype=dtype).view(*shape)


def contiguous(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous tensor, copied into memory of `empty_pages` if needed."""
    if tensor.is_contiguous() or tensor.device.type != "cpu":
        return tensor.contiguous()
    return empty_pages(tensor.shape, tensor.dtype).copy_(tensor)


def _read(
    file: BinaryIO,
    info: TensorInfo,
    dtype: torch.dtype,
    transposed: bool = False,
    *,
    check: bool = True,
) -> torch.Tensor:
    """Read a tensor with one stored chunk in memory at a time; with `check`, refuse it unless it is finite."""
    transposed = transposed and len(info.shape) > 1
    tensor = empty_pages(
        (*info.shape[:-2], *info.shape[:-3:-1]) if transposed else info.shape, dtype
    )
    as_is = dtype == _stored_dtype(info) and not (
        transposed or info.block or info.paired_heads or info.offset
    )
    start = info.start
    for stored in _in_stored_order(tensor, info, transposed) if tensor.numel() else []:
        rows = max(1, _CHUNK // (stored[0].numel() * _stored_dtype(info).itemsize))
        for begin in range(0, len(stored), rows):
            part = stored[begin : begin + rows]
            if as_is:
                raw = part
            else:
                raw = torch.empty(part.shape, dtype=_stored_dtype(info))
            start = _fill_decoded(raw, file, info, start)
            if check and raw.is_floating_point() and not _finite(raw):
                raise _not_finite(file, info)
            if raw is not part:
                raw = raw + info.offset if info.offset else raw
                # torch transposes in blocks only there
                part.copy_(raw.mT.contiguous().mT if transposed else raw)
    return tensor


def _read_mxfp4(
    file: BinaryIO,
    info: TensorInfo,
    scales: TensorInfo,
    dtype: torch.dtype,
    transposed: bool,
    stamps: Mapping[Path, FileStamp],
) -> torch.Tensor:
    """Decode experts' weights out of blocks of 32 four-bit floats with an exponent each, row by row (OCP MX, v1.0)."""
    experts, width, out = info.shape
    with _open_unchanged(scales.file, stamps[scales.file]) as other:
        exponents = (
            _read(other, scales, torch.uint8).view(experts * out, -1, 1).to(torch.int32) - 127
        )
    tensor = empty_pages((experts, out, width) if transposed else info.shape, dtype)
    levels = torch.tensor(_FP4)
    start = info.start
    rows = max(1, _CHUNK // (4 * width))
    for expert, matrix in enumerate(tensor if transposed else tensor.mT):
        for begin in range(0, out, rows):
            part = matrix[begin : begin + rows]
            at = expert * out + begin
            stored = torch.empty(len(part), width // 32, 16, dtype=torch.uint8)
            _fill(stored, file, info, start)
            start += stored.nbytes
            numbers = levels[
                torch.stack((stored & 15, stored >> 4), dim=-1).flatten(2).to(torch.int32)
            ]
            numbers = torch.ldexp(numbers, exponents[at : at + len(part)])
            if not _finite(numbers):
                message = f"contains an exponent that means infinity or NaN, in expert {expert}"
                raise ModelError(
                    message, where=f"{scales.file}: {scales.name}", hint="download it again"
                )
            part.copy_(numbers.view(part.shape))
    return tensor


def _add_low_rank(tensor: torch.Tensor, added: LowRank, stamps: Mapping[Path, FileStamp]) -> None:
    """Add an adapter's low-rank part to a tensor that is laid (out, in), some rows at a time."""
    with _open_unchanged(added.a.file, stamps[added.a.file]) as file:
        a, b = (_read(file, info, torch.float32) for info in (added.a, added.b))
        norms = None
        if added.magnitude is not None:
            norms = _read(file, added.magnitude, torch.float32)
    rows = max(1, _CHUNK // (4 * max(1, tensor.shape[1])))
    for start in range(0, len(tensor), rows):
        part = tensor[start : start + rows]
        merged = part.float() + (b[start : start + rows] @ a) * added.scale
        if norms is not None:
            merged *= (norms[start : start + rows] / torch.linalg.vector_norm(merged, dim=1))[
                :, None
            ]
        part.copy_(merged)


def _stored_dtype(info: TensorInfo) -> torch.dtype:
    """Return the type that numbers are stored in; for block types, the type that they become."""
    if info.block:
        return torch.float32
    return _DTYPES[info.dtype]


def _in_stored_order(
    tensor: torch.Tensor, info: TensorInfo, transposed: bool
) -> Sequence[torch.Tensor]:
    """Return views that hold all of a tensor, in the order in which its numbers are stored; of blocks, row by row."""
    if info.paired_heads:
        return list(tensor.view(info.paired_heads, 2, -1, *tensor.shape[1:]).transpose(1, 2))
    if transposed:
        if tensor.ndim == 2:
            return [tensor.mT]
        return list(tensor.mT)
    return [tensor.view(-1, tensor.shape[-1]) if info.block else tensor.view(-1)]


def _fill_decoded(tensor: torch.Tensor, file: BinaryIO, info: TensorInfo, start: int) -> int:
    """Read the numbers of a contiguous tensor from an offset of the file, and return the end offset."""
    if info.block is None:
        _fill(tensor, file, info, start)
        return start + tensor.nbytes
    import numpy as np
    from gguf import GGMLQuantizationType, dequantize

    numbers, size = info.block
    # the library takes 16 rows at a time
    stored = torch.empty(1, tensor.numel() // numbers * size, dtype=torch.uint8)
    _fill(stored, file, info, start)
    with np.errstate(all="ignore"):  # what is not finite is refused where parameters are checked
        decoded = dequantize(stored.numpy(), GGMLQuantizationType[info.dtype])
    tensor.copy_(torch.from_numpy(decoded).view(tensor.shape))
    return start + stored.nbytes


def _fill(tensor: torch.Tensor, file: BinaryIO, info: TensorInfo, start: int) -> None:
    """Read the bytes of a contiguous tensor."""
    unread = tensor.view(-1).view(torch.uint8).numpy().data
    file.seek(start)
    while len(unread):
        count = file.readinto(unread)  # type: ignore[attr-defined]
        if not count:
            raise _changed(info.file)
        unread = unread[count:]


def _finite(values: torch.Tensor) -> bool:
    """Tell whether all numbers are finite: NaN and infinity show in the extremes, which are found without a copy."""
    values = values.float() if values.element_size() == 1 else values
    return all(bool(torch.isfinite(extreme)) for extreme in torch.aminmax(values))


def _not_finite(file: BinaryIO, info: TensorInfo) -> ModelError:
    """Return the error that names the first value that is not finite, and counts them."""
    values = _read(file, info, _stored_dtype(info), check=False)
    values = values.float() if values.element_size() == 1 else values
    wrong = ~torch.isfinite(values)
    if not wrong.any():  # any more
        return _changed(info.file)
    position = wrong.nonzero()[0].tolist()
    count = f"{int(wrong.sum()):,} of {wrong.numel():,}"
    message = f"contains {float(values[tuple(position)])} at {position}; {count} are not finite"
    return ModelError(
        message,
        where=f"{info.file}: {info.name}",
        hint="the checkpoint is damaged: download it again",
    )


def _changed(path: Path) -> ModelError:
    return ModelError(
        "changed while it was read", where=path, hint="run again when it is no longer being written"
    )
