"""Recorders for every selected layer and head, in one place."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from attnscope.model.recorders import (
    SUM_RECORDERS,
    MatrixRecorder,
    MeanRowRecorder,
    PackedMatrices,
    RecordedTokens,
    RowRecorder,
    SumRecorder,
    TopRecorder,
)
from attnscope.model.tile import Recorder
from attnscope.request.record_spec import RecordSpec


@dataclass(frozen=True)
class HeadSelection:
    """One thing that is shown: a layer and head, or a mean over several."""

    layers: tuple[int, ...]
    heads: tuple[int, ...]
    mean_layer: bool = False
    mean_head: bool = False
    chosen: str | None = None  # why it was chosen, if the user did not name it

    @property
    def mean(self) -> bool:
        """Anything is averaged."""
        return self.mean_layer or self.mean_head


@dataclass
class UnitRecorders:
    """The recorders of one unit; `rows` has one recorder a layer."""

    matrices: MatrixRecorder
    top: TopRecorder | None  # strongest sources; None for a mean, whose ranking follows from `contributions`
    contributions: MatrixRecorder | None  # mean contributions over every key; None if nothing is averaged
    rows: list[RowRecorder]
    sums: dict[str, SumRecorder]
    head: int = 0  # index of this unit's head in the recorders; 0 for a mean
    mean_rows: MeanRowRecorder | None = None  # statistics of mean rows; None if nothing is averaged, or no row is kept


@dataclass
class Trace:
    """Every unit with its recorders, and the recorders by layer."""

    record_spec: RecordSpec
    record_tokens: RecordedTokens  # which tokens take part
    recorded: list[tuple[HeadSelection, UnitRecorders]] = field(default_factory=list)
    recorders: dict[int, list[Recorder]] = field(default_factory=dict)
    packed: PackedMatrices | None = None  # matrices text by text; None if they are in the recorders
    hidden: Tensor | None = None  # the final hidden states, (B, T, D); None if nothing is predicted from them

    def to_cpu(self) -> None:
        """Move recorded values to the CPU; the final hidden states stay on the model's device."""
        every = [recorder for of_layer in self.recorders.values() for recorder in of_layer]
        for recorder in {id(recorder): recorder for recorder in every}.values():
            recorder.to_cpu()
        self.record_tokens = replace(self.record_tokens, eligible=self.record_tokens.eligible.cpu())


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
    first = 0
    for layer, heads in together.items():  # in the order of the units, whose places in the sheets follow from it
        shared[layer] = _single(layer, heads, trace, first)
        first += len(heads)
    for unit in units:
        if unit.mean:
            recorders = _mean(unit, trace)
        else:
            layer, head = unit.layers[0], unit.heads[0]
            recorders = replace(shared[layer], head=together[layer].index(head))
        trace.recorded.append((unit, recorders))
    return trace


def _single(layer: int, heads: list[int], trace: Trace, first: int) -> UnitRecorders:
    w, tokens = trace.record_spec, trace.record_tokens
    into = None if trace.packed is None else (trace.packed, first)
    matrices = MatrixRecorder(w.stages, heads, w.rows, w.columns, into=into)
    top = TopRecorder(w.top, w.by, heads, w.rows, tokens.eligible, w.measures) if "top" in w.parts else None
    exact: list[Recorder | None] = [matrices if w.stages else None, top]
    rows = [RowRecorder(heads, w.counted, tokens.sources)] if "rows" in w.parts else []
    sums = {name: make(heads, w, tokens, False) for name, make in SUM_RECORDERS.items() if name in w.parts}
    every = [*(exact if w.rows else ()), *rows, *sums.values()]
    trace.recorders.setdefault(layer, []).extend(recorder for recorder in every if recorder is not None)
    return UnitRecorders(matrices, top, None, rows, sums)


def _mean(unit: HeadSelection, trace: Trace) -> UnitRecorders:
    w, tokens = trace.record_spec, trace.record_tokens
    every_key = list(range(tokens.eligible.shape[1]))
    names = ("allowed", "weights", "value", "projected") if w.by == "projected" else ("allowed", "weights", "value")
    matrices = MatrixRecorder(w.stages, unit.heads, w.rows, w.columns, mean=True)
    contributions = MatrixRecorder(names, unit.heads, w.rows, every_key, mean=True) if "top" in w.parts else None
    rows = [RowRecorder(unit.heads, w.counted, tokens.sources) for _ in unit.layers if "rows" in w.parts]
    sums = {name: make(unit.heads, w, tokens, True) for name, make in SUM_RECORDERS.items() if name in w.parts}
    mean_rows = None
    complete = w.counted if len(unit.layers) == 1 else w.rows  # of several layers, whole rows are kept until the last
    if rows and complete:
        mean_rows = MeanRowRecorder(unit.heads, complete, tokens.sources, len(unit.layers))
    for place, layer in enumerate(unit.layers):
        exact = [matrices, contributions] if w.rows else []
        every = [*exact, *rows[place : place + 1], mean_rows, *sums.values()]
        trace.recorders.setdefault(layer, []).extend(recorder for recorder in every if recorder is not None)
    return UnitRecorders(matrices, None, contributions, rows, sums, mean_rows=mean_rows)
