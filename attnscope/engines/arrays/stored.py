"""An array of a file, by its header. Never imports torch."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class StoredArray:
    """An array in a file, of which only the header was read."""

    name: str
    shape: tuple[int, ...]
    dtype: str  # name of its type; `bfloat16` is read as uint16
    nbytes: int
    place: Any
