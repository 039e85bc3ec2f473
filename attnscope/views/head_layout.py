"""Where the heads of a model are drawn: whole layers below each other, or listed heads side by side."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class HeadLayout:
    """Rows and columns of drawn heads, with the names at their sides."""

    rows: list[str]  # empty names if the columns name layers, too
    columns: list[str]
    cells: list[tuple[int, int]]  # row and column of every head


def lay_out_heads(heads: Sequence[tuple[int, int]]) -> HeadLayout:
    """Lay out heads, (layer, head): in a grid if it has no gaps, else in one row, in their order."""
    layers, indices = (sorted({head[axis] for head in heads}) for axis in (0, 1))
    if len(heads) == len(layers) * len(indices):
        cells = [(layers.index(layer), indices.index(head)) for layer, head in heads]
        return HeadLayout(
            [f"L{layer}" for layer in layers], [f"H{head}" for head in indices], cells
        )
    return HeadLayout(
        [""], [f"L{layer}H{head}" for layer, head in heads], [(0, n) for n in range(len(heads))]
    )
