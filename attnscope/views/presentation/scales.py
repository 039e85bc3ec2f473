"""Places of numbers on a scale of colours."""

from dataclasses import dataclass
from math import isfinite

import numpy as np

from attnscope.report.arrays import Matrix


@dataclass(frozen=True)
class Scale:
    """The range that a ramp is stretched over.

    Attributes:
        low: The value of the ramp's first colour.
        high: The value of its last.
        signed: Centred at 0.
    """

    low: float
    high: float
    signed: bool

    def place(self, value: float) -> float | None:
        """Return the place of a value on the scale, from 0 to 1; None if it has none."""
        if not isfinite(value):
            return None
        return (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5 if self.signed else 0.0


def scale_for(stage: str, matrix: Matrix) -> Scale:
    """Choose the scale of one stage: weights from 0 to the largest, everything else centred at 0."""
    finite = matrix[np.isfinite(matrix)]
    if stage == "weights":
        return Scale(0.0, float(finite.max()) if finite.size else 0.0, signed=False)
    largest = float(np.abs(finite).max()) if finite.size else 0.0
    return Scale(-largest, largest, signed=True)
