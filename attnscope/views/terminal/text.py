"""Print text and facts."""

from collections.abc import Sequence

from rich import table
from rich.cells import cell_len
from rich.text import Text

from attnscope.views import parts
from attnscope.views.terminal.labels import shorten, shorten_middle, shorten_start
from attnscope.views.terminal.screen import INDENTS, ROOMY, STYLES, Screen, flow

# Smallest width of the column of names.
_NAMES = 9
# Cells to which a text is shortened at most.
_SHORTEST = 10


def draw_text(screen: Screen, text: parts.Text) -> None:
    """Print items, or an empty line."""
    shown_text = cell_text(screen, text, screen.line - INDENTS[text.indent])
    if text.indent:
        screen.draw_indented(shown_text, text.indent)
    else:
        screen.put(shown_text)


def cell_text(screen: Screen, cell: parts.Cell, width: int) -> Text:
    """Lay out a cell of a table, or a text, in so many columns."""
    if not isinstance(cell, parts.Text):
        return screen.text(parts.joined(cell))
    items = [screen.text(item) for item in cell.items]
    if cell.cut is not None:
        items = _on_one_line(items, width, cell.between, cell.cut)
    if len(items) == 1:
        return items[0]
    return flow(items, width, cell.between, ending=" \\" if cell.command else None)


def _on_one_line(items: Sequence[Text], width: int, between: str, cut: str) -> list[Text]:
    """Return as many items as fit on a line, at least one, the last with the number of the others."""
    kept_items: list[Text] = []
    used = 0
    for n, item in enumerate(items):
        left = len(items) - n - 1
        more = cut.format(left) if left else ""
        cells = item.cell_len + len(between) * bool(kept_items)
        if kept_items and used + cells + len(more) > width:
            kept_items[-1] += Text(cut.format(left + 1), STYLES["dim"])
            break
        kept_items.append(item)
        used += cells
    return kept_items


def draw_facts(screen: Screen, facts: parts.Facts) -> None:
    """Print `name  value` lines with the values in one column, wrapped inside it."""
    if not facts.lines:
        return
    indent = INDENTS[facts.indent]
    least = INDENTS[facts.indent + 1] - indent if facts.indent else _NAMES
    names = max(least, *(len(name) + 2 for name, _ in facts.lines))
    if screen.width < ROOMY or indent + names > screen.width // 2:
        # Values follow their names directly.
        names = 0
    style = screen.style(facts.look)
    lines = [(name, _value(screen, value, indent + names)) for name, value in facts.lines]
    if not names:
        for name, value in lines:
            screen.say((f"{name}: " if name else "", style), value)
        return
    grid = table.Table.grid(padding=0)
    grid.add_column(width=indent + names, no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in lines:
        grid.add_row(Text(" " * indent + name, style), value)
    screen.put(grid)


def _value(screen: Screen, value: parts.Cell | parts.OneLine, left: int) -> Text:
    """Lay out a value beside its name, from a column on."""
    if not isinstance(value, parts.OneLine):
        value_text = cell_text(screen, value, screen.width - left)
        prose = not isinstance(value, parts.Text) and screen.width > screen.line
        if prose:
            return Text("\n").join(value_text.wrap(screen.console, screen.line - left))
        return value_text
    lead = screen.plain(value.lead)
    text = screen.plain(value.text)
    after = screen.text(value.after)
    room = screen.width - left - after.cell_len
    if left and _SHORTEST <= room < cell_len(lead + text):
        # The text has at least two thirds of the room.
        kept_width = max(room - cell_len(lead), 2 * room // 3)
        if value.end:
            how = shorten_start
        elif lead:
            how = shorten
        else:
            how = shorten_middle
        text = how(text, kept_width)
        lead = shorten_start(lead, room - cell_len(text))
    return Text(lead + text, overflow="fold") + after
