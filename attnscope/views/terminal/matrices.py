"""Draw one stage as a table, in as many column blocks as the width needs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from rich.cells import cell_len
from rich.style import Style
from rich.text import Text

from attnscope.views.axes import SINK, format_positions
from attnscope.views.numbers import MASKED, NO_WEIGHT, Digits
from attnscope.views.parts import Matrices, Panel
from attnscope.views.scales import LogScale, Scale
from attnscope.views.terminal.labels import Entry, Labels, labels, say_shortened, shorten
from attnscope.views.terminal.packing import pack
from attnscope.views.terminal.screen import ROOMY, Screen

# Width of a column's name, if one block is not enough.
LONGEST = 12
DOWN = "query ↓"
_ACROSS = " →"  # after the kind of the columns
# Smallest width of a matrix beside others, for its title.
_TITLE = 22
# Cells to which a column's name is shortened at most: those of a weight with two decimals.
_SHORTEST = 4
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
    blocks: list[range]

    @property
    def total_width(self) -> int:
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
        if self.labelled:
            columns_width = self.layout.total_width
        else:
            columns_width = sum(self.layout.widths)
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
            _draw_alone(screen, remaining[0])
        remaining = remaining[max(1, len(neighbours)) :]
    screen.say_colours(_scales(screen, matrices.panels))


def _scales(screen: Screen, panels: Sequence[Panel]) -> list[tuple[str, Scale | LogScale, Digits]]:
    """Return every scale of matrices once, with the title of its matrix, or the stage of several; none without numbers."""
    scales: list[tuple[str, Scale | LogScale, Digits]] = []
    for panel in panels:
        is_new = all(panel.scale != scale for _, scale, _ in scales)
        if is_new and panel.scale.low < panel.scale.high:
            count = sum(other.scale == panel.scale for other in panels)
            has_title = count == 1 and panel.name != "difference"
            name = screen.plain(panel.title) if has_title else panel.name
            scales.append((name, panel.scale, panel.digits))
    return scales


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
            if _band_width(widened) <= screen.width:
                return widened
            return panels
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
    shortened: dict[Entry, str] = {}
    for panel in panels:
        shortened |= panel.layout.rows.shortened(panel.layout.row_name)
    say_shortened(screen, shortened, {}, panels[0].stage.columns.kind)


def _panel_title(screen: Screen, panel: Neighbour) -> Text:
    """Return the title of a panel; it says which columns there are if they are not those of the panel before it."""
    title = _title(screen, panel.stage)
    if panel.other_columns and panel.stage.columns.needs_caption:
        title.append(f"; {block_title(panel.layout.columns, panel.layout.blocks[0])}")
    return title


def _title(screen: Screen, stage: Panel) -> Text:
    title = screen.plain(stage.title)
    arithmetic = screen.plain(stage.arithmetic)
    return Text.assemble((f"{title:<7}", "bold"), f"  {arithmetic}", overflow="fold")


def _draw_alone(screen: Screen, stage: Panel) -> None:
    """Print one matrix: title, blocks, and the full names of shortened labels; see lay_out."""
    layout = lay_out(screen, stage)
    screen.put(_title(screen, stage))
    for block_index, block in enumerate(layout.blocks):
        if block_index:
            screen.say("")
        if len(layout.blocks) > 1 or stage.columns.needs_caption:
            screen.say(block_title(layout.columns, block))
        for line in _lines(screen, stage, layout, block):
            screen.put(line, width=layout.total_width)
    rows = layout.rows.shortened(layout.row_name)
    columns = layout.columns.shortened(layout.column_name)
    if stage.columns.kind == "key":
        # the labels of rows are whole, or listed
        of_rows = {layout.rows.entry(n) for n in range(len(layout.rows.names))}
        columns = {entry: name for entry, name in columns.items() if entry not in of_rows}
    say_shortened(screen, rows, columns, stage.columns.kind)


def block_title(columns: Labels, block: range) -> str:
    """Say which columns a block shows: `columns 0–11 of 40: The … river`."""
    axis = columns.axis
    shown_positions = [axis.positions[i] for i in block if axis.positions[i] != SINK]
    ends = [shorten(columns.names[i], LONGEST) for i in (block[0], block[-1])][: len(block)]
    names = f": {' … '.join(ends)}" if columns.widest else ""
    if not axis.numbered:
        return f"{len(shown_positions)} of {axis.total} columns{names}"
    if axis.kind == "dim":
        what = "dimensions"
    elif len(block) > 1:
        what = "columns"
    else:
        what = "column"
    return f"{what} {format_positions(shown_positions)} of {axis.total}{names}"


def lay_out(screen: Screen, stage: Panel) -> Layout:
    """Lay a matrix out in one block, with names of columns as long as fit there, or else in the fewest blocks.

    Columns move together before names are shortened, and names are not shorter than numbers. In several blocks, names
    are whole unless that takes more blocks.
    """
    rows = labels(screen, stage.rows)
    columns = labels(screen, stage.columns)
    label = _label_cells(screen.width, rows, columns)
    room = screen.width - label[1]
    longest = min(LONGEST, room - 1)
    for cells in (columns.widest, *range(longest, _SHORTEST - 1, -1)):
        for gap in (2, 1):
            layout = _layout(stage, (rows, columns), label, room, cells, gap)
            if len(layout.blocks) <= 1 and layout.total_width <= screen.width:
                return layout
    layouts = [
        _layout(stage, (rows, columns), label, room, cells, gap)
        for cells in (max(longest, min(columns.widest, room - 1)), longest)
        for gap in (2, 1)
    ]
    return min(layouts, key=lambda layout: (layout.total_width > screen.width, len(layout.blocks)))


def _label_cells(width: int, rows: Labels, columns: Labels) -> tuple[int, int]:
    """Return the cells of a row's name, and of its whole label."""
    name = rows.name_cells(width)
    label = name + rows.axis.digits + 1
    if width >= ROOMY:
        label = max(label, len(DOWN), len(columns.axis.kind) + len(_ACROSS))
    return name, label


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
    across, down = (Text(text if len(text) == layout.label else "") for text in corner)
    lines: list[tuple[Text, list[Text]]] = []
    if columns.widest:
        lines.append(
            (across, [columns.label(i, layout.column_name, position=False) for i in shown_columns])
        )
    lines.append(
        (down, [Text(columns.axis.number(i), "dim" * bool(columns.widest)) for i in shown_columns])
    )
    after = layout.gap // 2
    for _, cells in lines:
        cells[:] = [
            Text(" " * (layout.widths[i] - after - cell.cell_len)) + cell + " " * after
            for cell, i in zip(cells, shown_columns, strict=True)
        ]
    for r, row in enumerate(stage.texts):
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
    is_weight = stage.name in ("weights", "difference")
    if text.strip() in (MASKED, NO_WEIGHT):
        return Text(padded, "dim")
    if is_weight and abs(value) < stage.digits.least:
        return Text(padded, screen.number(stage.scale, 0.0) + Style(dim=True))
    return Text(padded, screen.number(stage.scale, value))
