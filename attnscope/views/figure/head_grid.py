"""Draw heads in columns that line up, on one scale, with their tokens named once."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from attnscope.views.figure.canvas import GAP, MARGIN, SIZE, SMALL, WIDTH, Canvas, text_width
from attnscope.views.figure.colours import ramp_colour
from attnscope.views.figure.labels import draw_legend, draw_names, names_of, rows_width
from attnscope.views.parts import Panel

# Size of a cell beside a name that can be read, and largest size.
_NAMED_CELL, _LARGEST_CELL = 6.0, 14.0
# Width of bold letters.
_BOLDER = 1.1


@dataclass(frozen=True)
class LabelledGrid:
    """Layout of heads with named tokens."""

    spots: Sequence[tuple[int, int]]
    left: float
    cell: float
    step: float


def label_grid(panels: Sequence[Panel], places: Sequence[tuple[int, int]]) -> LabelledGrid | None:
    """Place heads in columns that line up; None if the names of tokens would be too small to read.

    Heads of several layers have a row for each layer; heads of one layer fill as many rows as the width needs.
    """
    n_columns = panels[0].matrix.shape[1]
    left = MARGIN + rows_width(panels[0])
    layers, heads = (sorted({place[n] for place in places}) for n in (0, 1))
    most = max(1, int((WIDTH - MARGIN - left) // (_NAMED_CELL * n_columns + GAP)))
    beside = len(heads) if len(layers) > 1 else min(len(heads), most)
    if beside > most or len(panels[0].rows.names) != panels[0].matrix.shape[0]:
        return None
    cell = min(_LARGEST_CELL, ((WIDTH - MARGIN - left) / beside - GAP) / n_columns)
    step = max(cell * n_columns + GAP, text_width(f"L{layers[-1]}H{heads[-1]}", SIZE * _BOLDER) + GAP)
    spots = [divmod(n, beside) for n in range(len(places))]
    if len(layers) > 1:
        spots = [(layers.index(layer), heads.index(head)) for layer, head in places]
    return LabelledGrid(spots, left, cell, step)


def draw_labelled(canvas: Canvas, panels: Sequence[Panel], grid: LabelledGrid) -> None:
    """Draw the weights of every head; tokens are named left of the first column and above the first row."""
    rows, columns = names_of(panels[0].rows), names_of(panels[0].columns)
    named = canvas.y + max(text_width(name, SMALL) for name in columns) + 4
    for column in range(1 + max(column for _, column in grid.spots)):
        draw_names(canvas, grid.left + column * grid.step, named, grid.cell, columns, turned=True)
    height = grid.cell * len(rows)
    for panel, (row, column) in zip(panels, grid.spots, strict=True):
        x, top = grid.left + column * grid.step, named + row * (height + SIZE + GAP)
        canvas.text(x, top + SIZE, tuple(replace(span, look="bold") for span in panel.title))
        y = top + SIZE + 4
        # Exactly 0, and NaN, have no colour.
        colours = [
            [ramp_colour(min(1.0, weight), signed=False) if weight > 0 else None for weight in line]
            for line in panel.matrix.tolist()
        ]
        canvas.cells(x, y, (grid.cell, grid.cell), colours, apart=False)
        canvas.frame(x, y, grid.cell * len(columns), height)
        if column == 0:
            draw_names(canvas, x, y, grid.cell, rows)
        canvas.y = max(canvas.y, y + height)
    zero = any((panel.matrix == 0).any() for panel in panels)
    description = "weights: queries are rows, keys are columns"
    draw_legend(canvas, "0", "1", f"{description}{'; grey: exactly zero' if zero else ''}")
