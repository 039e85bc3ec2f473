"""Draw every head of a text as a thumbnail, layers below each other and heads side by side."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.style import Style
from rich.text import Text

from attnscope.views.head_layout import lay_out_heads
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

Pixels = np.ndarray[Any, np.dtype[np.float32]]


def draw_thumbnails(
    screen: Screen,
    panels: Sequence[Panel],
    places: Sequence[tuple[int, int]],
    marked: Sequence[int] = (),
) -> None:
    """Print the weights of every head, by layer and head, as a thumbnail.

    If there is room, every weight is two characters wide and a line high. Otherwise, a cell of a thumbnail is the
    largest weight of the queries and keys that fall into it, so that nothing strong is lost. All thumbnails are drawn
    on one scale, that of the first. A sign stands behind those that are `marked`.
    """
    layout = lay_out_heads(places)
    marked_cells = {layout.cells[index] for index in marked}
    mark = "<" if screen.ascii else "◂"
    layers = layout.rows
    heads = layout.columns
    by_place = {cell: panel.matrix for cell, panel in zip(layout.cells, panels, strict=True)}
    label = max(map(len, layers)) + 1 if layers != [""] else 0
    shape = panels[0].matrix.shape
    scale = panels[0].scale
    # One layer has room for several lines.
    narrowest = _NARROWEST if len(layers) > 1 else min(_WIDEST, shape[1])
    widest_name = max(map(len, heads))
    step = max(narrowest, widest_name) + 1
    at_once = max(1, min(len(heads), (screen.width - label) // step))
    blocks = -(-len(heads) // at_once)
    at_once = -(-len(heads) // blocks)
    width = min(_WIDEST, shape[1], max(narrowest, (screen.width - label) // at_once - 1))
    # half a line stays free between layers
    lines = max(_LEAST, min(_LINES // (len(layers) * blocks), shape[0] // 2 + 1))
    rows = min(shape[0], 2 * lines - 1)
    fits = (
        label + len(heads) * max(step, 2 * shape[1] + 1) <= screen.width
        and len(layers) * (shape[0] + 1) <= _LINES
    )
    whole = fits and not isinstance(scale, LogScale)
    if whole:
        by_place = {
            indices: weights.repeat(2, 0).repeat(2, 1) for indices, weights in by_place.items()
        }
        at_once = len(heads)
        rows = 2 * shape[0]
        width = 2 * shape[1]
    step = max(width, widest_name) + 1
    for first_column in range(0, len(heads), at_once):
        columns = range(first_column, min(first_column + at_once, len(heads)))
        names = "".join(heads[column].ljust(step) for column in columns)
        screen.put(Text(" " * label + names), width=label + len(names))
        for index, layer in enumerate(layers):
            layer_weights = [by_place.get((index, column)) for column in columns]
            pixels = [
                None if weights is None else pool_largest(weights, rows, width)
                for weights in layer_weights
            ]
            # a blank half line, or line, stays between layers
            for line in range(-(-(rows + (index < len(layers) - 1)) // 2)):
                row = Text((layer if not line else "").ljust(label))
                for column, head_pixels in zip(columns, pixels, strict=True):
                    after = ""
                    if not line and (index, column) in marked_cells:
                        after = mark
                    row.append_text(_line(screen, scale, head_pixels, line, width, whole=whole))
                    row.append(after.ljust(step - width), "bold")
                screen.put(row, width=label + len(names))
    screen.say("")
    if whole:
        width = shape[1]
    # With colours, a line shows two rows of cells.
    together = 1 if screen.colours and not screen.ascii else 2
    if whole:
        zeros = any((panel.matrix == 0).any() for panel in panels)
        cell = f"; {NO_WEIGHT} is exactly zero" if zeros else ""
    else:
        cell = pooled_cells(
            shape, rows, width, together=together, of_map=isinstance(scale, LogScale)
        )
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
    ramp_parts = () if isinstance(scale, LogScale) else ("  ", ramp)
    screen.say(
        (panels[0].name, "bold"),
        *ramp_parts,
        f"  queries are rows, keys are columns{cell}",
    )
    if isinstance(scale, LogScale):
        draw_log_scale(screen, scale, np.stack([panel.matrix for panel in panels]))
    # one query: the heads have no room for names of columns
    if shape[0] == 1 and not isinstance(scale, LogScale):
        keys = labels(screen, panels[0].columns)
        firsts = [n * shape[1] // width for n in range(width)]
        key_names = [f"{panels[0].columns.number(n)} {keys.names[n]}" for n in firsts]
        say_list(screen, "columns" if width == shape[1] else "first key of each column", key_names)
    elif whole:
        # nothing beside a thumbnail names its rows and columns: they are these, one after the other
        row_names, column_names = (
            [
                f"{axis.number(n)} {name}".strip()
                for n, name in enumerate(labels(screen, axis).names)
            ]
            for axis in (panels[0].rows, panels[0].columns)
        )
        if row_names == column_names:
            say_list(screen, "rows and columns", row_names)
        else:
            say_list(screen, "rows", row_names)
            say_list(screen, "columns", column_names)


def _line(
    screen: Screen,
    scale: Scale | LogScale,
    pixels: Pixels | None,
    line: int,
    width: int,
    *,
    whole: bool,
) -> Text:
    """Draw two rows of cells as one line of half blocks; without colours, their larger one as a shade.

    `whole`: each weight is two of these cells wide and high, so that there is room for the sign of one of exactly zero,
    which a mask does not allow.
    """
    drawn_line = Text()
    for column in range(width):
        if pixels is None:
            drawn_rows = []
        else:
            drawn_rows = pixels[2 * line : 2 * line + 2, column].tolist()
        pair = [weight for weight in drawn_rows if weight >= 0]
        if not pair:
            drawn_line.append(" ")
        elif whole and max(pair) == 0:
            drawn_line.append(NO_WEIGHT if column % 2 else " ", "dim")
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
