"""Places of numbers on a scale of colours, and colours between others."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import copysign, isfinite, log, log10, sqrt
from typing import ClassVar, Literal

import numpy as np

from attnscope.findings.arrays import Matrix

# Ratio of the largest weight to the smallest with a colour of its own on a logarithmic scale.
LARGEST_RATIO = 1000.0

Shape = Literal["sqrt", "linear", "log"]
# From the share of the largest number to a position on a ramp, 0 to 1 each; the first is what views begin with, since
# most weights are small.
SHAPES: Mapping[Shape, Callable[[float], float]] = {
    "sqrt": sqrt,
    "linear": lambda share: share,
    "log": lambda share: max(0.0, 1 + log10(share) / log10(LARGEST_RATIO)) if share > 0 else 0.0,
}
INVERSES: Mapping[Shape, Callable[[float], float]] = {
    "sqrt": lambda position: position**2,
    "linear": lambda position: position,
    "log": lambda position: LARGEST_RATIO ** (position - 1),
}
# From linear red, green and blue to what cones see, and from its cube root to OKLab.
_TO_CONES = (
    (0.4122214708, 0.5363325363, 0.0514459929),
    (0.2119034982, 0.6806995451, 0.1073969566),
    (0.0883024619, 0.2817188376, 0.6299787005),
)
_TO_OKLAB = (
    (0.2104542553, 0.7936177850, -0.0040720468),
    (1.9779984951, -2.4285922050, 0.4505937099),
    (0.0259040371, 0.7827717662, -0.8086757660),
)
# Weights that legends name.
TICKS = (0.0, 0.01, 0.1, 0.5, 1.0)


@dataclass(frozen=True)
class Scale:
    """The range that a ramp is stretched over."""

    low: float
    high: float
    signed: bool  # centred at 0
    shape: Shape = "linear"

    def place(self, value: float) -> float | None:
        """Return the place of a value on the scale, from 0 to 1; None if it has none.

        A value that is beyond an end is at it: a report from elsewhere may hold weights below 0.
        """
        if not isfinite(value):
            return None
        if self.high <= self.low:
            return 0.5 if self.signed else 0.0
        if self.signed:
            size = SHAPES[self.shape](min(1.0, abs(value) / self.high))
            return (1 + copysign(size, value)) / 2
        return SHAPES[self.shape](min(1.0, max(0.0, (value - self.low) / (self.high - self.low))))

    def value(self, position: float) -> float:
        """Return the number at a position from 0 to 1; at 0 of a logarithmic shape, the smallest with a colour."""
        if self.signed:
            return copysign(
                self.high * INVERSES[self.shape](abs(2 * position - 1)), 2 * position - 1
            )
        return self.low + (self.high - self.low) * INVERSES[self.shape](position)


# Of weights, in every picture, so that two of them can be compared.
WEIGHTS = Scale(0.0, 1.0, signed=False, shape="sqrt")
# Of differences of weights.
_CHANGES = Scale(-1.0, 1.0, signed=True, shape="sqrt")


@dataclass(frozen=True)
class LogScale:
    """A logarithmic scale of weights above zero."""

    low: float
    high: float
    signed: ClassVar[bool] = False
    shape: ClassVar[Shape] = "log"

    @classmethod
    def of(cls, weights: Matrix) -> "LogScale":
        """Return the scale of the weights that are known and above zero."""
        positive_weights = weights[np.isfinite(weights) & (weights > 0)]
        if not positive_weights.size:
            return cls(1.0, 1.0)
        high = float(positive_weights.max())
        return cls(max(high / LARGEST_RATIO, float(positive_weights.min())), high)

    def ends(self, weights: Matrix) -> tuple[str, str]:
        """Write the numbers at its ends; smaller weights have the colour of the lower end, with `<` before it."""
        below = bool(((weights > 0) & (weights < self.low)).any())
        return f"{'<' if below else ''}{self.low:.2g}", f"{self.high:.2g}"

    def place(self, weight: float) -> float | None:
        """Return the place of a weight on the scale, from 0 to 1; None for zero and for NaN."""
        if not weight > 0:
            return None
        if self.high <= self.low:
            return 1.0
        return min(1.0, max(0.0, log(weight / self.low) / log(self.high / self.low)))

    def value(self, position: float) -> float:
        """Return the weight at a position from 0 to 1."""
        return self.low * float((self.high / self.low) ** position)


def pool_largest(matrix: Matrix, rows: int, columns: int) -> Matrix:
    """Pool a matrix to the largest number in every cell of a coarser grid; −1 for empty cells."""
    pooled = np.where(np.isnan(matrix), -1.0, matrix).astype(np.float32)
    for axis, count in ((0, rows), (1, columns)):
        size = pooled.shape[axis]
        if count < size:
            pooled = np.maximum.reduceat(
                pooled, [n * size // count for n in range(count)], axis=axis
            )
    return pooled


def pooled_cells(
    shape: tuple[int, ...], rows: int, columns: int, *, together: int = 1, of_map: bool = False
) -> str:
    """Describe what a cell of pool_largest stands for; empty if that is one weight.

    Args:
        together: Number of its rows that are drawn as one cell.
        of_map: Whether the matrix is the map of a long text, with runs of tokens.
    """
    queries, keys = shape[-2:]
    starts = [n * queries // rows for n in range(0, rows, together)]
    largest = max(end - start for start, end in zip(starts, [*starts[1:], queries], strict=True))
    per = f"{largest} × {-(-keys // columns)}"
    if of_map:
        if per == "1 × 1":
            cells = f"the {queries} × {keys} map"
        else:
            cells = f"up to {per} cells of the {queries} × {keys} map"
        if per == "1 × 1":
            cells = f"a cell of {cells}"
        else:
            cells = f"the largest of {cells}"
        return f"; a cell is {cells}: the weight on a run of keys, averaged over a run of queries"
    if per == "1 × 1":
        return ""
    return f"; a cell is the largest of up to {per} (queries × keys)"


def scale_for(
    stage: str, matrix: Matrix, shape: Shape = "sqrt", sinks: Sequence[bool] | None = None
) -> Scale:
    """Choose the scale of one stage: weights from 0 to 1, their differences to 1 both ways, others to their largest.

    Args:
        shape: How the colours of weights and of their differences follow them.
        sinks: Columns of weights that their scale leaves out; None for a scale that ends at 1.
    """
    if stage in ("weights", "shares", "difference"):
        scale = replace(_CHANGES if stage == "difference" else WEIGHTS, shape=shape)
        high = 0.0
        if sinks is not None:
            high = _largest(matrix[:, ~np.array(sinks, dtype=bool)])
        if not high:
            return scale
        return replace(scale, low=-high if scale.signed else 0.0, high=high)
    largest = _largest(matrix)
    return Scale(-largest, largest, signed=True)


def _largest(matrix: Matrix) -> float:
    finite = matrix[np.isfinite(matrix)]
    if finite.size:
        return float(np.abs(finite).max())
    return 0.0


def shares_of_largest(values: Sequence[float]) -> list[float]:
    """Return bars of numbers: shares of the largest size, from −1 to 1."""
    largest = max(map(abs, values), default=0.0) or 1.0
    return [value / largest for value in values]


def strip_scale(values: Sequence[float]) -> Scale:
    """Return the scale of a strip: from its largest number, both ways."""
    largest = max((abs(value) for value in values), default=0.0)
    return Scale(-largest, largest, signed=True)


def on_ramp(stops: str, fraction: float) -> list[int]:
    """Return red, green and blue at a place from 0 to 1 between evenly spaced stops, `rrggbb` each."""
    colours = [bytes.fromhex(stop) for stop in stops.split()]
    at = fraction * (len(colours) - 1)
    left = min(int(at), len(colours) - 2)
    return [
        round(a + (b - a) * (at - left))
        for a, b in zip(colours[left], colours[left + 1], strict=True)
    ]


def faded(colour: str, towards: Sequence[int], share: float) -> list[int]:
    """Return red, green and blue of a colour, `#rrggbb`, of which a share is left, and another has the rest."""
    return [
        round(other + (own - other) * share)
        for own, other in zip(bytes.fromhex(colour[1:]), towards, strict=True)
    ]


def oklab(rgb: Sequence[float]) -> tuple[float, float, float]:
    """Return lightness, greenness to redness, and blueness to yellowness of red, green and blue (Ottosson, 2020).

    Distances between these are about what an eye sees; black has lightness 0, and white 1.
    """
    linear = _linear(rgb)
    cones = [sum(a * b for a, b in zip(row, linear, strict=True)) ** (1 / 3) for row in _TO_CONES]
    lightness, red, yellow = (
        sum(a * b for a, b in zip(row, cones, strict=True)) for row in _TO_OKLAB
    )
    return lightness, red, yellow


def luminance(rgb: Sequence[int]) -> float:
    """Return the relative luminance of red, green and blue (WCAG 2.1), from 0 to 1."""
    return sum(a * b for a, b in zip((0.2126, 0.7152, 0.0722), _linear(rgb), strict=True))


def _linear(rgb: Sequence[float]) -> list[float]:
    """Return the shares of light of red, green and blue (IEC 61966-2-1)."""
    return [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in rgb)
    ]


def needs_black(rgb: Sequence[int]) -> bool:
    """Tell whether black is easier to read on a colour than white."""
    return luminance(rgb) > 0.179
