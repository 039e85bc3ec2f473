"""Read a mask file: a boolean matrix, True where a query may attend, or the matrix that is added to scores."""

from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import AttnscopeError
from attnscope.base.files.reading import read_file, read_json

if TYPE_CHECKING:
    import numpy as np

_CAP = 1 << 30
_HINT = (
    "expected one matrix with a row per query and a column per key, or one for every head: true where attention is "
    "allowed, or, in .npy and .safetensors, floats that are 0 there and −inf elsewhere"
)
_TYPES = "save mask.astype(bool) if 1 is where attention is allowed; or floats, 0 there and −inf elsewhere"
# float16's smallest number is −65,504: what transformers adds where attention is not allowed
_MASKED = -6e4


def read_mask(path: Path) -> "np.ndarray[Any, np.dtype[np.bool_]]":
    """Read a boolean matrix, or an additive one: 0 where attention is allowed, and −inf elsewhere.

    Args:
        path: A .json file (a list of rows of booleans, or one for every head), an .npy file, or a .safetensors file
            with one tensor.

    Returns:
        (queries, keys) or (heads, queries, keys), bool.
    """

    suffix = path.suffix
    if suffix == ".json":
        matrix = _from_json(path)
    elif suffix == ".npy":
        matrix = _from_npy(path)
    else:
        matrix = _from_safetensors(path)
    try:
        matrix = as_boolean(matrix)
    except ValueError as e:
        raise AttnscopeError(str(e), where=path, hint=_TYPES) from None
    if matrix.ndim not in (2, 3) or 0 in matrix.shape:
        raise AttnscopeError(f"has shape {list(matrix.shape)}", where=path, hint=_HINT)
    return matrix


def as_boolean(matrix: "np.ndarray[Any, Any]") -> "np.ndarray[Any, np.dtype[np.bool_]]":
    """Return where a boolean or additive mask allows attention, without the axis of a batch of one.

    Args:
        matrix: True where allowed; or floats, 0 where allowed and −inf, or the type's smallest number, elsewhere.

    Raises:
        ValueError: It has other numbers, so that it is no mask.
    """
    if matrix.ndim == 4 and len(matrix) == 1:
        # transformers has (1, heads or 1, queries, keys).
        matrix = matrix[0, 0] if matrix.shape[1] == 1 else matrix[0]
    if matrix.dtype.kind == "b":
        return matrix
    if matrix.dtype.kind != "f":
        raise ValueError(f"has type {matrix.dtype}, not bool")
    allowed: np.ndarray[Any, np.dtype[np.bool_]] = matrix == 0
    masked = matrix <= _MASKED
    if not (allowed | masked).all():
        raise ValueError(
            f"has {float(matrix[~allowed & ~masked].flat[0]):g}, which is neither 0 nor −inf"
        )
    return allowed


def cells_digest(matrix: "np.ndarray[Any, np.dtype[np.bool_]]") -> str:
    """Return the SHA-256 of a mask's shape and cells, in hexadecimal digits."""
    import numpy as np

    return sha256(repr(matrix.shape).encode() + np.packbits(matrix).tobytes()).hexdigest()


def _from_json(path: Path) -> Any:
    import numpy as np

    rows = read_json(path, cap=_CAP)
    if (
        isinstance(rows, list)
        and rows
        and isinstance(rows[0], list)
        and rows[0]
        and isinstance(rows[0][0], list)
    ):
        for head in rows:
            _check_rows(head, path)
        sizes = {(len(head), len(head[0])) for head in rows}
        if len(sizes) > 1:
            raise AttnscopeError(
                "has heads with matrices of different sizes", where=path, hint=_HINT
            )
    else:
        _check_rows(rows, path)
    return np.array(rows, dtype=bool)


def _check_rows(rows: Any, path: Path) -> None:
    if not isinstance(rows, list) or not rows or not all(isinstance(row, list) for row in rows):
        raise AttnscopeError("is not a list of rows", where=path, hint=_HINT)
    for i, row in enumerate(rows):
        if len(row) != len(rows[0]):
            message = f"row 0 has length {len(rows[0])}, but row {i} has length {len(row)}"
            raise AttnscopeError(message, where=path, hint=_HINT)
        wrong = next((j for j, cell in enumerate(row) if not isinstance(cell, bool)), None)
        if wrong is not None:
            raise AttnscopeError(
                f"row {i}, column {wrong} is {row[wrong]!r}, not a boolean", where=path, hint=_HINT
            )


def _from_npy(path: Path) -> Any:
    import io

    import numpy as np

    try:
        return np.lib.format.read_array(io.BytesIO(read_file(path, cap=_CAP)), allow_pickle=False)
    except (ValueError, EOFError, SyntaxError, TypeError, OverflowError, MemoryError) as e:
        raise AttnscopeError(f"is not a NumPy array: {e}", where=path, hint=_HINT) from e


def _from_safetensors(path: Path) -> Any:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        tensors = load(read_file(path, cap=_CAP))
    except (SafetensorError, KeyError, TypeError) as e:
        raise AttnscopeError(f"is not safetensors: {e}", where=path, hint=_HINT) from e
    if len(tensors) != 1:
        raise AttnscopeError(f"has {len(tensors)} tensors", where=path, hint=_HINT)
    return next(iter(tensors.values()))
