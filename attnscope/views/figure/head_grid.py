"""Draw heads in columns that line up, on one scale, with their tokens named once."""

from collections.abc import Sequence
from dataclasses import replace

from attnscope.views.figure.canvas import GAP, MARGIN, SIZE, SMALL, WIDTH, Canvas, text_width
from attnscope.views.figure.colours import ramp_colour
from attnscope.views.figure.labels import draw_legend, draw_names, names_of, rows_width
from attnscope.views.head_layout import lay_out_heads
from attnscope.views.parts import Panel
from attnscope.views.scales import WEIGHTS

# Size of a cell beside a name that can be read, and largest size.
_NAMED_CELL = 6.0
_LARGEST_CELL = 14.0
# Width of bold letters.
_BOLDER = 1.1


def draw_labelled(canvas: Canvas, panels: Sequence[Panel], places: Sequence[tuple[int, int]]) -> bool:
    """Draw the weights of every head in columns that line up, if the names of tokens are large enough to be read.

    Heads of several layers have a row for each layer; heads of one layer, and listed ones that are no grid, fill as
    many rows as the width needs. Tokens are named left of the first column and above the first row.
    """
    n_rows, n_columns = panels[0].matrix.shape
    left = MARGIN + rows_width(panels[0])
    layout = lay_out_heads(places)
    several_layers = len(layout.rows) > 1
    max_across = max(1, int((WIDTH - MARGIN - left) // (_NAMED_CELL * n_columns + GAP)))
    across = len(layout.columns) if several_layers else min(len(layout.columns), max_across)
    if across > max_across or len(panels[0].rows.names) != n_rows:
        return False
    cell = min(_LARGEST_CELL, ((WIDTH - MARGIN - left) / across - GAP) / n_columns)
    step = max(
        cell * n_columns + GAP, max(text_width(f"L{layer}H{head}", SIZE * _BOLDER) for layer, head in places) + GAP
    )
    spots = layout.cells if several_layers else [divmod(n, across) for n in range(len(places))]
    rows = names_of(panels[0].rows)
    columns = names_of(panels[0].columns)
    names_y = canvas.y + max(text_width(name, SMALL) for name in columns) + 4
    for column in range(1 + max(column for _, column in spots)):
        draw_names(canvas, left + column * step, names_y, cell, columns, turned=True)
    for panel, (row, column) in zip(panels, spots, strict=True):
        x = left + column * step
        top = names_y + row * (cell * n_rows + SIZE + GAP)
        canvas.text(x, top + SIZE, tuple(replace(span, look="bold") for span in panel.title))
        y = top + SIZE + 4
        colours = [
            [ramp_colour(WEIGHTS.place(weight) or 0.0, signed=False) if weight > 0 else None for weight in line]
            for line in panel.matrix.tolist()
        ]
        canvas.cells(x, y, (cell, cell), colours, apart=False)
        canvas.frame(x, y, cell * n_columns, cell * n_rows)
        if column == 0:
            draw_names(canvas, x, y, cell, rows)
        canvas.y = max(canvas.y, y + cell * n_rows)
    zero = any((panel.matrix == 0).any() for panel in panels)
    description = "weights: queries are rows, keys are columns"
    draw_legend(canvas, WEIGHTS, "0", "1", f"{description}{'; hatched: exactly zero' if zero else ''}")
    return True
