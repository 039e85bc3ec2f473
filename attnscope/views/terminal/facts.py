"""Print facts and items, each wrapped beside its name."""

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from attnscope.views.parts import Facts, Flow, OneLine
from attnscope.views.spans import Spans
from attnscope.views.terminal.labels import shorten, shorten_start
from attnscope.views.terminal.screen import ROOMY, Screen, flow

_NAMES = 9  # Width of the column of names.
_SHORTEST = 10  # Cells to which a text is shortened at most.


def put_facts(screen: Screen, facts: Facts) -> None:
    """Print `name  value` lines with the values in one column, wrapped inside it."""
    if not facts.lines:
        return
    names = max(_NAMES, *(len(name) + 2 for name, _ in facts.lines)) if screen.width >= ROOMY else 0
    lines = [(name, _value(screen, value, names)) for name, value in facts.lines]
    if not names:
        for name, value in lines:
            screen.say((f"{name}: ", "dim"), value)
        return
    table = Table.grid(padding=0)
    table.add_column(width=names, no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in lines:
        table.add_row(Text(name, "dim"), value)
    screen.put(table)


def _value(screen: Screen, value: Spans | Flow | OneLine, names: int) -> Text:
    if isinstance(value, Flow):
        return flow(map(screen.text, value.items), screen.width - names, value.between)
    if not isinstance(value, OneLine):
        return screen.text(value)
    lead, text, after = screen.plain(value.lead), screen.plain(value.text), screen.text(value.after)
    room = screen.width - names - after.cell_len
    if names and room >= _SHORTEST:
        kept = max(room - cell_len(lead), 2 * room // 3)  # cells for the text, if it needs them
        text = shorten_start(text, kept) if value.end else shorten(text, kept)
        lead = shorten_start(lead, room - cell_len(text))
    return Text(lead + text, overflow="fold") + after
