"""Draw the strongest sources of every query, or of a whole text."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from attnscope.views.numbers import MASKED, NOTHING
from attnscope.views.parts import Bar, Bars
from attnscope.views.terminal.labels import Labels, labels, say_shortened, shorten
from attnscope.views.terminal.packing import GUTTER, balance, side_by_side
from attnscope.views.terminal.screen import BAR, HEADING, Screen, flow

# A part of a text is useless below this number of cells.
_SNIPPET = 16
_EIGHTHS = " ▏▎▍▌▋▊▉█"
# The name, the numbers and the mark of a source.
Parts = tuple[Text, ...]


@dataclass(frozen=True)
class _Labelled:
    """Bars with their labels."""

    bars: Bars
    queries: Labels | None
    sources: Labels
    query: int  # cells of a query's name
    source: int  # cells of a source's name
    arrow: str  # before a source

    def queried(self, row: int) -> Text:
        """Write the label of a query; nothing for a whole text."""
        if self.queries is None:
            return Text()
        return self.queries.label(row, self.query)


def draw_bars(screen: Screen, bars: Bars) -> None:
    """Print the strongest sources of every shown query, or of a text."""
    queries = None if bars.queries is None else labels(screen, bars.queries)
    sources = labels(screen, bars.sources)
    cells = (
        0 if queries is None else queries.name_cells(screen.width),
        sources.name_cells(screen.width),
    )
    labelled = _Labelled(bars, queries, sources, *cells, "" if queries is None else "  ← ")
    layouts = ((BAR, True), (BAR, False), (0, False))
    fitting = [layout for layout in layouts if _width(labelled, *layout) <= screen.width]
    if bars.brief:
        shown_measures = sorted({0, bars.by})
    else:
        shown_measures = list(range(len(bars.measures)))
    if bars.title:
        screen.put(
            screen.text(
                bars.title
                if bars.brief and len(shown_measures) == 1
                else (*bars.title, *bars.meaning)
            )
        )
    if bars.compact or not fitting:
        _draw_compact(screen, labelled, shown_measures)
        return
    bar, remarks = fitting[0]
    pieces = [range(len(bars.rows))]
    if queries is not None:
        rows = zip(bars.rows, bars.row_remainders(), strict=True)
        heights = [max(1, len(row or ()) + (unlisted is not None)) for row, unlisted in rows]
        pieces = balance(heights, _width(labelled, bar, remarks), screen.width)
    if bar and queries is not None:  # else the rest of the line is for a part of the text
        gutters = GUTTER * (len(pieces) - 1)
        spare = (screen.width - gutters) // len(pieces) - _width(labelled, bar, remarks)
        bar = min(screen.longest_bar, bar + max(0, spare))
    screen.put(side_by_side([_table(screen, labelled, bar, remarks, piece) for piece in pieces]))
    if not remarks:
        _draw_marks(screen, bars)
    _draw_shortened(screen, labelled, labelled.source)


def _width(labelled: _Labelled, bar: int, remarks: bool) -> int:
    """Count cells that the table needs with bars of this width, with remarks in words or as marks."""
    pairs = labelled.bars.remarks()
    if pairs:
        if remarks:
            words = 2 + max(len(text) for _, text in pairs)
        else:
            words = 2
    else:
        words = 0
    numbers = sum(w + 2 for w in _number_widths(labelled.bars))
    return sum(_label_widths(labelled)) + (bar + 1 if bar else 0) + numbers + words


def _label_widths(labelled: _Labelled) -> tuple[int, int]:
    """Count cells of the queries' column and of the sources', headings and rows without sources included."""
    bars = labelled.bars
    query = 0
    if bars.queries is not None:
        query = max(len(bars.queries.kind), labelled.query + bars.queries.digits + 1)
    source = len(labelled.arrow) + max(len("source"), labelled.source + bars.sources.digits + 1)
    return query, max([source, *map(len, map(_other, bars.rows, bars.row_remainders()))])


def _number_widths(bars: Bars) -> list[int]:
    widths = [
        max([cell_len(name), *(len(bar.numbers[m]) for row in bars.rows for bar in row or ())])
        for m, name in enumerate(bars.measures)
    ]
    return [
        max([widths[0], *(len(unlisted[1]) for unlisted in bars.row_remainders() if unlisted)]),
        *widths[1:],
    ]


def _table(
    screen: Screen, labelled: _Labelled, bar: int, remarks: bool, shown_rows: range
) -> Table:
    bars = labelled.bars
    remainders = labelled.bars.row_remainders()
    query, source = _label_widths(labelled)
    numbers = _number_widths(bars)
    table = Table(box=None, padding=0, pad_edge=False, header_style=HEADING)
    if bars.queries is not None:
        table.add_column(Text(bars.queries.kind), width=query, no_wrap=True)
    table.add_column(Text(f"{labelled.arrow}source"), width=source, no_wrap=True)
    if bar:
        table.add_column("", width=bar + 1, no_wrap=True)
    for name, width in zip(bars.measures, numbers, strict=True):
        table.add_column(Text(name), width=width + 2, no_wrap=True, justify="right")
    # The rest of the line is for a part of the text.
    room = screen.width - _width(labelled, bar, False) - 2
    within = room >= _SNIPPET and any(
        bar_row.before or bar_row.after for row in bars.rows for bar_row in row or ()
    )
    table.add_column(Text("  in the text" * within), no_wrap=True)
    for q in shown_rows:
        label = labelled.queried(q)
        row = bars.rows[q]
        unlisted = remainders[q]
        for bar_row in row or ():
            cells = [
                Text.assemble(
                    (labelled.arrow, "dim"), labelled.sources.label(bar_row.index, labelled.source)
                )
            ]
            if bar:
                cells.append(Text(f" {bar_text(bar_row.length, bar)}", screen.bar))
            cells += [Text(number_text) for number_text in bar_row.numbers]
            last = Text()
            if bar_row.remark is not None:
                mark, words = bar_row.remark
                last = Text(f"  {words}" if remarks else f" {mark}", screen.style("remark"))
            if within:
                last = _within(screen, labelled.sources.names[bar_row.index], bar_row, room)
            table.add_row(*[label] * bool(query), *cells, last)
            label = Text("")
        if absence := _other(row, unlisted):
            absent = [
                Text(absence, "dim"),
                *[Text()] * bool(bar),
                Text(unlisted[1] if unlisted else "", "dim"),
            ]
            table.add_row(*[label] * bool(query), *absent)
    return table


def _within(screen: Screen, name: str, bar: Bar, room: int) -> Text:
    """Write a source between its neighbours, as many of them as fit."""
    shown_text = Text(f"[{shorten(name, room - 2)}]", "bold")
    for distance in range(max(len(bar.before), len(bar.after))):
        for side in (bar.before, bar.after):
            if distance >= len(side):
                continue
            neighbour = Text(screen.plain([side[distance]]), "dim")
            wider = Text(" ").join(
                [neighbour, shown_text] if side is bar.before else [shown_text, neighbour]
            )
            if cell_len(wider.plain) > room:
                return Text("  ") + shown_text
            shown_text = wider
    return Text("  ") + shown_text


def _other(row: Sequence[Bar] | None, unlisted: tuple[str, str] | None) -> str:
    """Return the placeholder for an empty row, or for unlisted sources."""
    if unlisted:
        return f"    {unlisted[0]}"
    if row is None:
        return f"  {MASKED}"
    if row:
        return ""
    return f"  {NOTHING}"


def bar_text(share: float, cells: int) -> str:
    """Draw a bar of at most `cells` cells, in eighths of a cell."""
    eighths = 0
    if np.isfinite(share):
        eighths = round(min(1.0, max(0.0, share)) * cells * 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _draw_compact(screen: Screen, labelled: _Labelled, shown_measures: Sequence[int]) -> None:
    """Print one paragraph per query: `0 The  ← 4 river 0.602 1.31  ← 1 bank 0.141 0.40`."""
    bars = labelled.bars
    sources = labelled.sources
    cells = labelled.source if bars.brief else sources.widest
    if len(shown_measures) > 1:
        screen.say(f"after each source: {', '.join(bars.measures[m] for m in shown_measures)}")
    table = Table.grid(padding=0)
    label = 0 if bars.queries is None else labelled.query + bars.queries.digits + 3
    table.add_column(width=label, no_wrap=True)
    table.add_column(overflow="fold")
    listed: list[list[Parts]] = [
        [
            (
                Text.assemble(("← ", "dim"), sources.label(bar.index, cells)),
                Text(" " + " ".join(bar.numbers[m] for m in shown_measures), screen.bar),
                Text(f" {bar.remark[0]}" if bar.remark else "", screen.style("remark")),
            )
            for bar in row or ()
        ]
        for row in bars.rows
    ]
    absences = []
    for row, unlisted in zip(bars.rows, bars.row_remainders(), strict=True):
        absence = _other(row, unlisted).strip()
        said = f"{absence}: {unlisted[1]}" if unlisted else absence
        absences.append([Text(said, "dim")] if absence else [])
    room = screen.width - label
    layouts: list[list[Text]] = []
    heights = []
    for rows in (_aligned(listed), listed):
        items = (
            [*(Text.assemble(*parts) for parts in row), *absence]
            for row, absence in zip(rows, absences, strict=True)
        )
        layouts.append([flow(row, room, "  ") for row in items])
        # a line that is too long becomes two
        lines = "\n".join(row.plain for row in layouts[-1]).split("\n")
        heights.append(sum(1 + (cell_len(line) > room) for line in lines))
    # sources stand below each other if that takes no more lines
    for q, line in enumerate(layouts[heights[0] > heights[1]]):
        table.add_row(labelled.queried(q), line)
    screen.put(table)
    _draw_marks(screen, bars)
    _draw_shortened(screen, labelled, cells)


def _aligned(rows: list[list[Parts]]) -> list[list[Parts]]:
    """Return the sources of every row, each part as wide as the widest one of its rank."""
    widest: dict[tuple[int, int], int] = {}
    for row in rows:
        for rank, parts in enumerate(row):
            for n, part in enumerate(parts):
                widest[rank, n] = max(widest.get((rank, n), 0), part.cell_len)
    return [
        [
            tuple(
                part + Text(" " * (widest[rank, n] - part.cell_len)) for n, part in enumerate(parts)
            )
            for rank, parts in enumerate(row)
        ]
        for row in rows
    ]


def _draw_marks(screen: Screen, bars: Bars) -> None:
    """Print the meaning of the marks, if there are any."""
    if used := bars.remarks():
        screen.say((" · ".join(f"{mark} {words}" for mark, words in used), screen.style("remark")))


def _draw_shortened(screen: Screen, labelled: _Labelled, cells: int) -> None:
    """Print the full names of the queries and shown sources whose labels were shortened to `cells`."""
    if labelled.queries is None:
        return
    drawn_entries = {
        labelled.sources.entry(bar.index) for row in labelled.bars.rows for bar in row or ()
    }
    sources = {
        entry: name
        for entry, name in labelled.sources.shortened(cells).items()
        if entry in drawn_entries
    }
    say_shortened(
        screen, labelled.queries.shortened(labelled.query), sources, labelled.bars.sources.kind
    )
