"""The arrays of the records of a window as one .safetensors file, in which each quantity is one array.

An array along one axis of a text's own length (its queries, its sources) has that axis first, for all texts one after
the other: `rows.entropy` is (queries of all texts, units), `top.keys` (queries of all texts, units, ranks). An array
along units alone is (texts, units). Matrices, which have two such axes, are flat. `texts` are the numbers of the
records, `units` (units, 2) the layer and head of every unit, −1 for a mean, and for an array `x`

- `x/offsets` is where each text begins in it, and the end;
- `x/shape` is each text's shape, of flat arrays;
- `x/texts` are the numbers of the records that have it, if not all do.

Positions are uint16 if all are below 65,535, which stands for none; else int32, and −1 stands for none. Numbers that
are rounded to d decimals are int16 or int32, in units of 10^−d; the smallest integer stands for none.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from math import prod
from typing import Any

import numpy as np

from attnscope.batch.records import Record, arrays_of
from attnscope.findings.array_files import MEAN, number_of
from attnscope.findings.arrays import Along
from attnscope.findings.axes import declared_at
from attnscope.findings.heads import HeadRef

_FIXED = {"unit", "rank", "width"}  # axes that have one length in all texts
TEXTS = "texts"
UNITS = "units"
OFFSETS = "/offsets"
SHAPES = "/shape"
DTYPES = {"F32": np.float32, "I32": np.int32, "I16": np.int16, "U16": np.uint16, "I64": np.int64}
NAMES = {np.dtype(dtype).name: name for name, dtype in DTYPES.items()}
_NO_POSITION = 65_535
_Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class ShardArray:
    """One array of a shard, in pieces that follow each other in the file, where they have a type of their own."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    pieces: Sequence[_Array]

    @property
    def nbytes(self) -> int:
        """Bytes of all pieces in the file."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize


@cache
def declared(path: str) -> Along:
    """Return the declaration of an array of a record, by its path, such as `stages.output`; KeyError without one."""
    return declared_at(Record, path)


def own_axes(path: str) -> list[int]:
    """Return the indices of the axes of an array that have another length in every text."""
    return [index for index, axis in enumerate(declared(path).axes) if axis not in _FIXED]


def pack(records: Sequence[Record], digits: int | None) -> Iterator[ShardArray]:
    """Yield the arrays of a shard.

    Args:
        records: Those with findings, in the order of the input.
        digits: Decimal places to which numbers other than stages are rounded; None for exact numbers.
    """
    indices = [record.index for record in records]
    yield _whole(TEXTS, np.array(indices, dtype=np.int64))
    units = [list(map(number_of, unit)) for unit in records[0].units]
    yield _whole(UNITS, np.array(units, dtype=np.int32).reshape(-1, 2))
    by_path: dict[str, dict[int, _Array]] = {}
    for record in records:
        for path, array in arrays_of(record).items():
            by_path.setdefault(path, {})[record.index] = array
    for path, arrays in by_path.items():
        yield from _quantity(path, list(arrays.values()), digits)
        if len(arrays) < len(indices):
            yield _whole(f"{path}/{TEXTS}", np.array(list(arrays), dtype=np.int64))


def _quantity(path: str, arrays: list[_Array], digits: int | None) -> Iterator[ShardArray]:
    dtype, arrays = _stored(path, arrays, digits)
    own = own_axes(path)
    if len(own) > 1:
        pieces = [array.reshape(-1) for array in arrays]
        yield ShardArray(path, dtype.name, (sum(map(len, pieces)),), pieces)
        yield _offsets(path, [len(piece) for piece in pieces])
        yield _whole(path + SHAPES, np.array([array.shape for array in arrays], dtype=np.int64))
        return
    if not own:
        together = np.stack(arrays)
        yield ShardArray(path, dtype.name, together.shape, [together])
        return
    rows = [np.moveaxis(array, own[0], 0) for array in arrays]
    if "rank" in declared(path).axes:
        ranks = max(row.shape[-1] for row in rows)
        none = none_of(path, dtype)
        rows = [padded(row, ranks, none) for row in rows]
    yield ShardArray(path, dtype.name, (sum(map(len, rows)), *rows[0].shape[1:]), rows)
    yield _offsets(path, [len(row) for row in rows])


def padded(row: _Array, ranks: int, none: float) -> _Array:
    """Return an array with this many ranks: those that short texts do not have are none."""
    if row.shape[-1] == ranks:
        return row
    wider = np.full((*row.shape[:-1], ranks), none, dtype=row.dtype)
    wider[..., : row.shape[-1]] = row
    return wider


def none_of(path: str, dtype: np.dtype[Any]) -> float:
    """Return what stands for none in an array of this type."""
    if dtype.kind == "f":
        return float("nan")
    if declared(path).positions is None:
        return int(np.iinfo(dtype).min)
    return _NO_POSITION if dtype == np.uint16 else -1


def _stored(
    path: str, arrays: list[_Array], digits: int | None
) -> tuple[np.dtype[Any], list[_Array]]:
    """Return the type in which a quantity is stored, and its arrays with numbers that this type holds."""
    own = arrays[0].dtype
    if declared(path).positions is not None:
        largest = max((int(array.max()) for array in arrays if array.size), default=0)
        # −1 becomes 65,535
        return (own if largest >= _NO_POSITION else np.dtype(np.uint16)), arrays
    if digits is None or path.startswith("stages.") or own.kind != "f":
        return own, arrays
    scaled = [np.rint(array * np.float32(10**digits)) for array in arrays]
    reach = max((float(np.nanmax(np.abs(array), initial=0.0)) for array in scaled), default=0.0)
    if reach >= np.iinfo(np.int32).max:
        return own, arrays
    dtype = np.dtype(np.int16 if reach < np.iinfo(np.int16).max else np.int32)
    none = np.float32(none_of(path, dtype))
    return dtype, [np.where(np.isnan(array), none, array) for array in scaled]


def _whole(name: str, array: _Array) -> ShardArray:
    return ShardArray(name, array.dtype.name, array.shape, [array])


def _offsets(path: str, lengths: list[int]) -> ShardArray:
    return _whole(path + OFFSETS, np.concatenate(([0], np.cumsum(lengths))).astype(np.int64))


@dataclass(frozen=True)
class Shard:
    """The arrays of a shard, as they are stored; they may be mapped into memory."""

    arrays: Mapping[str, _Array]
    digits: int | None

    @cached_property
    def texts(self) -> _Array:
        """Numbers of its records, ascending."""
        return self.arrays[TEXTS]

    @cached_property
    def units(self) -> list[HeadRef]:
        """Layer and head of every unit.

        Raises:
            ValueError: They are not what is written for them; TypeError, or KeyError if they are missing.
        """
        if self.arrays[UNITS].dtype != np.int32:
            raise ValueError(f"{UNITS}: holds {self.arrays[UNITS].dtype}")
        pairs = self.arrays[UNITS].tolist()
        return [HeadRef(*("mean" if n == MEAN else n for n in pair)) for pair in pairs]

    @property
    def paths(self) -> list[str]:
        """Return the names of its quantities."""
        return [name for name in self.arrays if name not in (TEXTS, UNITS) and "/" not in name]

    def of_record(self, index: int, sources: int) -> dict[str, _Array]:
        """Return the arrays of a record that has so many sources, as Record has them.

        Raises:
            ValueError: An array contradicts its offsets or its shape; KeyError or IndexError if one is missing.
        """
        arrays = {}
        for path in self.paths:
            row = self.place(path, index)
            if row is not None:
                arrays[path] = self.read(path, row)
                if "rank" in declared(path).axes:
                    arrays[path] = arrays[path][..., :sources]
        return arrays

    def place(self, path: str, index: int) -> int | None:
        """Return where a record is among those that have an array; None if it does not have it."""
        texts = self.arrays.get(f"{path}/{TEXTS}", self.texts)
        row = int(np.searchsorted(texts, index))
        if row < len(texts) and texts[row] == index:
            return row
        return None

    def part(self, path: str, row: int) -> _Array:
        """Return a text's part of an array as it is stored, a view; see the module."""
        array = self.arrays[path]
        own = own_axes(path)
        if not own:
            return array[row]  # type: ignore[no-any-return]
        start, end = map(int, self.arrays[path + OFFSETS][row : row + 2])
        if not 0 <= start <= end <= len(array):
            raise ValueError(f"{path}: its offsets leave the array")
        part = array[start:end]
        if len(own) > 1:
            return part.reshape(self.arrays[path + SHAPES][row])
        return part

    def read(self, path: str, row: int) -> _Array:
        """Return a text's part of an array with the axes that Record has, decoded; ranks as they are stored."""
        part = self.part(path, row)
        own = own_axes(path)
        if len(own) == 1:
            part = np.moveaxis(part, 0, own[0])
        return self.decoded(path, part)

    def decoded(self, path: str, stored: _Array) -> _Array:
        """Return positions as int32, −1 for none, and numbers as float32, NaN for none.

        Raises:
            ValueError: They are of a type that is not written for them.
        """
        along = declared(path)
        if stored.dtype not in (
            (np.uint16, np.int32) if along.whole else (np.float32, np.int16, np.int32)
        ):
            raise ValueError(f"{path}: holds {stored.dtype}")
        if along.positions is not None:
            positions = stored.astype(np.int32)
            if stored.dtype == np.uint16:
                positions[stored == _NO_POSITION] = -1
            return positions
        if stored.dtype.kind == "f" or along.runs is not None:
            return stored
        if self.digits is None:
            raise ValueError(
                f"{path}: holds {stored.dtype}, and the dump's numbers are not rounded"
            )
        numbers = stored.astype(np.float32) / np.float32(10**self.digits)
        numbers[stored == np.iinfo(stored.dtype).min] = np.nan
        return numbers
