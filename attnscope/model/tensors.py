"""A Folder and tensor names in; the tensors out, one at a time, finite and exactly as their header says."""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from pathlib import Path
from typing import BinaryIO

import torch

from attnscope.errors import AttnscopeError
from attnscope.folder import Folder, Stamp, TensorInfo, open_regular

_DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2, "U16": torch.uint16, "I16": torch.int16, "F16": torch.float16,
    "BF16": torch.bfloat16, "U32": torch.uint32, "I32": torch.int32, "F32": torch.float32,
    "U64": torch.uint64, "I64": torch.int64, "F64": torch.float64,
}  # fmt: skip


def read_tensors(folder: Folder, names: Iterable[str]) -> Iterator[tuple[str, torch.Tensor]]:
    """Read the named tensors, each file opened once, in the order in which they lie on disk.

    The bytes come through ordinary reads at the offsets that `open_folder` checked, into the tensor's own memory. A
    memory map would end the process (SIGBUS) where a file shrinks meanwhile.

    Args:
        folder: The opened folder.
        names: Names among `folder.tensors`.

    Yields:
        Name and CPU tensor. The next one is read meanwhile; whoever iterates decides how many others are alive.

    Raises:
        AttnscopeError: A file has changed since its header was read, or a tensor holds NaN or infinity.
    """
    files: dict[Path, list[TensorInfo]] = {}
    for info in sorted({folder.tensors[name] for name in names}, key=lambda t: (str(t.file), t.start)):
        files.setdefault(info.file, []).append(info)
    for path, infos in files.items():
        with open_regular(path) as (file, status):
            if Stamp.of(status) != folder.stamps[path]:
                raise _changed(path)
            yield from _read_ahead(file, infos)
            # the file that is open, and the one that now has its name
            with open_regular(path) as (_, now):
                if Stamp.of(now) != folder.stamps[path]:
                    raise _changed(path)


def _read_ahead(file: BinaryIO, infos: Sequence[TensorInfo]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in order; a thread reads one while whoever iterates turns or converts the one before it."""
    with ThreadPoolExecutor(1) as pool:
        ahead = pool.submit(_read, file, infos[0])
        for info, following in zip_longest(infos, infos[1:]):
            tensor = ahead.result()
            if following is not None:
                ahead = pool.submit(_read, file, following)
            yield info.name, tensor


def _read(file: BinaryIO, info: TensorInfo) -> torch.Tensor:
    raw = torch.empty(info.end - info.start, dtype=torch.uint8)
    rest = raw.numpy().data
    file.seek(info.start)
    while len(rest):
        count = file.readinto(rest)  # type: ignore[attr-defined]
        if not count:
            raise _changed(info.file)
        rest = rest[count:]
    tensor = raw.view(_DTYPES[info.dtype]).reshape(info.shape)
    if tensor.is_floating_point():
        _require_finite(tensor, info)  # at once, while it is still in cache
    return tensor


def _require_finite(tensor: torch.Tensor, info: TensorInfo) -> None:
    """Refuse NaN and infinity; both show in the extremes, which are found without a copy of the tensor."""
    values = tensor.float() if tensor.element_size() == 1 else tensor
    if not values.numel() or all(torch.isfinite(extreme) for extreme in torch.aminmax(values)):
        return
    wrong = ~torch.isfinite(values)
    first = wrong.nonzero()[0].tolist()
    found = f"holds {float(values[tuple(first)])} at {first}; {int(wrong.sum()):,} of {wrong.numel():,} are not finite"
    raise AttnscopeError(found, where=f"{info.file}: {info.name}", hint="the checkpoint is damaged: fetch it again")


def _changed(path: Path) -> AttnscopeError:
    return AttnscopeError(
        "changed while it was being read", where=path, hint="wait until it is written, then run again"
    )
