"""Draw the strongest sources of every query."""

from dataclasses import dataclass

import numpy as np
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from attnscope.report import HeadReport, Matrix, TextReport, Top
from attnscope.views.terminal.labels import Axis, say_shortened, token_axis
from attnscope.views.terminal.numbers import MASKED, Digits, digits_for
from attnscope.views.terminal.screen import Screen, flow
from attnscope.views.terminal.stages import source_kind

BAR = 10  # Cells of a full bar.
SHARP = 4.0  # A source's share of weight over its share of content (or the reverse) that is worth a remark …
MATTERS = 0.2  # … where the larger of the two is at least this, 1 being the row's strongest source.
_QUERY, _SOURCE = "query", "  ← source"
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_LITTLE = ("▾", "more weight than content")
_MUCH = ("▴", "more content than weight")
_NAMES = {"weight": "weight", "value": "α·‖v‖", "projected": "α·‖vW‖"}


@dataclass(frozen=True)
class SourceRow:
    """One source of one query.

    Attributes:
        index: Its position among the sources.
        bar: Its share of a full bar, 0 to 1.
        numbers: Its weight and norms, as text.
        remark: A mark and what it says; None where weight and content agree.
    """

    index: int
    bar: float
    numbers: list[str]
    remark: tuple[str, str] | None


@dataclass(frozen=True)
class Ranking:
    """Every shown query with its sources.

    Attributes:
        queries: The queries.
        sources: Every token that can be a source.
        measures: Headings of the numbers.
        rows: Per query its sources, strongest first; None where it may attend to nothing.
    """

    queries: Axis
    sources: Axis
    measures: list[str]
    rows: list[list[SourceRow] | None]


def put_contributors(screen: Screen, text: TextReport, head: HeadReport, *, compact: bool = False) -> None:
    """Print the strongest sources of every shown query.

    Args:
        screen: Where to.
        text: The text.
        head: The head, with its `top`.
        compact: One paragraph per query in place of one line per source.
    """
    top = head.top
    left_out = f", without {' and '.join(top.left_out)}" if top.left_out else ""
    norms = "α·‖v‖: weight × norm of the source's value"
    if top.projected is not None:
        norms += "; α·‖vW‖: after the output projection"
    screen.say(("top contributors", "bold"), (f"  by {_NAMES.get(top.by, top.by)}{left_out}; {norms}", "dim"))
    ranking = rank(screen, text, head)
    names = [axis.name_cells(screen.width) for axis in (ranking.queries, ranking.sources)]
    if compact:
        _put_compact(screen, ranking, names[0])
        return
    layouts = ((BAR, True), (BAR, False), (0, False))
    fitting = [layout for layout in layouts if _width(ranking, names, *layout) <= screen.width]
    if not fitting:
        _put_compact(screen, ranking, names[0])
        return
    bar, remarks = fitting[0]
    screen.put(_table(screen, ranking, names, bar, remarks))
    if not remarks:
        _put_marks(screen, ranking)
    _put_shortened(screen, ranking, names)


def rank(screen: Screen, text: TextReport, head: HeadReport) -> Ranking:
    """The sources of every query, with numbers as text and remarks."""
    top = head.top
    measures = {"weight": top.weight, "value": top.value}
    if top.projected is not None:
        measures["projected"] = top.projected
    digits = [digits_for(m, screen.precision + (name == "weight")) for name, m in measures.items()]
    ranked = measures.get(top.by, top.weight)
    full = 1.0 if top.by == "weight" else _largest(ranked)
    rows = [
        None if position in head.fully_masked else _sources(top, r, list(measures.values()), digits, ranked[r] / full)
        for r, position in enumerate(text.queries)
    ]
    queries = token_axis(screen, "query", text.tokens, text.queries)
    sources = token_axis(screen, source_kind(text), text.sources)
    return Ranking(queries, sources, [_NAMES[name] for name in measures], rows)


def _sources(top: Top, r: int, measures: list[Matrix], digits: list[Digits], bars: np.ndarray) -> list[SourceRow]:
    remarks = _remarks(top.weight[r], top.value[r] if top.projected is None else top.projected[r])
    return [
        SourceRow(
            key, float(bars[k]), [d.text(float(m[r, k])) for m, d in zip(measures, digits, strict=True)], remarks[k]
        )
        for k, key in enumerate(top.keys[r].tolist())
        if key >= 0
    ]


def _remarks(weight: np.ndarray, content: np.ndarray) -> list[tuple[str, str] | None]:
    """Where a source's rank by weight and its rank by content differ, and their shares of the row differ sharply."""
    remarks: list[tuple[str, str] | None] = [None] * len(weight)
    known = np.isfinite(weight) & np.isfinite(content)
    if known.sum() < 2 or not weight[known].max() or not content[known].max():
        return remarks
    weight, content = (np.where(known, a, np.float32(-1)) / a[known].max() for a in (weight, content))
    for k in np.flatnonzero(known):
        by_weight, by_content = int((weight > weight[k]).sum()), int((content > content[k]).sum())
        if by_weight < by_content and weight[k] >= max(MATTERS, SHARP * content[k]):
            remarks[k] = _LITTLE
        if by_content < by_weight and content[k] >= max(MATTERS, SHARP * weight[k]):
            remarks[k] = _MUCH
    return remarks


