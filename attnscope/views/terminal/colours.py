"""The colours of numbers on a terminal: those of `views/palette`, on its own background, in the colours it has.

Zero has no colour of its own, so that it is the background, unless that is not known: then, cells have black of their
own, on which the largest numbers are the brightest, and letters and bars have colours that stand out on black and on
white. Every other cell has a foreground that can be read on it.
"""

from bisect import bisect
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from math import floor, log10, sqrt, trunc
from typing import Literal

from rich.color import Color
from rich.style import Style
from rich.text import Text

from attnscope.views.numbers import MINUS
from attnscope.views.palette import Surface
from attnscope.views.scales import TICKS, LogScale, Scale, Shape, faded, needs_black
from attnscope.views.terminal.indexed import STEPS, ramp_steps, role_number

# The two steps of terminals with 16 colours above zero, on a dark and on a light background. A theme chooses what these
# names look like, and bright colours often equal the others or are grey: in the themes of common terminals, these are
# told apart, and letters on them can be read, which no letters on blue can in all.
_MORE_16 = {False: ("cyan", "bright_white"), True: ("cyan", "black")}
_LESS_16 = {False: ("red", "yellow"), True: ("yellow", "red")}
# Places from which they are: of weights, the roots of .03 and .3.
_OF_WEIGHTS = tuple(sqrt(weight) for weight in (0.03, 0.3))
# Of numbers above 0 on a logarithmic scale, all of which have a colour.
_OF_LOGARITHMS = (0.0, 0.5)
# Of scales that end at the largest number, about: they are those of numbers with two digits.
_OF_SHAPES: Mapping[Shape, Sequence[float]] = {
    "sqrt": (0.2, 0.6),
    "linear": (0.1, 0.5),
    "log": (0.2, 0.6),
}
_ROUNDING = 1e-6  # of a place that is one of them
# Bars that stand out on black and on white, in 256 colours and in all, below 0 and above.
_BARS_256 = (Color.parse("color(130)"), Color.parse("color(31)"))
_BARS = (Color.parse("#b0601a"), Color.parse("#2472b8"))
# The least share of a role's colour.
_FAINT = 0.25
SHADES = " ░▒▓█"
# Cells of a legend's ramp.
_LEGEND = 24
# The smallest tick on either half of a ramp with two sides.
_LARGE = 0.1


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


def limits_of(scale: Scale | LogScale) -> Sequence[float]:
    """Return the places of a scale from which each of 16 colours is; see ramp_style."""
    if isinstance(scale, LogScale):
        return _OF_LOGARITHMS
    if _is_whole(scale) and scale.shape == "sqrt":
        return _OF_WEIGHTS
    return _round_places(scale)


@lru_cache(maxsize=256)
def _round_places(scale: Scale) -> Sequence[float]:
    """Return the places of numbers with two digits that are nearest to those of a scale's shape."""
    places = []
    wanted = _OF_SHAPES[scale.shape]
    for place in wanted:
        number = scale.value((1 + place) / 2 if scale.signed else place)
        nearest = scale.place(float(f"{number:.2g}")) or 0.0
        places.append(2 * nearest - 1 if scale.signed else nearest)
    return tuple(places) if all(a < b for a, b in pairwise(places)) else wanted


def _is_whole(scale: Scale | LogScale) -> bool:
    """Tell whether a scale is that of weights, or of their differences."""
    return scale.high == 1 and scale.low in (0, -1)


def ramp_style(
    fraction: float,
    signed: bool,
    colours: int,
    surface: Surface,
    limits: Sequence[float] = _OF_WEIGHTS,
) -> Style:
    """Return the style at a place from 0 to 1 of a ramp, for a console with `colours` colours.

    `limits`: the places from which each of 16 colours is.
    """
    if colours <= 16:
        size = (abs(2 * fraction - 1) if signed else fraction) + _ROUNDING
        index = bisect(limits, size)
        if not index:
            return ground_style(colours, surface)
        return _style_16(index - 1, surface, more=not signed or fraction > 0.5)
    step = round(min(1.0, max(0.0, fraction)) * STEPS)
    return _style(step, signed, min(colours, 257), surface)


