"""Draw heads in columns that line up, on one scale, with their tokens named once."""

from collections.abc import Sequence
from dataclasses import replace

from attnscope.views.figure.canvas import GAP, MARGIN, SIZE, SMALL, Canvas, text_width
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


def draw_labelled(
    canvas: Canvas, panels: Sequence[Panel], places: Sequence[tuple[int, int]]
) -> bool:
    """Draw the weights of every head in columns that line up, if the names of tokens are large enough to be read.

    Heads of several layers have a row for each layer; heads of one layer, and listed ones that are no grid, fill as
    many rows as the width needs. Tokens are named left of the first column and above each head, below its title.
    """
    n_rows, n_columns = panels[0].matrix.shape
    labels = canvas.settings.labels
    left = MARGIN + rows_width(panels[0], labels)
    layout = lay_out_heads(places)
    several_layers = len(layout.rows) > 1
    room = canvas.limit - MARGIN - left
    max_across = max(1, int((room + GAP) // (_NAMED_CELL * n_columns + GAP)))
    if several_layers:
        across = len(layout.columns)
    else:
        across = min(len(layout.columns), max_across)
    if across > max_across or len(panels[0].rows.names) != n_rows:
        return False
    cell = min(_LARGEST_CELL, ((room + GAP) / across - GAP) / n_columns)
    step = max(
        cell * n_columns + GAP,
        max(text_width(f"L{layer}H{head}", SIZE * _BOLDER) for layer, head in places) + GAP,
    )
    if several_layers:
        spots = layout.cells
    else:
        spots = [divmod(n, across) for n in range(len(places))]
    rows = names_of(panels[0].rows, labels)
    columns = names_of(panels[0].columns, labels)
    above = SIZE + 4 + max(text_width(name, SMALL) for name in columns) + 4
    begin = canvas.y
    for panel, (row, column) in zip(panels, spots, strict=True):
        x = left + column * step
        top = begin + row * (above + cell * n_rows + GAP)
        y = top + above
        canvas.text(x, top + SIZE, tuple(replace(span, look="bold") for span in panel.title))
        draw_names(canvas, x, y, cell, columns, turned=True)
        colours = []
        for line in panel.matrix.tolist():
            colours.append(
                [
                    ramp_colour(WEIGHTS.place(weight) or 0.0, signed=False) if weight > 0 else None
                    for weight in line
                ]
            )
        canvas.cells(x, y, (cell, cell), colours, apart=False)
        canvas.frame(x, y, cell * n_columns, cell * n_rows)
        if column == 0:
            draw_names(canvas, x, y, cell, rows)
        canvas.y = max(canvas.y, y + cell * n_rows)
    zero = any((panel.matrix == 0).any() for panel in panels)
    description = f"{panels[0].name}: queries are rows, keys are columns"
    draw_legend(
        canvas, WEIGHTS, "0", "1", f"{description}{'; hatched: exactly zero' if zero else ''}"
    )
    return True
