"""The colours of numbers on a terminal: those of `views/palette`, on its own background, in the colours it has.

Zero has no colour of its own, so that it is the background. Every other cell has a foreground that can be read on it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Literal

from rich.color import Color
from rich.style import Style
from rich.text import Text

from attnscope.views.numbers import MINUS
from attnscope.views.palette import Surface
from attnscope.views.scales import TICKS, WEIGHTS, LogScale, Scale, faded, luminance, needs_black
from attnscope.views.terminal.role_steps import COLOURS_256, role_steps

_STEPS = 64
# Steps with the background where there are few colours: weights below .005 on the scale of roots.
_BLANK = 4
# Of terminals with 16 colours, on a dark and on a light background, above zero.
_MORE_16 = {
    False: "blue bright_blue bright_cyan bright_white",
    True: "bright_cyan cyan bright_blue blue",
}
_LESS_16 = {
    False: "red bright_red yellow bright_yellow",
    True: "bright_yellow yellow bright_red red",
}
_DARK_16 = ("blue", "red")
# The least share of a role's colour.
_FAINT = 0.25
SHADES = " ░▒▓█"
# Cells of a legend's ramp.
_LEGEND = 16


# What rich calls a terminal with this number of colours.
COLOUR_SYSTEMS: Mapping[int, Literal["standard", "256", "truecolor"] | None] = {
    0: None, 16: "standard", 256: "256", 1 << 24: "truecolor"
}  # fmt: skip


def count_colours(system: str | None) -> int:
    """Return how many colours there are in what rich calls a colour system: 0, 16, 256 or 16,777,216."""
    return {None: 0, "standard": 16, "windows": 16, "256": 256}.get(system, 1 << 24)


def shade(fraction: float, shades: str = SHADES) -> str:
    """Return the character at a place from 0 to 1 of a ramp of characters, for a console without colours."""
    return shades[max(0, min(len(shades) - 1, int(fraction * len(shades))))]


def ramp_style(fraction: float, signed: bool, colours: int, surface: Surface) -> Style:
    """Return the style at a place from 0 to 1 of a ramp, for a console with `colours` colours."""
    step = round(min(1.0, max(0.0, fraction)) * _STEPS)
    return _style(step, signed, min(colours, 257), surface)


@lru_cache(maxsize=6 * _STEPS)
def _style(step: int, signed: bool, colours: int, surface: Surface) -> Style:
    if step == (_STEPS // 2 if signed else 0):
        return Style()
    if colours > 256:
        return _on(surface.colour(step / _STEPS, signed=signed))
    size = abs(2 * step / _STEPS - 1) if signed else step / _STEPS
    more = not signed or 2 * step > _STEPS
    if colours > 16:
        number = _indexed(surface, more=more)[round(size * _STEPS)]
        return Style() if number is None else _with(Color.from_ansi(number))
    light = needs_black(bytes.fromhex(surface.background))
    names = (_MORE_16 if more else _LESS_16)[light].split()
    if size <= _BLANK / _STEPS:
        return Style()
    name = names[min(len(names) - 1, int(size * len(names)))]
    return Style(bgcolor=name, color="bright_white" if name in _DARK_16 else "black")


@lru_cache(maxsize=8)
def _indexed(surface: Surface, *, more: bool) -> list[int | None]:
    """Return the number of the colour, of 256, that is nearest at every step of a ramp; None for the background.

    More is blue (blue > green > red, or blue alone), and less is orange: the nearest of all are green, grey or violet.
    No step is closer to the background than the one before.
    """
    background = bytes.fromhex(surface.background)
    colours: dict[int | None, Sequence[int]] = {None: background}
    for number, colour in COLOURS_256.items():
        first, second, third = colour[::-1] if more else colour
        if first > second > third or second == third == 0 < first:
            colours[number] = colour
    end = luminance(surface.colour(1.0 if more else 0.0, signed=True))
    away = 1 if end > luminance(background) else -1
    numbers: list[int | None] = [None]
    for step in range(1, _STEPS + 1):
        exact = surface.colour((1 + step / _STEPS * (1 if more else -1)) / 2, signed=True)
        last = away * luminance(colours[numbers[-1]])
        beyond = [n for n in colours if away * luminance(colours[n]) >= last]
        if step > _BLANK:
            beyond = [n for n in beyond if n is not None]
        numbers.append(min(beyond, key=lambda n: _distance(exact, colours[n])))
    return numbers


def _distance(one: Sequence[int], other: Sequence[int]) -> int:
    return sum((a - b) ** 2 for a, b in zip(one, other, strict=True))


def ramp_pieces(
    scale: Scale | LogScale, low: str, high: str, colours: int, surface: Surface
) -> list[tuple[str, Style]]:
    """Return the ramp of a scale: between the numbers at its ends, or with the weights that every legend names."""
    ticks = [(0.0, low), (1.0, high)]
    if isinstance(scale, Scale) and replace(scale, shape=WEIGHTS.shape) == WEIGHTS:
        ticks = [(scale.place(tick) or 0.0, tick_text(tick)) for tick in TICKS]
    elif isinstance(scale, Scale) and scale.shape != "linear" and not scale.signed:
        within = [
            (scale.place(tick) or 0.0, tick_text(tick)) for tick in TICKS if tick < scale.high
        ]
        ticks = [*within, ticks[-1]]
    pieces = [(f"{ticks[0][1]} ", Style())]
    for (start, _), (end, name) in pairwise(ticks):
        cells = max(1, round((end - start) * _LEGEND))
        for i in range(cells):
            # A scale with ends alone is drawn from one to the other.
            place = start + (end - start) * (
                i / max(1, cells - 1) if len(ticks) == 2 else (i + 0.5) / cells
            )
            pieces.append((" ", ramp_style(place, scale.signed, colours, surface)))
        pieces.append((f" {name}{' ' * (end < 1)}", Style()))
    return pieces


def ramp_text(scale: Scale | LogScale, low: str, high: str, colours: int, surface: Surface) -> Text:
    """Draw the ramp of a scale; see ramp_pieces."""
    return Text.assemble(*ramp_pieces(scale, low, high, colours, surface))


def tick_text(weight: float) -> str:
    """Write a weight of a legend: `.01`."""
    return f"{weight:g}".replace("0.", ".")


def role_style(colour: str, strength: float, colours: int, surface: Surface) -> Style:
    """Return a role's colour, `#rrggbb`, the stronger the fuller, from 0 to 1; none of 16, which are too few for roles."""
    if colours <= 16:
        return Style()
    share = min(1.0, max(0.0, strength))
    if colours > 256:
        own_share = _FAINT + (1 - _FAINT) * share
        return _on(faded(colour, bytes.fromhex(surface.background), own_share))
    steps = role_steps(colour, surface.background)
    return _with(Color.from_ansi(steps[min(len(steps) - 1, int(share * len(steps)))]))


def bar_style(colours: int, surface: Surface) -> Style:
    """Return the style of bars beside numbers: three quarters of what a full cell has."""
    colour = ramp_style(0.75, False, colours, surface).bgcolor if colours else None
    return Style(color=colour)


def _on(rgb: Sequence[int]) -> Style:
    """Return a background with black or white on it."""
    return _with(Color.from_rgb(*rgb))


def _with(colour: Color) -> Style:
    letters = 0 if needs_black(colour.get_truecolor()) else 255
    return Style(bgcolor=colour, color=Color.from_rgb(letters, letters, letters))


def cell_shade(fraction: float, signed: bool, shades: str = SHADES, minus: str = MINUS) -> str:
    """Return a cell without colour: the fuller the larger; of a signed scale, the sign and the size of the number."""
    if not signed:
        return shade(fraction, shades) * 2
    size = shade(abs(2 * fraction - 1), shades)
    if size == " ":
        return "  "
    return ("+" if fraction > 0.5 else minus) + size
