"""Colours of numbers, the same in every view: more is blue, less is orange, and zero is the surface's own background.

A view chooses a surface by its background, and draws every stage, difference and bar with its two ramps, both of
which start at that background. Cells that a mask forbids are hatched, or blank if a view has no hatching. Cursor and
pointer have the colour of text, never one of a ramp.

The light ramps are Blues and Oranges of ColorBrewer (Harrower and Brewer, 2003); the dark ones rise from a dark
background. Blue and orange stay apart for people with any of the common colour deficiencies.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from attnscope.views.scales import luminance, needs_black, on_ramp


@dataclass(frozen=True)
class Surface:
    """A background, and the colours of numbers on it: stops are evenly spaced, each as `rrggbb`."""

    background: str
    more: str  # stops from the background to the largest number
    less: str  # stops from the background to the most negative number
    hatch: str  # lines over cells that a mask forbids
    unknown: str  # cells whose number is not known
    ink: str  # cursor, pointer and labels
    dim: str  # other labels

    @property
    def is_assumed(self) -> bool:
        """Whether the background is not known, so that cells have this one as their own."""
        return self is ASSUMED

    def on(self, background: str) -> "Surface":
        """Return the same colours on another background, `rrggbb`, at which both ramps start.

        Stops that are not beyond the background, towards the end of their ramp, are left out.
        """
        return replace(
            self,
            background=background,
            more=_from(background, self.more),
            less=_from(background, self.less),
        )

    def colour(self, fraction: float, *, signed: bool) -> list[int]:
        """Return red, green and blue at a place from 0 to 1; the middle of a signed scale is the background."""
        if not signed:
            return on_ramp(self.more, fraction)
        return on_ramp(self.more if fraction >= 0.5 else self.less, abs(2 * fraction - 1))


def _from(background: str, stops: str) -> str:
    _, *others = stops.split()
    start = luminance(bytes.fromhex(background))
    end = luminance(bytes.fromhex(others[-1]))
    beyond = [
        stop for stop in others if (luminance(bytes.fromhex(stop)) - start) * (end - start) > 0
    ]
    return " ".join([background, *beyond])


LIGHT = Surface(
    background="ffffff",
    more="ffffff deebf7 c6dbef 9ecae1 6baed6 4292c6 2171b5 08519c 08306b",
    less="ffffff feedde fdd0a2 fdae6b fd8d3c f16913 d94801 a63603 7f2704",
    hatch="c3cad4",
    unknown="eceef1",
    ink="1c2430",
    dim="5b6675",
)
DARK = Surface(
    background="14181f",
    more="14181f 17263d 1a3a63 1c538f 2472b8 3f95d4 6fb8e8 a9d8f5 e6f4fd",
    less="14181f 33221b 4f301c 6b3c1e 8b4b1e ac5a1d ca7229 e88a35 ffd09a",
    hatch="3a4352",
    unknown="232a35",
    ink="e6eaf0",
    dim="98a3b3",
)
# Of a terminal that says nothing of its background; black, and unlike a surface on black, without hatching.
ASSUMED = replace(
    DARK,
    background="000000",
    more=DARK.more.replace(DARK.background, "000000"),
    less=DARK.less.replace(DARK.background, "000000"),
    hatch="",
)


def surface_on(background: Sequence[int] | None) -> Surface:
    """Return the colours of numbers on a background, red, green and blue from 0 to 255; None if it is not known."""
    if background is None:
        return ASSUMED
    surface = LIGHT if needs_black(background) else DARK
    return surface.on(bytes(background).hex())
