"""Draw text: facts, paragraphs, bars and tables."""

from collections.abc import Sequence
from math import ceil

from msgspec import structs

from attnscope.views.axes import Axis
from attnscope.views.figure.canvas import (
    GAP,
    MARGIN,
    SIZE,
    SMALL,
    Canvas,
    column_widths,
    plain,
    spans_width,
    text_width,
)
from attnscope.views.figure.colours import BAR
from attnscope.views.numbers import MASKED, MINUS, NOTHING
from attnscope.views.parts import Bar, Bars, Cell, Column, Facts, OneLine, Table, Text, joined
from attnscope.views.spans import Look, Span, Spans, ours, without_hints

# Units of a step from the left edge.
_INDENT = 14.0
# Width of the column of names.
_NAMES = 56.0
# Units of a full bar: of one without an axis, which is the least of others, too, of the longest, and of the shortest
# beside a legend.
_BAR = 80.0
_LONGEST_BAR = 240.0
_SHORTEST_BAR = 40.0
_AXIS = "#666666"
# Units that other cells of a line with items take.
_BESIDE_ITEMS = 200.0
# Largest number of further columns of a table that are shown.
_FURTHER = 6


def draw_text(canvas: Canvas, text: Text) -> None:
    """Write items one after the other, or leave an empty line."""
    if text.items:
        canvas.paragraph(_whole(text, canvas.limit), x=MARGIN + _INDENT * text.indent)
    else:
        canvas.y += GAP


def _whole(cell: Cell | OneLine, limit: float, look: Look = "") -> Spans:
    """Return a cell or fact as one text; of items on one line, as many as fit on a page of this width."""
    if isinstance(cell, str):
        return ours(cell, look)
    if not isinstance(cell, Text) or cell.cut is None:
        return without_hints(joined(cell))
    shown_count = 0
    used = 0.0
    for item in cell.items:
        used += spans_width(item, SMALL) + text_width(cell.between, SMALL)
        if shown_count and used > limit - 2 * MARGIN - _BESIDE_ITEMS:
            break
        shown_count += 1
    left = len(cell.items) - shown_count
    return *joined(Text(cell.items[:shown_count], cell.between)), Span(
        cell.cut.format(left) if left else "", "dim"
    )


def draw_facts(canvas: Canvas, facts: Facts) -> None:
    """Write a name and a value a line; a note that only says what to type is left out."""
    x = MARGIN + _INDENT * facts.indent
    values = [(name, _whole(value, canvas.limit)) for name, value in facts.lines]
    lines = [(name, value) for name, value in values if value]
    names = max([_NAMES, *(text_width(name, SMALL) + 8 for name, _ in lines)])
    for name, value in lines:
        canvas.text(x, canvas.y + SMALL, ours(name, facts.look), size=SMALL)
        canvas.paragraph(value, x=x + names, size=SMALL)


def _entry(axis: Axis, index: int) -> Spans:
    name = axis.names[index] if axis.names else Span("")
    return (Span(f"{axis.number(index)} "), name)


def draw_bars(canvas: Canvas, bars: Bars) -> None:
    """Write every query with its strongest sources side by side, or the sources of a text, each within its text."""
    if bars.queries is None:
        _draw_attended(canvas, bars)
        return
    canvas.paragraph((*bars.title, *bars.meaning))
    # A row without sources has a placeholder, which takes a cell.
    longest = max((len(row or [0]) for row in bars.rows), default=0)
    rows, last = _source_rows(bars, bars.queries, longest)
    while canvas.fixed and longest > 1 and _table_width(rows, last) > canvas.limit - 2 * MARGIN:
        longest -= 1
        rows, last = _source_rows(bars, bars.queries, longest)
    canvas.table(
        rows,
        right=[False, *[False, *[True] * len(bars.measures), False] * longest],
        size=SMALL,
        last=last,
    )
    shown = {bar.remark for row in bars.rows for bar in (row or ())[:longest] if bar.remark}
    for mark, words in sorted(shown):
        canvas.paragraph(ours(f"{mark} {words}", "remark"), size=SMALL)


def _table_width(rows: Sequence[Sequence[Spans]], last: Sequence[tuple[int, Spans]]) -> float:
    """Return the width of a table, with the text at the end of its rows."""
    widths = [width + SIZE for width in column_widths(rows, SMALL)]
    return max(
        sum(widths), *(sum(widths[:start]) + spans_width(text, SMALL) for start, text in last)
    )


