"""Labelled rows of numbers in; a table whose columns are as wide as their numbers, out."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from attnscope.views.terminal.numbers import digits_for
from attnscope.views.terminal.screen import Screen

INDENT = 3


@dataclass(frozen=True)
class Column:
    """One column of a grid.

    Attributes:
        heading: What stands above it.
        cells: A text for every row.
        style: How its cells look.
    """

    heading: str
    cells: list[str]
    style: str = ""

    @property
    def width(self) -> int:
        """Cells that it needs."""
        return max(map(cell_len, (self.heading, *self.cells)))


def numbers(values: Sequence[float | None], precision: int) -> list[str]:
    """The cells of one column: alike in their digits, blank where there is none."""
    known = np.array([value for value in values if value is not None], dtype=np.float64)
    digits = digits_for(known, precision)  # type: ignore[arg-type]
    return ["" if value is None else digits.text(float(value)) for value in values]


def number(value: float, precision: int) -> str:
    """One number with as many digits as a column of its size would have."""
    return numbers([value], precision)[0]


def put_grid(screen: Screen, heading: str, labels: Sequence[Text], columns: Sequence[Column]) -> None:
    """Print rows of numbers.

    Args:
        screen: Where to.
        heading: What stands above the labels.
        labels: A label for every row.
        columns: The numbers.
    """
    table = Table(box=None, padding=0, pad_edge=False, header_style="dim")
    label = max(cell_len(heading), *(cell_len(text.plain) for text in labels))
    table.add_column("", width=INDENT)
    table.add_column(Text(heading), width=label, no_wrap=True)
    for column in columns:
        table.add_column(Text(column.heading), width=column.width + 2, justify="right", no_wrap=True)
    for r, text in enumerate(labels):
        table.add_row("", text, *(Text(column.cells[r], column.style) for column in columns))
    screen.put(table, width=INDENT + label + sum(column.width + 2 for column in columns))


def leading(values: np.ndarray, width: int, precision: int) -> str:
    """The first numbers of a vector, as many as fit, and how many more there are."""
    digits = digits_for(values, precision)
    shown, used = [], 0
    for i, value in enumerate(values.tolist()):
        text = digits.text(value)
        more = f"  … {len(values) - i - 1} more" if i + 1 < len(values) else ""
        if shown and used + 2 + len(text) + len(more) > width:
            break
        shown.append(text)
        used += len(text) + 2 * bool(i)
    left = len(values) - len(shown)
    return "  ".join(shown) + (f"  … {left} more" if left else "")
