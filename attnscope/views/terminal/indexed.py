"""Ramps and colours of roles where there are 256 colours: few, which keep their hue."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from math import atan2, degrees, hypot

from attnscope.views.palette import Surface
from attnscope.views.scales import luminance, oklab

# Lightness, greenness to redness, blueness to yellowness.
Lab = tuple[float, float, float]
# Red, green and blue of the numbers that mean the same in every terminal: a cube, then greys.
COLOURS_256 = {
    16 + index: rgb for index, rgb in enumerate(product((0, 95, 135, 175, 215, 255), repeat=3))
} | {232 + index: (8 + 10 * index,) * 3 for index in range(24)}
# Degrees of OKLab between a step and the colour that it stands for at most.
_HUE = 15.0
# A degree from the wanted hue counts as much as this distance.
_DEGREE = 0.04 / _HUE
# Differences of hue and saturation count so many times as much as those of lightness.
_CHROMA = 2.0
# Chroma below which a colour is grey, and from which on its hue is seen.
_GREY = 0.03
# Steps of a ramp, and those that may have the background's colour: weights below .005 on the scale of roots.
STEPS = 64
BLANK = 4


def _hue(lab: Lab) -> float:
    return degrees(atan2(lab[2], lab[1]))


def _turn(one: Lab, other: Lab) -> float:
    return abs((_hue(one) - _hue(other) + 180) % 360 - 180)


def _difference(one: Lab, other: Lab) -> float:
    return hypot(one[0] - other[0], _CHROMA * (one[1] - other[1]), _CHROMA * (one[2] - other[2]))


@lru_cache(maxsize=64)
def role_number(colour: str) -> int:
    """Return the number of a role's colour, `#rrggbb`, among 256: its hue within 15° of OKLab, or grey as it is.

    Among 256 there are no weaker ones of every role with its hue, in which lightness and saturation both fall.
    """
    exact = oklab(bytes.fromhex(colour[1:]))
    labs = {index: oklab(entry) for index, entry in COLOURS_256.items()}
    if hypot(*exact[1:]) < _GREY:
        alike = [n for n, lab in labs.items() if hypot(*lab[1:]) < _GREY / 3]
    else:
        alike = [
            n for n, lab in labs.items() if hypot(*lab[1:]) >= _GREY and _turn(lab, exact) <= _HUE
        ]
    return min(alike, key=lambda n: _difference(labs[n], exact))


@lru_cache(maxsize=8)
def ramp_steps(surface: Surface, *, more: bool) -> list[int | None]:
    """Return the number of the colour, of 256, at every step of a ramp; None for the background.

    More is blue (blue > green > red, or blue alone), and less is orange, of the hue of the exact colour: the nearest of
    all are green, grey or violet. Between two hues are only the palest of each, which begins a ramp on white, and the
    dark red without which small numbers had one step on black.
    No step is closer to the background than the one before.
    """
    background = bytes.fromhex(surface.background)
    colours: dict[int | None, Sequence[int]] = {None: background}
    between_hues: set[int | None] = {None}
    for index, colour in COLOURS_256.items():
        main, green, other = colour[::-1] if more else colour
        is_palest = main == green == 255 and other == 215
        if is_palest or (not more and colour == (135, 0, 0)):
            between_hues.add(index)
        if main > green > other or green == other == 0 < main or index in between_hues:
            colours[index] = colour
    labs = {index: oklab(colour) for index, colour in colours.items()}
    end = luminance(surface.colour(1.0 if more else 0.0, signed=True))
    away = 1 if end > luminance(background) else -1
    distance = {index: away * luminance(colour) for index, colour in colours.items()}
    numbers: list[int | None] = [None]
    for step in range(1, STEPS + 1):
        exact = oklab(surface.colour((1 + step / STEPS * (1 if more else -1)) / 2, signed=True))
        beyond = [n for n in colours if distance[n] >= distance[numbers[-1]]]
        if step > BLANK:
            beyond = [n for n in beyond if n is not None]

        def cost(index: int | None, exact: Lab = exact) -> float:
            turn = 0.0 if index in between_hues else _turn(labs[index], exact)
            return _difference(labs[index], exact) + _DEGREE * turn

        numbers.append(min(beyond, key=cost))
    return numbers