def _source_rows(
    bars: Bars, queries: Axis, count: int
) -> tuple[list[list[Spans]], list[tuple[int, Spans]]]:
    """Return a row for every query with its strongest sources, at most `count`, and what the others sum to."""
    rows: list[list[Spans]] = [[ours("query", "dim")]]
    for _ in range(count):
        rows[0] += [ours("← source", "dim"), *(ours(name, "dim") for name in bars.measures), ()]
    last: list[tuple[int, Spans]] = [(0, ())]
    for q, (sources, unlisted) in enumerate(
        zip(bars.rows, bars.row_remainders(count), strict=True)
    ):
        row = [_entry(queries, q)]
        for bar in (sources or ())[:count]:
            remark = ours(bar.remark[0], "remark") if bar.remark else ()
            row += [_entry(bars.sources, bar.index), *map(ours, bar.numbers), remark]
        if not sources and unlisted is None:
            row.append(ours(MASKED if sources is None else NOTHING, "dim"))
        last.append(
            (len(row), () if unlisted is None else ours(f"{unlisted[0]}: {unlisted[1]}", "dim"))
        )
        rows.append([*row, *[()] * (len(rows[0]) - len(row))])
    return rows, last


def _draw_attended(canvas: Canvas, bars: Bars) -> None:
    rows: list[list[Spans]] = [
        [ours(title, "dim") for title in ("source", *bars.measures, "in the text")]
    ]
    sources = bars.rows[0] or ()
    rows += [[_entry(bars.sources, bar.index), *map(ours, bar.numbers), ()] for bar in sources]
    others = sum(width + SIZE for width in column_widths([row[:-1] for row in rows], SMALL))
    room = canvas.limit - 2 * MARGIN - others
    for row, bar in zip(rows[1:], sources, strict=True):
        name = plain([bars.sources.names[bar.index]])
        count = max(len(bar.before), len(bar.after))
        row[-1] = _within(name, bar, count)
        while canvas.fixed and count and spans_width(row[-1], SMALL) > room:
            count -= 1
            row[-1] = _within(name, bar, count)
    canvas.table(rows, right=[False, *[True] * len(bars.measures), False], size=SMALL)


def _within(name: str, bar: Bar, count: int) -> Spans:
    """Write a source between its neighbours in the text, at most `count` on each side."""
    spans = [*reversed(bar.before[:count]), Span(f"[{name}]", "bold"), *bar.after[:count]]
    return tuple(
        span for pair in zip(spans, [Span(" ")] * len(spans), strict=True) for span in pair
    )


def draw_table(canvas: Canvas, table: Table) -> None:
    """Write rows of cells, with bars beside them, and with squares in the colours of their labels."""
    if table.keys is None:
        labels = []
    else:
        labels = [_entry(table.keys, n) for n in range(len(table.keys.positions))]
    labels += table.labels
    coloured = any(span.colour for label in labels for span in label)
    x = MARGIN + _INDENT * max(table.indent, coloured)
    room = canvas.limit - MARGIN - x
    half = (room - _INDENT - 2 * GAP) / 2
    if table.legend and canvas.settings.only is None and _fits(canvas, table, labels, half):
        _draw_halves(canvas, table, labels, x, half)
        return
    columns = _shown_columns(canvas, table, labels, room)
    _draw_rows(canvas, table, labels, columns, x, _BAR)
    if canvas.settings.only is None and not table.legend:
        others = [column for column in table.columns if column not in columns]
        without_bars = structs.replace(table, bars=None)
        for part in _below_each_other(canvas, without_bars, labels, others, room):
            _draw_rows(canvas, without_bars, labels, part, x, _BAR)
    shown = sum(column in columns for column in table.further)
    if table.further_name and len(table.further) > shown:
        note = f"the first {shown} of {len(table.further)} {table.further_name}"
        canvas.paragraph(ours(note, "dim"), x=x, size=SMALL)


def _fits(canvas: Canvas, table: Table, labels: Sequence[Spans], room: float) -> bool:
    """Tell whether a legend has room for a column and bars."""
    columns = _shown_columns(canvas, table, labels, room, _SHORTEST_BAR)
    return _columns_width(canvas, table, labels, columns) + _SHORTEST_BAR <= room


def _draw_halves(
    canvas: Canvas, table: Table, labels: Sequence[Spans], x: float, half: float
) -> None:
    """Draw the rows of a legend in two columns, with bars of one scale."""
    top = canvas.y
    middle = ceil(len(labels) / 2)
    columns = _shown_columns(canvas, table, labels, half, _SHORTEST_BAR)
    bar = min(_BAR, half - _columns_width(canvas, table, labels, columns))
    # the longer half is the last, below which the page goes on
    for left, part in ((x + half + _INDENT + 2 * GAP, slice(middle, None)), (x, slice(middle))):
        canvas.y = top
        own = [structs.replace(column, cells=column.cells[part]) for column in columns]
        bars = None if table.bars is None else table.bars[part]
        rows = structs.replace(table, bars=bars, axis=None)
        _draw_rows(canvas, rows, labels[part], own, left, bar)


