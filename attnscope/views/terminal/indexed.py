"""Ramps and colours of roles where there are 256 colours: few, which keep their hue."""

from collections.abc import Mapping, Sequence, Set
from functools import lru_cache
from itertools import product
from math import atan2, degrees, dist, hypot, inf, isfinite

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
# Colours of a ramp at most, with as many steps each.
_MOST_COLOURS = 12
# Distance in OKLab between two that follow each other, at least, which an eye tells apart; their difference of hue and
# saturation counts so many times as much as that from the exact colours.
_APART = 0.03
_SMOOTH = 2.0
# Hues of blue and of orange, lowest and highest, and degrees between two that follow each other, at most.
_HUES = {True: (238.0, 266.0), False: (28.0, 68.0)}
_MOST_TURN = 15.5
# Lightness in OKLab between two that follow each other, at least, and saturation, at most.
_RISE = 0.02
_MOST_CHROMA = 0.09


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

    More is blue (blue > green > red, or blue alone), and less is orange, of about the hue of the exact colour: the
    nearest of all are green, grey or violet, or the same for a quarter of the ramp. Between two hues are only the palest
    of each, which begins a ramp on white, and the dark red without which small numbers had one step on black.
    Every colour has as many steps as the others, is further from the background than the one before, and lighter or
    darker without a turn to another hue or a leap of saturation, which would look like another kind of number.
    """
    background = bytes.fromhex(surface.background)
    end = luminance(surface.colour(1.0 if more else 0.0, signed=True))
    away = 1 if end > luminance(background) else -1
    colours: dict[int, Sequence[int]] = {}
    between_hues: set[int] = set()
    for index, colour in COLOURS_256.items():
        main, green, other = colour[::-1] if more else colour
        # the palest orange is a yellow, which on white is nearly white, but a bright one on black
        is_palest = main == green == 255 and other == 215 and (more or away < 0)
        if is_palest or (not more and colour == (135, 0, 0)):
            between_hues.add(index)
        if main > green > other or green == other == 0 < main < 255 or index in between_hues:
            colours[index] = colour
    order = sorted(colours, key=lambda index: away * luminance(colours[index]))
    order = [n for n in order if away * (luminance(colours[n]) - luminance(background)) > 0]
    labs = {index: oklab(colours[index]) for index in order}

    def cost(index: int, place: float) -> float:
        exact = oklab(surface.colour((1 + place * (1 if more else -1)) / 2, signed=True))
        if index in between_hues:
            return _difference(labs[index], exact)
        lowest, highest = _HUES[more]
        if not lowest <= _hue(labs[index]) % 360 <= highest:
            return inf
        turn = _turn(labs[index], exact)
        return _difference(labs[index], exact) + _DEGREE * turn

    coloured = STEPS - BLANK
    for count in range(_MOST_COLOURS, 0, -1):
        places = [(BLANK + (n + 0.5) * coloured / count) / STEPS for n in range(count)]
        costs = [{index: cost(index, place) for index in order} for place in places]
        path = _cheapest_path(costs, labs, between_hues)
        if path:
            break
    return [*[None] * (BLANK + 1), *(path[n * count // coloured] for n in range(coloured))]


def _cheapest_path(
    costs: Sequence[Mapping[int, float]], labs: Mapping[int, Lab], between_hues: Set[int]
) -> list[int]:
    """Return a colour for each place, at the least cost: lighter or darker each time, apart, and of one hue.

    Args:
        costs: What every colour costs at each place.
        labs: The colours in their order.
        between_hues: Those that are between two hues, to which any turns.
    """

    def follows(index: int, other: int) -> bool:
        one, before = labs[index], labs[other]
        turns = not between_hues.isdisjoint((index, other)) or _turn(one, before) <= _MOST_TURN
        is_alike = turns and abs(hypot(*one[1:]) - hypot(*before[1:])) <= _MOST_CHROMA
        return is_alike and abs(one[0] - before[0]) >= _RISE and dist(one, before) >= _APART

    order = list(labs)
    paths = {index: (costs[0][index], [index]) for index in order}
    for at_place in costs[1:]:
        longer: dict[int, tuple[float, list[int]]] = {}
        for n, index in enumerate(order):
            lab = labs[index]
            before = [
                (paths[other][0] + _SMOOTH * dist(labs[other][1:], lab[1:]), paths[other][1])
                for other in order[:n]
                if follows(index, other)
            ]
            total, path = min(before, default=(inf, []))
            longer[index] = total + at_place[index], [*path, index]
        paths = longer
    total, path = min(paths.values(), default=(inf, []))
    return path if isfinite(total) else []
