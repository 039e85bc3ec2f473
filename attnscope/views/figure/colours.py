"""Colours for paper: both ramps begin, or have their centre, at white, and darker means stronger.

Blues and RdBu of ColorBrewer (Harrower and Brewer, 2003) are safe for colour-blind readers, and Blues for greyscale
printers.
"""

from functools import lru_cache

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
    stops = [bytes.fromhex(stop) for stop in (_DIVERGING if signed else _SEQUENTIAL).split()]
    at = step / _STEPS * (len(stops) - 1)
    left = min(int(at), len(stops) - 2)
    return hex_colour(*(a + (b - a) * (at - left) for a, b in zip(stops[left], stops[left + 1], strict=True)))


def ramp_colour(place: float, *, signed: bool) -> str:
    """Return the colour at a place from 0 to 1 of a ramp, as `#rrggbb`."""
    return _colour(round(min(1.0, max(0.0, place)) * _STEPS), signed)


def stops(*, signed: bool) -> list[tuple[float, str]]:
    """Return offsets and colours of a gradient that is the ramp."""
    names = (_DIVERGING if signed else _SEQUENTIAL).split()
    return [(n / (len(names) - 1), f"#{name}") for n, name in enumerate(names)]


def mixed_with_white(colour: str, share: float) -> str:
    """Return a colour of which so much is left, from 0 (white) to 1."""
    return hex_colour(*(255 + (channel - 255) * share for channel in bytes.fromhex(colour[1:])))


def hex_colour(*channels: float) -> str:
    """Return `#rrggbb`."""
    return "#" + "".join(f"{round(channel):02x}" for channel in channels)


def ink_on(colour: str) -> str:
    """Return black or white, whichever is easier to read on a colour (WCAG 2.1, relative luminance)."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in
              (channel / 255 for channel in bytes.fromhex(colour[1:]))]  # fmt: skip
    luminance = sum(a * b for a, b in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    return "#000000" if luminance > 0.179 else "#ffffff"
