"""Draw one stage as a table, in as many column blocks as the width needs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isnan

from msgspec.structs import replace as replace_struct
from rich.cells import cell_len
from rich.text import Text

from attnscope.views.axes import SINK, format_positions
from attnscope.views.numbers import MASKED, NO_WEIGHT, Digits
from attnscope.views.parts import Matrices, Panel
from attnscope.views.terminal.labels import Labels, labels, say_shortened, shorten
from attnscope.views.terminal.packing import pack
from attnscope.views.terminal.screen import ROOMY, Screen

# Width of a column's name, if one block is not enough.
LONGEST = 12
DOWN = "query ↓"
_ACROSS = " →"  # after the kind of the columns
# Smallest width of a matrix beside others, for its title.
_TITLE = 22
# Smallest width of a row's name beside percentages; the whole name is below them.
_ROW_NAME = 6
# As wide as needed.
_ANY = 1 << 30


@dataclass(frozen=True)
class Layout:
    """Where everything goes."""

    rows: Labels
    columns: Labels
    row_name: int  # cells of a row's name
    label: int  # cells of the whole row label
    column_name: int  # cells of a column's name
    gap: int  # blanks before a column; one of two is after it
    widths: list[int]  # cells of every column, gap included
    texts: Sequence[Sequence[str]]
    blocks: list[range]
    percent: bool = False  # the cells are percentages

    @property
    def needed(self) -> int:
        """Cells of the widest block."""
        return self.label + max(
            (sum(self.widths[i] for i in block) for block in self.blocks), default=0
        )


@dataclass(frozen=True)
class Neighbour:
    """One matrix beside others."""

    stage: Panel
    layout: Layout
    labelled: bool  # its rows are labelled; otherwise the labels of the panel before it are
    # its columns are not those of the panel before it, and its title says which they are
    other_columns: bool
    widened: int = 0  # cells that are added, so that its title is one line

    @cached_property
    def width(self) -> int:
        """Cells of its lines; a matrix of few columns leaves room for its title."""
        columns_width = self.layout.needed if self.labelled else sum(self.layout.widths)
        return max(columns_width, _TITLE) + self.widened


def draw_matrices(screen: Screen, matrices: Matrices) -> None:
    """Print matrices: as many side by side as fit whole, the others below them."""
    remaining = list(matrices.panels)
    while remaining:
        if len(remaining) < len(matrices.panels):
            screen.say("")
        fitting = (_panels(screen, remaining[:n]) for n in range(len(remaining), 1, -1))
        if neighbours := next(filter(None, fitting), []):
            _draw_beside(screen, neighbours)
        else:
            _draw_alone(screen, remaining[0], percent=len(matrices.panels) == 1)
        remaining = remaining[max(1, len(neighbours)) :]


def _panels(screen: Screen, stages: Sequence[Panel]) -> list[Neighbour]:
    """Lay matrices out side by side, with whole names; none where the screen is too narrow for that."""
    if len({stage.columns.kind for stage in stages}) > 1:
        return []
    for gap in (2, 1):
        panels: list[Neighbour] = []
        rows_before: tuple[list[int], list[str]] | None = None
        columns_before: tuple[list[int], list[str]] | None = None
        for stage in stages:
            rows = labels(screen, stage.rows)
            columns = labels(screen, stage.columns)
            label = _label_cells(screen.width, rows, columns)
            layout = _layout(stage, (rows, columns), label, _ANY, columns.widest, gap)
            row_names = list(rows.axis.positions), list(rows.names)
            column_names = list(columns.axis.positions), list(columns.names)
            panels.append(
                Neighbour(stage, layout, row_names != rows_before, column_names != columns_before)
            )
            rows_before = row_names
            columns_before = column_names
        if _band_width(panels) <= screen.width:
            # Titles are one line if there is room.
            titles = (
                (panel, 2 - panel.labelled + cell_len(_panel_title(screen, panel).plain))
                for panel in panels
            )
            widened = [
                replace(panel, widened=max(0, title - panel.width)) for panel, title in titles
            ]
            return widened if _band_width(widened) <= screen.width else panels
    return []


def _band_width(panels: Sequence[Neighbour]) -> int:
    return sum(panel.width for panel in panels) + sum(len(_rule(panel)) for panel in panels[1:])


def _rule(panel: Neighbour) -> str:
    """Return the line between a panel and the one before; blanks around its columns are part of them."""
    return f"{' ' * (panel.layout.gap == 1)}│{' ' * panel.labelled}"


def _draw_beside(screen: Screen, panels: Sequence[Neighbour]) -> None:
    """Print matrices side by side: titles, column headings, and a line for every row of all of them."""
    # All but the first panel start one cell after the line before them, and titles end one before the next.
    margins = [" " * (not panel.labelled) for panel in panels]
    titles = []
    for panel, margin in zip(panels, margins, strict=True):
        wrapped = _panel_title(screen, panel).wrap(screen.console, panel.width - len(margin) - 1)
        titles.append([Text(margin) + line for line in wrapped])
    height = max(map(len, titles))
    blocks = [
        [
            *title,
            *[Text()] * (height - len(title)),
            *_lines(screen, panel.stage, panel.layout, labelled=panel.labelled),
        ]
        for panel, title in zip(panels, titles, strict=True)
    ]
    for lines in zip(*blocks, strict=True):
        joined = Text(no_wrap=True)
        for panel, line in zip(panels, lines, strict=True):
            if joined:
                joined.append(_rule(panel), "dim")
            joined.append_text(line).append(" " * (panel.width - cell_len(line.plain)))
        screen.put(joined, width=_band_width(panels))
    shortened: dict[int, str] = {}
    for panel in panels:
        shortened |= panel.layout.rows.shortened(panel.layout.row_name)
    say_shortened(screen, shortened, {}, panels[0].stage.columns.kind)


def _panel_title(screen: Screen, panel: Neighbour) -> Text:
    """Return the title of a panel; it says which columns there are if they are not those of the panel before it."""
    title = _title(screen, panel.stage)
    if panel.other_columns and panel.stage.columns.needs_caption:
        title.append(f"; {block_title(panel.layout.columns, panel.layout.blocks[0])}", "dim")
    return title


def _title(screen: Screen, stage: Panel, *, percent: bool = False) -> Text:
    title = screen.plain(stage.title)
    arithmetic = screen.plain(stage.arithmetic)
    if percent:
        title = f"{title} in %"
        arithmetic = arithmetic.replace("sums to 1", "sums to 100 %")
    return Text.assemble((f"{title:<7}", "bold"), "  ", (arithmetic, "dim"), overflow="fold")


def _draw_alone(screen: Screen, stage: Panel, *, percent: bool) -> None:
    """Print one matrix: title, blocks, and the full names of shortened labels; see lay_out."""
    layout = lay_out(screen, stage, percent=percent)
    screen.put(_title(screen, stage, percent=layout.percent))
    for block_index, block in enumerate(layout.blocks):
        if block_index:
            screen.say("")
        if len(layout.blocks) > 1 or stage.columns.needs_caption:
            screen.say((block_title(layout.columns, block), "dim"))
        for line in _lines(screen, stage, layout, block):
            screen.put(line, width=layout.needed)
    rows = layout.rows.shortened(layout.row_name)
    columns = layout.columns.shortened(layout.column_name)
    say_shortened(screen, rows, columns, stage.columns.kind)


def block_title(columns: Labels, block: range) -> str:
    """Say which columns a block shows: `columns 0–11 of 40: The … river`."""
    axis = columns.axis
    shown_positions = [axis.positions[i] for i in block if axis.positions[i] != SINK]
    ends = [shorten(columns.names[i], LONGEST) for i in (block[0], block[-1])][: len(block)]
    names = f": {' … '.join(ends)}" if columns.widest else ""
    if not axis.numbered:
        return f"{len(shown_positions)} of {axis.total} columns{names}"
    what = "dimensions" if axis.kind == "dim" else "columns" if len(block) > 1 else "column"
    return f"{what} {format_positions(shown_positions)} of {axis.total}{names}"


def lay_out(screen: Screen, stage: Panel, *, percent: bool = False) -> Layout:
    """Choose the layout with the fewest blocks; shorten names, and move columns together, only where one is too few.

    Where every column is a row, too, and that makes one block of several, columns have positions without names, and
    weights no zero before the point; or they are percentages, beside shorter names of rows if need be.

    `percent`: weights may be percentages.
    """
    rows = labels(screen, stage.rows)
    columns = labels(screen, stage.columns)
    width = screen.width
    label = _label_cells(width, rows, columns)
    longest = min(LONGEST, width - label[1] - 1)
    room = width - label[1]
    layouts = [_layout(stage, (rows, columns), label, room, columns.widest, gap) for gap in (2, 1)]
    for layout in layouts:
        if len(layout.blocks) <= 1 and layout.needed <= width:
            return layout
    cut = [_layout(stage, (rows, columns), label, room, longest, gap) for gap in (2, 1)]
    best = min(cut, key=lambda layout: (layout.needed > width, len(layout.blocks)))
    # The rows' labels name the columns if every column is a row as well.
    are_named = stage.columns.kind == "key" and set(stage.columns.positions) <= set(
        stage.rows.positions
    )
    if len(best.blocks) > 1 and stage.name == "weights" and are_named:
        bare = replace(columns, names=[""] * len(columns.names))
        short = replace_struct(
            stage, texts=[[_without_zero(text) for text in row] for row in stage.texts]
        )
        dense = _layout(short, (rows, bare), label, room, 0, 1)
        if len(dense.blocks) == 1:
            return dense
        if percent and stage.digits == Digits(2):
            shares = [[_percentage(value) for value in row] for row in stage.matrix.tolist()]
            dense = _layout(replace_struct(stage, texts=shares), (rows, bare), label, _ANY, 0, 1)
            # Few columns have a 100.
            widths = [max(map(cell_len, column)) for column in zip(*shares, strict=True)]
            widths = [max(cells, stage.columns.digits) + 1 for cells in widths]
            # Labels have the rest of the line.
            label_room = width - sum(widths)
            name = min(label[0], label_room - rows.axis.digits - 1)
            if label_room >= label[1] or name >= _ROW_NAME:
                return replace(
                    dense,
                    row_name=name,
                    label=min(label[1], label_room),
                    widths=widths,
                    percent=True,
                )
    return best


def _percentage(weight: float) -> str:
    """Write a weight as a percentage, of as many digits as one of two decimals."""
    if isnan(weight):
        return MASKED
    if weight:
        return f"{100 * weight:.0f}"
    return NO_WEIGHT


def _without_zero(text: str) -> str:
    """Write a weight in one character less: `.65` for `0.65`, and `1.0` for `1.00`; not one with an exponent."""
    if "e" in text:
        return text
    if text.startswith("0."):
        return text[1:]
    if text.startswith(("1.", NO_WEIGHT)) and len(text) > len("1.0"):
        return text[:-1]
    return text


def _label_cells(width: int, rows: Labels, columns: Labels) -> tuple[int, int]:
    """Return the cells of a row's name, and of its whole label."""
    name = rows.name_cells(width)
    label = name + rows.axis.digits + 1
    return name, max(
        label, len(DOWN), len(columns.axis.kind) + len(_ACROSS)
    ) if width >= ROOMY else label


