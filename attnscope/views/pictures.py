"""The pixels of a picture with a map over it: the picture is grey and faint, so that the map's colours read.

Everything is a share of a row of weights. A patch without weight shows the faint picture alone; the more weight, the
more of the colour that the weight has in every other view.
"""

from collections.abc import Sequence

import numpy as np

from attnscope.findings.arrays import Array, Matrix
from attnscope.views.palette import Surface
from attnscope.views.scales import Scale

_COLOUR_LEFT = 0.2  # of the picture's own colour below the map
_PICTURE_LEFT = 0.4  # of the picture's brightness, against the background, below the map
_FAINTEST = 0.1  # cover of a patch with hardly any weight
_STEEP = 1.4  # how fast the cover rises with the place on the scale, up to the fullest
_FULLEST = 0.95
# The same for a view that mixes pixels itself.
MIXING = {
    "colour": _COLOUR_LEFT,
    "brightness": _PICTURE_LEFT,
    "faintest": _FAINTEST,
    "steep": _STEEP,
    "fullest": _FULLEST,
}
_GREY = np.array((0.299, 0.587, 0.114))
# Places of a scale that legends name.
_TICKS = (0.25, 0.5, 1.0)


def resized(pixels: Array, height: int, width: int) -> Array:
    """Return a picture of another size, (height, width, 3), float: the mean of the pixels in each, or the nearest."""
    rows, columns = (
        (np.arange(size + 1) * length // size) if size <= length else None
        for size, length in zip((height, width), pixels.shape[:2], strict=True)
    )
    values = pixels.astype(np.float64)
    for axis, (edges, size) in enumerate(((rows, height), (columns, width))):
        if edges is None:
            values = values.take(np.arange(size) * values.shape[axis] // size, axis)
        else:
            counts = np.diff(edges).reshape((-1, 1, 1) if axis == 0 else (1, -1, 1))
            values = np.add.reduceat(values, edges[:-1], axis) / counts
    return values


def faint(pixels: Array, surface: Surface) -> Array:
    """Return a picture as it lies under a map, in greys near the background."""
    values = pixels.astype(np.float64)
    grey = (values @ _GREY)[..., None]
    background = np.array(list(bytes.fromhex(surface.background)), dtype=np.float64)
    mixed: Array = (grey + (values - grey) * _COLOUR_LEFT) * _PICTURE_LEFT + background * (
        1 - _PICTURE_LEFT
    )
    return mixed


def patch_colour(weight: float, scale: Scale, surface: Surface) -> tuple[list[int], float]:
    """Return the colour of a patch, red, green and blue, and how far it covers the faint picture, 0 to 1."""
    share = scale.place(weight)
    if not share:
        return [0, 0, 0], 0.0
    return surface.colour(share, signed=False), min(_FULLEST, _FAINTEST + _STEEP * share)


def covered(pixels: Array, weights: Matrix, scale: Scale, surface: Surface) -> Array:
    """Return the pixels of a picture with a map over it, uint8.

    Args:
        pixels: The picture, (height, width, 3).
        weights: The weight of every patch, (rows, columns); NaN for a patch without a token, which has no colour.
    """
    height, width, _ = pixels.shape
    rows, columns = weights.shape
    patches = [
        [patch_colour(weight, scale, surface) for weight in line] for line in weights.tolist()
    ]
    down = (np.arange(height) * rows // height)[:, None]
    across = np.arange(width) * columns // width
    colours = np.array([[colour for colour, _ in line] for line in patches], dtype=np.float64)[
        down, across
    ]
    cover = np.array([[cover for _, cover in line] for line in patches])[down, across][..., None]
    mixed: Array = np.rint(faint(pixels, surface) * (1 - cover) + colours * cover).astype(np.uint8)
    return mixed


def percent(share: float) -> str:
    """Write a share with two digits that count, down to 0.01 %; what is not all is not written as 100 %."""
    if 0.995 <= share < 0.9995 or 0.00995 <= share < 0.0995:
        decimals = 1
    elif share >= 0.0995:
        decimals = 0
    else:
        decimals = 2
    return f"{100 * share:.{decimals}f} %"


RELATIVE = "the largest patch of each map"
UNIT = "% of the row on one patch"


def ticks(scale: Scale, *, relative: bool) -> Sequence[tuple[float, str]]:
    """Return the places of a scale that its legend names, each with its share in percent; see Pictures."""
    if relative:
        return [(0.0, "0"), (1.0, RELATIVE)]
    return [(0.0, "0"), *((share, two_digits(100 * scale.value(share))) for share in _TICKS)]


def two_digits(value: float) -> str:
    """Write a number with two digits that count: `0.39`, `6.2`, `100`."""
    return f"{float(f'{value:.2g}'):g}"
