"""Format numbers so that they align within a matrix and stay readable at any size."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, inf, isclose, isfinite, isnan, log10

import numpy as np

from attnscope.findings.arrays import Matrix

# A weight of exactly zero, and the score of −inf that gives it: a mask does not allow the cell. Nothing else has this
# sign, which otherwise only separates items and multiplies.
NO_WEIGHT = "·"
MASKED = "masked"
# Placeholder of a query without sources.
NOTHING = "nothing to rank"
# This sign is as wide as a plus and a digit; a terminal that lacks it has a hyphen.
MINUS = "−"


@dataclass(frozen=True)
class Digits:
    """How the numbers of one matrix are written."""

    decimals: int
    scientific: bool = False  # written as `1.5e+07`, if no number of decimals would do
    percent: bool = False  # numbers are written as percentages, without the sign

    def text(self, value: float) -> str:
        """Format a number; one that rounds to zero has no sign."""
        if isnan(value):
            return "nan"
        if not isfinite(value):
            return "inf" if value == inf else f"{MINUS}inf"
        return formatted(
            100 * value if self.percent else value,
            f"z.{self.decimals}{'e' if self.scientific else 'f'}",
        )

    @property
    def least(self) -> float:
        """Return half of the last digit: numbers below it are written as zero."""
        if self.scientific:
            return 0.0
        return 0.5 * 10.0**-self.decimals / (100 if self.percent else 1)

    def as_percent(self) -> "Digits":
        """Return the digits of the same numbers as percentages: two decimals fewer, as far as there are any."""
        return Digits(
            self.decimals if self.scientific else max(0, self.decimals - 2),
            self.scientific,
            percent=True,
        )

    def units(self, mark: str) -> str:
        """Align a mark under the digit before the point."""
        if self.scientific or not self.decimals:
            return mark
        return mark + " " * (self.decimals + 1)


def formatted(value: float, form: str) -> str:
    """Format a number as Python does, but with a minus sign instead of a hyphen in front."""
    text = format(value, form)
    if text.startswith("-"):
        return MINUS + text[1:]
    return text


def digits_for(matrix: Matrix, precision: int) -> Digits:
    """Choose digits so that the largest finite number keeps two places and a column stays narrow.

    Ordinary numbers have `precision` decimals; large ones get fewer, small ones more, by up to four.
    """
    finite = np.abs(matrix[np.isfinite(matrix)])
    largest = float(finite.max()) if finite.size else 0.0
    if largest == 0:
        return Digits(precision)
    magnitude = floor(log10(largest))
    if magnitude >= precision + 5 or magnitude < -precision - 3:
        return Digits(max(1, precision - 1), scientific=True)
    if magnitude < 0:
        return Digits(max(precision, 1 - magnitude) if precision else -magnitude)
    return Digits(max(0, min(precision, precision + 3 - magnitude)))


def cell_text(stage: str, value: float, masked_row: bool, digits: Digits) -> str:
    """Write one cell of a stage.

    Not allowed, and a weight of exactly 0, is `·`, whereas `0.00` is a small weight; a row that may attend to nothing
    is `masked`, never a number.
    """
    if masked_row and stage in ("weights", "output"):
        return MASKED
    if (stage == "masked" and value == -inf) or (stage == "weights" and value == 0):
        return digits.units(NO_WEIGHT)
    return digits.text(value)


def texts(stage: str, matrix: Matrix, masked_rows: list[bool], digits: Digits) -> list[list[str]]:
    """Format every cell of a matrix."""
    return [
        [cell_text(stage, value, masked, digits) for value in row]
        for row, masked in zip(matrix.tolist(), masked_rows, strict=True)
    ]


def column_texts(
    values: Sequence[float | None], precision: int, *, zero: str = "", none: str = ""
) -> list[str]:
    """Format the cells of one column with the same number of digits; `zero` stands for exactly 0 if it is not empty."""
    known_values = np.array([value for value in values if value is not None], dtype=np.float64)
    return written(values, digits_for(known_values, precision), zero, none)  # type: ignore[arg-type]


def written(
    values: Sequence[float | None], digits: Digits, zero: str = "", none: str = ""
) -> list[str]:
    """Format the cells of one column with given digits; see column_texts."""
    cells = []
    for value in values:
        if value is None:
            cells.append(digits.units(none) if none else "")
        elif zero and value == 0:
            cells.append(zero)
        else:
            cells.append(digits.text(float(value)))
    return cells


def scale_text(scale: float, width: int | None, *, reason: bool = False, digits: int = 4) -> str:
    """Write the factor on scores: `÷ √48` where it is 1/√width (Vaswani et al., 2017), such as `× 0.11` elsewhere.

    Args:
        scale: Factor on q·k.
        width: Numbers in a query and a key; None if that is not known.
        reason: Whether to say what the number under the root is.
        digits: Significant digits of other factors.
    """
    if width is None or width < 2 or not isclose(scale, width**-0.5, rel_tol=1e-6):
        return f"× {scale:.{digits}g}"
    return f"÷ √{width}{' (head width)' if reason else ''}"


def number_text(value: float, precision: int) -> str:
    """Format one number with as many digits as a column of its size would have."""
    return column_texts([value], precision)[0]
