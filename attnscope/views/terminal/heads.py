"""Draw one cell for every head, layers below each other, and the strongest heads."""

from collections.abc import Callable, Sequence

import numpy as np
from rich.cells import cell_len
from rich.color import Color
from rich.style import Style
from rich.table import Table
from rich.text import Text

from attnscope.views.parts import HeadNumbers, Listed, RoleCell, RolePicture, StrongestHeads, StrongestRow
from attnscope.views.spans import ours
from attnscope.views.terminal.colours import ramp_style, readable_on
from attnscope.views.terminal.heat import SHADES
from attnscope.views.terminal.screen import Screen, flow

_DARK = (34, 34, 34)  # what a weak role's colour fades to
_GREY = "#969696"  # of a role without a colour
_GAP = "  "


def put_roles(screen: Screen, picture: RolePicture) -> None:
    """Print the letter of each head's main role, its strength as a shade."""

    def draw(layer: int, head: int, width: int) -> Text:
        cell = picture.cells[layer][head]
        if cell is None:
            return Text(picture.unclear.center(width), "dim")
        if not screen.colours:
            return Text(f"{cell.letter}{_shade(cell.strength)}".ljust(width))
        return Text(cell.letter.center(width), _role_style(cell, screen.colours))

    shape = len(picture.cells), len(picture.cells[0])
    width = 3 if _label(shape[0]) + 3 * shape[1] <= screen.width else 2
    _put_cells(screen, shape, width, draw, range(shape[0]))


def _role_style(cell: RoleCell, colours: int) -> Style:
    """Return a role's colour, the stronger the brighter."""
    rgb = bytes.fromhex((cell.colour or _GREY)[1:])
    if colours <= 16:
        return Style(color=Color.from_rgb(*rgb), bold=True)
    share = min(1.0, max(0.0, cell.strength))
    red, green, blue = (round(dark + (one - dark) * share) for one, dark in zip(rgb, _DARK, strict=True))
    return Style(bgcolor=Color.from_rgb(red, green, blue), color=readable_on(red, green, blue))


def _shade(strength: float) -> str:
    shades = SHADES[1:]
    return shades[min(len(shades) - 1, max(0, int(strength * len(shades))))]


def _label(layers: int) -> int:
    """Count cells of the labels of layers, and of the gap behind them."""
    return max(len("layer"), len(f"L{layers - 1}")) + len(_GAP)


def _put_cells(
    screen: Screen,
    shape: tuple[int, int],
    width: int,
    draw: Callable[[int, int, int], Text],
    layers: Sequence[int],
) -> None:
    """Print a cell for every head, a layer a line; heads that do not fit side by side follow in blocks.

    Args:
        screen: Where to.
        shape: Layers and heads.
        width: Cells of each.
        draw: Draws the cell of a layer and head, so wide.
        layers: Layers that are printed.
    """
    heads = shape[1]
    label = _label(shape[0])
    at_once = max(1, (screen.width - label) // width)
    for first in range(0, heads, at_once):
        some = range(first, min(first + at_once, heads))
        if first:
            screen.say("")
        digits = len(str(heads - 1))
        if width > digits:
            numbers = ["".join(str(head).center(width) if width < 4 else str(head).rjust(width) for head in some)]
        else:  # read downwards
            numbers = ["".join(f"{head:>{digits}}"[d].ljust(width) for head in some) for d in range(digits)]
        for n, line in enumerate(numbers):
            screen.put(
                Text(("head" if not n else "").rjust(label - len(_GAP)) + _GAP + line, "dim"),
                width=label + width * len(some),
            )
        for layer in layers:
            row = Text.assemble((f"L{layer}".rjust(label - len(_GAP)) + _GAP, "dim"))
            for head in some:
                row.append_text(draw(layer, head, width))
            screen.put(row, width=label + width * len(some))


def put_strongest(screen: Screen, strongest: StrongestHeads) -> None:
    """Print a line for each role: how many heads have it as their main role, and its strongest heads."""
    name = max(cell_len(row.title) for row in strongest.rows) + 2
    table = Table(box=None, padding=0, pad_edge=False, header_style="dim")
    table.add_column(Text("role"), width=name + 2, no_wrap=True)
    table.add_column(Text("heads"), width=5, justify="right", no_wrap=True)
    room = screen.width - name - 2 - 5 - len(_GAP)
    title = screen.plain(ours("strongest, ± standard error"))
    table.add_column(Text(_GAP + (title if cell_len(title) <= room else "strongest")), overflow="fold")
    for row in strongest.rows:
        table.add_row(*_strongest_row(screen, row, room, strongest.one_line))
    screen.put(table)


def _strongest_row(screen: Screen, row: StrongestRow, room: int, one_line: bool) -> tuple[Text, Text, Text]:
    chip = Text(row.role.letter, _role_style(row.role, screen.colours) if screen.colours else "bold")
    title = Text.assemble(chip, f" {row.title}")
    count = screen.text(row.count)
    if not row.heads:
        return title, count, Text(_GAP + row.none, "dim")
    heads = [screen.text(head) for head in row.heads]
    if one_line:
        used, kept = 0, 0
        for one in heads:
            used += cell_len(one.plain) + len(_GAP)
            if used > room + len(_GAP):
                break
            kept += 1
        heads = heads[: max(1, kept)]
    lines = [Text(_GAP) + line for line in flow(heads, room, _GAP).split("\n")]
    return title, count, Text("\n").join(lines)


def put_head_numbers(screen: Screen, numbers: HeadNumbers) -> None:
    """Print a number for every head, shaded from the smallest to the largest; shades alone where numbers do not fit."""
    values, scale = numbers.values, numbers.scale
    width = max(len(text) for row in numbers.texts for text in row) + 1
    shape = len(numbers.texts), len(numbers.texts[0])
    numbered = _label(shape[0]) + width * shape[1] <= screen.width
    width = width if numbered else 2

    def draw(layer: int, head: int, width: int) -> Text:
        place = scale.place(float(values[layer, head]))
        if place is None:
            return Text("–".rjust(width), "dim")
        style = ramp_style(place, scale.signed, screen.colours) if screen.colours else ""
        if numbered:
            return Text(numbers.texts[layer][head].rjust(width), style)
        return Text(
            " " * width if screen.colours else SHADES[min(len(SHADES) - 1, int(place * len(SHADES)))] * width, style
        )

    shown = [layer for layer in range(shape[0]) if np.isfinite(values[layer]).any()]
    _put_cells(screen, shape, width, draw, shown)
    if not numbered:
        screen.say((f"shades from {numbers.low} to {numbers.high}", "dim"))


def put_listed(screen: Screen, listed: Listed) -> None:
    """Print items beside their title, wrapped below each other."""
    label = len(listed.title) + len(_GAP)
    items = flow((screen.text(ours(item)) for item in listed.items), screen.width - label, _GAP)
    lines = items.split("\n")
    screen.put(Text.assemble((listed.title, "bold"), _GAP, lines[0]), width=screen.width)
    for line in lines[1:]:
        screen.put(Text(" " * label) + line)
