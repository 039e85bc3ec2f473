"""Hold pairs of matrices against a tolerance, cell by cell. NumPy on plain data."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attnscope.base.errors import AttnscopeError
from attnscope.findings.compare import Cell, Comparison, StageVerdict, Verdict
from attnscope.findings.tokens import spell_piece

_Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class MatrixPair:
    """One stage of two heads, over the rows and columns that both have.

    Attributes:
        stage: Name of the matrices; `pooled` for maps.
        first: Values of the first side, (rows, columns), float64.
        second: Values of the second side, likewise.
        rows: Position of every row in the first side.
        columns: Position of every column in the first side.
    """

    stage: str
    first: _Array
    second: _Array
    rows: Sequence[int]
    columns: Sequence[int]

    def excess(self, relative: float = 0.0) -> _Array:
        """Return |second − first| − relative·|first|; infinite where only one of them is a number."""
        apart = np.isfinite(self.first) != np.isfinite(self.second)
        with np.errstate(invalid="ignore"):
            size = np.abs(self.second - self.first) - relative * np.abs(self.first)
        return np.where(apart, np.inf, np.where(np.isfinite(self.first), size, 0.0))

    def worst(self, relative: float = 0.0) -> Cell:
        """Find the cell whose difference is largest, beyond the relative tolerance."""
        if not self.first.size:
            return Cell(self.stage, -1, -1, None, None, 0.0)
        excess = self.excess(relative)
        row, column = (int(i) for i in np.unravel_index(int(excess.argmax()), excess.shape))
        one, other = (float(x[row, column]) for x in (self.first, self.second))
        values = [value if np.isfinite(value) else None for value in (one, other)]
        # Two masked cells do not differ; a masked and an unmasked cell have no difference as a number.
        apart = np.isinf(excess[row, column])
        difference = None if apart else 0.0 if None in values else abs(other - one)
        return Cell(self.stage, self.rows[row], self.columns[column], values[0], values[1], difference)


@dataclass(frozen=True)
class Tolerance:
    """What may differ: |second − first| ≤ absolute + relative·|first|, as in `numpy.testing.assert_allclose`."""

    absolute: float = 0.0
    relative: float = 0.0


@dataclass
class Judge:
    """Collects what a tolerance says of every head."""

    tolerance: Tolerance
    _stages: dict[str, tuple[float, StageVerdict]] = field(default_factory=dict)

    def see(self, side: int, text: int, names: tuple[str, str], pairs: Sequence[MatrixPair]) -> None:
        """Judge the matrices of one head by the tolerance.

        Args:
            side: Number of the second side.
            text: Number of the text.
            names: Layer and head in the first side and in the second.
            pairs: The matrices.
        """
        for pair in pairs:
            if not pair.first.size:
                continue
            excess = pair.excess(self.tolerance.relative)
            most, old = self._stages.get(pair.stage, (-np.inf, None))
            compared, beyond = (old.compared, old.beyond) if old else (0, 0)
            compared, beyond = compared + excess.size, beyond + int((excess > self.tolerance.absolute).sum())
            if old is None or excess.max() > most:
                most = float(excess.max())
                cell = pair.worst(self.tolerance.relative)
                found = StageVerdict(pair.stage, compared, beyond, side, text, *names, cell)
            else:
                found = StageVerdict(old.stage, compared, beyond, old.side, old.text, old.first, old.second, old.cell)
            self._stages[pair.stage] = most, found

    def verdict(self, unmatched: Sequence[str]) -> Verdict:
        """Return the verdict on everything that was compared.

        Args:
            unmatched: Tokens and heads without a counterpart, which fail at any tolerance.
        """
        stages = [found for _, found in self._stages.values()]
        passed = bool(stages) and not unmatched and not any(stage.beyond for stage in stages)
        return Verdict(self.tolerance.absolute, self.tolerance.relative, passed, stages, list(unmatched))


def failure(comparison: Comparison) -> AttnscopeError | None:
    """Name the worst cell that exceeds the tolerance of a comparison; None if there is none."""
    verdict = comparison.verdict
    if verdict is None or verdict.passed:
        return None
    if verdict.unmatched:
        return AttnscopeError(verdict.unmatched[0], hint="compare reports with the same tokens, layers and heads")
    bad = [stage for stage in verdict.stages if stage.beyond]
    worst = max(bad, key=lambda s: np.inf if s.cell.difference is None else s.cell.difference)
    masked = worst.cell.difference is None
    hint = "compare under the same mask, or exclude the stage with --stage" if masked else None
    return AttnscopeError(f"{where(comparison, worst)}: {what(verdict, worst.cell)}", hint=hint)


def where(comparison: Comparison, stage: StageVerdict) -> str:
    """Name a stage's worst cell, such as `text 0, L1H1, weights, query 2 'by', key 4 'river'`."""
    text = comparison.sides[0].report.texts[stage.text]
    cell = stage.cell
    head = stage.first if stage.first == stage.second else f"{stage.first} → {stage.second}"
    side = f"{comparison.sides[stage.side].label}, " if len(comparison.sides) > 2 else ""
    query = f"query {cell.query} '{spell_piece(text.tokens, cell.query)}'"
    if cell.stage == "output":
        column = f"dimension {cell.key}"
    else:
        column = f"key {cell.key} '{spell_piece(text.sources, cell.key)}'"
    return f"{side}text {stage.text}, {head}, {cell.stage}, {query}, {column}"


