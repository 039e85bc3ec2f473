"""Draw what moved between two sides, a query a row."""

from typing import Literal

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from attnscope.views.parts import Moves
from attnscope.views.spans import TOKEN_MARKS, Spans
from attnscope.views.terminal.labels import shorten
from attnscope.views.terminal.screen import Screen, flow

_TABLE_FROM = 72  # columns from which cells that do not fit are folded
_BETWEEN = 2  # blanks between columns
_NAME = 14  # cells of a token's name


def put_moves(screen: Screen, moves: Moves) -> None:
    """Print a table of what moved, or a paragraph for every query where it does not fit."""
    rows = [[_cell(screen, cell) for cell in row] for row in moves.rows]
    columns = zip(moves.titles, *rows, strict=True)
    needed = sum(max(map(cell_len, column)) + _BETWEEN for column in columns) - _BETWEEN
    if screen.width >= min(needed, _TABLE_FROM):
        table = Table(box=None, padding=(0, _BETWEEN, 0, 0), pad_edge=False, header_style="dim")
        for title, named in zip(moves.titles, moves.named, strict=True):
            justify: Literal["left", "right"] = "left" if named else "right"
            table.add_column(Text(title), justify=justify, overflow="fold")
        for row in rows:
            table.add_row(*map(Text, row))
        screen.put(table)
        return
    for row in rows:
        cells = [f"{title} {cell}" for title, cell in zip(moves.titles[1:], row[1:], strict=True) if cell]
        screen.put(flow([Text(row[0], "bold"), *map(Text, cells)], screen.width, " " * _BETWEEN, _BETWEEN))


def _cell(screen: Screen, cell: Spans) -> str:
    texts = [(span.origin in TOKEN_MARKS, screen.plain([span])) for span in cell]
    return "".join(shorten(text, _NAME) if is_token else text for is_token, text in texts)
