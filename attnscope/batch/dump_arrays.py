"""A folder of shards as arrays that are mapped into memory, of the whole dump and of each text."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope.base.errors import PARQUET, AttnscopeError
from attnscope.batch.dump_reader import Dump, read_shard
from attnscope.batch.header import Header
from attnscope.batch.shards import OFFSETS, TEXTS, Shard, declared, none_of, own_axes, padded
from attnscope.batch.sinks import INDEX
from attnscope.findings.heads import HeadRef

if TYPE_CHECKING:
    import pyarrow as pa

_Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class RaggedArray:
    """One quantity of all texts, shard after shard, as it is stored: nothing is copied.

    Attributes:
        name: Its name, such as `rows.entropy`.
        axes: Axes of a chunk: for `rows.entropy` query (of all texts), unit; for `heads.entropy` text, unit; flat for
            matrices.
        chunks: One array for each shard; 65,535 (of int32, −1) is no position.
        offsets: Where each text begins in its chunk, and the end; None for one row a text.
        texts: Numbers of the records of each chunk.
        decimals: If a chunk's numbers are integers, they are 10**decimals times as large, and the smallest integer is
            none; None for positions, and in a dump of exact numbers.
    """

    name: str
    axes: tuple[str, ...]
    chunks: list[_Array]
    offsets: list[_Array] | None
    texts: list[_Array]
    decimals: int | None

    def to_arrow(self) -> "pa.ChunkedArray":
        """Return a list for each text, without copying; positions and rounded numbers as they are stored.

        Arrow has one type for all: where shards differ in theirs, they are decoded as `DumpArrays.text` does, and where
        they differ in ranks, those with fewer get ranks that are none.

        Raises:
            MissingExtra: pyarrow is not installed.
        """
        PARQUET.require("to_arrow")
        import pyarrow as pa

        chunks = []
        for index, chunk in enumerate(self._alike()):
            arrow_type = pa.from_numpy_dtype(chunk.dtype)
            values = pa.Array.from_buffers(
                arrow_type, chunk.size, [None, pa.py_buffer(chunk.reshape(-1))]
            )
            for size in reversed(chunk.shape[1:]):
                values = pa.FixedSizeListArray.from_arrays(values, int(size))
            if self.offsets is not None:
                offsets = self.offsets[index]
                offset_array = pa.Array.from_buffers(
                    pa.int64(), len(offsets), [None, pa.py_buffer(offsets)]
                )
                values = pa.LargeListArray.from_arrays(offset_array, values)
            chunks.append(values)
        return pa.chunked_array(chunks)

    def _alike(self) -> list[_Array]:
        chunks = self.chunks
        if len({chunk.dtype for chunk in chunks}) > 1:
            shard = Shard({}, self.decimals)
            chunks = [shard.decoded(self.name, chunk) for chunk in chunks]
        if "rank" not in self.axes:
            return chunks
        ranks = max(chunk.shape[-1] for chunk in chunks)
        none = none_of(self.name, chunks[0].dtype)
        return [padded(chunk, ranks, none) for chunk in chunks]


class DumpArrays(Mapping[str, RaggedArray]):
    """The arrays of a folder of shards, by name; nothing is read before it is used, and checksums are not compared.

    Attributes:
        header: The header line: provenance, mask, settings.
        path: The folder.
    """

    def __init__(self, path: Path) -> None:
        if not (path / INDEX).is_file():
            hint = "name a folder that attnscope batch wrote, or convert the dump to one"
            raise AttnscopeError("is no folder of shards", where=path, hint=hint)
        self.path = path
        self.header: Header = Dump(path).header
        names = sorted(path.glob("[0-9]" * 9 + ".safetensors"))
        self._shards = [self._open(name) for name in names]

    def _open(self, path: Path) -> Shard:
        mapped = np.memmap(path, dtype=np.uint8, mode="r")
        return read_shard(mapped.data, path, self.header.settings.digits)

    @cached_property
    def texts(self) -> _Array:
        """Numbers of the records with findings, ascending."""
        if self._shards:
            return np.concatenate([shard.texts for shard in self._shards])
        return np.empty(0, np.int64)

    @property
    def units(self) -> list[HeadRef]:
        """Layer and head of every unit."""
        return self._shards[0].units if self._shards else []

    def text(self, index: int) -> dict[str, _Array]:
        """Return the arrays of one record, with the axes that `read_dump` gives: `top.keys` is (unit, query, rank).

        Positions are int32, −1 for none, and numbers float32, NaN for none; numbers that are not rounded are views of
        the file. Ranks that only longer texts have are none.

        Raises:
            KeyError: The dump has no record of this number with findings.
        """
        firsts = [int(shard.texts[0]) for shard in self._shards]
        shard_index = int(np.searchsorted(firsts, index, side="right")) - 1
        if shard_index < 0 or self._shards[shard_index].place(TEXTS, index) is None:
            raise KeyError(index)
        shard = self._shards[shard_index]
        numbers = {name: shard.place(name, index) for name in shard.paths}
        return {
            name: shard.read(name, part_index)
            for name, part_index in numbers.items()
            if part_index is not None
        }

    def __getitem__(self, name: str) -> RaggedArray:
        """Return one quantity of all texts."""
        shards = [shard for shard in self._shards if name in shard.paths]
        if not shards:
            raise KeyError(name)
        own = own_axes(name)
        axes = declared(name).axes
        moved = ("text", *axes)
        if len(own) == 1:
            moved = (axes[own[0]], *(axis for index, axis in enumerate(axes) if index != own[0]))
        return RaggedArray(
            name,
            ("cell",) if len(own) > 1 else moved,
            [shard.arrays[name] for shard in shards],
            [shard.arrays[name + OFFSETS] for shard in shards] if own else None,
            [shard.arrays.get(f"{name}/{TEXTS}", shard.texts) for shard in shards],
            None if declared(name).whole else self.header.settings.digits,
        )

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(name for shard in self._shards for name in shard.paths))

    def __len__(self) -> int:
        return len(list(iter(self)))
