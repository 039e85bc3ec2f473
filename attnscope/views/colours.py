"""Ramps between colours, and what can be read on a colour."""

from collections.abc import Sequence


def on_ramp(stops: str, place: float) -> list[int]:
    """Return red, green and blue at a place from 0 to 1 between evenly spaced stops, `rrggbb` each."""
    colours = [bytes.fromhex(stop) for stop in stops.split()]
    at = place * (len(colours) - 1)
    left = min(int(at), len(colours) - 2)
    return [round(a + (b - a) * (at - left)) for a, b in zip(colours[left], colours[left + 1], strict=True)]


def faded(colour: str, towards: Sequence[int], share: float) -> list[int]:
    """Return red, green and blue of a colour, `#rrggbb`, of which a share is left, and another has the rest."""
    return [round(other + (own - other) * share) for own, other in zip(bytes.fromhex(colour[1:]), towards, strict=True)]


def needs_black(rgb: Sequence[int]) -> bool:
    """Tell whether black is easier to read on a colour than white (WCAG 2.1, relative luminance)."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in rgb)]
    return sum(a * b for a, b in zip((0.2126, 0.7152, 0.0722), linear, strict=True)) > 0.179
