"""Draw what is text: facts, paragraphs, rankings and tables of numbers."""

from attnscope.views.axes import Axis
from attnscope.views.figure.canvas import MARGIN, SIZE, SMALL, WIDTH, Canvas, plain, spans_width, text_width
from attnscope.views.figure.colours import BAR
from attnscope.views.numbers import MASKED, NOTHING, ZERO, written
from attnscope.views.parts import (
    Facts,
    Flow,
    Grid,
    Listed,
    MostAttended,
    MovedSources,
    Moves,
    OneLine,
    Paragraph,
    Ranking,
    StrongestHeads,
    VectorLine,
)
from attnscope.views.spans import Span, Spans, ours

_INDENT = 14.0  # units of a step from the left edge
_NAMES = 56.0  # width of the column of names
_BAR = 80.0  # units of a full bar


def put_paragraph(canvas: Canvas, paragraph: Paragraph) -> None:
    """Write a paragraph."""
    canvas.paragraph(paragraph.spans, x=MARGIN + _INDENT * paragraph.indent)


def put_flow(canvas: Canvas, items: Flow) -> None:
    """Write items one after the other."""
    canvas.paragraph(_joined(items), x=MARGIN + _INDENT * items.indent)


def _joined(items: Flow) -> Spans:
    spans: list[Span] = []
    for item in items.items:
        spans += [*ours(items.between), *item] if spans else item
    return tuple(spans)


def put_facts(canvas: Canvas, facts: Facts) -> None:
    """Write a name and a value a line."""
    names = max([_NAMES, *(text_width(name, SMALL) + 8 for name, _ in facts.lines)])
    for name, value in facts.lines:
        canvas.text(MARGIN, canvas.y + SMALL, ours(name, "dim"), size=SMALL)
        canvas.paragraph(_whole(value), x=MARGIN + names, size=SMALL)


def _whole(value: Spans | Flow | OneLine) -> Spans:
    if isinstance(value, OneLine):
        return *value.lead, *value.text, *value.after
    return _joined(value) if isinstance(value, Flow) else value


def _entry(axis: Axis, index: int) -> Spans:
    name = axis.names[index] if axis.names else Span("")
    return (Span(f"{axis.number(index)} "), name)


def put_ranking(canvas: Canvas, ranking: Ranking) -> None:
    """Write every query with its strongest sources, side by side."""
    canvas.paragraph((*ranking.title, *ranking.meaning))
    most = max((len(row or [0]) for row in ranking.rows), default=0)  # what stands in place of sources takes a cell
    rows: list[list[Spans]] = [[ours("query", "dim")]]
    for _ in range(most):
        rows[0] += [ours("← source", "dim"), *(ours(name, "dim") for name in ranking.measures), ()]
    last: list[tuple[int, Spans]] = [(0, ())]
    for q, sources in enumerate(ranking.rows):
        row = [_entry(ranking.queries, q)]
        for source in sources or []:
            remark = ours(source.remark[0], "remark") if source.remark else ()
            row += [_entry(ranking.sources, source.index), *map(ours, source.numbers), remark]
        if not sources and ranking.rest[q] is None:
            row.append(ours(MASKED if sources is None else NOTHING, "dim"))
        rest = ranking.rest[q]
        last.append((len(row), () if rest is None else ours(f"{rest[0]}: {rest[1]}", "dim")))
        rows.append([*row, *[()] * (len(rows[0]) - len(row))])
    canvas.table(rows, right=[False, *[False, *[True] * len(ranking.measures), False] * most], size=SMALL, last=last)
    said = {source.remark for row in ranking.rows for source in row or [] if source.remark}
    for mark, words in sorted(said):
        canvas.paragraph(ours(f"{mark} {words}", "remark"), size=SMALL)


def put_attended(canvas: Canvas, attended: MostAttended) -> None:
    """Write the sources that get the most weight, each within its text."""
    rows: list[list[Spans]] = [[ours(title, "dim") for title in ("source", "weight", "share", "in the text")]]
    for n, row in enumerate(attended.rows):
        spans = [*reversed(row.before), Span(f"[{plain([attended.sources.names[n]])}]", "bold"), *row.after]
        text = tuple(one for span in spans for one in (span, Span(" ")))
        rows.append([_entry(attended.sources, n), ours(row.weight), ours(row.share), text])
    canvas.table(rows, right=[False, True, True, False], size=SMALL)


