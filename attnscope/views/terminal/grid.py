"""Draw grids, whose columns are as wide as their numbers, and vectors."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from attnscope.views.numbers import ZERO, written
from attnscope.views.parts import Dimensions, Grid, VectorLine
from attnscope.views.terminal.contributors import BAR, bar_text
from attnscope.views.terminal.labels import labels
from attnscope.views.terminal.screen import INDENTS, STYLES, Screen

_MIRRORED = str.maketrans("▏▎▍▌▋▊▉", "▕▕▐▐▐██")  # the blocks that begin at the right edge of a cell
_INDENT = INDENTS[1]
_NAME = INDENTS[2] - INDENTS[1]  # cells of a vector's name


@dataclass(frozen=True)
class _GridColumn:
    """One column of a grid.

    Attributes:
        heading: Its heading.
        cells: A text for every row.
        style: How its cells look.
        left: They start at the left edge; numbers end at the right one.
    """

    heading: str
    cells: Sequence[str]
    style: str = ""
    left: bool = False

    @property
    def width(self) -> int:
        """Cells that it needs, with two blanks in front."""
        return 2 + max(map(cell_len, (self.heading, *self.cells)))


def put_grid(screen: Screen, grid: Grid) -> None:
    """Print rows of numbers, in as many blocks of columns as the width needs."""
    names = [screen.text(label) for label in grid.others]
    if grid.keys is not None:
        axis = labels(screen, grid.keys)
        names = [*(axis.label(i, axis.name_cells(screen.width)) for i in range(len(axis.names))), *names]
    label = max(cell_len(grid.heading), *(cell_len(text.plain) for text in names))
    columns = [_GridColumn(column.heading, column.cells, STYLES[column.look]) for column in grid.columns]
    if grid.bars is not None:
        columns.append(_GridColumn("", _bars([bar or 0.0 for bar in grid.bars]), "cyan", left=True))
    said = ""
    if grid.dimensions is not None:
        used = _INDENT + label + sum(column.width for column in columns)
        shown = _dimensions(grid.dimensions, screen.width - used)
        columns += shown
        if grid.dimensions.whole and len(shown) < (count := grid.dimensions.matrix.shape[1]):
            first = "the first of" if len(shown) == 1 else f"the first {len(shown)} of"
            which = first if shown else "none of the"
            said = f"{which} {count} dimensions of {grid.dimensions.name}; {grid.dimensions.whole}"
    block: list[_GridColumn] = []
    for column in columns:
        if block and _INDENT + label + sum(each.width for each in (*block, column)) > screen.width:
            _put_block(screen, grid.heading, names, label, block)
            block = []
        block.append(column)
    _put_block(screen, grid.heading, names, label, block)
    if said:
        screen.put_indented(Text(said, "dim"), 1)


def _bars(shares: Sequence[float]) -> list[str]:
    """Draw bars; if any share is below 0, on both sides of a line."""
    if min(shares) >= 0:
        return [bar_text(share, BAR) for share in shares]
    left = [bar_text(-share, BAR)[::-1].translate(_MIRRORED) for share in shares]
    room = max(map(len, left))
    return [f"{bar:>{room}}│{bar_text(share, BAR)}" for bar, share in zip(left, shares, strict=True)]


def _dimensions(dimensions: Dimensions, room: int) -> list[_GridColumn]:
    """Format the first dimensions of the vectors, as many as fit the room."""
    columns: list[_GridColumn] = []
    for i in range(dimensions.matrix.shape[1]):
        cells = written(dimensions.matrix[:, i].tolist(), dimensions.digits, ZERO)
        column = _GridColumn(f"dim {i}", cells, "dim")
        room -= column.width
        if room < 0:
            break
        columns.append(column)
    return columns


def _put_block(screen: Screen, heading: str, names: Sequence[Text], label: int, columns: Sequence[_GridColumn]) -> None:
    table = Table(box=None, padding=0, pad_edge=False, header_style="dim")
    table.add_column("", width=_INDENT)
    table.add_column(Text(heading), width=label, no_wrap=True)
    for column in columns:
        blanks = "  " if column.left else ""
        justify: Literal["left", "right"] = "left" if column.left else "right"
        table.add_column(Text(blanks + column.heading), width=column.width, justify=justify, no_wrap=True)
    for r, text in enumerate(names):
        if not any(column.cells[r] for column in columns):
            continue  # a sum, say, whose number is in another block
        table.add_row("", text, *(Text("  " * column.left + column.cells[r], column.style) for column in columns))
    screen.put(table, width=_INDENT + label + sum(column.width for column in columns))


def put_vector(screen: Screen, vector: VectorLine) -> None:
    """Print two lines: how a vector was made; its norm and first numbers."""
    name = f"{vector.name:<{_NAME}}"
    for line in Text(vector.made, "dim").wrap(screen.console, screen.width - INDENTS[2]):
        screen.put(Text.assemble(" " * _INDENT, (name, "bold"), line))
        name = " " * _NAME
    norm = f"‖·‖ {vector.norm}   "
    values = _leading(vector, screen.width - INDENTS[2] - len(norm))
    screen.put_indented(Text.assemble(norm, (values, "dim")), 2)


def _leading(vector: VectorLine, width: int) -> str:
    """Write the first numbers of a vector, as many as fit, and how many more there are."""
    shown: list[str] = []
    used = 0
    for i, value in enumerate(vector.values.tolist()):
        text = vector.digits.text(value)
        more = f"  … {len(vector.values) - i - 1} more" if i + 1 < len(vector.values) else ""
        if shown and used + 2 + len(text) + len(more) > width:
            break
        shown.append(text)
        used += len(text) + 2 * bool(i)
    left = len(vector.values) - len(shown)
    return "  ".join(shown) + (f"  … {left} more" if left else "")
