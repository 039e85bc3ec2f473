"""The array types of plain data: NumPy in memory, nested lists in JSON, each with what the JSON Schema says of it."""

from typing import Annotated

import msgspec
import numpy as np

ROW = {"type": "array", "items": {"type": ["number", "null"]}}
Float1 = np.ndarray[tuple[int], np.dtype[np.float32]]
Float2 = np.ndarray[tuple[int, int], np.dtype[np.float32]]
Int2 = np.ndarray[tuple[int, int], np.dtype[np.int64]]
Floats = Annotated[Float1, msgspec.Meta(extra_json_schema=ROW)]
Matrix = Annotated[Float2, msgspec.Meta(extra_json_schema={"type": "array", "items": ROW})]
Places = Annotated[
    Int2,
    msgspec.Meta(extra_json_schema={"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}),
]