def what(verdict: Verdict, cell: Cell) -> str:
    """Say how the two values of a cell differ, and what that exceeds."""
    values = " against ".join("masked" if value is None else f"{value:.9g}" for value in (cell.first, cell.second))
    if cell.difference is None:
        return f"{values}, which fails at any tolerance"
    relative = f" --relative {_typed(verdict.relative)}" if verdict.relative else ""
    return f"{values}: the difference {cell.difference:.6g} exceeds --tolerance {_typed(verdict.absolute)}{relative}"


def allowed(verdict: Verdict) -> str:
    """Say what a tolerance allows, such as `1e-5 + 0.001·|first|`."""
    if not verdict.relative:
        return _typed(verdict.absolute)
    absolute = f"{_typed(verdict.absolute)} + " if verdict.absolute else ""
    return f"{absolute}{_typed(verdict.relative)}·|first|"


def _typed(number: float) -> str:
    """Write a number as one types it: `1e-5`, not `1e-05`."""
    return re.sub(r"e([-+])0", r"e\1", f"{number:g}")


def conclusion(comparison: Comparison, verdict: Verdict) -> str:
    """Say in one line what was compared, and how it ended."""
    cells, beyond = (sum(getattr(stage, name) for stage in verdict.stages) for name in ("compared", "beyond"))
    heads = sum(len(change.heads) for change in comparison.changes)
    of = f"{cells:,} {'cell' if cells == 1 else 'cells'} of {heads:,} {'head' if heads == 1 else 'heads'}"
    within = f"within {allowed(verdict)}"
    if verdict.passed:
        return f"passed: {of} agree {within}"
    said = [f"{beyond:,} of {of} do not agree {within}"] if beyond else []
    return f"FAILED: {'; '.join(said + verdict.unmatched)}"


def worst_of_stage(comparison: Comparison, stage: StageVerdict) -> str:
    """Say where a stage differs most, and by how much."""
    cell = stage.cell
    if cell.difference == 0:
        return f"equal in all {stage.compared:,} cells" if stage.compared > 1 else "equal in one cell"
    place = where(comparison, stage).replace(f", {stage.stage}, ", ", ", 1)
    size = "infinite (one side is masked)" if cell.difference is None else f"{cell.difference:.3g}"
    beyond = f"{stage.beyond:,} of {stage.compared:,} cells do not agree; " if stage.beyond else ""
    values = " → ".join("masked" if value is None else f"{value:.6g}" for value in (cell.first, cell.second))
    return f"{beyond}the largest difference is {size}: {place}: {values}"
