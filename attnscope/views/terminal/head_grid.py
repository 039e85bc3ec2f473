"""Draw one cell for every head, layers below each other."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from rich.text import Text

from attnscope.views.parts import Panel
from attnscope.views.terminal.colours import SHADES, cell_shade, role_style, shade
from attnscope.views.terminal.screen import Screen

_GAP = "  "


def draw_heads(screen: Screen, panel: Panel) -> None:
    """Print the number or the role of every head."""
    if panel.colours is not None:
        _draw_roles(screen, panel, panel.colours)
    else:
        _draw_numbers(screen, panel)


def _draw_roles(screen: Screen, panel: Panel, roles: Sequence[Sequence[str]]) -> None:
    """Print the letter of each head's main role, its strength as a shade."""

    def draw(layer: int, head: int, width: int) -> Text:
        letter = panel.texts[layer][head]
        strength = float(panel.matrix[layer, head])
        if np.isnan(strength):
            return Text(letter.center(width), "dim")
        if screen.colours <= 16:
            look = role_style(roles[layer][head], 1.0, 16, screen.surface) if screen.colours else ""
            shaded = shade(strength, SHADES[1:])
            return Text.assemble((letter, look), shaded, " " * (width - 2))
        return Text(
            letter.center(width),
            role_style(roles[layer][head], strength, screen.colours, screen.surface),
        )

    n_layers, n_heads = panel.matrix.shape
    labels = {
        layer: panel.rows.number(layer) for layer in range(n_layers) if any(panel.texts[layer])
    }
    width = 3 if _label(labels) + 3 * n_heads <= screen.width else 2
    _draw_cells(screen, n_heads, width, draw, labels)


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

    def draw(layer: int, head: int, width: int) -> Text:
        fraction = scale.place(float(panel.matrix[layer, head]))
        if fraction is None:
            return Text("–".rjust(width), "dim")
        style = screen.ramp(fraction, signed=scale.signed)
        if numbered:
            text = candidates[numbered[0]][layer][head]
            is_zero = not text.strip("+−-0.")
            # what rounds to zero has no colour, and is not as bright as the rest
            return Text(text.rjust(width), "dim" if is_zero else style)
        return Text(" " * width if screen.colours else cell_shade(fraction, scale.signed), style)

    _draw_cells(screen, n_heads, widths[numbered[0]] if numbered else 2, draw, labels)
    if not numbered:
        low = panel.digits.text(scale.low)
        high = panel.digits.text(scale.high)
        screen.say((f"shades from {low} to {high}", "dim"))


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
            screen.put(Text(heading + _GAP + line, "dim"), width=label + width * len(heads))
        for layer, name in labels.items():
            row = Text.assemble((name.rjust(label - len(_GAP)) + _GAP, "dim"))
            for head in heads:
                row.append_text(draw(layer, head, width))
            screen.put(row, width=label + width * len(heads))
