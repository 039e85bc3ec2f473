"""Draw the strongest sources of every query."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from attnscope.views.numbers import MASKED, NOTHING
from attnscope.views.parts import Ranking, SourceRow
from attnscope.views.terminal.labels import Labels, labels, say_shortened
from attnscope.views.terminal.screen import Screen, flow

BAR = 10  # Cells of a full bar.
_QUERY, _SOURCE = "query", "  ← source"
_EIGHTHS = " ▏▎▍▌▋▊▉█"


@dataclass(frozen=True)
class _Labelled:
    """A ranking with its labels.

    Attributes:
        ranking: The ranking.
        queries: Labels of its queries.
        sources: Labels of its sources.
        query: Cells of a query's name.
        source: Cells of a source's name.
    """

    ranking: Ranking
    queries: Labels
    sources: Labels
    query: int
    source: int


def put_ranking(screen: Screen, ranking: Ranking) -> None:
    """Print the strongest sources of every shown query."""
    queries, sources = labels(screen, ranking.queries), labels(screen, ranking.sources)
    cells = queries.name_cells(screen.width), sources.name_cells(screen.width)
    labelled = _Labelled(ranking, queries, sources, *cells)
    layouts = ((BAR, True), (BAR, False), (0, False))
    fitting = [layout for layout in layouts if _width(labelled, *layout) <= screen.width]
    shown = sorted({0, ranking.by}) if ranking.brief else list(range(len(ranking.measures)))
    screen.put(screen.text(ranking.title if ranking.brief and len(shown) == 1 else (*ranking.title, *ranking.meaning)))
    if ranking.compact or not fitting:
        _put_compact(screen, labelled, shown)
        return
    bar, remarks = fitting[0]
    screen.put(_table(labelled, bar, remarks))
    if not remarks:
        _put_marks(screen, ranking)
    _put_shortened(screen, labelled, labelled.source)


def _width(labelled: _Labelled, bar: int, remarks: bool) -> int:
    """Count cells that the table needs with bars of this width, with remarks in words or as marks."""
    said = [source.remark for row in labelled.ranking.rows for source in row or [] if source.remark]
    words = (2 + max(len(text) for _, text in said) if remarks else 2) if said else 0
    numbers = sum(w + 2 for w in _number_widths(labelled.ranking))
    return sum(_label_widths(labelled)) + (bar + 1 if bar else 0) + numbers + words


def _label_widths(labelled: _Labelled) -> tuple[int, int]:
    """Count cells of the queries' column and of the sources', headings and rows without sources included."""
    ranking = labelled.ranking
    query = max(len(_QUERY), labelled.query + ranking.queries.digits + 1)
    source = max(len(_SOURCE), len("  ← ") + labelled.source + ranking.sources.digits + 1)
    others = [_other(row, rest) for row, rest in zip(ranking.rows, ranking.rest, strict=True)]
    return query, max([source, *map(len, others)])


def _number_widths(ranking: Ranking) -> list[int]:
    widths = [
        max([cell_len(name), *(len(source.numbers[m]) for row in ranking.rows for source in row or [])])
        for m, name in enumerate(ranking.measures)
    ]
    return [max([widths[0], *(len(rest[1]) for rest in ranking.rest if rest)]), *widths[1:]]


def _table(labelled: _Labelled, bar: int, remarks: bool) -> Table:
    ranking = labelled.ranking
    table = Table(box=None, padding=0, pad_edge=False, header_style="dim")
    for heading, width in zip((_QUERY, _SOURCE), _label_widths(labelled), strict=True):
        table.add_column(Text(heading), width=width, no_wrap=True)
    if bar:
        table.add_column("", width=bar + 1, no_wrap=True)
    for name, width in zip(ranking.measures, _number_widths(ranking), strict=True):
        table.add_column(Text(name), width=width + 2, no_wrap=True, justify="right")
    table.add_column("", no_wrap=True)
    for q, (row, rest) in enumerate(zip(ranking.rows, ranking.rest, strict=True)):
        label = labelled.queries.label(q, labelled.query)
        for source in row or []:
            cells = [Text.assemble(("  ← ", "dim"), labelled.sources.label(source.index, labelled.source))]
            if bar:
                cells.append(Text(f" {bar_text(source.bar, bar)}", "cyan"))
            cells += [Text(number) for number in source.numbers]
            mark, words = source.remark or ("", "")
            table.add_row(label, *cells, Text(f"  {words}" if remarks else f" {mark}", "yellow"))
            label = Text("")
        if said := _other(row, rest):
            table.add_row(label, Text(said, "dim"), *[""] * bool(bar), Text(rest[1] if rest else "", "dim"))
    return table


def _other(row: list[SourceRow] | None, rest: tuple[str, str] | None) -> str:
    """Say what stands in the place of sources that are not listed, or not there."""
    if rest:
        return f"    {rest[0]}"
    return f"  {MASKED}" if row is None else "" if row else f"  {NOTHING}"


def bar_text(share: float, cells: int) -> str:
    """Draw a bar of so many cells at most, in eighths of a cell."""
    eighths = round(min(1.0, max(0.0, share)) * cells * 8) if np.isfinite(share) else 0
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _put_compact(screen: Screen, labelled: _Labelled, shown: Sequence[int]) -> None:
    """Print one paragraph per query: `0 The  ← 4 river 0.602 1.31  ← 1 bank 0.141 0.40`.

    Args:
        screen: Where to.
        labelled: The ranking.
        shown: Which measures.
    """
    ranking, sources = labelled.ranking, labelled.sources
    cells = labelled.source if ranking.brief else sources.widest
    if len(shown) > 1:
        screen.say((f"after each source: {', '.join(ranking.measures[m] for m in shown)}", "dim"))
    table = Table.grid(padding=0)
    label = labelled.query + ranking.queries.digits + 3
    table.add_column(width=label, no_wrap=True)
    table.add_column(overflow="fold")
    for q, (row, rest) in enumerate(zip(ranking.rows, ranking.rest, strict=True)):
        items = [_compact(sources, source, cells, shown) for source in row or []]
        if said := _other(row, rest).strip():
            items.append(Text(f"{said}: {rest[1]}" if rest else said, "dim"))
        query = labelled.queries.label(q, labelled.query)
        table.add_row(query, flow(items, screen.width - label, "  "))
    screen.put(table)
    _put_marks(screen, ranking)
    _put_shortened(screen, labelled, cells)


def _compact(sources: Labels, source: SourceRow, cells: int, shown: Sequence[int]) -> Text:
    mark = f" {source.remark[0]}" if source.remark else ""
    name = sources.label(source.index, cells)
    numbers = " ".join(source.numbers[m] for m in shown)
    return Text.assemble(("← ", "dim"), name, (f" {numbers}", "cyan"), (mark, "yellow"))


def _put_marks(screen: Screen, ranking: Ranking) -> None:
    """Say what the marks mean, where there are any."""
    used = {source.remark for row in ranking.rows for source in row or [] if source.remark}
    if used:
        screen.say((" · ".join(f"{mark} {words}" for mark, words in sorted(used)), "yellow"))


def _put_shortened(screen: Screen, labelled: _Labelled, cells: int) -> None:
    """Print the whole names of the queries, and of the shown sources whose names have so many cells."""
    shown = {source.index for row in labelled.ranking.rows for source in row or []}
    sources = {p: name for p, name in labelled.sources.shortened(cells).items() if p in shown}
    rows = labelled.queries.shortened(labelled.query)
    say_shortened(screen, rows, sources, labelled.ranking.sources.kind)
