"""Draw one stage as a table, in as many column blocks as the width needs."""

from dataclasses import dataclass
from itertools import pairwise

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from attnscope.views.presentation.axes import SINK, format_positions
from attnscope.views.presentation.numbers import MASKED, NOT_ALLOWED, ZERO
from attnscope.views.presentation.parts import StageMatrix
from attnscope.views.terminal.colours import ramp_style
from attnscope.views.terminal.labels import Labels, labels, pad_left, say_shortened, shorten
from attnscope.views.terminal.screen import ROOMY, Screen

LONGEST = 12  # Cells of a column's name, once one block does not do.
DOWN = "query ↓"


@dataclass(frozen=True)
class Layout:
    """Where everything goes.

    Attributes:
        rows: Labels of the queries.
        columns: Labels of the keys or dimensions.
        row_name: Cells of a row's name.
        label: Cells of the whole row label.
        column_name: Cells of a column's name.
        gap: Blanks before a column; one of two is after it.
        widths: Cells of every column, gap included.
        blocks: The columns of each block.
    """

    rows: Labels
    columns: Labels
    row_name: int
    label: int
    column_name: int
    gap: int
    widths: list[int]
    blocks: list[range]

    @property
    def needed(self) -> int:
        """Cells of the widest block."""
        return self.label + max((sum(self.widths[i] for i in block) for block in self.blocks), default=0)


def put_stage(screen: Screen, stage: StageMatrix) -> None:
    """Print one stage: title, blocks, and the full names of shortened labels."""
    screen.say((f"{stage.name:<7}", "bold"), "  ", (screen.plain(stage.arithmetic), "dim"))
    layout = lay_out(screen, stage)
    for number, block in enumerate(layout.blocks):
        if number:
            screen.say("")
        if len(layout.blocks) > 1 or stage.columns.count < stage.columns.total:
            screen.say((block_title(layout.columns, block), "dim"))
        screen.put(_table(screen, stage, layout, block), width=layout.needed)
    rows, others = layout.rows.shortened(layout.row_name), layout.columns.shortened(layout.column_name)
    say_shortened(screen, rows, others, stage.columns.kind)


def block_title(columns: Labels, block: range) -> str:
    """Which columns a block shows: `columns 0–11 of 40: The … river`."""
    axis = columns.axis
    shown = [axis.positions[i] for i in block if axis.positions[i] != SINK]
    ends = [shorten(columns.names[i], LONGEST) for i in (block[0], block[-1])][: len(block)]
    names = f": {' … '.join(ends)}" if columns.widest else ""
    what = "dimensions" if axis.kind == "dim" else "columns" if len(block) > 1 else "column"
    return f"{what} {format_positions(shown)} of {axis.total}{names}"


def lay_out(screen: Screen, stage: StageMatrix) -> Layout:
    """Choose the layout with the fewest blocks; shorten names, and move columns together, only where one is too few.

    Args:
        screen: Where it goes.
        stage: The matrix.
    """
    rows, columns, width = labels(screen, stage.rows), labels(screen, stage.columns), screen.width
    label = _label_cells(width, rows, columns)
    longest = min(LONGEST, width - label - 1)
    whole = [_layout(stage, rows, columns, label, width, columns.widest, gap) for gap in (2, 1)]
    for layout in whole:
        if len(layout.blocks) <= 1 and layout.needed <= width:
            return layout
    cut = [_layout(stage, rows, columns, label, width, longest, gap) for gap in (2, 1)]
    return min(cut, key=lambda layout: (layout.needed > width, len(layout.blocks)))


def _label_cells(width: int, rows: Labels, columns: Labels) -> int:
    label = rows.name_cells(width) + rows.axis.digits + 1
    return max(label, len(DOWN), len(columns.across)) if width >= ROOMY else label


def _layout(
    stage: StageMatrix, rows: Labels, columns: Labels, label: int, width: int, longest: int, gap: int
) -> Layout:
    number = max((cell_len(text) for row in stage.texts for text in row), default=1)
    widths = [max(number, min(cell_len(name), longest), stage.columns.digits) + gap for name in columns.names]
    blocks = _pack(widths, width - label)
    return Layout(rows, columns, rows.name_cells(width), label, max(number, longest), gap, widths, blocks)


def _pack(widths: list[int], space: int) -> list[range]:
    """Consecutive blocks that fit the space, as even as the fewest possible allow; never an empty one."""
    blocks = _greedy(widths, space, len(widths))
    even = _greedy(widths, space, -(-len(widths) // max(1, len(blocks))))
    return even if len(even) == len(blocks) else blocks


def _greedy(widths: list[int], space: int, most: int) -> list[range]:
    cuts, used = [0], 0
    for i, width in enumerate(widths):
        if i > cuts[-1] and (used + width > space or i - cuts[-1] >= most):
            cuts.append(i)
            used = 0
        used += width
    return [range(a, b) for a, b in pairwise([*cuts, len(widths)]) if b > a]


def _table(screen: Screen, stage: StageMatrix, layout: Layout, block: range) -> Table:
    table = Table(box=None, padding=0, pad_edge=False, header_style="")
    table.add_column(_corner(layout), width=layout.label, no_wrap=True)
    for i in block:
        table.add_column(_heading(layout, i), width=layout.widths[i], no_wrap=True)
    for r, row in enumerate(stage.texts):
        cells = [_cell(screen, stage, layout, r, i, row[i]) for i in block]
        table.add_row(layout.rows.label(r, layout.row_name), *cells)
    return table


def _corner(layout: Layout) -> Text:
    """Which axis is which, if it fits."""
    across, down = (f"{text:{side}{layout.label}}" for text, side in ((layout.columns.across, ">"), (DOWN, "<")))
    lines = [across, down] if layout.columns.widest else [down]
    return Text("\n".join(line if len(line) == layout.label else "" for line in lines), "dim")


def _heading(layout: Layout, i: int) -> Text:
    """Put a column's name over its position, above the right edge of its numbers."""
    columns, cells = layout.columns, layout.widths[i] - layout.gap // 2
    position = pad_left(Text(columns.axis.number(i), "dim"), cells)
    if not columns.widest:
        return position
    name = columns.label(i, layout.column_name, position=False)
    return pad_left(name, cells) + Text("\n") + position


def _cell(screen: Screen, stage: StageMatrix, layout: Layout, r: int, i: int, text: str) -> Text:
    after = layout.gap // 2
    shown = " " * (layout.widths[i] - cell_len(text) - after) + text + " " * after
    if text.strip() in (MASKED, NOT_ALLOWED, ZERO):
        return Text(shown, "dim")
    place = stage.scale.place(float(stage.matrix[r, i]))
    style = "" if place is None or not screen.colours else ramp_style(place, stage.scale.signed, screen.colours)
    return Text(shown, style)
