"""The colours of a role where there are 256: few steps of one hue, from the background to the role's own colour."""

from functools import lru_cache
from itertools import product
from math import atan2, degrees, dist, hypot

from attnscope.views.scales import faded, oklab

# Lightness, greenness to redness, blueness to yellowness.
Lab = tuple[float, float, float]
# Red, green and blue of the numbers that mean the same in every terminal: a cube, then greys.
COLOURS_256 = {
    16 + index: rgb for index, rgb in enumerate(product((0, 95, 135, 175, 215, 255), repeat=3))
} | {232 + index: (8 + 10 * index,) * 3 for index in range(24)}
# Strengths for which a colour is looked for; many roles have the same for two of them.
_STRENGTHS = (0.25, 0.5, 0.75, 1.0)
# Degrees of OKLab between a step and the role's colour at most.
_HUE = 15.0
# A degree from the hue of the strongest step counts as much as this distance.
_DEGREE = 0.05 / _HUE
# Differences of hue and saturation count so many times as much as those of lightness.
_CHROMA = 2.0
# A step has at most so many times the saturation that its distance from the background asks for, and at least its inverse.
_SATURATION = 2.0
# Chroma below which a colour is grey, and from which on its hue is seen.
_GREY = 0.03


def _hue(lab: Lab) -> float:
    return degrees(atan2(lab[2], lab[1]))


def _turn(one: Lab, other: Lab) -> float:
    return abs((_hue(one) - _hue(other) + 180) % 360 - 180)


def _difference(one: Lab, other: Lab) -> float:
    return hypot(one[0] - other[0], _CHROMA * (one[1] - other[1]), _CHROMA * (one[2] - other[2]))


@lru_cache(maxsize=64)
def role_steps(colour: str, background: str) -> list[int]:
    """Return the numbers of a role's colours among 256, from the weakest to the strongest, at least one.

    All have the hue of the role, `#rrggbb`, within 15° of OKLab, or are grey as it is; each is farther from the
    background, `rrggbb`, than the one before.
    """
    rgb = bytes.fromhex(background)
    base = oklab(rgb)
    full = oklab(bytes.fromhex(colour[1:]))
    labs = {number: oklab(entry) for number, entry in COLOURS_256.items()}
    away = {number: dist(lab, base) for number, lab in labs.items()}
    chroma = {number: hypot(*lab[1:]) for number, lab in labs.items()}
    own_chroma = hypot(*full[1:])
    if own_chroma < _GREY:
        alike = [n for n in labs if chroma[n] < _GREY / 3]
    else:
        alike = [n for n in labs if chroma[n] >= _GREY and _turn(labs[n], full) <= _HUE]
    # The closest of all to the background is none that a role has alone: there would be no weaker one.
    nearest = min(alike, key=away.__getitem__)
    top = min((n for n in alike if n != nearest), key=lambda n: _difference(labs[n], full))

    def is_step(number: int) -> bool:
        if away[number] >= away[top]:
            return number == top
        wanted_chroma = own_chroma * away[number] / (dist(full, base) or 1.0)
        return own_chroma < _GREY or (
            wanted_chroma <= _SATURATION * chroma[number]
            and chroma[number] <= _SATURATION * wanted_chroma
        )

    steps = [n for n in alike if is_step(n)]
    ladder = [min(steps, key=away.__getitem__)]
    for strength in _STRENGTHS:
        wanted = oklab(faded(colour, rgb, strength))
        ladder.append(
            min(
                (n for n in steps if away[n] >= away[ladder[-1]]),
                key=lambda n: _difference(labs[n], wanted) + _DEGREE * _turn(labs[n], labs[top]),
            )
        )
    return list(dict.fromkeys(ladder[1:]))