def _largest(matrix: Matrix) -> float:
    finite = matrix[np.isfinite(matrix)]
    return float(finite.max()) if finite.size and finite.max() > 0 else 1.0


def _width(ranking: Ranking, names: list[int], bar: int, remarks: bool) -> int:
    """Cells that the table needs with bars of this width, with remarks in words or as marks."""
    labels = sum(_label_widths(ranking, names))
    said = [source.remark for row in ranking.rows for source in row or [] if source.remark]
    words = (2 + max(len(text) for _, text in said) if remarks else 2) if said else 0
    return labels + (bar + 1 if bar else 0) + sum(w + 2 for w in _number_widths(ranking)) + words


def _label_widths(ranking: Ranking, names: list[int]) -> tuple[int, int]:
    """Cells of the queries' column and of the sources', headings and rows without sources included."""
    query = max(len(_QUERY), names[0] + ranking.queries.digits + 1)
    source = max(len(_SOURCE), len("  ← ") + names[1] + ranking.sources.digits + 1)
    return query, max([source, *(len(_nothing(row)) for row in ranking.rows if not row)])


def _number_widths(ranking: Ranking) -> list[int]:
    return [
        max([cell_len(name), *(len(source.numbers[m]) for row in ranking.rows for source in row or [])])
        for m, name in enumerate(ranking.measures)
    ]


def _table(screen: Screen, ranking: Ranking, names: list[int], bar: int, remarks: bool) -> Table:
    table = Table(box=None, padding=0, pad_edge=False, header_style="dim")
    for heading, width in zip((_QUERY, _SOURCE), _label_widths(ranking, names), strict=True):
        table.add_column(Text(heading), width=width, no_wrap=True)
    if bar:
        table.add_column("", width=bar + 1, no_wrap=True)
    for name, width in zip(ranking.measures, _number_widths(ranking), strict=True):
        table.add_column(Text(name), width=width + 2, no_wrap=True, justify="right")
    table.add_column("", no_wrap=True)
    for q, row in enumerate(ranking.rows):
        label = ranking.queries.label(q, names[0])
        for source in row or []:
            cells = [Text.assemble(("  ← ", "dim"), ranking.sources.label(source.index, names[1]))]
            if bar:
                cells.append(Text(f" {bar_text(source.bar, bar)}", "cyan"))
            cells += [Text(number) for number in source.numbers]
            mark, words = source.remark or ("", "")
            table.add_row(label, *cells, Text(f"  {words}" if remarks else f" {mark}", "yellow"))
            label = Text("")
        if not row:
            table.add_row(label, Text(_nothing(row), "dim"))
    return table


def _nothing(row: list[SourceRow] | None) -> str:
    return f"  {MASKED}" if row is None else "  nothing to rank"


def bar_text(share: float, cells: int) -> str:
    """A bar of so many cells at most, in eighths of a cell."""
    eighths = round(min(1.0, max(0.0, share)) * cells * 8) if np.isfinite(share) else 0
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _put_compact(screen: Screen, ranking: Ranking, name: int) -> None:
    """One paragraph per query: `0 The  ← 4 river 0.602 1.31  ← 1 bank 0.141 0.40`."""
    screen.say((f"after each source: {', '.join(ranking.measures)}", "dim"))
    table = Table.grid(padding=0)
    label = name + ranking.queries.digits + 3
    table.add_column(width=label, no_wrap=True)
    table.add_column(overflow="fold")
    for q, row in enumerate(ranking.rows):
        sources = flow((_compact(ranking.sources, source) for source in row or []), screen.width - label, "  ")
        table.add_row(ranking.queries.label(q, name), sources if row else Text(_nothing(row).strip(), "dim"))
    screen.put(table)
    _put_marks(screen, ranking)
    _put_shortened(screen, ranking, [name, ranking.sources.widest])


def _compact(sources: Axis, source: SourceRow) -> Text:
    mark = f" {source.remark[0]}" if source.remark else ""
    name = sources.label(source.index, sources.widest)
    return Text.assemble(("← ", "dim"), name, (f" {' '.join(source.numbers)}", "cyan"), (mark, "yellow"))


def _put_marks(screen: Screen, ranking: Ranking) -> None:
    """Say what the marks mean, where there are any."""
    used = {source.remark for row in ranking.rows for source in row or [] if source.remark}
    for mark, words in sorted(used):
        screen.say((f"{mark} {words}", "yellow"))


def _put_shortened(screen: Screen, ranking: Ranking, names: list[int]) -> None:
    shown = {source.index for row in ranking.rows for source in row or []}
    sources = ranking.sources
    rows = ranking.queries.shortened(names[0])
    listed = [p for p in sources.positions if p in shown]
    part = Axis(sources.kind, listed, [sources.names[p] for p in listed], [False] * len(listed), sources.total)
    say_shortened(screen, rows, part, names[1])