def _layout(
    stage: Panel,
    axes: tuple[Labels, Labels],
    label: tuple[int, int],
    room: int,
    longest: int,
    gap: int,
) -> Layout:
    """Place the columns in blocks that fit the room beside the labels, with names of at most so many cells."""
    rows, columns = axes
    number_width = max((cell_len(text) for row in stage.texts for text in row), default=1)
    widths = [
        max(number_width, min(cell_len(name), longest), stage.columns.digits) + gap
        for name in columns.names
    ]
    return Layout(
        rows,
        columns,
        *label,
        max(number_width, longest),
        gap,
        widths,
        stage.texts,
        pack(widths, room),
    )


def _lines(
    screen: Screen,
    stage: Panel,
    layout: Layout,
    block: range | None = None,
    *,
    labelled: bool = True,
) -> list[Text]:
    """Write the heading of some columns, by default of all, and the rows below it.

    A column's name stands over its position, both above the right edge of its numbers.
    """
    shown_columns = range(len(stage.columns.positions)) if block is None else block
    columns = layout.columns
    corner = f"{columns.axis.kind + _ACROSS:>{layout.label}}", f"{DOWN:<{layout.label}}"
    across, down = (Text(text if len(text) == layout.label else "", "dim") for text in corner)
    lines: list[tuple[Text, list[Text]]] = []
    if columns.widest:
        lines.append(
            (across, [columns.label(i, layout.column_name, position=False) for i in shown_columns])
        )
    lines.append((down, [Text(columns.axis.number(i), "dim") for i in shown_columns]))
    after = layout.gap // 2
    for _, cells in lines:
        cells[:] = [
            Text(" " * (layout.widths[i] - after - cell.cell_len)) + cell + " " * after
            for cell, i in zip(cells, shown_columns, strict=True)
        ]
    for r, row in enumerate(layout.texts):
        cells = [_cell(screen, stage, layout, r, i, row[i]) for i in shown_columns]
        if labelled and cells and cells[0].plain.startswith(" "):
            # the colour of the first cell does not touch the label
            cells[0] = Text(" ") + cells[0][1:]
        lines.append((layout.rows.label(r, layout.row_name), cells))
    text_lines = []
    for label, cells in lines:
        label.append(" " * (layout.label - cell_len(label.plain)))
        text_lines.append(Text(no_wrap=True).join([label, *cells] if labelled else cells))
    return text_lines


def _cell(screen: Screen, stage: Panel, layout: Layout, r: int, i: int, text: str) -> Text:
    after = layout.gap // 2
    padded = " " * (layout.widths[i] - cell_len(text) - after) + text + " " * after
    value = float(stage.matrix[r, i])
    if text.strip() in (MASKED, NO_WEIGHT) or (
        stage.name == "weights" and abs(value) < stage.digits.least
    ):
        return Text(padded, "dim")
    fraction = stage.scale.place(value)
    return Text(
        padded, "" if fraction is None else screen.ramp(fraction, signed=stage.scale.signed)
    )
