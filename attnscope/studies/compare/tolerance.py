"""Hold pairs of matrices against a tolerance, cell by cell. NumPy on plain data."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import numpy as np
from msgspec.structs import replace

from attnscope.base.errors import AttnscopeError, arg
from attnscope.findings.compare import Cell, Comparison, StageVerdict, Verdict
from attnscope.findings.heads import HeadRef
from attnscope.findings.tokens import spell_piece
from attnscope.studies.screens.header import counted

_Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class MatrixPair:
    """One stage of two heads, (rows, columns), float64, over the rows and columns that both have."""

    stage: str  # its name; `pooled` for maps
    first: _Array
    second: _Array
    rows: Sequence[int]
    columns: Sequence[int]
    scale: float = 1.0  # factor of an absolute tolerance; see `layer_scale`

    def excess(self, relative: float = 0.0) -> _Array:
        """Return (|second − first| − relative·|first|) / scale; infinite if only one of the two is a number."""
        apart = np.isfinite(self.first) != np.isfinite(self.second)
        with np.errstate(invalid="ignore"):
            size = np.abs(self.second - self.first) - relative * np.abs(self.first)
        return np.where(apart, np.inf, np.where(np.isfinite(self.first), size, 0.0)) / self.scale

    def worst(self, relative: float = 0.0) -> Cell:
        """Return the cell with the largest difference beyond the relative tolerance."""
        if not self.first.size:
            return Cell(self.stage, -1, -1, None, None, 0.0)
        excess = self.excess(relative)
        row, column = (int(i) for i in np.unravel_index(int(excess.argmax()), excess.shape))
        first_value, second_value = (float(x[row, column]) for x in (self.first, self.second))
        values = [value if np.isfinite(value) else None for value in (first_value, second_value)]
        # Two masked cells do not differ; a masked and an unmasked cell have no difference as a number.
        apart = np.isinf(excess[row, column])
        if apart:
            difference = None
        elif None in values:
            difference = 0.0
        else:
            difference = abs(second_value - first_value)
        return Cell(
            self.stage, self.rows[row], self.columns[column], values[0], values[1], difference
        )


def layer_scale(stage: str, matrices: Iterable[_Array]) -> float:
    """Return the factor of an absolute tolerance for a stage.

    Weights are between 0 and 1 and are compared as they are. Other stages have no such bound: their rounding grows with
    the products that they are sums of, so that they are held against the largest magnitude of their layer, as
    `attnscope check` does. Within a row, products can cancel; what is left is no measure of their rounding. `matrices`
    are those of the first side, of every compared head of the layer.
    """
    if stage in ("weights", "pooled"):
        return 1.0
    sizes = (np.abs(matrix[np.isfinite(matrix)]).max(initial=1.0) for matrix in matrices)
    return max((float(size) for size in sizes), default=1.0)


@dataclass(frozen=True)
class Tolerance:
    """Allowed difference: |second − first| ≤ absolute·scale + relative·|first|; see `layer_scale`."""

    absolute: float = 0.0
    relative: float = 0.0

    @classmethod
    def given(cls, absolute: float | None, relative: float | None) -> "Tolerance | None":
        """Return the tolerance of two options; None if neither is given."""
        if absolute is None and relative is None:
            return None
        return cls(absolute or 0.0, relative or 0.0)


@dataclass
class Judge:
    """Collect a tolerance's verdicts on all heads."""

    tolerance: Tolerance
    # by stage, the largest excess of every head with the verdict on its cells
    _heads_of_stage: dict[str, list[tuple[float, StageVerdict]]] = field(default_factory=dict)
    _heads: set[HeadRef] = field(default_factory=set)
    _layers: set[int] = field(default_factory=set)

    def see(
        self,
        side: int,
        text: int,
        layer: int | str,
        heads: tuple[HeadRef, HeadRef],
        pairs: Sequence[MatrixPair],
    ) -> None:
        """Judge the matrices of one head by the tolerance; `layer` is that of the first side, `mean` for several."""
        self._heads.add(heads[0])
        for pair in pairs:
            if not pair.first.size:
                continue
            excess = pair.excess(self.tolerance.relative)
            beyond = int((excess > self.tolerance.absolute).sum())
            cell = pair.worst(self.tolerance.relative)
            if beyond and isinstance(layer, int):
                self._layers.add(layer)
            verdict = StageVerdict(
                pair.stage, excess.size, beyond, side, text, *heads, cell, pair.scale
            )
            self._heads_of_stage.setdefault(pair.stage, []).append((float(excess.max()), verdict))

    def verdict(self, unmatched: Sequence[str], of_heads: int) -> Verdict:
        """Return the verdict on everything that was compared, and on what has no counterpart."""
        stages = []
        for of_heads_seen in self._heads_of_stage.values():
            _, worst = max(of_heads_seen, key=itemgetter(0))
            sums = {
                name: sum(getattr(seen, name) for _, seen in of_heads_seen)
                for name in ("compared", "beyond")
            }
            stages.append(replace(worst, **sums))
        passed = bool(stages) and not unmatched and not any(stage.beyond for stage in stages)
        tolerance = self.tolerance
        heads = len(self._heads)
        first_layer = min(self._layers, default=None)
        return Verdict(
            tolerance.absolute,
            tolerance.relative,
            passed,
            stages,
            list(unmatched),
            heads,
            of_heads,
            first_layer,
        )