@lru_cache(maxsize=6 * STEPS)
def _style(step: int, signed: bool, colours: int, surface: Surface) -> Style:
    if step == (STEPS // 2 if signed else 0):
        return ground_style(colours, surface)
    if colours > 256:
        return _on(surface.colour(step / STEPS, signed=signed))
    size = abs(2 * step / STEPS - 1) if signed else step / STEPS
    more = not signed or 2 * step > STEPS
    ansi_colour = ramp_steps(surface, more=more)[round(size * STEPS)]
    if ansi_colour is None:
        return ground_style(colours, surface)
    return _with(Color.from_ansi(ansi_colour))


def ground_style(colours: int, surface: Surface) -> Style:
    """Return the style of zero: plain, but if the background is only assumed, white on that, in colours that there are."""
    if not colours or not surface.is_assumed:
        return Style()
    if colours <= 16:
        return Style(color="bright_white", bgcolor="black")
    if colours <= 256:
        return Style(color="color(231)", bgcolor="color(16)")
    return Style(color="#ffffff", bgcolor="#000000")


def _style_16(step: int, surface: Surface, *, more: bool) -> Style:
    """Return one of 16 colours, with letters that can be read on it."""
    is_light = needs_black(bytes.fromhex(surface.background))
    name = (_MORE_16 if more else _LESS_16)[is_light][step]
    if name == "red" and is_light:
        # light themes may have a grey for white, but their background is light
        return Style(color=name, reverse=True)
    return Style(bgcolor=name, color="bright_white" if name in ("red", "black") else "black")


def ground_of(style: Style) -> Color | None:
    """Return the colour behind the letters of a style; None for that of the terminal."""
    return style.color if style.reverse else style.bgcolor


def ramp_pieces(
    scale: Scale | LogScale,
    low: str,
    high: str,
    colours: int,
    surface: Surface,
    *,
    percent: bool = False,
    limits: Sequence[float] | None = None,
    words: bool = True,
    room: int = 80,
) -> list[tuple[str, Style]]:
    """Return the ramp of a scale between the numbers at its ends, with others on the colours that they have.

    Each of 16 colours has the number from which it is on, in two digits that no cell of it is below, and words say so:
    `0 from .005 .05 .2 .5 to 1`.

    Args:
        scale: The scale.
        low: The number at its lower end.
        high: The number at its upper end.
        colours: How many colours there are.
        surface: Those of the background.
        percent: Whether numbers are percentages.
        limits: Places from which each of 16 colours is; None for those that the scale has.
        words: Whether words say that each of 16 colours begins at its number.
        room: Columns that a ramp of more colours is not wider than, unless it had none of its own.
    """
    factor = 100 if percent else 1
    if _is_whole(scale):
        low = tick_text(factor * scale.low)
        high = tick_text(factor * scale.high)
    if colours <= 16:
        least = limits_of(scale) if limits is None else limits
        fractions = [(1 + fraction) / 2 if scale.signed else fraction for fraction in least]
        if scale.signed:
            fractions = [*(1 - fraction for fraction in reversed(fractions)), *fractions]
        names = [_least_text(factor * scale.value(fraction)) for fraction in fractions]
        lower, upper = ("from ", "to ") if words else ("", "")
        lead = f"{low} {upper if scale.signed else lower}"
        if not fractions[0]:
            # the first colour is from the lower end on
            lead = lower
            names[0] = low
        steps = [
            (f" {name} ", ramp_style(fraction, scale.signed, colours, surface, least))
            for fraction, name in zip(fractions, names, strict=True)
        ]
        if scale.signed:
            steps.insert(len(steps) // 2, (f" 0 {lower}", Style()))
        return [(lead, Style()), *steps, (f" {upper}{high}", Style())]
    length = max(1, min(_LEGEND, room - len(low) - len(high) - 2))
    letters = [" "] * length
    for tick in _ticks(scale):
        name = tick_text(factor * tick)
        fraction = scale.place(tick) or 0.0
        start = round(fraction * length - len(name) / 2)
        end = start + len(name)
        # between blanks, unless it is at the start
        around = letters[max(0, start - 1) : end + 1]
        if start >= 0 and end < length and not "".join(around).strip():
            letters[start:end] = name
    pieces = [(f"{low} ", Style())]
    for n, letter in enumerate(letters):
        fraction = (n + 0.5) / length
        pieces.append((letter, ramp_style(fraction, scale.signed, colours, surface)))
    return [*pieces, (f" {high}", Style())]


def _ticks(scale: Scale | LogScale) -> list[float]:
    """Return the numbers that a legend has between the ends of its ramp."""
    within: list[float] = []
    if isinstance(scale, Scale) and scale.shape != "linear":
        within = [tick for tick in TICKS if 0 < tick < scale.high]
    if scale.signed:
        return [0.0, *(sign * tick for tick in within if tick >= _LARGE for sign in (1, -1))]
    return within


def ramp_text(scale: Scale | LogScale, low: str, high: str, colours: int, surface: Surface) -> Text:
    """Draw the ramp of a scale; see ramp_pieces."""
    return Text.assemble(*ramp_pieces(scale, low, high, colours, surface))


def tick_text(weight: float) -> str:
    """Write a number of a legend with two digits: `.01`."""
    return f"{float(f'{weight:.2g}'):g}".replace("0.", ".", 1).replace("-", MINUS)


def _least_text(value: float) -> str:
    """Write a number with two digits, towards 0."""
    if not value:
        return "0"
    unit = 10.0 ** (floor(log10(abs(value))) - 1)
    return tick_text(trunc(value / unit * (1 + _ROUNDING)) * unit)


def role_style(colour: str, strength: float, colours: int, surface: Surface) -> Style:
    """Return a role's colour, `#rrggbb`: with all colours, the stronger the fuller, from 0 to 1, and of 256 one alone.

    There is none of 16, which are too few for roles.
    """
    if colours <= 16:
        return Style()
    if colours <= 256:
        return _with(Color.from_ansi(role_number(colour)))
    own_share = _FAINT + (1 - _FAINT) * min(1.0, max(0.0, strength))
    return _on(faded(colour, bytes.fromhex(surface.background), own_share))


def bar_style(colours: int, surface: Surface, *, more: bool = True) -> Style:
    """Return the style of bars beside numbers, or of those below 0: three quarters of what a full cell has.

    Of 16 colours, one of no scale, which numbers beside bars have, too.
    """
    if colours <= 16:
        return Style(color=None if more or not colours else "magenta")
    if surface.is_assumed:
        return Style(color=(_BARS_256 if colours <= 256 else _BARS)[more])
    return Style(
        color=ramp_style((1 + 0.75 * (1 if more else -1)) / 2, True, colours, surface).bgcolor
    )


def _on(rgb: Sequence[int]) -> Style:
    """Return a background with black or white on it."""
    return _with(Color.from_rgb(*rgb))


def _with(colour: Color) -> Style:
    letters = 0 if needs_black(colour.get_truecolor()) else 255
    return Style(bgcolor=colour, color=Color.from_rgb(letters, letters, letters))


def cell_shade(fraction: float, signed: bool, shades: str = SHADES, minus: str = MINUS) -> str:
    """Return a cell without colour: the fuller the larger; of a signed scale, the sign and the size, or zero's blanks."""
    if not signed:
        return shade(fraction, shades) * 2
    if fraction == 0.5:
        return 2 * shades[0]
    return ("+" if fraction > 0.5 else minus) + shade(abs(2 * fraction - 1), shades[1:])
