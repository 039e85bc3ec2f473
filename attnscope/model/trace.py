"""Recorders for every selected layer and head, in one place."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from attnscope.model.recorders import (
    ColumnRecorder,
    KeyTokens,
    MatrixRecorder,
    PackedMatrices,
    PooledRecorder,
    RowRecorder,
    TopRecorder,
)
from attnscope.model.tile import Recorder
from attnscope.planning.record_spec import RecordSpec


@dataclass(frozen=True)
class HeadSelection:
    """One thing that is shown: a layer and head, or a mean over several.

    Attributes:
        layers: Layers that it covers.
        heads: Heads that it covers.
        mean_layer: The layers are averaged.
        mean_head: The heads are averaged.
        chosen: How it came to be shown, where the user did not name it.
    """

    layers: tuple[int, ...]
    heads: tuple[int, ...]
    mean_layer: bool = False
    mean_head: bool = False
    chosen: str | None = None

    @property
    def mean(self) -> bool:
        """Anything is averaged."""
        return self.mean_layer or self.mean_head


@dataclass(frozen=True)
class RecordedTokens:
    """Which tokens of a batch take part in what is recorded.

    Attributes:
        sources: The key side.
        eligible: Keys that take part in the ranking of contributors, (B, K), bool.
        shown: Rows that each text's sums count, (B, Q), bool.
        real: Queries that are not padding, (B, Q), bool.
    """

    sources: KeyTokens
    eligible: Tensor
    shown: Tensor
    real: Tensor


@dataclass
class UnitRecorders:
    """The recorders of one unit; `rows` has one recorder a layer.

    Attributes:
        matrices: Stage matrices of the selected rows and columns.
        top: Strongest sources; None for a mean, whose ranking follows from `contributions`.
        contributions: Mean contributions over every key; None where nothing is averaged.
        rows: Row statistics of each layer.
        columns: Weight that every source gets.
        pooled: The pooled map.
        head: Which of the recorders' heads is this unit's; 0 for a mean.
    """

    matrices: MatrixRecorder
    top: TopRecorder | None
    contributions: MatrixRecorder | None
    rows: list[RowRecorder]
    columns: ColumnRecorder | None = None
    pooled: PooledRecorder | None = None
    head: int = 0


@dataclass
class Trace:
    """Every unit with what was kept of it, and the recorders by layer that fill it.

    Attributes:
        record_spec: What is recorded of every unit.
        record_tokens: Which tokens take part.
        recorded: Every unit with its recorders.
        recorders: The recorders of every layer.
        packed: Matrices text by text; None where they are in the recorders.
        hidden: The final hidden states, (B, T, D); None where nothing is predicted from them.
    """

    record_spec: RecordSpec
    record_tokens: RecordedTokens
    recorded: list[tuple[HeadSelection, UnitRecorders]] = field(default_factory=list)
    recorders: dict[int, list[Recorder]] = field(default_factory=dict)
    packed: PackedMatrices | None = None
    hidden: Tensor | None = None


def make_trace(units: Sequence[HeadSelection], record_spec: RecordSpec, record_tokens: RecordedTokens) -> Trace:
    """Make the recorders of these units: heads of one layer share theirs, a mean has its own."""
    trace = Trace(record_spec, record_tokens)
    if record_spec.packed is not None and not any(unit.mean for unit in units):
        trace.packed = PackedMatrices(len(units), record_spec.packed)
    together: dict[int, list[int]] = {}
    for unit in units:
        if not unit.mean:
            together.setdefault(unit.layers[0], []).append(unit.heads[0])
    shared: dict[int, UnitRecorders] = {}
    for layer, heads in together.items():  # in the order of the units, whose places in the sheets follow from it
        shared[layer] = _single(layer, heads, trace, sum(len(one.matrices.heads) for one in shared.values()))
    for unit in units:
        if unit.mean:
            trace.recorded.append((unit, _mean(unit, trace)))
        else:
            one = shared[unit.layers[0]]
            head = one.matrices.heads.index(unit.heads[0])
            trace.recorded.append((unit, replace(one, head=head)))
    return trace


def _single(layer: int, heads: list[int], trace: Trace, first: int) -> UnitRecorders:
    w, tokens = trace.record_spec, trace.record_tokens
    into = None if trace.packed is None else (trace.packed, first)
    matrices = MatrixRecorder(w.stages, heads, w.rows, w.columns, into=into)
    top = TopRecorder(w.top, w.by, heads, w.rows, tokens.eligible, w.measures) if w.contributors else None
    exact: list[Recorder | None] = [matrices if w.stages else None, top]
    rows = [RowRecorder(heads, w.counted, tokens.sources)] if w.row_statistics else []
    columns, pooled = _sums(heads, trace, mean=False)
    every = [*(exact if w.rows else ()), *rows, columns, pooled]
    trace.recorders.setdefault(layer, []).extend(one for one in every if one is not None)
    return UnitRecorders(matrices, top, None, rows, columns, pooled)


def _sums(heads: Sequence[int], trace: Trace, *, mean: bool) -> tuple[ColumnRecorder | None, PooledRecorder | None]:
    w, tokens = trace.record_spec, trace.record_tokens
    columns = pooled = None
    if w.column_sums:
        columns = ColumnRecorder(heads, w.counted, tokens.shown, tokens.sources, mean=mean)
    if w.pool:
        pooled = PooledRecorder(heads, w.pool, tokens.shown, tokens.sources, real=tokens.real, mean=mean)
    return columns, pooled


def _mean(unit: HeadSelection, trace: Trace) -> UnitRecorders:
    w, tokens = trace.record_spec, trace.record_tokens
    every_key = list(range(tokens.eligible.shape[1]))
    names = ("allowed", "weights", "value", "projected") if w.by == "projected" else ("allowed", "weights", "value")
    matrices = MatrixRecorder(w.stages, unit.heads, w.rows, w.columns, mean=True)
    contributions = MatrixRecorder(names, unit.heads, w.rows, every_key, mean=True) if w.contributors else None
    rows = [RowRecorder(unit.heads, w.counted, tokens.sources) for _ in unit.layers if w.row_statistics]
    columns, pooled = _sums(unit.heads, trace, mean=True)
    for place, layer in enumerate(unit.layers):
        exact = [matrices, contributions] if w.rows else []
        every = [*exact, *rows[place : place + 1], columns, pooled]
        trace.recorders.setdefault(layer, []).extend(one for one in every if one is not None)
    return UnitRecorders(matrices, None, contributions, rows, columns, pooled)
