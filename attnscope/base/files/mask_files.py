"""Read a mask file: a boolean matrix, True where a query may attend."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import AttnscopeError
from attnscope.base.files.reading import read_file, read_json

if TYPE_CHECKING:
    import numpy as np

_CAP = 1 << 30
_HINT = (
    "expected one boolean matrix with a row per query and a column per key, true where attention is allowed, or one "
    "for every head"
)


def read_mask(path: Path) -> "np.ndarray[Any, np.dtype[np.bool_]]":
    """Read a boolean matrix.

    Args:
        path: A .json file (a list of rows, or one for every head), an .npy file, or a .safetensors file with one
            tensor.

    Returns:
        (queries, keys) or (heads, queries, keys), bool.
    """
    import numpy as np

    kind = path.suffix
    matrix = _from_json(path) if kind == ".json" else _from_npy(path) if kind == ".npy" else _from_safetensors(path)
    if matrix.dtype != np.bool_:
        raise AttnscopeError(f"has type {matrix.dtype}, not bool", where=path, hint=_HINT)
    if matrix.ndim not in (2, 3) or 0 in matrix.shape:
        raise AttnscopeError(f"has shape {list(matrix.shape)}", where=path, hint=_HINT)
    return matrix  # type: ignore[no-any-return]


def _from_json(path: Path) -> Any:
    import numpy as np

    rows = read_json(path, cap=_CAP)
    if isinstance(rows, list) and rows and isinstance(rows[0], list) and rows[0] and isinstance(rows[0][0], list):
        for head in rows:
            _check_rows(head, path)
        sizes = {(len(head), len(head[0])) for head in rows}
        if len(sizes) > 1:
            raise AttnscopeError("has heads with matrices of different sizes", where=path, hint=_HINT)
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
            raise AttnscopeError(f"row {i}, column {wrong} is {row[wrong]!r}, not a boolean", where=path, hint=_HINT)


def _from_npy(path: Path) -> Any:
    import io

    import numpy as np

    try:
        return np.lib.format.read_array(io.BytesIO(read_file(path, cap=_CAP)), allow_pickle=False)
    except (ValueError, EOFError, SyntaxError, TypeError, OverflowError, MemoryError) as e:  # the last of a wrong shape
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
