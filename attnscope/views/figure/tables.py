"""Draw text: facts, paragraphs, bars and tables."""

from attnscope.views.axes import Axis
from attnscope.views.figure.canvas import GAP, MARGIN, SMALL, WIDTH, Canvas, plain, spans_width, text_width
from attnscope.views.figure.colours import BAR
from attnscope.views.numbers import MASKED, NOTHING
from attnscope.views.parts import Bars, Cell, Facts, OneLine, Table, Text, joined
from attnscope.views.spans import Look, Span, Spans, ours

# Units of a step from the left edge.
_INDENT = 14.0
# Width of the column of names.
_NAMES = 56.0
# Units of a full bar.
_BAR = 80.0
# Width of items on one line.
_ITEMS = WIDTH - 2 * MARGIN - 200
# Largest number of further columns of a table that are shown.
_FURTHER = 6


def draw_text(canvas: Canvas, text: Text) -> None:
    """Write items one after the other, or leave an empty line."""
    if text.items:
        canvas.paragraph(_whole(text), x=MARGIN + _INDENT * text.indent)
    else:
        canvas.y += GAP


def _whole(cell: Cell | OneLine, look: Look = "") -> Spans:
    """Return a cell or fact as one text; of items on one line, as many as fit."""
    if isinstance(cell, str):
        return ours(cell, look)
    if not isinstance(cell, Text) or cell.cut is None:
        return joined(cell)
    shown_count = 0
    used = 0.0
    for item in cell.items:
        used += spans_width(item, SMALL) + text_width(cell.between, SMALL)
        if shown_count and used > _ITEMS:
            break
        shown_count += 1
    left = len(cell.items) - shown_count
    return *joined(Text(cell.items[:shown_count], cell.between)), Span(cell.cut.format(left) if left else "", "dim")


def draw_facts(canvas: Canvas, facts: Facts) -> None:
    """Write a name and a value a line."""
    x = MARGIN + _INDENT * facts.indent
    names = max([_NAMES, *(text_width(name, SMALL) + 8 for name, _ in facts.lines)])
    for name, value in facts.lines:
        canvas.text(x, canvas.y + SMALL, ours(name, facts.look), size=SMALL)
        canvas.paragraph(_whole(value), x=x + names, size=SMALL)


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
    rows: list[list[Spans]] = [[ours("query", "dim")]]
    for _ in range(longest):
        rows[0] += [ours("← source", "dim"), *(ours(name, "dim") for name in bars.measures), ()]
    last: list[tuple[int, Spans]] = [(0, ())]
    for q, (sources, unlisted) in enumerate(zip(bars.rows, bars.row_remainders(), strict=True)):
        row = [_entry(bars.queries, q)]
        for bar in sources or ():
            remark = ours(bar.remark[0], "remark") if bar.remark else ()
            row += [_entry(bars.sources, bar.index), *map(ours, bar.numbers), remark]
        if not sources and unlisted is None:
            row.append(ours(MASKED if sources is None else NOTHING, "dim"))
        last.append((len(row), () if unlisted is None else ours(f"{unlisted[0]}: {unlisted[1]}", "dim")))
        rows.append([*row, *[()] * (len(rows[0]) - len(row))])
    canvas.table(rows, right=[False, *[False, *[True] * len(bars.measures), False] * longest], size=SMALL, last=last)
    for mark, words in bars.remarks():
        canvas.paragraph(ours(f"{mark} {words}", "remark"), size=SMALL)


def _draw_attended(canvas: Canvas, bars: Bars) -> None:
    rows: list[list[Spans]] = [[ours(title, "dim") for title in ("source", *bars.measures, "in the text")]]
    for bar in bars.rows[0] or ():
        middle = Span(f"[{plain([bars.sources.names[bar.index]])}]", "bold")
        spans = [*reversed(bar.before), middle, *bar.after]
        within = tuple(span for pair in zip(spans, [Span(" ")] * len(spans), strict=True) for span in pair)
        rows.append([_entry(bars.sources, bar.index), *map(ours, bar.numbers), within])
    canvas.table(rows, right=[False, *[True] * len(bars.measures), False], size=SMALL)


def draw_table(canvas: Canvas, table: Table) -> None:
    """Write rows of cells, with bars beside them, and with squares in the colours of their labels."""
    labels = [] if table.keys is None else [_entry(table.keys, n) for n in range(len(table.keys.positions))]
    labels += table.labels
    columns = [*table.columns, *table.further[:_FURTHER]]
    rows = [[ours(table.heading, "dim"), *(ours(plain(_whole(column.heading)), "dim") for column in columns)]]
    rows += [[label, *(_whole(c.cells[n], c.look) for c in columns)] for n, label in enumerate(labels)]
    coloured = any(span.colour for label in labels for span in label)
    x = MARGIN + _INDENT * max(table.indent, coloured)
    right, (_, *bases) = canvas.table(rows, right=[False, *(not c.left for c in columns)], x=x, size=SMALL)
    for label, base in zip(labels, bases, strict=True):
        for span in label:
            if span.colour:
                canvas.fill(x - _INDENT, base - SMALL * 0.8, SMALL * 0.9, SMALL * 0.9, span.colour)
    zero = right - _BAR * min([0.0, *(share for share in table.bars or () if share is not None)])
    for share, base in zip(table.bars or (), bases, strict=table.bars is not None):
        if share:
            canvas.fill(zero + _BAR * min(share, 0.0), base - SMALL * 0.72, abs(share) * _BAR, SMALL * 0.72, BAR)
    if table.further_name and len(table.further) > _FURTHER:
        note = f"the first {_FURTHER} of {len(table.further)} {table.further_name}"
        canvas.paragraph(ours(note, "dim"), x=x, size=SMALL)
