"""Colour ramps that read the same on dark and light terminals.

Every coloured cell has its own background and a contrasting foreground, so that it does not depend on the terminal's
colours. In both ramps brighter means stronger: viridis (van der Walt and Smith, 2015) for weights, and blue to dark to
orange, centred at 0, for signed values; both are safe for colour-blind readers.
"""

from collections.abc import Sequence
from functools import lru_cache

from rich.color import Color
from rich.style import Style
from rich.text import Text

from attnscope.views.numbers import MINUS
from attnscope.views.scales import faded, needs_black, on_ramp

_STEPS = 64
_SEQUENTIAL = "440154 482878 3e4989 31688e 26828e 1f9e89 35b779 6ece58 b5de2b fde725"
_DIVERGING = "a6d5ff 4f9bea 2c62ac 24406b 23262e 6b3c1e ac5a1d e88a35 ffd09a"
# of the colours that terminals of 256 have, those nearest to the ramps whose brightness rises from step to step
_SEQUENTIAL_256 = (17, 54, 24, 30, 36, 77, 148, 220)
_DIVERGING_256 = (153, 75, 26, 18, 234, 52, 130, 208, 222)
_SEQUENTIAL_16 = "black blue cyan yellow bright_yellow"
_DIVERGING_16 = "bright_cyan cyan blue black red yellow bright_yellow"
_DARK_16 = ("black", "blue", "red")
# A weak role's colour fades to this one.
_DARK = (34, 34, 34)
SHADES = " ░▒▓█"
# Cells of a legend's ramp.
_LEGEND = 16


def count_colours(system: str | None) -> int:
    """Return how many colours there are in what rich calls a colour system: 0, 16, 256 or 16,777,216."""
    return {None: 0, "standard": 16, "windows": 16, "256": 256}.get(system, 1 << 24)


def shade(place: float, shades: str = SHADES) -> str:
    """Return the character at a place from 0 to 1 of a ramp of characters, for a console without colours."""
    return shades[max(0, min(len(shades) - 1, int(place * len(shades))))]


def ramp_style(place: float, signed: bool, colours: int) -> Style:
    """Return the style at a place from 0 to 1 of a ramp, for a console with `colours` colours."""
    return _style(round(min(1.0, max(0.0, place)) * _STEPS), signed, min(colours, 257))


@lru_cache(maxsize=6 * _STEPS)
def _style(step: int, signed: bool, colours: int) -> Style:
    if 16 < colours <= 256:
        numbers = _DIVERGING_256 if signed else _SEQUENTIAL_256
        colour = Color.from_ansi(numbers[min(len(numbers) - 1, step * len(numbers) // _STEPS)])
        return Style(bgcolor=colour, color=_on(colour.get_truecolor()).color)
    if colours <= 16:
        names = (_DIVERGING_16 if signed else _SEQUENTIAL_16).split()
        name = names[min(len(names) - 1, step * len(names) // _STEPS)]
        return Style(bgcolor=name, color="bright_white" if name in _DARK_16 else "black")
    return _on(on_ramp(_DIVERGING if signed else _SEQUENTIAL, step / _STEPS))


def ramp_text(low: str, high: str, signed: bool, colours: int) -> Text:
    """Draw a ramp between the numbers at its ends."""
    ramp = Text(f"{low} ")
    for i in range(_LEGEND):
        ramp.append(" ", ramp_style(i / (_LEGEND - 1), signed, colours))
    return ramp.append(f" {high}")


def role_style(colour: str, strength: float, colours: int) -> Style:
    """Return a role's colour, `#rrggbb`, the stronger the brighter: from 0 to 1."""
    if colours <= 16:
        return Style(color=Color.parse(colour), bold=True)
    return _on(faded(colour, _DARK, min(1.0, max(0.0, strength))))


def _on(rgb: Sequence[int]) -> Style:
    """Return a background with black or white on it."""
    return Style(bgcolor=Color.from_rgb(*rgb), color=Color.from_rgb(*[0 if needs_black(rgb) else 255] * 3))


def cell_shade(place: float, signed: bool, shades: str = SHADES, minus: str = MINUS) -> str:
    """Return a cell without colour: the darker the larger; of a signed scale, the sign and the size of the number."""
    if not signed:
        return shade(place, shades) * 2
    size = shade(abs(2 * place - 1), shades)
    return "  " if size == " " else ("+" if place > 0.5 else minus) + size
