"""Draw every head of a text as a thumbnail, layers below each other and heads side by side."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from rich.style import Style
from rich.text import Text

from attnscope.findings.arrays import Matrix
from attnscope.views.head_layout import HeadLayout, lay_out_heads
from attnscope.views.numbers import NO_WEIGHT
from attnscope.views.parts import Panel
from attnscope.views.scales import LogScale, Scale, pool_largest, pooled_cells
from attnscope.views.terminal.colours import SHADES, ramp_text, shade
from attnscope.views.terminal.labels import labels, say_list
from attnscope.views.terminal.map import colour_on, draw_log_scale, half_blocks, map_shade
from attnscope.views.terminal.screen import Screen

# Cells of a thumbnail.
_NARROWEST = 5
_WIDEST = 24
# Lines for all layers together, if that leaves three for each.
_LINES = 42
# Lines of a thumbnail.
_LEAST = 3


@dataclass(frozen=True)
class _Grid:
    """How thumbnails are laid out."""

    layers: list[str]  # names beside lines of thumbnails
    heads: list[str]  # names above columns of them
    label: int  # cells of a layer's name, with a blank
    at_once: int  # heads side by side
    rows: int  # of a thumbnail, two of which are drawn in a line
    width: int  # of a thumbnail, in cells
    step: int  # cells from one head to the next
    whole: bool  # every weight is two characters wide and a line high


def draw_thumbnails(
    screen: Screen,
    panels: Sequence[Panel],
    places: Sequence[tuple[int, int]],
    marked: Sequence[int] = (),
) -> None:
    """Print the weights of every head, by layer and head, as a thumbnail.

    If there is room, every weight is two characters wide and a line high. Otherwise, a cell of a thumbnail is the
    largest weight of the queries and keys that fall into it, so that nothing strong is lost. Cells whose weights are all
    exactly zero, as a mask forbids them, have a sign. All thumbnails are drawn on one scale, that of the first. A sign
    stands behind those that are `marked`.
    """
    layout = lay_out_heads(places)
    grid = _lay_out(screen, layout, panels[0])
    matrices = {cell: panel.matrix for cell, panel in zip(layout.cells, panels, strict=True)}
    marked_cells = {layout.cells[index] for index in marked}
    for first_column in range(0, len(grid.heads), grid.at_once):
        columns = range(first_column, min(first_column + grid.at_once, len(grid.heads)))
        _draw_block(screen, grid, panels[0].scale, matrices, columns, marked_cells)
    screen.say("")
    _say_what_cells_are(screen, grid, panels, bool(marked))
    _name_tokens(screen, grid, panels[0])


def _lay_out(screen: Screen, layout: HeadLayout, panel: Panel) -> _Grid:
    """Choose the size of thumbnails: whole matrices if all of them fit, else as much as their share of the screen."""
    layers = layout.rows
    heads = layout.columns
    shape = panel.matrix.shape
    label = max(map(len, layers)) + 1 if layers != [""] else 0
    widest_name = max(map(len, heads))
    whole_step = max(2 * shape[1], widest_name) + 1
    fits = (
        label + len(heads) * whole_step <= screen.width
        and len(layers) * (shape[0] + 1) <= _LINES
        and not isinstance(panel.scale, LogScale)
    )
    if fits:
        size = 2 * shape[0], 2 * shape[1]
        return _Grid(layers, heads, label, len(heads), *size, whole_step, whole=True)
    # One layer has room for several lines.
    narrowest = _NARROWEST if len(layers) > 1 else min(_WIDEST, shape[1])
    least_step = max(narrowest, widest_name) + 1
    at_once = max(1, min(len(heads), (screen.width - label) // least_step))
    blocks = -(-len(heads) // at_once)
    at_once = -(-len(heads) // blocks)
    width = min(_WIDEST, shape[1], max(narrowest, (screen.width - label) // at_once - 1))
    # half a line stays free between layers
    lines = max(_LEAST, min(_LINES // (len(layers) * blocks), shape[0] // 2 + 1))
    rows = min(shape[0], 2 * lines - 1)
    step = max(width, widest_name) + 1
    return _Grid(layers, heads, label, at_once, rows, width, step, whole=False)


def _draw_block(
    screen: Screen,
    grid: _Grid,
    scale: Scale | LogScale,
    matrices: Mapping[tuple[int, int], Matrix],
    columns: range,
    marked: Collection[tuple[int, int]],
) -> None:
    """Print the thumbnails of some heads of all layers; `matrices` and `marked` are by row and column of the grid."""
    mark = _mark(screen)
    names = "".join(grid.heads[column].ljust(grid.step) for column in columns)
    line_width = grid.label + len(names)
    screen.put(Text(" " * grid.label + names), width=line_width)
    for index, layer in enumerate(grid.layers):
        pixels = [_pixels(matrices.get((index, column)), grid) for column in columns]
        # a blank half line, or line, stays between layers
        for line in range(-(-(grid.rows + (index < len(grid.layers) - 1)) // 2)):
            row = Text((layer if not line else "").ljust(grid.label))
            for column, head_pixels in zip(columns, pixels, strict=True):
                after = mark if not line and (index, column) in marked else ""
                row.append_text(_line(screen, scale, head_pixels, line, grid))
                row.append(after.ljust(grid.step - grid.width), "bold")
            screen.put(row, width=line_width)


def _mark(screen: Screen) -> str:
    return "<" if screen.ascii else "◂"


def _pixels(weights: Matrix | None, grid: _Grid) -> Matrix | None:
    """Return the numbers of a thumbnail's cells, (rows, width); None for a head that is not there."""
    if weights is None:
        return None
    if grid.whole:
        weights = weights.repeat(2, 0).repeat(2, 1)
    return pool_largest(weights, grid.rows, grid.width)


