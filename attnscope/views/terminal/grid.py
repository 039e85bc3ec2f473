"""A table of numbers whose columns are as wide as their numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from attnscope.views.terminal.numbers import ZERO, Digits, digits_for
from attnscope.views.terminal.screen import Screen

INDENT = 3


@dataclass(frozen=True)
class Column:
    """One column of a grid.

    Attributes:
        heading: Its heading.
        cells: A text for every row.
        style: How its cells look.
        left: They start at the left edge; numbers end at the right one.
    """

    heading: str
    cells: list[str]
    style: str = ""
    left: bool = False

    @property
    def width(self) -> int:
        """Cells that it needs, with two blanks in front."""
        return 2 + max(map(cell_len, (self.heading, *self.cells)))


def numbers(values: Sequence[float | None], precision: int, *, zero: str = "", none: str = "") -> list[str]:
    """Format the cells of one column with the same number of digits.

    Args:
        values: The numbers.
        precision: Digits after the point of ordinary ones.
        zero: Text for exactly 0; empty for the number itself.
        none: Text for a missing number.
    """
    known = np.array([value for value in values if value is not None], dtype=np.float64)
    return _written(values, digits_for(known, precision), zero, none)  # type: ignore[arg-type]


def _written(values: Sequence[float | None], digits: Digits, zero: str = "", none: str = "") -> list[str]:
    return [
        (digits.units(none) if none else "")
        if value is None
        else digits.units(zero) if zero and value == 0 else digits.text(float(value))
        for value in values
    ]  # fmt: skip


def number(value: float, precision: int) -> str:
    """One number with as many digits as a column of its size would have."""
    return numbers([value], precision)[0]


def dimensions(matrix: "np.ndarray", room: int, precision: int) -> list[Column]:
    """Format the first dimensions of some vectors, as many as fit.

    Args:
        matrix: A vector a row.
        room: Width that the columns may take.
        precision: Digits after the point.
    """
    columns: list[Column] = []
    digits = digits_for(matrix, precision)
    for i in range(matrix.shape[1]):
        column = Column(f"dim {i}", _written(matrix[:, i].tolist(), digits, ZERO), "dim")
        room -= column.width
        if room < 0:
            break
        columns.append(column)
    return columns


def put_grid(screen: Screen, heading: str, labels: Sequence[Text], columns: Sequence[Column]) -> None:
    """Print rows of numbers, in as many blocks of columns as the width needs.

    Args:
        screen: Where to.
        heading: Heading above the labels.
        labels: A label for every row.
        columns: The numbers.
    """
    label = label_cells(heading, labels)
    block: list[Column] = []
    for column in columns:
        if block and INDENT + label + sum(each.width for each in (*block, column)) > screen.width:
            _put_block(screen, heading, labels, label, block)
            block = []
        block.append(column)
    _put_block(screen, heading, labels, label, block)


def _put_block(screen: Screen, heading: str, labels: Sequence[Text], label: int, columns: Sequence[Column]) -> None:
    table = Table(box=None, padding=0, pad_edge=False, header_style="dim")
    table.add_column("", width=INDENT)
    table.add_column(Text(heading), width=label, no_wrap=True)
    for column in columns:
        blanks = "  " if column.left else ""
        justify: Literal["left", "right"] = "left" if column.left else "right"
        table.add_column(Text(blanks + column.heading), width=column.width, justify=justify, no_wrap=True)
    for r, text in enumerate(labels):
        table.add_row("", text, *(Text("  " * column.left + column.cells[r], column.style) for column in columns))
    screen.put(table, width=INDENT + label + sum(column.width for column in columns))


def label_cells(heading: str, labels: Sequence[Text]) -> int:
    """Cells of the labels' column."""
    return max(cell_len(heading), *(cell_len(text.plain) for text in labels))


def put_indented(screen: Screen, text: Text, indent: int = INDENT) -> None:
    """Print a paragraph that keeps its distance from the left edge."""
    for line in text.wrap(screen.console, screen.width - indent):
        screen.put(Text.assemble(" " * indent, line))


def leading(values: np.ndarray, width: int, precision: int) -> str:
    """The first numbers of a vector, as many as fit, and how many more there are."""
    digits = digits_for(values, precision)
    shown: list[str] = []
    used = 0
    for i, value in enumerate(values.tolist()):
        text = digits.text(value)
        more = f"  … {len(values) - i - 1} more" if i + 1 < len(values) else ""
        if shown and used + 2 + len(text) + len(more) > width:
            break
        shown.append(text)
        used += len(text) + 2 * bool(i)
    left = len(values) - len(shown)
    return "  ".join(shown) + (f"  … {left} more" if left else "")
