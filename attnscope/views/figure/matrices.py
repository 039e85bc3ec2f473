"""Draw matrices as cells of colour, with labels and a scale."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import ceil

import numpy as np
from msgspec import structs

from attnscope.views.figure.canvas import (
    GAP,
    MARGIN,
    SIZE,
    SMALL,
    Canvas,
    plain,
    spans_width,
    text_width,
    wrap,
)
from attnscope.views.figure.colours import ink_on, mixed_with_white, ramp_colour
from attnscope.views.figure.head_grid import draw_labelled
from attnscope.views.figure.labels import (
    BAR,
    LONGEST,
    cut_name,
    draw_legend,
    draw_names,
    draw_scale,
    label_size,
    names_of,
    rows_width,
)
from attnscope.views.head_layout import lay_out_heads
from attnscope.views.numbers import MASKED, MINUS, NO_WEIGHT
from attnscope.views.parts import SHARES, WEIGHTS, Matrices, Panel, Strips, WeightMap
from attnscope.views.scales import LogScale, Scale, pool_largest, pooled_cells, strip_scale
from attnscope.views.spans import TIE, Span, Spans, ours

# Largest number of cells of a matrix whose numbers are written.
_NUMBERED = 256
# Size of a cell without a number, if there is space; largest size of a square that fills a page of a named width, and
# smallest of those that stand side by side.
_CELL = 9.0
_LEAST = 2.0
_LARGEST_SQUARE = 36.0
_LEAST_BESIDE = 12.0
# Largest width of an example beside a map.
_WIDEST_EXAMPLE = 340.0
# Height of a map of heads relative to its width, if that is named.
_TALLEST = 1.5
# Width of a head in the bar of its layer, relative to its cell.
_STACKED = 0.4
# Cells of numbers are at least as wide as this one.
_ORDINARY = "−88.88"
# Largest width of a panel for its title; longer titles wrap, and longer words are shortened.
_WIDEST_TITLE = 180.0
_TITLE_LEADING = 1.3
# Width and height of a thumbnail, in cells.
_THUMBNAIL = 16
# Number of shades of a thumbnail, whose small cells show no more.
_THUMBNAIL_STEPS = 24


def draw_matrices(canvas: Canvas, matrices: Matrices) -> None:
    """Draw matrices as cells of colour: thumbnails, heads, or whole ones with numbers if there is room for them."""
    if matrices.places is not None:
        _draw_thumbnails(canvas, matrices.panels, matrices.places)
    elif matrices.panels[0].columns.kind == "head":
        _draw_heads(canvas, matrices.panels[0])
    else:
        widest = _WIDEST_EXAMPLE if matrices.example else canvas.limit
        _draw_panels(canvas, matrices.panels, widest)


def _draw_panels(canvas: Canvas, panels: Sequence[Panel], widest: float) -> None:
    """Draw matrices side by side, as many as fit; rows are labelled once."""
    bands: list[list[_Drawn]] = [[]]
    right = MARGIN
    squares = _squares(canvas, panels, widest) if canvas.fixed else None
    for panel in panels:
        title = _title(panel) if plain(panel.title) == panel.name else _name(panel)
        cell = _cell_size(canvas, panel) if squares is None else (squares, squares)
        inner = panel.matrix.shape[1] * cell[0]
        inner = max(
            inner,
            _title_width(panel)
            if squares
            else max(2 * BAR, min(spans_width(title), _WIDEST_TITLE)),
        )
        labels = rows_width(panel, canvas.settings.labels)
        shares_rows = bool(bands[-1]) and bands[-1][-1].panel.rows == panel.rows
        drawing = _Drawn(panel, cell, inner, 0.0 if shares_rows else labels)
        if bands[-1] and right + drawing.width > canvas.limit - MARGIN + 0.01:
            bands.append([])
            right = MARGIN
            drawing = replace(drawing, labels=labels)
        bands[-1].append(drawing)
        right += drawing.width + 2 * GAP
    for n, band in enumerate(bands):
        if n:
            canvas.y += GAP
        _draw_band(canvas, band)


def _squares(canvas: Canvas, panels: Sequence[Panel], widest: float) -> float:
    """Return the size of square cells that fill the width with as many matrices side by side as can be read.

    `widest`: largest width of a matrix.
    """
    columns = max(panel.matrix.shape[1] for panel in panels)
    labels = max(rows_width(panel, canvas.settings.labels) for panel in panels)
    room = canvas.limit - 2 * MARGIN - labels
    title = max(map(_title_width, panels))
    for across in range(len(panels), 0, -1):
        inner = (room - (across - 1) * 2 * GAP) / across
        if (inner >= columns * _LEAST_BESIDE and inner >= title) or across == 1:
            break
    return min(_LARGEST_SQUARE, min(inner, widest) / columns)


def _title_width(panel: Panel) -> float:
    """Return the width of the longest part of a title that no line breaks."""
    return max(spans_width(line) for line in wrap(_title(panel), 1, SIZE))


@dataclass(frozen=True)
class _Drawn:
    """A matrix as it is drawn."""

    panel: Panel
    cell: tuple[float, float]  # width and height
    inner: float
    # width of the labels of its rows; 0 if the matrix to its left has the same labels
    labels: float

    @property
    def width(self) -> float:
        """Width with the labels."""
        return self.labels + self.inner

    @property
    def numbered(self) -> bool:
        """Whether cells have room for their numbers."""
        return _numbered(self.panel) and _number_width(self.panel) + 2 <= self.cell[0]


def _draw_band(canvas: Canvas, band: Sequence[_Drawn]) -> None:
    """Draw matrices side by side, at the height that the longest title needs."""
    titles = [wrap(_title(drawing.panel), drawing.inner + 0.01, SIZE) for drawing in band]
    left = MARGIN
    top = canvas.y
    below = canvas.y
    for drawing, title in zip(band, titles, strict=True):
        left += drawing.labels
        if canvas.fixed and drawing is band[-1]:
            # what is written below it has the rest of the page
            drawing = replace(drawing, inner=canvas.limit - MARGIN - left)
        for n, line in enumerate(title):
            canvas.text(left, top + SIZE * (1 + _TITLE_LEADING * n), line)
        canvas.y = top + SIZE * _TITLE_LEADING * (max(map(len, titles)) - 1)
        below = max(below, _draw_panel(canvas, drawing, left))
        left += drawing.inner + 2 * GAP
    canvas.y = below


def _numbered(stage: Panel) -> bool:
    return stage.matrix.size <= _NUMBERED


def _cell_size(canvas: Canvas, stage: Panel) -> tuple[float, float]:
    """Return the size of a cell on a page that is as wide as its content."""
    if _numbered(stage):
        # Columns of stages and heads line up at this width.
        return max(_number_width(stage), text_width(_ORDINARY, SMALL)) + 5, 16.0
    cell = min(
        _CELL, max(_LEAST, (canvas.limit - 2 * MARGIN - LONGEST) / max(1, stage.matrix.shape[1]))
    )
    return cell, cell


def _number_width(stage: Panel) -> float:
    return max(
        (text_width(text.strip(), SMALL) for row in stage.texts for text in row if text != MASKED),
        default=0.0,
    )


def _title(stage: Panel) -> Spans:
    """Title a matrix by its stage, or by side and stage of a comparison, and name its axes."""
    if stage.columns.kind == "dim":
        return _name(stage)
    return *_name(stage), Span(
        f"  {stage.rows.kind}{TIE}↓{TIE}{TIE}{stage.columns.kind}{TIE}→", "dim"
    )


def _name(stage: Panel) -> Spans:
    title = plain(stage.title)
    if title in (stage.name, SHARES):
        return ours(title, "bold")
    words = [cut_name(word, _WIDEST_TITLE, SIZE * 1.1) for word in title.split(" ")]
    return Span(" ".join(words), "bold"), Span(f": {stage.name}", "bold")


def _draw_panel(canvas: Canvas, drawing: _Drawn, x: float) -> float:
    """Draw one matrix below its title with its labels, scale and arithmetic; return its lower edge."""
    stage = drawing.panel
    across, down = drawing.cell
    rows = names_of(stage.rows, canvas.settings.labels)
    columns = names_of(stage.columns, canvas.settings.labels)
    y = canvas.y + SIZE + 6
    y += max((text_width(name, label_size(across)[0]) for name in columns), default=0.0) + 4
    draw_names(canvas, x, y, across, columns, turned=True)
    draw_names(canvas, x, y, down, rows if drawing.labels else ())
    colours = _colours(stage)
    canvas.cells(x, y, (across, down), colours, apart=_numbered(stage))
    canvas.frame(x, y, across * stage.matrix.shape[1], down * len(rows))
    if drawing.numbered:
        for r, row in enumerate(stage.texts):
            for c, text in enumerate(row):
                look = Span("–" if text == MASKED else text.strip())
                middle = x + (c + 0.5) * across
                base = y + (r + 0.5) * down + SMALL * 0.35
                ink = _ink(colours[r][c])
                canvas.text(middle, base, (look,), size=SMALL, anchor="middle", colour=ink)
    return _draw_scale(canvas, stage, x, y + down * len(rows) + 8, drawing.inner)


def _ink(colour: str | None) -> str:
    return ink_on(colour) if colour else "#666666"


def _colours(stage: Panel) -> list[list[str | None]]:
    colours = [[_colour(stage.scale, value) for value in row] for row in stage.matrix.tolist()]
    if stage.name in ("weights", "output"):
        colours = [
            [None] * len(row) if stage.masked_rows[r] else row for r, row in enumerate(colours)
        ]
    for r, row in enumerate(stage.texts):
        for c, text in enumerate(row):
            colours[r][c] = None if text.strip() == NO_WEIGHT else colours[r][c]
    return colours


def _colour(scale: Scale | LogScale, value: float, steps: int = 0) -> str | None:
    """Return the colour of a value, rounded to `steps` colours unless that is 0; None if it is not on the scale."""
    fraction = scale.place(value)
    if fraction is None:
        return None
    return ramp_colour(round(fraction * steps) / steps if steps else fraction, signed=scale.signed)


def _draw_scale(canvas: Canvas, stage: Panel, x: float, y: float, width: float) -> float:
    y += draw_scale(canvas, x, y, stage.scale, *stage.ends, width)
    # cells that have a mark on a terminal are hatched here
    spans = [
        (span.text.replace(f"; {NO_WEIGHT}{TIE}", f"; hatched{TIE}"), span.origin)
        for span in stage.arithmetic_of_picture
    ]
    description = tuple(Span(text, "dim", origin) for text, origin in spans)
    # A description that equals the title is left out.
    for line in wrap(description, width, SMALL) if plain(description) != stage.name else []:
        y += SMALL * 1.35
        canvas.text(x, y, line, size=SMALL)
    return y + 8


def _draw_thumbnails(
    canvas: Canvas, panels: Sequence[Panel], places: Sequence[tuple[int, int]]
) -> None:
    """Draw every head small, layers below each other and heads side by side, on one scale."""
    scale = panels[0].scale
    logarithmic = isinstance(scale, LogScale)
    if not logarithmic and draw_labelled(canvas, panels, places):
        return
    layout = lay_out_heads(places)
    heads = layout.columns
    by_place = {cell: panel.matrix for cell, panel in zip(layout.cells, panels, strict=True)}
    shape = panels[0].matrix.shape
    rows, columns = (min(_THUMBNAIL, count) for count in shape)
    left = MARGIN + text_width(layout.rows[-1], SMALL) + 4
    side = min(72.0, (canvas.limit - MARGIN - left + 4) / len(heads) - 4)
    heading = max(text_width(name, SMALL) for name in heads)
    if not canvas.fixed:
        side = max(20.0, side, heading)
    for n, head in list(enumerate(heads))[:: ceil(heading / (side + 4))]:
        canvas.label(
            left + n * (side + 4) + side / 2,
            canvas.y + SMALL,
            head,
            anchor="middle",
        )
    canvas.y += SMALL + 4
    for index, layer in enumerate(layout.rows):
        canvas.label(left - 4, canvas.y + side / 2 + 3, layer, anchor="end")
        for n in range(len(heads)):
            if (index, n) in by_place:
                x = left + n * (side + 4)
                pixels = pool_largest(by_place[index, n], rows, columns)
                colours = [
                    [_colour(scale, pixel, _THUMBNAIL_STEPS) for pixel in row]
                    for row in pixels.tolist()
                ]
                canvas.cells(x, canvas.y, (side / columns, side / rows), colours, apart=False)
                canvas.frame(x, canvas.y, side, side)
        canvas.y += side + 4
    ends = "0", "1"
    description = panels[0].name
    if logarithmic:
        ends = f"{scale.low:.2g}", f"{scale.high:.2g}"
        description += ", logarithmic; hatched: exactly zero"
    cell = pooled_cells(shape, rows, columns, of_map=logarithmic)
    draw_legend(canvas, scale, *ends, f"{description}: queries are rows, keys are columns{cell}")


def draw_strips(canvas: Canvas, strips: Strips) -> None:
    """Draw lines of cells below each other, and what their colours stand for."""
    x = (
        MARGIN
        + 12 * strips.indent
        + max(text_width(strip.name, SMALL) for strip in strips.strips)
        + 8
    )
    ends = max(spans_width(strip.end, SMALL) for strip in strips.strips)
    cell = min(_CELL, (canvas.limit - MARGIN - x - ends - 6) / len(strips.cells))
    for strip in strips.strips:
        scale = strip_scale(strip.values)
        canvas.y += 3
        base = canvas.y + _CELL * 0.5 + SMALL * 0.35
        canvas.label(x - 6, base, strip.name, anchor="end")
        canvas.cells(
            x,
            canvas.y,
            (cell, _CELL),
            [[_colour(scale, value) for value in strip.values]],
            apart=False,
        )
        canvas.frame(x, canvas.y, cell * len(strip.values), _CELL)
        canvas.text(x + cell * len(strip.values) + 6, base, strip.end, size=SMALL)
        canvas.y += _CELL
    canvas.y += 4 + draw_scale(canvas, x, canvas.y + 3, Scale(-1.0, 1.0, signed=True), MINUS, "+")
    canvas.y += 4


def draw_map(canvas: Canvas, pooled: WeightMap) -> None:
    """Draw the map of a whole text on a logarithmic scale, with positions along both axes."""
    n_rows, n_columns = pooled.weights.shape
    cells = f"  map of {n_rows} × {n_columns} cells; "
    of_cell = "weight" if pooled.of == WEIGHTS else pooled.of
    meaning = f"a cell is the {of_cell} on a run of keys, averaged over a run of queries"
    canvas.paragraph((Span(pooled.of, "bold"), Span(cells, "dim"), Span(meaning, "dim")))
    scale = LogScale.of(pooled.weights)
    rows = names_of(pooled.first_queries, canvas.settings.labels)
    columns = names_of(pooled.first_keys, canvas.settings.labels)
    x = MARGIN + max(text_width(name, SMALL) for name in rows) + 16
    if canvas.fixed:
        cell = min(_LARGEST_SQUARE, (canvas.limit - MARGIN - x) / n_columns)
    else:
        cell = max(_LEAST, min(_CELL, (canvas.limit - 2 * MARGIN - 60) / n_columns))
    canvas.label(x, canvas.y + SMALL + 2, f"{pooled.first_keys.kind} →")
    y = canvas.y + SMALL + 6 + max(text_width(name, SMALL) for name in columns) + 4
    draw_names(canvas, x, y, cell, columns, turned=True)
    draw_names(canvas, x, y, cell, rows)
    colours = [[_colour(scale, weight) for weight in row] for row in pooled.weights.tolist()]
    canvas.cells(x, y, (cell, cell), colours, apart=False)
    canvas.frame(x, y, cell * n_columns, cell * n_rows)
    canvas.y = y + cell * n_rows
    none = int(np.isnan(pooled.weights).all(axis=1).sum())
    description = "logarithmic; queries are rows"
    if (pooled.weights == 0).any():
        description += "; hatched: exactly zero"
    if none:
        description += f"; hatched rows: {none} of {n_rows}, whose queries are fully masked"
    draw_legend(canvas, scale, *scale.ends(pooled.weights), description)


def _stacks(colours: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return the colours of the heads of every layer that have a role, the commonest role of all layers first."""
    counts = Counter(colour for row in colours for colour in row if colour)
    return [
        sorted(filter(None, row), key=list(dict(counts.most_common())).index) for row in colours
    ]


