"""Array types of plain data: NumPy in memory, nested lists in JSON, each with its JSON Schema."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np

# Any array of numbers in memory.
Array = np.ndarray[Any, np.dtype[Any]]
Float1 = np.ndarray[tuple[int], np.dtype[np.float32]]
Float2 = np.ndarray[tuple[int, int], np.dtype[np.float32]]
Float3 = np.ndarray[tuple[int, int, int], np.dtype[np.float32]]
Float4 = np.ndarray[tuple[int, int, int, int], np.dtype[np.float32]]
Int2 = np.ndarray[tuple[int, int], np.dtype[np.int64]]
Int3 = np.ndarray[tuple[int, int, int], np.dtype[np.int32]]


def _nested(depth: int, *kinds: str) -> dict[str, Any]:
    if depth:
        return {"type": "array", "items": _nested(depth - 1, *kinds)}
    return {"type": kinds[0] if len(kinds) == 1 else list(kinds)}


Floats = Annotated[Float1, msgspec.Meta(extra_json_schema=_nested(1, "number", "null"))]
Matrix = Annotated[Float2, msgspec.Meta(extra_json_schema=_nested(2, "number", "null"))]
Matrices = Annotated[Float3, msgspec.Meta(extra_json_schema=_nested(3, "number", "null"))]
Tensor4 = Annotated[Float4, msgspec.Meta(extra_json_schema=_nested(4, "number", "null"))]
Places = Annotated[Int2, msgspec.Meta(extra_json_schema=_nested(2, "integer"))]

# Arrays with the axis of units in front, which a view of one unit has without it: a type checker does not count axes.
if TYPE_CHECKING:
    UnitVectors = Array
    UnitMatrices = Array
    UnitPlaces = Array
else:
    UnitVectors = Matrix
    UnitMatrices = Matrices
    UnitPlaces = Annotated[Int3, msgspec.Meta(extra_json_schema=_nested(3, "integer"))]


@dataclass(frozen=True)
class Along:
    """Declare the axes of an array or a list: `Annotated[Matrix, Along("query", "key")]`. See `axes`."""

    # its axes, outermost first: `layer`, `head`, `unit` (a layer and head), `query`, `key` (a column that is shown),
    # `rank`, `token`, `source` (a token of the key side), `query run`, `key run`, `width`
    axes: tuple[str, ...]
    positions: str | None = None  # axis on which its whole numbers are positions
    ascending: bool = False  # whether they ascend
    or_none: bool = False  # whether −1 stands for no position
    # axis that it divides into runs: the start of each run, then the length of the axis
    runs: str | None = None
    filled: bool = False  # whether it has at least one entry
    names: tuple[str, ...] = ()  # allowed keys of a dict; empty for any
    # axes of arrays in a dict that differ from the others, by name
    members: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def whole(self) -> bool:
        """Whether its numbers are positions."""
        return self.positions is not None or self.runs is not None

    def of_member(self, name: str) -> "Along":
        """Return the declaration of an array in a dict."""
        if self.members:
            return replace(self, axes=dict(self.members).get(name, self.axes))
        return self


def along(*axes: str, **settings: Any) -> Along:
    """Declare axes; see `Along` for other arguments."""
    return Along(axes, **settings)


# Those that several structs have, with their axes.
OfUnits = Annotated[Floats, along("unit")]
OfHeads = Annotated[Matrix, along("layer", "head")]
OfRows = Annotated[UnitVectors, along("unit", "query")]
OfRanks = Annotated[UnitMatrices, along("unit", "query", "rank")]
RankedKeys = Annotated[UnitPlaces, along("unit", "query", "rank", positions="source", or_none=True)]
OfDims = Annotated[list[float], along("dim")]


def count_axes(array_type: Any) -> int:
    """Return the number of axes of a type of arrays."""
    return len(array_type.__args__[0].__args__)


def decode_array(array_type: Any, value: Any) -> Any:
    """Make an array of nested JSON lists.

    Raises:
        ValueError: They are ragged, have another number of axes, or hold something else than numbers (or null in place
            of a float), or a number that the dtype cannot hold. msgspec adds the place.
    """
    n_axes = count_axes(array_type)
    dtype = np.dtype(array_type.__args__[1].__args__[0])
    try:
        with np.errstate(over="raise"):
            array = np.array(value) if dtype.kind == "i" else np.array(value, dtype)
    except (TypeError, OverflowError, FloatingPointError) as e:
        raise ValueError(f"contains something other than numbers of type {dtype}") from e
    if array.size and array.dtype.kind != dtype.kind:
        raise ValueError("contains something other than whole numbers")
    if array.ndim < n_axes and not array.size:
        array = array.reshape(array.shape + (0,) * (n_axes - array.ndim))
    if array.ndim != n_axes:
        raise ValueError(f"has {array.ndim} axes, expected {n_axes}")
    if (narrow := array.astype(dtype)).dtype.kind == "i" and not np.array_equal(narrow, array):
        raise ValueError(f"contains a number out of range for {dtype}")
    return narrow