def _say_what_cells_are(screen: Screen, grid: _Grid, panels: Sequence[Panel], marked: bool) -> None:
    """Print the scale, how many weights a cell stands for, and what its sign means."""
    scale = panels[0].scale
    cell = ""
    if not grid.whole:
        # With colours, a line shows two rows of cells.
        together = 1 if screen.colours and not screen.ascii else 2
        is_map = isinstance(scale, LogScale)
        size = grid.rows, grid.width
        cell = pooled_cells(panels[0].matrix.shape, *size, together=together, of_map=is_map)
    meaning = f"queries are rows, keys are columns{cell}"
    if marked:
        meaning += f"; {_mark(screen)} is named below"
    if isinstance(scale, LogScale):
        screen.say((panels[0].name, "bold"), f"  {meaning}")
        draw_log_scale(screen, scale, np.stack([panel.matrix for panel in panels]))
        return
    if any((panel.matrix == 0).any() for panel in panels):
        meaning += f"; {NO_WEIGHT} is exactly zero"
    high = f"{scale.high:.2g}"
    if screen.colours:
        ramp = ramp_text(scale, "0", high, screen.colours, screen.surface)
    else:
        # Shades divide the scale, which is none of equal steps unless it is linear.
        bounds = [
            "0",
            *(f"{scale.value(step / len(SHADES)):.2g}" for step in range(1, len(SHADES))),
        ]
        shades = " ".join(f"{bound} [{shade}]" for bound, shade in zip(bounds, SHADES, strict=True))
        ramp = Text(f"{shades} {high}")
    screen.say((panels[0].name, "bold"), "  ", ramp, f"  {meaning}")


def _name_tokens(screen: Screen, grid: _Grid, panel: Panel) -> None:
    """List the tokens of rows and columns if every weight has a cell, or those of columns if there is one row."""
    n_queries, n_keys = panel.matrix.shape
    if isinstance(panel.scale, LogScale) or not (grid.whole or n_queries == 1):
        return
    # nothing beside a thumbnail names its rows and columns: they are these, one after the other
    row_names, column_names = (
        [f"{axis.number(n)} {name}".strip() for n, name in enumerate(labels(screen, axis).names)]
        for axis in (panel.rows, panel.columns)
    )
    if n_queries == 1:
        width = n_keys if grid.whole else grid.width
        first_keys = [n * n_keys // width for n in range(width)]
        title = "columns" if len(first_keys) == n_keys else "first key of each column"
        say_list(screen, title, [column_names[n] for n in first_keys])
    elif row_names == column_names:
        say_list(screen, "rows and columns", row_names)
    else:
        say_list(screen, "rows", row_names)
        say_list(screen, "columns", column_names)


def _line(
    screen: Screen, scale: Scale | LogScale, pixels: Matrix | None, line: int, grid: _Grid
) -> Text:
    """Draw two rows of cells as one line of half blocks; without colours, their larger one as a shade."""
    drawn_line = Text()
    # of a weight that is two cells wide, the second has the sign of zero
    sign_step = 2 if grid.whole else 1
    for column in range(grid.width):
        drawn_rows = [] if pixels is None else pixels[2 * line : 2 * line + 2, column].tolist()
        pair = [weight for weight in drawn_rows if weight >= 0]
        if not pair:
            drawn_line.append(" ")
        elif max(pair) == 0:
            drawn_line.append(NO_WEIGHT if (column + 1) % sign_step == 0 else " ", "dim")
        elif not screen.colours:
            fraction = scale.place(max(pair))
            drawn_line.append(
                map_shade(fraction) if isinstance(scale, LogScale) else shade(fraction or 0.0)
            )
        elif screen.ascii:
            drawn_line.append(" ", Style(bgcolor=colour_on(screen, scale, max(pair))))
        else:
            drawn_line.append(*half_blocks(*(colour_on(screen, scale, weight) for weight in pair)))
    return drawn_line