def _draw_stacks(
    canvas: Canvas,
    stacks: Sequence[Sequence[str]],
    at: tuple[float, float],
    size: tuple[float, float],
) -> None:
    """Draw a bar of every layer at a place: a piece of this size for every head with a role."""
    x, y = at
    step, down = size
    canvas.label(x, y - 4, "heads by role")
    for layer, stack in enumerate(stacks):
        start = x
        for colour, heads in groupby(stack):
            width = step * len(list(heads))
            canvas.fill(start, y + down * (layer + 0.15), width, down * 0.7, colour)
            start += width


def _measured_layers(panel: Panel) -> Panel:
    """Return the rows of layers that have a number."""
    layers = np.flatnonzero(np.isfinite(panel.matrix).any(1)).tolist()
    texts = [panel.texts[layer] for layer in layers]
    rows = panel.rows.select(layers)
    return structs.replace(panel, matrix=panel.matrix[layers], texts=texts, rows=rows)


def _draw_heads(canvas: Canvas, panel: Panel) -> None:
    """Draw a number for every head, or its role: a letter on the role's colour, the stronger the fuller."""
    if panel.colours is None:
        # as on a terminal, layers without a number are left out
        panel = _measured_layers(panel)
    texts = panel.texts
    colours = _colours(panel)
    if panel.colours is not None:
        colours = [
            [
                mixed_with_white(colour, 0.25 + 0.75 * strength) if colour else "#ffffff"
                for colour, strength in zip(row, strengths, strict=True)
            ]
            for row, strengths in zip(panel.colours, panel.matrix.tolist(), strict=True)
        ]
    headings = [f"H{head}" for head in range(len(texts[0]))]
    x = MARGIN + max(text_width(panel.rows.number(layer), SMALL) for layer in range(len(texts))) + 6
    widest = max(text_width(text.strip(), SMALL) for row in texts for text in row) + 5
    across = max(18.0, widest, *(text_width(heading, SMALL) + 5 for heading in headings))
    stacks = [] if panel.colours is None else _stacks(panel.colours)
    stacked = max(map(len, stacks), default=0)
    room = canvas.limit - MARGIN - x - 2 * GAP * bool(stacked)
    if canvas.fixed:
        cells = len(headings) + stacked * _STACKED
        across = min(_LARGEST_SQUARE, room / cells, _TALLEST * room / len(texts))
    down = across if canvas.fixed or panel.colours is not None else 16.0
    y = canvas.y + SMALL + 6
    for head in range(0, len(headings), ceil((text_width(headings[-1], SMALL) + 2) / across)):
        canvas.label(
            x + (head + 0.5) * across,
            y - 4,
            headings[head],
            anchor="middle",
        )
    canvas.cells(x, y, (across, down), colours, apart=True)
    written = widest - 4 <= across and down >= SMALL
    for layer, row in enumerate(texts):
        base = y + (layer + 0.5) * down + SMALL * 0.35
        if layer % ceil(SMALL / down) == 0:
            canvas.label(x - 4, base, panel.rows.number(layer), anchor="end")
        for head, text in enumerate(row if written else ()):
            ink = _ink(colours[layer][head])
            canvas.text(
                x + (head + 0.5) * across,
                base,
                ours(text.strip()),
                size=SMALL,
                anchor="middle",
                colour=ink,
            )
    beside = x + across * len(headings) + 2 * GAP
    step = min(across * _STACKED, (canvas.limit - MARGIN - beside) / max(1, stacked))
    if stacked and step >= _LEAST:
        _draw_stacks(canvas, stacks, (beside, y), (step, down))
    canvas.y = y + down * len(texts) + 4
    if panel.colours is None:
        canvas.y += 8 + draw_scale(canvas, MARGIN, canvas.y + 4, panel.scale, *panel.ends)
    if panel.fuller:
        canvas.y += SMALL + 4
        canvas.label(MARGIN, canvas.y, f"a fuller colour is {panel.fuller}")