def failure(comparison: Comparison) -> AttnscopeError | None:
    """Name the worst cell that exceeds the tolerance of a comparison; None if there is none."""
    verdict = comparison.verdict
    if verdict is None or verdict.passed:
        return None
    if verdict.unmatched:
        return AttnscopeError(
            verdict.unmatched[0], hint="compare sides with the same tokens, layers and heads"
        )
    bad = [stage for stage in verdict.stages if stage.beyond]
    worst = max(
        bad, key=lambda s: np.inf if s.cell.difference is None else s.cell.difference / s.scale
    )
    masked = worst.cell.difference is None
    hint = first_layer(verdict) or None
    if masked:
        hint = f"compare under the same mask, or exclude the stage with {arg('stages')}"
    return AttnscopeError(f"{where(comparison, worst)}: {what(verdict, worst)}", hint=hint)


def first_layer(verdict: Verdict) -> str:
    """Name the first layer that differs; empty if none does, or if layers are averaged."""
    if verdict.first_layer is None:
        return ""
    return f"layer {verdict.first_layer} is the first that differs"


def where(comparison: Comparison, stage: StageVerdict) -> str:
    """Describe a stage's worst cell, such as `text 0, L1H1, weights, query 2 'by', key 4 'river'`."""
    text = comparison.sides[0].report.texts[stage.text]
    cell = stage.cell
    if stage.first == stage.second:
        head = str(stage.first)
    else:
        head = f"{stage.first} → {stage.second}"
    side = ""
    if len(comparison.sides) > 2:
        side = f"{comparison.sides[stage.side].label}, "
    query = f"query {cell.query} '{spell_piece(text.tokens, cell.query)}'"
    if cell.stage == "output":
        column = f"dimension {cell.key}"
    else:
        column = f"key {cell.key} '{spell_piece(text.sources, cell.key)}'"
    return f"{side}text {stage.text}, {head}, {cell.stage}, {query}, {column}"


def what(verdict: Verdict, stage: StageVerdict) -> str:
    """Describe the two values of a stage's worst cell and the limit that they exceed."""
    cell = stage.cell
    values = " against ".join(
        "masked" if value is None else f"{value:.9g}" for value in (cell.first, cell.second)
    )
    if cell.difference is None:
        return f"{values}, which fails at any tolerance"
    relative = f" --relative {_typed(verdict.relative)}" if verdict.relative else ""
    limit = f"exceeds --tolerance {_typed(verdict.absolute)}{relative}"
    share = ""
    if stage.scale > 1 and verdict.absolute:
        share = f" is {_share(stage)} ({stage.scale:.4g}) and"
    return f"{values}: the difference {cell.difference:.6g}{share} {limit}"


def _share(stage: StageVerdict) -> str:
    return f"{(stage.cell.difference or 0.0) / stage.scale:.2g} of the layer's largest value"


def allowed(verdict: Verdict) -> str:
    """Describe a tolerance, such as `1e-5 + 0.001·|first|`, and its scale."""
    relative = f"{_typed(verdict.relative)}·|first|" if verdict.relative else ""
    if not verdict.absolute:
        return relative or "0"
    limit = f"{_typed(verdict.absolute)}{' + ' * bool(relative)}{relative}"
    scaled = [stage.stage for stage in verdict.stages if stage.stage not in ("weights", "pooled")]
    if not scaled:
        return limit
    absolute = "weights: as they are; " if len(scaled) < len(verdict.stages) else ""
    return f"{limit} ({absolute}{', '.join(scaled)}: {_typed(verdict.absolute)} of their layer's largest value)"


def _typed(value: float) -> str:
    """Write a number in its shortest form: `1e-5`, not `1e-05`."""
    return re.sub(r"e([-+])0", r"e\1", f"{value:g}")


def conclusion(comparison: Comparison, verdict: Verdict) -> str:
    """State in one line what was compared, and the result."""
    cells, beyond = (
        sum(getattr(stage, name) for stage in verdict.stages) for name in ("compared", "beyond")
    )
    of = f"{counted(cells, 'cell')} of {_heads(comparison, verdict)}"
    within = f"within {allowed(verdict)}"
    if verdict.passed:
        return f"passed: {of} agree {within}"
    differ = [f"{beyond:,} of {of} do not agree {within}"] if beyond else []
    layer = [first_layer(verdict)] if verdict.first_layer is not None else []
    return f"FAILED: {'; '.join(differ + layer + verdict.unmatched)}"


def _heads(comparison: Comparison, verdict: Verdict) -> str:
    """Count the compared heads, `4 of 16 heads` or `2 means over heads (the model has 16)`, and several texts."""
    first_report = comparison.sides[0].report
    means = any(
        "mean" in (head.layer, head.head) for text in first_report.texts for head in text.heads
    )
    if means:
        heads = f"{counted(verdict.heads, 'mean')} over heads (the model has {verdict.of_heads:,})"
    else:
        heads = f"{verdict.heads:,} of {counted(verdict.of_heads, 'head')}"
    texts = ""
    if len(first_report.texts) > 1:
        texts = f" in {len(first_report.texts):,} texts"
    return heads + texts


def worst_of_stage(comparison: Comparison, stage: StageVerdict) -> str:
    """Describe where a stage differs most, and by how much."""
    cell = stage.cell
    if cell.difference == 0:
        if stage.compared > 1:
            return f"equal in all {stage.compared:,} cells"
        return "equal in one cell"
    location = where(comparison, stage).replace(f", {stage.stage}, ", ", ", 1)
    size = "infinite (one side is masked)"
    if cell.difference is not None:
        size = f"{cell.difference:.3g}"
    if stage.scale > 1 and cell.difference is not None:
        size += f" ({_share(stage)})"
    beyond = ""
    if stage.beyond:
        beyond = f"{stage.beyond:,} of {stage.compared:,} cells do not agree; "
    values = " → ".join(
        "masked" if value is None else f"{value:.9g}" for value in (cell.first, cell.second)
    )
    return f"{beyond}the largest difference is {size}: {location}: {values}"
