"""Print facts and items, each wrapped beside its name."""

from rich.table import Table
from rich.text import Text

from attnscope.views.presentation.parts import Facts, Flow
from attnscope.views.presentation.spans import Spans
from attnscope.views.terminal.screen import ROOMY, Screen, flow

_NAMES = 9  # Width of the column of names.


def put_facts(screen: Screen, facts: Facts) -> None:
    """Print `name  value` lines with the values in one column, wrapped inside it."""
    lines = [(name, _value(screen, value)) for name, value in facts.lines]
    if screen.width < ROOMY:
        for name, value in lines:
            screen.say((f"{name}: ", "dim"), value)
        return
    if not lines:
        return
    names = max(_NAMES, *(len(name) + 2 for name, _ in lines))
    table = Table.grid(padding=0)
    table.add_column(width=names, no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in lines:
        table.add_row(Text(name, "dim"), value)
    screen.put(table)


def _value(screen: Screen, value: Spans | Flow) -> Text:
    if isinstance(value, Flow):
        return flow(map(screen.text, value.items), screen.width - _NAMES, value.between)
    return screen.text(value)
