"""Colours of figures: those of `views/palette` on paper."""

from functools import lru_cache

from attnscope.views.palette import LIGHT
from attnscope.views.scales import faded, needs_black

# Number of colours: enough that adjacent ones look alike, few enough that many cells share one.
_STEPS = 48
BACKGROUND = f"#{LIGHT.background}"
HATCH = f"#{LIGHT.hatch}"
# Colour of bars beside numbers.
BAR = f"#{LIGHT.more.split()[5]}"


@lru_cache(maxsize=4 * _STEPS)
def _colour(step: int, signed: bool) -> str:
    return f"#{bytes(LIGHT.colour(step / _STEPS, signed=signed)).hex()}"


def ramp_colour(fraction: float, *, signed: bool) -> str:
    """Return the colour at a place from 0 to 1 of a ramp, as `#rrggbb`."""
    return _colour(round(min(1.0, max(0.0, fraction)) * _STEPS), signed)


def stops(*, signed: bool) -> list[tuple[float, str]]:
    """Return offsets and colours of a gradient that is the ramp."""
    if signed:
        names = [*LIGHT.less.split()[:0:-1], *LIGHT.more.split()]
    else:
        names = LIGHT.more.split()
    return [(n / (len(names) - 1), f"#{name}") for n, name in enumerate(names)]


def mixed_with_white(colour: str, share: float) -> str:
    """Return a mixture with white: 0 is white, 1 the colour."""
    return f"#{bytes(faded(colour, (255, 255, 255), share)).hex()}"


def ink_on(colour: str) -> str:
    """Return black or white, whichever is easier to read on a colour."""
    return "#000000" if needs_black(bytes.fromhex(colour[1:])) else "#ffffff"
