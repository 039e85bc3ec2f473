"""Cut rows or columns into consecutive pieces that fit."""

from collections.abc import Sequence
from itertools import pairwise

from rich.table import Table

# Blanks between pieces of a table that stand side by side.
GUTTER = 4


def pack(sizes: Sequence[int], space: int) -> list[range]:
    """Pack columns into the fewest consecutive blocks that fit the space, as even as can be; never an empty one."""
    blocks = fill(sizes, space)
    even = fill(sizes, space, -(-len(sizes) // max(1, len(blocks))))
    return even if len(even) == len(blocks) else blocks


def fill(sizes: Sequence[int], space: int, limit: int | None = None) -> list[range]:
    """Cut a sequence into runs, each as long as fits the space, with at most `limit` entries."""
    cuts = [0]
    used = 0
    limit = limit or len(sizes)
    for i, size in enumerate(sizes):
        if i > cuts[-1] and (used + size > space or i - cuts[-1] >= limit):
            cuts.append(i)
            used = 0
        used += size
    return [range(a, b) for a, b in pairwise([*cuts, len(sizes)]) if b > a]


def balance(heights: Sequence[int], width: int, room: int) -> list[range]:
    """Cut rows into as many consecutive pieces of a width as fit side by side, so that the highest is as low as can be.

    `heights`: lines of every row, which stay together.
    """
    max_pieces = max(1, (room + GUTTER) // (width + GUTTER))
    lines = max([1, -(-sum(heights) // max_pieces), *heights])
    while len(pieces := fill(heights, lines)) > max_pieces:
        lines += 1
    return pieces


def side_by_side(tables: Sequence[Table]) -> Table:
    """Join tables to one."""
    grid = Table.grid(padding=(0, GUTTER, 0, 0))
    for _ in tables:
        grid.add_column(no_wrap=True)
    grid.add_row(*tables)
    return grid
