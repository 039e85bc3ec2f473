"""Draw tables of sources: those that get the most weight, and those whose weight changes most."""

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from attnscope.views.parts import AttendedRow, MostAttended, MovedSources
from attnscope.views.terminal.contributors import BAR, bar_text
from attnscope.views.terminal.labels import labels, shorten
from attnscope.views.terminal.screen import Screen

_LABEL = 14  # cells of a side's name
_SNIPPET = 16  # width below which a snippet is useless


def put_attended(screen: Screen, attended: MostAttended) -> None:
    """Print the heaviest sources of a whole text, with their weight and their share of all of it."""
    axis = labels(screen, attended.sources)
    name = axis.name_cells(screen.width)
    label = max(attended.sources.digits + 1 + name, len("source"))
    columns = ("weight", [row.weight for row in attended.rows]), ("share", [row.share for row in attended.rows])
    widths = [max(len(heading), *map(len, column)) for heading, column in columns]
    bar = BAR + 1 if screen.width >= label + BAR + 1 + sum(widths) + 4 else 0
    room = screen.width - label - bar - sum(widths) - 4 - 2
    table = Table(box=None, padding=0, pad_edge=False, header_style="dim")
    table.add_column(Text("source"), width=label, no_wrap=True)
    table.add_column("", width=bar, no_wrap=True)
    for (heading, _), width in zip(columns, widths, strict=True):
        table.add_column(Text(heading), width=width + 2, justify="right", no_wrap=True)
    table.add_column(Text("  in the text" if room >= _SNIPPET else ""), no_wrap=True)
    for n, row in enumerate(attended.rows):
        drawn = Text(f" {bar_text(row.bar, BAR)}" if bar else "", "cyan")
        where = _within(screen, axis.names[n], row, room) if room >= _SNIPPET else Text("")
        table.add_row(axis.label(n, name), drawn, Text(row.weight), Text(row.share), where)
    screen.put(table, width=label + bar + sum(widths) + 4)


def _within(screen: Screen, name: str, row: AttendedRow, room: int) -> Text:
    """Write a source between its neighbours, as many of them as fit."""
    shown = Text(f"[{shorten(name, room - 2)}]", "bold")
    for distance in range(max(len(row.before), len(row.after))):
        for side in (row.before, row.after):
            if distance >= len(side):
                continue
            neighbour = Text(screen.plain([side[distance]]), "dim")
            wider = Text(" ").join([neighbour, shown] if side is row.before else [shown, neighbour])
            if cell_len(wider.plain) > room:
                return Text("  ") + shown
            shown = wider
    return Text("  ") + shown


def put_moved_sources(screen: Screen, moved: MovedSources) -> None:
    """Print the sources whose weight differs most between two sides."""
    axis = labels(screen, moved.sources)
    name = axis.name_cells(screen.width)
    headings = [*(shorten(screen.plain(side), _LABEL) for side in moved.sides), "change"]
    table = Table(box=None, padding=0, pad_edge=False, header_style="dim")
    table.add_column(Text("source"), width=max(moved.sources.digits + 1 + name, len("source")), no_wrap=True)
    for heading, column in zip(headings, moved.columns, strict=True):
        table.add_column(Text(heading), width=max(cell_len(heading), *map(len, column)) + 2, justify="right")
    for row, cells in enumerate(zip(*moved.columns, strict=True)):
        table.add_row(axis.label(row, name), *map(Text, cells))
    screen.put(table)
