"""The mass of a head's columns in; a table of the sources that are attended to most, each within its text, out."""

from collections.abc import Sequence

import numpy as np
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from attnscope.report import Columns, HeadReport, TextReport, Token
from attnscope.views.terminal.contributors import BAR, bar_text
from attnscope.views.terminal.labels import shorten, token_axis, token_name
from attnscope.views.terminal.screen import Screen

HEAVIEST = 10  # sources that are listed
NEIGHBOURS = 8  # tokens on each side that say where in the text a source stands
_SNIPPET = 16  # cells below which a snippet says nothing


def put_attended(screen: Screen, text: TextReport, head: HeadReport, columns: Columns) -> None:
    """Print the heaviest sources of a whole text, with their weight and their share of all of it."""
    mass, left_out = columns.mass.astype(np.float64), head.top.left_out
    barred = _barred(text.sources, left_out)
    order = [int(key) for key in np.argsort(-np.where(barred, -1.0, mass), kind="stable")[:HEAVIEST]]
    order = [key for key in order if mass[key] > 0 and not barred[key]]
    without = f", without {' and '.join(left_out)}" if left_out else ""
    share = mass[order].sum() / columns.total if columns.total else 0.0
    said = f"  of all {len(mass):,} sources{without}, by the weight that all queries give"
    said += f"; the {len(order)} below get {share:.0%} of it"
    screen.say(("most attended", "bold"), (said, "dim"))
    if order:
        _put_table(screen, text.sources, order, mass, columns.total)


def _barred(sources: Sequence[Token], left_out: Sequence[str]) -> np.ndarray:
    """Which sources do not take part in rankings."""
    barred = np.array([token.special for token in sources]) & ("special tokens" in left_out)
    barred[0] |= "first token" in left_out
    return barred


def _put_table(screen: Screen, sources: Sequence[Token], order: list[int], mass: np.ndarray, total: float) -> None:
    axis = token_axis(screen, "source", sources, order)
    name = axis.name_cells(screen.width)
    label = max(axis.digits + 1 + name, len("source"))
    numbers = [f"{mass[key]:,.1f}" for key in order]
    shares = [f"{mass[key] / total:.1%}" for key in order]
    widths = [max(len(heading), *map(len, column)) for heading, column in (("weight", numbers), ("share", shares))]
    bar = BAR + 1 if screen.width >= label + BAR + 1 + sum(widths) + 4 else 0
    room = screen.width - label - bar - sum(widths) - 4 - 2
    table = Table(box=None, padding=0, pad_edge=False, header_style="dim")
    table.add_column(Text("source"), width=label, no_wrap=True)
    table.add_column("", width=bar, no_wrap=True)
    for heading, width in zip(("weight", "share"), widths, strict=True):
        table.add_column(Text(heading), width=width + 2, justify="right", no_wrap=True)
    table.add_column(Text("  in the text" if room >= _SNIPPET else ""), no_wrap=True)
    for row, key in enumerate(order):
        drawn = Text(f" {bar_text(mass[key] / mass[order[0]], BAR)}" if bar else "", "cyan")
        where = _within(screen, sources, key, room) if room >= _SNIPPET else Text("")
        table.add_row(axis.label(row, name), drawn, Text(numbers[row]), Text(shares[row]), where)
    screen.put(table, width=label + bar + sum(widths) + 4)


def _within(screen: Screen, sources: Sequence[Token], key: int, room: int) -> Text:
    """A source between its neighbours, as many of them as fit."""
    shown = Text(f"[{shorten(token_name(screen, sources[key]), room - 2)}]", "bold")
    for place in (key + step * distance for distance in range(1, NEIGHBOURS + 1) for step in (-1, 1)):
        if not 0 <= place < len(sources):
            continue
        neighbour = Text(token_name(screen, sources[place]), "dim")
        wider = Text(" ").join([neighbour, shown] if place < key else [shown, neighbour])
        if cell_len(wider.plain) > room:
            break
        shown = wider
    return Text("  ") + shown
