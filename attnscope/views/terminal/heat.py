"""Draw matrices as cells of colour, side by side if they fit."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from attnscope.views.axes import SINK, format_positions
from attnscope.views.numbers import MASKED, NO_WEIGHT
from attnscope.views.parts import Matrices, Panel
from attnscope.views.terminal.colours import SHADES, cell_shade, ramp_text
from attnscope.views.terminal.head_grid import draw_heads
from attnscope.views.terminal.labels import Labels, labels, say_list, say_shortened, upright
from attnscope.views.terminal.packing import fill, pack
from attnscope.views.terminal.screen import Screen, flow
from attnscope.views.terminal.thumbnails import draw_thumbnails

# Number of blanks between two pictures.
BETWEEN = 2
# Cells from which a title takes no more than the picture.
_TITLE = 24
# Cells of the names in legends, at least; names longer than the second number have no scale in their line.
_NAMES = 7, 16


@dataclass(frozen=True)
class PanelColumns:
    """Some columns of one matrix."""

    panel: Panel
    columns: range
    title: str

    @property
    def width(self) -> int:
        """Cells that the picture takes; a title or the word `masked` may need more than its columns."""
        return max(2 * len(self.columns), min(cell_len(self.title), _TITLE), len(MASKED))


def draw_heat(screen: Screen, heat: Matrices) -> None:
    """Print matrices as pictures: thumbnails, heads, or whole matrices with a legend."""
    if heat.places is not None:
        draw_thumbnails(screen, heat.panels, heat.places, heat.marked)
    elif heat.panels[0].columns.kind == "head":
        draw_heads(screen, heat.panels[0])
    else:
        _draw_panels(screen, heat.panels)


def _draw_panels(screen: Screen, stages: Sequence[Panel]) -> None:
    # The difference of two texts has the positions and tokens of both.
    rows = labels(screen, stages[-1].rows)
    name = rows.name_cells(screen.width)
    label = name + rows.axis.digits + 1
    space = screen.width - label - BETWEEN
    pieces = [piece for stage in stages for piece in _pieces(screen, stage, space)]
    for run in fill([piece.width + BETWEEN for piece in pieces], space + BETWEEN):
        if run.start:
            screen.say("")
        band = pieces[run.start : run.stop]
        table_width = label + sum(piece.width + BETWEEN for piece in band)
        screen.put(_table(screen, band, rows, name, label), width=table_width)
    screen.say("")
    titles = [cell_len(screen.plain(stage.title)) for stage in stages]
    aligned = max(_NAMES[0], *(cells for cells in titles if cells <= _NAMES[1]), 0)
    for stage in stages:
        _draw_legend(screen, stage, aligned)
    # The difference of two texts has all names.
    longest = max(reversed(stages), key=lambda stage: len(stage.columns.names))
    _draw_columns(screen, rows, labels(screen, longest.columns), name)


def _pieces(screen: Screen, stage: Panel, space: int) -> list[PanelColumns]:
    """Cut a stage into as few pieces as fit the space, as even as they can be."""
    columns = stage.columns
    title = screen.plain(stage.title)
    pieces = []
    cut = pack([2] * len(columns.positions), space)
    for part in cut:
        shown_positions = [columns.positions[i] for i in part if columns.positions[i] != SINK]
        which = f": {format_positions(shown_positions) if columns.numbered else len(shown_positions)} of {columns.total}"
        pieces.append(
            PanelColumns(stage, part, title + which * (len(cut) > 1 or columns.needs_caption))
        )
    return pieces


def _table(screen: Screen, band: list[PanelColumns], rows: Labels, name: int, label: int) -> Table:
    table = Table(box=None, padding=0, pad_edge=False, header_style="")
    titles = [Text(piece.title, "bold").wrap(screen.console, piece.width) for piece in band]
    names = [_column_names(screen, piece) for piece in band]
    height = max(len(title) + len(lines) for title, lines in zip(titles, names, strict=True))
    table.add_column(Text("\n" * (height - 1)), width=label, no_wrap=True)
    for piece, title, lines in zip(band, titles, names, strict=True):
        above = [*[Text()] * (height - len(title) - len(lines)), *title, *lines]
        heading = Text("\n").join([Text(" " * BETWEEN) + line for line in above])
        table.add_column(heading, width=piece.width + BETWEEN, no_wrap=True)
    for r in range(len(rows.names)):
        table.add_row(rows.label(r, name), *(_row(screen, piece, r) for piece in band))
    return table


def _column_names(screen: Screen, piece: PanelColumns) -> list[Text]:
    """Return the lines of tokens above columns, which are read downwards, or positions if a letter is too wide for that."""
    columns = labels(screen, piece.panel.columns)
    names = []
    for n in piece.columns:
        name = columns.names[n]
        is_narrow = 0 < len(name) == cell_len(name)
        names.append(name if is_narrow else columns.axis.number(n) or "+")
    return [Text("".join(f" {letter}" for letter in line)) for line in upright(names)]


def _row(screen: Screen, piece: PanelColumns, r: int) -> Text:
    stage = piece.panel
    row = Text(" " * BETWEEN)
    if stage.masked_rows[r] and stage.name in ("weights", "output"):
        return row.append(MASKED, "dim")
    for i in piece.columns:
        if stage.texts[r][i].strip() == NO_WEIGHT:
            row.append(f" {NO_WEIGHT}", "dim")
        elif (fraction := stage.scale.place(float(stage.matrix[r, i]))) is None:
            row.append(" !", "bold")
        elif screen.colours:
            row.append("  ", screen.ramp(fraction, stage.scale))
        else:
            row.append(cell_shade(fraction, stage.scale.signed))
    return row


def _draw_legend(screen: Screen, stage: Panel, name: int) -> None:
    """Describe the scale from smallest to largest, after a title of `name` cells, and the arithmetic."""
    low, high = stage.ends
    title = Text(screen.plain(stage.title), "bold")
    title.pad_right(max(0, name - title.cell_len))
    if screen.colours:
        legend = ramp_text(stage.scale, low, high, screen.colours, screen.surface)
    else:
        legend = Text(f"{low} {_shades(stage)} {high}")
    description = Text(screen.plain(stage.arithmetic_of_picture)).wrap(
        screen.console, screen.width - BETWEEN
    )
    scale = legend.wrap(screen.console, screen.width - BETWEEN)
    screen.put(
        flow([title, *scale, *description], screen.width, " " * BETWEEN, BETWEEN),
        width=screen.width,
    )


def _shades(stage: Panel) -> str:
    """Write every shade of a scale, with the numbers between two of them."""
    scale = stage.scale
    count = 2 * (len(SHADES) - 1) if scale.signed else len(SHADES)
    shades = [cell_shade((n + 0.5) / count, scale.signed) for n in range(count)]
    bounds = [stage.digits.text(scale.value(n / count)) for n in range(1, count)]
    return (
        "".join(f"[{shade}] {bound} " for shade, bound in zip(shades, bounds, strict=False))
        + f"[{shades[-1]}]"
    )


def _draw_columns(screen: Screen, rows: Labels, columns: Labels, cells: int) -> None:
    """Name the columns, unless rows name them all, and the full names of shortened row labels."""
    axis_kind = columns.axis.kind
    column_names, row_names = (
        [
            f"{axis.axis.number(n)} {name}"
            for n, name in enumerate(axis.names)
            if name and axis.axis.number(n)
        ]
        for axis in (columns, rows)
    )
    # Words have names of their own, which pieces do not have.
    if axis_kind != "key" or not set(row_names).issuperset(column_names):
        say_list(screen, "context" if axis_kind == "context" else "columns", column_names)
    say_shortened(screen, rows.shortened(cells), {}, axis_kind)