def _draw_rows(
    canvas: Canvas,
    table: Table,
    labels: Sequence[Spans],
    columns: Sequence[Column],
    x: float,
    bar: float,
) -> None:
    """Write rows, with squares in the colours of their labels, and bars: `bar` is a full one that has no axis."""
    rows = _rows(canvas, table, labels, columns)
    right, (_, *bases) = canvas.table(
        rows, right=[False, *(not c.left for c in columns)], x=x, size=SMALL
    )
    for label, base in zip(labels, bases, strict=True):
        for span in label:
            if span.colour:
                canvas.fill(x - _INDENT, base - SMALL * 0.8, SMALL * 0.9, SMALL * 0.9, span.colour)
    if table.bars is not None:
        _draw_bars_beside(canvas, table, right, bases, bar)


def _below_each_other(
    canvas: Canvas, table: Table, labels: Sequence[Spans], columns: Sequence[Column], room: float
) -> list[list[Column]]:
    """Return columns in parts, as many in each as fit side by side."""
    parts: list[list[Column]] = []
    for column in columns:
        if parts and _columns_width(canvas, table, labels, [*parts[-1], column]) <= room:
            parts[-1].append(column)
        else:
            parts.append([column])
    return parts


def _shown_columns(
    canvas: Canvas, table: Table, labels: Sequence[Spans], room: float, bar: float = _BAR
) -> list[Column]:
    """Return the columns, the one that bars draw the last; on a page of a named width, as many as leave room for these."""
    columns = [*table.columns, *table.further[:_FURTHER]]
    is_narrow = canvas.fixed or table.legend
    last: list[Column] = []
    if table.bars is not None:
        room -= bar
        last = [columns.pop(table.measured)]
        if canvas.settings.only == "bars":
            columns = []
    while is_narrow and len(columns) + len(last) > 1:
        if _columns_width(canvas, table, labels, [*columns, *last]) <= room:
            break
        columns.pop()
    return [*columns, *last]


def _columns_width(
    canvas: Canvas, table: Table, labels: Sequence[Spans], columns: Sequence[Column]
) -> float:
    widths = column_widths(_rows(canvas, table, labels, columns), SMALL)
    return sum(widths) + SIZE * len(widths)


def _rows(
    canvas: Canvas, table: Table, labels: Sequence[Spans], columns: Sequence[Column]
) -> list[list[Spans]]:
    # items leave room for bars
    limit = canvas.limit - (0.0 if table.bars is None else _BAR + SIZE)
    headings = (ours(plain(_whole(column.heading, limit)), "dim") for column in columns)
    rows = [[ours(table.heading, "dim"), *headings]]
    rows += [
        [label, *(_whole(c.cells[n], limit, c.look) for c in columns)]
        for n, label in enumerate(labels)
    ]
    return rows


def _draw_bars_beside(
    canvas: Canvas, table: Table, left: float, bases: Sequence[float], longest: float
) -> None:
    """Draw a bar for each row, and below them the axis that they are read on, if it is known."""
    shares = table.bars or ()
    least = min([0.0, *(share for share in shares if share is not None)])
    if table.axis is not None:
        end = text_width(_axis_end(*table.axis), SMALL) / 2
        longest = min(_LONGEST_BAR, (canvas.limit - MARGIN - left - end) / (1 - least))
    zero = left - longest * least
    for share, base in zip(shares, bases, strict=True):
        if share:
            start = zero + longest * min(share, 0.0)
            canvas.fill(start, base - SMALL * 0.72, abs(share) * longest, SMALL * 0.72, BAR)
    if table.axis is not None:
        largest, unit = table.axis
        canvas.fill(zero + longest * least, canvas.y + 2, longest * (1 - least), 0.5, _AXIS)
        ticks = {0.0: "0", 1.0: _axis_end(largest, unit)} | (
            {least: f"{largest * least:.3g}"} if least < -0.2 else {}
        )
        for share, text in ticks.items():
            canvas.fill(zero + longest * share, canvas.y + 2, 0.5, 3, _AXIS)
            tick = ours(text.replace("-", MINUS), "dim")
            canvas.text(
                zero + longest * share, canvas.y + 6 + SMALL, tick, size=SMALL, anchor="middle"
            )
        canvas.y += 8 + SMALL


def _axis_end(largest: float, unit: str) -> str:
    return f"{largest:.3g} {unit}".strip()
