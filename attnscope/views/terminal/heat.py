"""Draw matrices as cells of colour, side by side if they fit."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from rich.cells import cell_len
from rich.style import Style
from rich.table import Table
from rich.text import Text

from attnscope.views.axes import SINK, format_positions
from attnscope.views.numbers import MASKED, NOT_ALLOWED
from attnscope.views.parts import Matrices, Panel
from attnscope.views.terminal.colours import SHADES, cell_shade, ramp_style, ramp_text
from attnscope.views.terminal.head_grid import draw_heads
from attnscope.views.terminal.labels import Labels, labels, say_list, say_shortened
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
        draw_thumbnails(screen, heat.panels, heat.places)
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
    for number, band in enumerate(_bands(pieces, space)):
        if number:
            screen.say("")
        needed = label + sum(piece.width + BETWEEN for piece in band)
        screen.put(_table(screen, band, rows, name, label), width=needed)
    screen.say("")
    titles = [cell_len(screen.plain(stage.title)) for stage in stages]
    aligned = max(_NAMES[0], *(cells for cells in titles if cells <= _NAMES[1]), 0)
    for stage in stages:
        _draw_legend(screen, stage, aligned)
    # The difference of two texts has all names.
    named = max(reversed(stages), key=lambda stage: len(stage.columns.names))
    _draw_columns(screen, rows, labels(screen, named.columns), name)


def _pieces(screen: Screen, stage: Panel, space: int) -> list[PanelColumns]:
    """Cut a stage into as few pieces as fit the space, as even as they can be."""
    count = len(stage.columns.positions)
    most = max(1, space // 2)
    needed = -(-count // most)
    title = screen.plain(stage.title)
    if needed == 1 and not stage.columns.needs_caption:
        return [PanelColumns(stage, range(count), title)]
    size = -(-count // needed)
    cut = [range(start, min(start + size, count)) for start in range(0, count, size)]
    return [PanelColumns(stage, part, f"{title}: {_which(stage, part)}") for part in cut]


def _which(stage: Panel, part: range) -> str:
    shown = [stage.columns.positions[i] for i in part if stage.columns.positions[i] != SINK]
    return f"{format_positions(shown) if stage.columns.numbered else len(shown)} of {stage.columns.total}"


def _bands(pieces: list[PanelColumns], space: int) -> list[list[PanelColumns]]:
    """Group pieces that fit side by side."""
    bands: list[list[PanelColumns]] = []
    for piece in pieces:
        used = sum(p.width + BETWEEN for p in bands[-1]) if bands else 0
        if bands and used + piece.width <= space:
            bands[-1].append(piece)
        else:
            bands.append([piece])
    return bands


def _table(screen: Screen, band: list[PanelColumns], rows: Labels, name: int, label: int) -> Table:
    table = Table(box=None, padding=0, pad_edge=False, header_style="")
    digits = max(piece.panel.columns.digits for piece in band)
    titles = [Text(piece.title, "bold").wrap(screen.console, piece.width) for piece in band]
    height = max(map(len, titles))
    table.add_column(Text("\n" * (digits + height - 1)), width=label, no_wrap=True)
    for piece, title in zip(band, titles, strict=True):
        lines = [*[Text()] * (height - len(title)), *title]
        table.add_column(_heading(piece, lines, digits), width=piece.width + BETWEEN, no_wrap=True)
    for r in range(len(rows.names)):
        table.add_row(rows.label(r, name), *(_row(screen, piece, r) for piece in band))
    return table


def _heading(piece: PanelColumns, title: Sequence[Text], digits: int) -> Text:
    """Put the title over the columns' positions, which are read downwards."""
    heading = Text("\n").join([Text(" " * BETWEEN) + line for line in title])
    positions = [f"{piece.panel.columns.number(i) or '+':>{digits}}" for i in piece.columns]
    for d in range(digits):
        heading.append("\n" + " " * BETWEEN)
        heading.append("".join(f" {p[d]}" for p in positions), "dim")
    return heading


def _row(screen: Screen, piece: PanelColumns, r: int) -> Text:
    stage = piece.panel
    row = Text(" " * BETWEEN)
    if stage.masked_rows[r] and stage.name in ("weights", "output"):
        return row.append(MASKED, "dim")
    for i in piece.columns:
        text, style = _pixel(screen, stage, float(stage.matrix[r, i]), stage.texts[r][i])
        row.append(text, style)
    return row


def _pixel(screen: Screen, stage: Panel, value: float, text: str) -> tuple[str, Style | str]:
    if (stage.name == "weights" and value == 0) or (stage.name == "masked" and text.strip() == NOT_ALLOWED):
        return f" {NOT_ALLOWED}", "dim"
    place = stage.scale.place(value)
    if place is None:
        return " !", "bold"
    if screen.colours:
        return "  ", ramp_style(place, stage.scale.signed, screen.colours)
    return cell_shade(place, stage.scale.signed), ""


def _draw_legend(screen: Screen, stage: Panel, name: int) -> None:
    """Describe the scale from smallest to largest, after a title of `name` cells, and the arithmetic."""
    low, high = stage.digits.text(stage.scale.low), stage.digits.text(stage.scale.high)
    title = Text(screen.plain(stage.title), "bold")
    title.pad_right(max(0, name - title.cell_len))
    if screen.colours:
        legend = ramp_text(low, high, stage.scale.signed, screen.colours)
    else:
        count = 2 * len(SHADES) - 1 if stage.scale.signed else len(SHADES)
        legend = Text(f"{low} {_shades(stage, count)} {high}")
    description = Text(screen.plain(stage.arithmetic_of_picture), "dim").wrap(screen.console, screen.width - BETWEEN)
    scale = legend.wrap(screen.console, screen.width - BETWEEN)
    screen.put(flow([title, *scale, *description], screen.width, " " * BETWEEN, BETWEEN), width=screen.width)


def _shades(stage: Panel, count: int) -> str:
    """Write every shade of a scale, with the numbers between two of them."""
    scale = stage.scale
    # of a signed scale, the middle shade is that of both signs, and twice as wide
    width = (scale.high - scale.low) / (count + scale.signed)
    edges = [n + (scale.signed and n > count // 2) for n in range(count + 1)]
    drawn = [cell_shade((start + end) / 2 / (count + scale.signed), scale.signed) for start, end in pairwise(edges)]
    bounds = [stage.digits.text(scale.low + width * edge) for edge in edges[1:-1]]
    return "".join(f"[{shade}] {bound} " for shade, bound in zip(drawn, bounds, strict=False)) + f"[{drawn[-1]}]"


def _draw_columns(screen: Screen, rows: Labels, columns: Labels, cells: int) -> None:
    """Name the columns, unless rows name them all, and the full names of shortened row labels."""
    kind = columns.axis.kind
    named = [(number, name) for number, name in _numbered(columns) if number]
    # Words have names of their own, which pieces do not have.
    if kind == "key" and set(_numbered(rows)).issuperset(named):
        named = []
    listed = [f"{number} {name}" for number, name in named]
    say_list(screen, "context" if kind == "context" else "columns", listed)
    say_shortened(screen, rows.shortened(cells), {}, kind)


def _numbered(axis: Labels) -> list[tuple[str, str]]:
    """Return the number and the name of every named entry; the sink has no number."""
    return [(axis.axis.number(n), name) for n, name in enumerate(axis.names) if name]
