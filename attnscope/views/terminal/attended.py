"""A table of the sources that get the most weight, each within its text."""

from collections.abc import Sequence

import numpy as np
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from attnscope.report import Columns, HeadReport, Matrix, TextReport, Token
from attnscope.views.terminal.contributors import BAR, bar_text
from attnscope.views.terminal.labels import shorten, token_axis, token_name
from attnscope.views.terminal.numbers import digits_for
from attnscope.views.terminal.screen import Screen

HEAVIEST = 10  # sources that are listed
NEIGHBOURS = 8  # tokens of context on each side of a source
_LABEL = 14  # cells of a side's name
_SNIPPET = 16  # cells below which a snippet says nothing


def put_attended(screen: Screen, text: TextReport, head: HeadReport, columns: Columns) -> None:
    """Print the heaviest sources of a whole text, with their weight and their share of all of it."""
    mass, left_out = columns.mass.astype(np.float64), head.top.left_out
    excluded = _barred(text.sources, left_out)
    order = [int(key) for key in np.argsort(-np.where(excluded, -1.0, mass), kind="stable")[:HEAVIEST]]
    order = [key for key in order if mass[key] > 0 and not excluded[key]]
    without = f", without {' and '.join(left_out)}" if left_out else ""
    share = 100 * float(mass[order].sum()) / (columns.total or 1.0)
    said = f"  of {len(mass):,} sources{without}, by total weight from all queries"
    said += f"; the {len(order)} below receive {share:.{0 if share >= 10 else 1}f}%"
    screen.say(("most attended", "bold"), (said, "dim"))
    if order:
        _put_table(screen, text.sources, order, mass, columns.total)


def put_moved_mass(screen: Screen, sources: Sequence[Token], mass: Matrix, labels: Sequence[str]) -> None:
    """Print the sources whose weight differs most between two sides.

    Args:
        screen: Where to.
        sources: The tokens.
        mass: Weight of each in the first side and in the second, (2, sources).
        labels: What the sides are called, safe.
    """
    first, second = mass.astype(np.float64)
    change = second - first
    order = [int(key) for key in np.argsort(-np.abs(change), kind="stable")[:HEAVIEST] if change[key]]
    moved = np.abs(change).sum() / 2
    said = f"  sources whose total weight changes most; {moved:,.1f} of {first.sum():,.0f} moved"
    screen.say(("what moved", "bold"), (said, "dim"))
    if not order:
        return
    axis = token_axis(screen, "source", sources, order)
    name = axis.name_cells(screen.width)
    columns = [[f"{values[key]:,.1f}" for key in order] for values in (first, second)]
    columns.append([f"{change[key]:+,.1f}" for key in order])
    headings = [*(shorten(label, _LABEL) for label in labels), "change"]
    table = Table(box=None, padding=0, pad_edge=False, header_style="dim")
    table.add_column(Text("source"), width=max(axis.digits + 1 + name, len("source")), no_wrap=True)
    for heading, column in zip(headings, columns, strict=True):
        table.add_column(Text(heading), width=max(cell_len(heading), *map(len, column)) + 2, justify="right")
    for row in range(len(order)):
        table.add_row(axis.label(row, name), *(Text(column[row]) for column in columns))
    screen.put(table)


def _barred(sources: Sequence[Token], left_out: Sequence[str]) -> np.ndarray:
    """Which sources do not take part in rankings."""
    excluded = np.array([token.special for token in sources]) & ("special tokens" in left_out)
    excluded[0] |= "first token" in left_out
    return excluded


def _put_table(screen: Screen, sources: Sequence[Token], order: list[int], mass: np.ndarray, total: float) -> None:
    axis = token_axis(screen, "source", sources, order)
    name = axis.name_cells(screen.width)
    label = max(axis.digits + 1 + name, len("source"))
    numbers = [f"{mass[key]:,.1f}" for key in order]
    parts = (100 * mass[order] / total).astype(np.float32)
    digits = digits_for(parts, 1)
    shares = [f"{digits.text(part)}%" for part in parts.tolist()]
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
