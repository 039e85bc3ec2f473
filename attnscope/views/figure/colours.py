"""Colours for paper: both ramps begin, or have their centre, at white, and darker means stronger.

Blues and RdBu of ColorBrewer (Harrower and Brewer, 2003) are safe for colour-blind readers, and Blues for greyscale
printers.
"""

from collections.abc import Sequence
from functools import lru_cache

from attnscope.views.scales import faded, needs_black, on_ramp

_SEQUENTIAL = "ffffff deebf7 c6dbef 9ecae1 6baed6 4292c6 2171b5 08519c 08306b"
_DIVERGING = "053061 2166ac 4393c3 92c5de d1e5f0 ffffff fddbc7 f4a582 d6604d b2182b 67001f"
# Number of colours: enough that adjacent ones look alike, few enough that many cells share one.
_STEPS = 48
# Colour of bars beside numbers.
BAR = "#4292c6"
# Colour of cells that are forbidden, exactly zero, or have no number.
NO_VALUE = "#dddddd"


@lru_cache(maxsize=4 * _STEPS)
def _colour(step: int, signed: bool) -> str:
    return _hex(on_ramp(_DIVERGING if signed else _SEQUENTIAL, step / _STEPS))


def ramp_colour(place: float, *, signed: bool) -> str:
    """Return the colour at a place from 0 to 1 of a ramp, as `#rrggbb`."""
    return _colour(round(min(1.0, max(0.0, place)) * _STEPS), signed)


def stops(*, signed: bool) -> list[tuple[float, str]]:
    """Return offsets and colours of a gradient that is the ramp."""
    names = (_DIVERGING if signed else _SEQUENTIAL).split()
    return [(n / (len(names) - 1), f"#{name}") for n, name in enumerate(names)]


def mixed_with_white(colour: str, share: float) -> str:
    """Return a mixture with white: 0 is white, 1 the colour."""
    return _hex(faded(colour, (255, 255, 255), share))


def _hex(rgb: Sequence[int]) -> str:
    return f"#{bytes(rgb).hex()}"


def ink_on(colour: str) -> str:
    """Return black or white, whichever is easier to read on a colour."""
    return "#000000" if needs_black(bytes.fromhex(colour[1:])) else "#ffffff"