def put_moved_sources(canvas: Canvas, moved: MovedSources) -> None:
    """Write the sources whose weight differs most between two sides."""
    rows = [[ours("source", "dim"), *moved.sides, ours("change", "dim")]]
    for n, cells in enumerate(zip(*moved.columns, strict=True)):
        rows.append([_entry(moved.sources, n), *map(ours, cells)])
    canvas.table(rows, right=[False, True, True, True], size=SMALL)


def put_moves(canvas: Canvas, moves: Moves) -> None:
    """Write what moved, a query a row."""
    rows = [[ours(title, "dim") for title in moves.titles], *moves.rows]
    canvas.table(rows, right=[not named for named in moves.named], size=SMALL)


def put_strongest(canvas: Canvas, strongest: StrongestHeads) -> None:
    """Write the strongest heads of every role."""
    room = WIDTH - 2 * MARGIN - 200
    rows: list[list[Spans]] = [[ours("role", "dim"), ours("heads", "dim"), ours("strongest, ± standard error", "dim")]]
    for row in strongest.rows:
        heads: Spans = ()
        for head in row.heads:
            longer = (*heads, Span("  "), *head) if heads else head
            if strongest.one_line and heads and spans_width(longer, SMALL) > room:
                break
            heads = longer
        rows.append([(Span(f"{row.role.letter} ", "bold"), Span(row.title)), row.count, heads or ours(row.none, "dim")])
    _, (_, *bases) = canvas.table(rows, right=[False, True, False], x=MARGIN + _INDENT, size=SMALL)
    for row, base in zip(strongest.rows, bases, strict=True):
        if row.role.colour is not None:
            canvas.fill(MARGIN, base - SMALL * 0.8, SMALL * 0.9, SMALL * 0.9, row.role.colour)


def put_listed(canvas: Canvas, listed: Listed) -> None:
    """Write a title and items beside it."""
    canvas.paragraph((Span(listed.title, "bold"), Span("  "), Span("  ".join(listed.items))), size=SMALL)


def put_grid(canvas: Canvas, grid: Grid) -> None:
    """Write rows of numbers; of vectors, the first dimensions."""
    labels = [] if grid.keys is None else [_entry(grid.keys, n) for n in range(len(grid.keys.positions))]
    labels += grid.others
    columns = [
        [ours(column.heading, "dim"), *(ours(cell, column.look) for cell in column.cells)] for column in grid.columns
    ]
    said = ""
    if grid.dimensions is not None:
        count = grid.dimensions.matrix.shape[1]
        shown = min(count, 6)
        for i in range(shown):
            cells = written(grid.dimensions.matrix[:, i].tolist(), grid.dimensions.digits, ZERO)
            columns.append([ours(f"dim {i}", "dim"), *(ours(cell, "dim") for cell in cells)])
        if grid.dimensions.whole and shown < count:
            said = f"the first {shown} of {count} dimensions of {grid.dimensions.name}"
    rows = [[ours(grid.heading, "dim"), *(column[0] for column in columns)]]
    rows += [[label, *(column[n + 1] for column in columns)] for n, label in enumerate(labels)]
    x = MARGIN + _INDENT
    right, (_, *bases) = canvas.table(rows, right=[False, *[True] * len(columns)], x=x, size=SMALL)
    zero = right - _BAR * min([0.0, *(share for share in grid.bars or () if share is not None)])
    for share, base in zip(grid.bars or (), bases, strict=grid.bars is not None):
        if share:
            canvas.fill(zero + _BAR * min(share, 0.0), base - SMALL * 0.72, abs(share) * _BAR, SMALL * 0.72, BAR)
    if said:
        canvas.paragraph(ours(said, "dim"), x=x, size=SMALL)


def put_vector(canvas: Canvas, vector: VectorLine) -> None:
    """Write how a vector was made, its norm and its first numbers."""
    canvas.paragraph((Span(vector.name, "bold"), Span(f"  {vector.made}", "dim")), x=MARGIN + _INDENT)
    values = vector.values.tolist()
    first = "  ".join(vector.digits.text(value) for value in values[:8])
    more = f"  … {len(values) - 8} more" if len(values) > 8 else ""
    canvas.paragraph((Span(f"‖·‖ {vector.norm}   "), Span(first + more, "dim")), x=MARGIN + 2 * _INDENT, size=SIZE)
