"""Draw tables: numbers in blocks of columns, words in columns that wrap."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich.cells import cell_len
from rich.style import Style
from rich.table import Table as Grid
from rich.text import Text

from attnscope.views import parts
from attnscope.views.parts import Cell, Column, Table
from attnscope.views.spans import TOKEN_MARKS, Span, Spans
from attnscope.views.terminal.bars import bar_text
from attnscope.views.terminal.labels import labels, say_shortened, shorten
from attnscope.views.terminal.packing import balance, pack, side_by_side
from attnscope.views.terminal.screen import BAR, GLUE, HEADING, INDENTS, Screen, flow
from attnscope.views.terminal.text import cell_text

# Blocks that begin at the right edge of a cell.
_MIRRORED = str.maketrans("▏▎▍▌▋▊▉", "▕▕▐▐▐██")
# Blanks between columns.
_BETWEEN = 2
# Cells of a token's name among words, and of a heading above numbers.
_NAME = 14
# Columns from which words that do not fit wrap in their columns; below, if they leave this many to the widest.
_WRAPPED_FROM = 72
_WRAPPED = 8
# Cells of a bar that is too short to compare with others.
_SHORTEST_BAR = 5
# Rows from which a narrow table of numbers is cut into pieces that stand side by side.
_LONG = 24


def draw_table(screen: Screen, table: Table) -> None:
    """Print a table as wide as the screen allows, then whole names of shortened labels."""
    names: list[Text] = []
    if table.keys is not None:
        axis = labels(screen, table.keys)
        cells = axis.name_cells(screen.width)
        names = [axis.label(i, cells) for i in range(len(axis.names))]
    words = any(column.left for column in table.columns)
    names += [screen.text(_shortened(screen, label) if words else label) for label in table.labels]
    if words:
        _draw_words(screen, table, names)
    else:
        _draw_numbers(screen, table, [_untied(name) for name in names])
    if table.keys is not None and table.spelled:
        say_shortened(screen, {}, axis.shortened(cells), table.keys.kind)


def _shortened(screen: Screen, cell: Cell) -> Spans:
    """Return the text of a cell with long names of tokens shortened."""
    return tuple(
        Span(shorten(screen.plain([span]), _NAME), span.look)
        if span.origin in TOKEN_MARKS
        else span
        for span in parts.joined(cell)
    )


def _draw_words(screen: Screen, table: Table, names: Sequence[Text]) -> None:
    """Print words in columns, or a paragraph a row if there is no room; a column of items takes what is left."""
    items = [column for column in table.columns if isinstance(column.cells[0], parts.Text)]
    columns = [column for column in table.columns if column not in items]
    texts = [[screen.text(_shortened(screen, cell)) for cell in column.cells] for column in columns]
    headings = [screen.plain(parts.joined(column.heading)) for column in columns]
    widths = [max(len(table.heading), *(name.cell_len for name in names))]
    widths += [
        max(cell_len(heading), *(cell.cell_len for cell in cells))
        for heading, cells in zip(headings, texts, strict=True)
    ]
    needed_width = sum(widths) + _BETWEEN * (len(widths) - 1)
    left = screen.width - (needed_width - max(widths))  # for the widest column
    narrow = not items and screen.width < min(needed_width, _WRAPPED_FROM)
    if narrow and left < _WRAPPED:
        for name, *row in zip(names, *texts, strict=True):
            words = [
                Text(f"{heading} ") + _untied(cell)
                for heading, cell in zip(headings, row, strict=True)
                if cell
            ]
            screen.put(
                flow(
                    [Text(_untied(name).plain, "bold"), *words],
                    screen.width,
                    " " * _BETWEEN,
                    _BETWEEN,
                )
            )
        return
    room = screen.width - needed_width - _BETWEEN
    grid = Grid(box=None, padding=(0, _BETWEEN, 0, 0), pad_edge=False, header_style=HEADING)
    fixed: list[int | None] = [*widths] if narrow else [None] * len(widths)
    if narrow:
        fixed[widths.index(max(widths))] = left
    if not items and needed_width > screen.width:
        room = screen.width - _BETWEEN * (len(widths) - 1)
        if narrowed := _narrowed(widths, _least(table.heading, headings, names, texts), room):
            fixed = [*narrowed]
            names, *texts = (
                [flow(cell.split(" "), width, " ") for cell in cells]
                for cells, width in zip((names, *texts), narrowed, strict=True)
            )
    names, *texts = ([_untied(cell) for cell in cells] for cells in (names, *texts))
    grid.add_column(Text(table.heading), overflow="fold", width=fixed[0])
    for n, (column, heading) in enumerate(zip(columns, headings, strict=True), 1):
        justify: Literal["left", "right"] = "left" if column.left else "right"
        grid.add_column(Text(heading), justify=justify, overflow="fold", width=fixed[n])
    for column in items:
        grid.add_column(cell_text(screen, column.heading, room), overflow="fold")
    for n, name in enumerate(names):
        flowing = [cell_text(screen, column.cells[n], room) for column in items]
        grid.add_row(name, *(cells[n] for cells in texts), *flowing)
    screen.put(grid)


def _least(
    heading: str,
    headings: Sequence[str],
    names: Sequence[Text],
    texts: Sequence[Sequence[Text]],
) -> list[int]:
    """Count the cells of each column's longest word, the names' first; words that are tied are one."""
    return [
        max(cell_len(title), *(cell_len(word) for cell in cells for word in cell.plain.split(" ")))
        for title, cells in zip((heading, *headings), (names, *texts), strict=True)
    ]


def _untied(text: Text) -> Text:
    """Return a text with blanks in place of ties."""
    untied = text.copy()
    untied.plain = text.plain.replace(GLUE, " ")
    return untied


def _narrowed(widths: Sequence[int], least: Sequence[int], room: int) -> list[int] | None:
    """Return widths of columns that fit the room, the widest shortened first; None if words do not fit them."""
    narrowed = [*widths]
    while sum(narrowed) > room:
        wide = [n for n, width in enumerate(narrowed) if width > least[n]]
        if not wide:
            return None
        narrowed[max(wide, key=lambda n: narrowed[n])] -= 1
    return narrowed


@dataclass(frozen=True)
class _Numbers:
    """A column of numbers, or of bars, which start at the left edge."""

    heading: str
    cells: Sequence[str]
    style: str | Style = ""
    bars: bool = False
    styles: Sequence[Style] = ()  # of each cell; empty for one style

    def cell(self, row: int) -> Text:
        """Return a cell; bars start after blanks."""
        style = self.styles[row] if self.styles else self.style
        return Text(" " * _BETWEEN * self.bars + self.cells[row], style)

    @property
    def width(self) -> int:
        """Cells that it needs, with the blanks in front."""
        return _BETWEEN + max(map(cell_len, (self.heading, *self.cells)))


def _draw_numbers(screen: Screen, table: Table, names: Sequence[Text]) -> None:
    """Print numbers in as many blocks of columns as the width needs."""
    indent = INDENTS[table.indent]
    label = max(cell_len(table.heading), *(name.cell_len for name in names))
    columns = [_numbers(screen, column) for column in table.columns]
    room = screen.width - indent - label - sum(column.width for column in columns)
    if table.bars is not None:
        shares = [bar or 0.0 for bar in table.bars]
        if room < 0:
            cells = BAR
        else:
            sides = (room - _BETWEEN - 1) // 2 if min(shares) < 0 else room - _BETWEEN
            # longer bars would leave no room for columns that are shown if there is some
            cells = min(BAR if table.further else screen.longest_bar, sides)
        if cells >= _SHORTEST_BAR:
            styles = [screen.bar if share >= 0 else screen.negative_bar for share in shares]
            bars = _Numbers("", _bars(shares, cells), bars=True, styles=styles)
            columns.insert(table.measured + 1, bars)
            room -= bars.width
    shown_columns: list[_Numbers] = []
    for column in table.further:
        shown_columns.append(_numbers(screen, column))
        room -= shown_columns[-1].width
        if room < 0:
            shown_columns.pop()
            break
    columns += shown_columns
    for block in pack([column.width for column in columns], screen.width - indent - label):
        _draw_block(screen, table, names, label, columns[block.start : block.stop])
    if table.further_name and len(shown_columns) < len(table.further):
        if len(shown_columns) == 1:
            opening = "the first of"
        elif shown_columns:
            opening = f"the first {len(shown_columns)} of"
        else:
            opening = "none of the"
        screen.draw_indented(
            Text(f"{opening} {len(table.further)} {table.further_name}"), table.indent
        )


def _numbers(screen: Screen, column: Column) -> _Numbers:
    heading, *cells = (screen.plain(parts.joined(cell)) for cell in (column.heading, *column.cells))
    return _Numbers(shorten(heading, _NAME), cells, screen.style(column.look))


def _bars(shares: Sequence[float], cells: int) -> list[str]:
    """Draw bars of at most so many cells; if any share is below 0, on both sides of a line."""
    if min(shares) >= 0:
        return [bar_text(share, cells) for share in shares]
    left = [bar_text(-share, cells)[::-1].translate(_MIRRORED) for share in shares]
    room = max(map(len, left))
    return [
        f"{bar:>{room}}│{bar_text(share, cells)}" for bar, share in zip(left, shares, strict=True)
    ]


def _draw_block(
    screen: Screen, table: Table, names: Sequence[Text], label: int, columns: Sequence[_Numbers]
) -> None:
    # The number of a row, such as a sum, may be in another block.
    rows = [r for r in range(len(names)) if any(column.cells[r] for column in columns)]
    width = INDENTS[table.indent] + label + sum(column.width for column in columns)
    if len(rows) >= _LONG:
        pieces = balance([1] * len(rows), width, screen.width)
    else:
        pieces = [range(len(rows))]
    grids = [
        _piece(table, names, label, columns, rows[piece.start : piece.stop]) for piece in pieces
    ]
    screen.put(side_by_side(grids), width=width)


def _piece(
    table: Table,
    names: Sequence[Text],
    label: int,
    columns: Sequence[_Numbers],
    rows: Sequence[int],
) -> Grid:
    """Lay out some rows."""
    indent = INDENTS[table.indent]
    grid = Grid(box=None, padding=0, pad_edge=False, header_style=HEADING)
    margin = Text(" " * indent)
    grid.add_column(margin + table.heading, width=indent + label, no_wrap=True)
    blank = " " * _BETWEEN
    for column in columns:
        justify: Literal["left", "right"] = "left" if column.bars else "right"
        grid.add_column(
            Text(blank * column.bars + column.heading),
            width=column.width,
            justify=justify,
            no_wrap=True,
        )
    for r in rows:
        grid.add_row(margin + names[r], *(column.cell(r) for column in columns))
    return grid
