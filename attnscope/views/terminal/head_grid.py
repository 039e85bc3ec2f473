"""Draw one cell for every head, layers below each other."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from rich.cells import cell_len
from rich.style import Style
from rich.text import Text

from attnscope.views.parts import Panel
from attnscope.views.terminal.colours import (
    SHADES,
    cell_shade,
    ground_of,
    ground_style,
    role_style,
    shade,
)
from attnscope.views.terminal.screen import Screen

_GAP = "  "
_NEARLY = "~0"  # a number that rounds to zero


def draw_heads(screen: Screen, panel: Panel) -> None:
    """Print the number of every head, or the letter of its role."""
    if panel.names is not None:
        _draw_letters(screen, panel)
    else:
        _draw_numbers(screen, panel)


def _draw_letters(screen: Screen, panel: Panel) -> None:
    """Print the letter of each head on a colour, the fuller the larger its number, or before a shade.

    Roles have no colours of their own among 16, and one alone among 256, which their shade has, too.
    """
    n_layers, n_heads = panel.matrix.shape
    roles = panel.colours
    shaded = screen.colours <= (256 if roles is not None else 0)

    def draw(layer: int, head: int, width: int) -> Text:
        letters = panel.texts[layer][head]
        value = float(panel.matrix[layer, head])
        fraction = panel.scale.place(value)
        if fraction is None:
            return Text(letters.center(width), "dim")
        style = screen.ramp(fraction, panel.scale)
        if roles is not None and screen.colours:
            style = role_style(roles[layer][head], fraction, screen.colours, screen.surface)
        if not shaded:
            return Text(letters.center(width), style)
        mark = shade(fraction, SHADES[1:])
        ground = ground_style(screen.colours, screen.surface) if screen.colours else Style()
        cell = Text.assemble((letters, style), (mark, ground + Style(color=ground_of(style))))
        blanks = width - cell.cell_len
        cell.pad_left(blanks - blanks // 2)
        cell.pad_right(blanks // 2)
        return cell

    labels = {
        layer: panel.rows.number(layer) for layer in range(n_layers) if any(panel.texts[layer])
    }
    cells = max(cell_len(text) for row in panel.texts for text in row)
    wide = cells + 2
    width = wide if _label(labels) + wide * n_heads <= screen.width else cells + 1
    _draw_cells(screen, n_heads, width, draw, labels)
    if panel.fuller:
        _say_fuller(screen, panel, shaded=shaded)


def _say_fuller(screen: Screen, panel: Panel, *, shaded: bool) -> None:
    """Say what colours stand for, or which numbers shades do; these are as bright as they are in cells."""
    if not shaded:
        low, high = panel.ends
        screen.say(f"a fuller colour is {panel.fuller}, from {low} to {high}")
        return
    steps = len(SHADES) - 1
    bounds = [panel.digits.text(panel.scale.value(n / steps)) for n in range(1, steps + 1)]
    screen.say(
        f"a fuller shade is {panel.fuller}:",
        *(
            Text.assemble("  " * (n > 0) or " ", mark, f" to {bound}")
            for n, (mark, bound) in enumerate(zip(SHADES[1:], bounds, strict=True))
        ),
    )


def _draw_numbers(screen: Screen, panel: Panel) -> None:
    """Print a number for every head, shaded from the smallest to the largest; shades alone if numbers do not fit."""
    n_layers, n_heads = panel.matrix.shape
    scale = panel.scale
    labels = {
        layer: panel.rows.number(layer)
        for layer in range(n_layers)
        if np.isfinite(panel.matrix[layer]).any()
    }
    # With one digit less, more heads fit.
    shorter = replace(panel.digits, decimals=panel.digits.decimals - 1)
    short = [
        ["–" if np.isnan(value) else shorter.text(value) for value in row]
        for row in panel.matrix.tolist()
    ]
    candidates = [panel.texts, short] if shorter.decimals > 0 else [panel.texts]
    widths = [max(len(text) for row in texts for text in row) + 1 for texts in candidates]
    numbered = [
        n for n, width in enumerate(widths) if _label(labels) + width * n_heads <= screen.width
    ]

    zeros = set[str]()  # how numbers without a digit are drawn

    def draw(layer: int, head: int, width: int) -> Text:
        value = float(panel.matrix[layer, head])
        fraction = scale.place(value)
        if fraction is None:
            return Text("–".rjust(width), "dim")
        style = screen.number(scale, value)
        if numbered:
            text = candidates[numbered[0]][layer][head]
            if text.strip("+−-0."):
                return Text(text.rjust(width), style)
            # what rounds to zero has no colour, and few letters, as most heads may have it
            zero = _NEARLY if value else "0"
            zeros.add(zero)
            return Text(zero.rjust(width), "dim")
        if screen.colours:
            return Text(" " * width, screen.ramp(fraction, scale))
        return Text(cell_shade(fraction, scale.signed))

    _draw_cells(screen, n_heads, widths[numbered[0]] if numbered else 2, draw, labels)
    if numbered:
        if _NEARLY in zeros:
            screen.say(f"{_NEARLY} is not zero, but rounds to it")
        screen.say_colours([("colour", scale, panel.digits)])
    else:
        low, high = panel.ends
        screen.say(f"shades from {low} to {high}")


def _label(labels: Mapping[int, str]) -> int:
    """Count cells of the labels of layers, and of the gap behind them."""
    return max(map(len, ("layer", *labels.values()))) + len(_GAP)


def _draw_cells(
    screen: Screen,
    n_heads: int,
    width: int,
    draw: Callable[[int, int, int], Text],
    labels: Mapping[int, str],
) -> None:
    """Print a cell for every head, a layer a line; heads that do not fit side by side follow in blocks.

    `draw` takes a layer, a head and the cells of each; `labels` name the drawn layers.
    """
    label = _label(labels)
    digits = len(str(n_heads - 1))
    at_once = max(1, (screen.width - label) // width)
    for first_head in range(0, n_heads, at_once):
        heads = range(first_head, min(first_head + at_once, n_heads))
        if first_head:
            screen.say("")
        if width > digits:
            numbers = [
                "".join(
                    str(head).center(width) if width < 4 else str(head).rjust(width)
                    for head in heads
                )
            ]
        else:
            # The names are read downwards.
            numbers = [
                "".join(f"{head:>{digits}}"[d].ljust(width) for head in heads)
                for d in range(digits)
            ]
        for n, line in enumerate(numbers):
            heading = ("head" if not n else "").rjust(label - len(_GAP))
            screen.put(Text(heading + _GAP + line), width=label + width * len(heads))
        for layer, name in labels.items():
            row = Text(name.rjust(label - len(_GAP)) + _GAP)
            for head in heads:
                row.append_text(draw(layer, head, width))
            screen.put(row, width=label + width * len(heads))
