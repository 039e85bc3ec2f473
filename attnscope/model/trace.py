"""Recorders for every selected layer and head, in one place."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from attnscope.findings.head_averages import AVERAGES
from attnscope.findings.row_statistics import LAYER_STATISTICS, LINEAR
from attnscope.model.recorders import (
    SUM_RECORDERS,
    Block,
    MakeArray,
    MatrixRecorder,
    MeanRowRecorder,
    PackedMatrices,
    RecordedTokens,
    RowRecorder,
    SumRecorder,
    TopRecorder,
    strongest,
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
    """The recorders of heads of one layer, or of a mean; `rows` has one recorder a layer."""

    matrices: MatrixRecorder
    # strongest sources; None for a mean, whose ranking follows from `contributions`
    top: TopRecorder | None
    # mean contributions over every key; None if nothing is averaged
    contributions: MatrixRecorder | None
    rows: list[RowRecorder]
    sums: dict[str, SumRecorder]
    units: slice  # the units in the block that they fill
    # statistics of mean rows; None if nothing is averaged, or no row is kept
    mean_rows: MeanRowRecorder | None = None


@dataclass
class Trace:
    """What a pass records of every unit: a block of arrays, and the recorders that fill it."""

    record_spec: RecordSpec
    record_tokens: RecordedTokens  # which tokens take part
    units: list[HeadSelection]
    block: Block
    packed: PackedMatrices  # matrices, text by text
    order: list[int]  # index of every unit in the block, where heads of a layer are neighbours
    parts: list[UnitRecorders] = field(default_factory=list)
    recorders: dict[int, list[Recorder]] = field(default_factory=dict)
    # the final hidden states, (B, T, D); None if nothing is predicted from them
    hidden: Tensor | None = None

    def finish(self) -> None:
        """Complete the block after the pass, and move it to the CPU; the final hidden states stay on the device."""
        with torch.inference_mode():  # what was made in there may be changed only in there
            for part in self.parts:
                make_array = partial(self.block.array, part.units)
                part.matrices.finish()
                if part.top is not None:
                    part.top.finish()
                if part.contributions is not None:
                    self._rank_mean(part.contributions, make_array)
                if part.matrices.mean and part.rows:
                    average_rows(part.rows, part.mean_rows, make_array)
                for recorder in part.sums.values():
                    for path, numbers in recorder.results().items():
                        make_array(path, tuple(numbers.shape), numbers.device)[:] = numbers
                part.sums = {}
            if self.record_spec.digits is not None:
                self.block.round(self.record_spec.digits)
        if self.record_tokens.eligible.device.type != "cpu":
            self.block.to_cpu(rows_first=self.record_spec.rows_first)
            self.packed.to_cpu()
        self.recorders = {}

    def _rank_mean(self, contributions: MatrixRecorder, make_array: MakeArray) -> None:
        """Rank the sources of mean rows by their mean contributions."""
        spec = self.record_spec
        mean = contributions.compute()  # (B, 1, rows, K)
        if not mean:
            nothing = torch.zeros(
                len(self.record_tokens.eligible), 1, 0, self.record_tokens.eligible.shape[1]
            )
            mean = dict.fromkeys(
                contributions.stages, nothing.to(self.record_tokens.eligible.device)
            )
        mean["weight"] = mean.pop("weights")
        # A key is a source if any of the layers allows it, whatever the weight of a sink.
        excluded = (mean.pop("allowed") == 0) | ~self.record_tokens.eligible[:, None, None]
        keys, values = strongest(mean[spec.by].masked_fill(excluded, -torch.inf), spec.top)
        none = (values == -torch.inf) | values.isnan()
        make_array("top.keys", tuple(keys.shape), keys.device, -1, torch.int32)[:] = (
            keys.masked_fill(none, -1)
        )
        for name in spec.measures or mean:
            numbers = mean[name].gather(-1, keys).masked_fill(none, torch.nan)
            make_array(f"top.{name}", tuple(numbers.shape), numbers.device)[:] = numbers
        contributions.recorded = {}

    def arrays(self, text: int) -> dict[str, np.ndarray]:
        """Return the arrays of one text by their paths in findings.heads, (units, …) each, after `finish`.

        Their rows and columns are those of the record's specification, or of the packed matrices.
        """
        units = slice(None) if self.order == sorted(self.order) else self.order
        arrays = {path: array[text][units] for path, array in self._arrays_of_batch.items()}
        for stage, matrices in self.packed.text(text).items():
            arrays[f"stages.{stage}"] = matrices.numpy()[units]
        return arrays

    @cached_property
    def _arrays_of_batch(self) -> dict[str, np.ndarray]:
        """The arrays of all texts by their paths, (B, units, …) each, cut into paths once for all of them."""
        names_of = {"rows": self.record_spec.statistics, "heads": AVERAGES}
        arrays: dict[str, np.ndarray] = {}
        for path, array in self.block.arrays.items():
            if path in names_of:
                for name, values in zip(names_of[path], array.unbind(2), strict=True):
                    arrays[f"{path}.{name}"] = values.numpy()
            else:
                arrays[path] = array.numpy()
        return arrays


def average_rows(
    layers: Sequence[RowRecorder], mean_rows: MeanRowRecorder | None, make_array: MakeArray
) -> None:
    """Put the statistics of mean rows into a block: averages over heads and layers, if these are those of the mean."""
    first_masked = layers[0].fully_masked  # (B, heads, rows)
    batch, _, n_rows = first_masked.shape
    names = layers[0].names
    rows = make_array("rows", (batch, 1, len(names), n_rows), first_masked.device, torch.nan)
    for index, name in enumerate(names):
        if LINEAR[name]:
            rows[:, 0, index] = torch.stack(
                [layer.recorded[name].mean(1) for layer in layers]
            ).mean(0)
        elif mean_rows is not None:
            places = torch.searchsorted(
                torch.tensor(layers[0].rows), torch.tensor(mean_rows.rows)
            ).to(first_masked.device)
            rows[:, 0, index, places] = mean_rows.recorded[name][:, 0]
    make_array("fully_masked", (batch, 1, n_rows), first_masked.device, dtype=torch.bool)[:, 0] = (
        torch.stack([layer.fully_masked.any(1) for layer in layers]).any(0)
    )
    for name, statistic in LAYER_STATISTICS.items():
        if any(name in layer.of_layers for layer in layers):
            absent = torch.full((batch, 1, n_rows), statistic.absent, device=first_masked.device)
            of_heads = torch.stack(
                [layer.of_layers.get(name, absent).mean(1) for layer in layers]
            ).mean(0)
            make_array(f"rows.{name}", (batch, 1, n_rows), first_masked.device, statistic.absent)[
                :, 0
            ] = of_heads


def make_trace(
    units: Sequence[HeadSelection], record_spec: RecordSpec, record_tokens: RecordedTokens
) -> Trace:
    """Make the recorders of these units: heads of one layer share theirs, a mean has its own."""
    texts = len(record_tokens.eligible)
    sizes = record_spec.packed or ((len(record_spec.rows), len(record_spec.columns)),) * texts
    layers = list(dict.fromkeys(unit.layers for unit in units))
    grouped = sorted(range(len(units)), key=lambda index: layers.index(units[index].layers))
    order = sorted(range(len(units)), key=grouped.__getitem__)
    trace = Trace(
        record_spec,
        record_tokens,
        list(units),
        Block(len(units)),
        PackedMatrices(len(units), sizes),
        order,
    )
    start = 0
    for _, together in groupby((units[index] for index in grouped), key=lambda unit: unit.layers):
        of_layer = list(together)
        groups = [[unit] for unit in of_layer] if of_layer[0].mean else [of_layer]
        for group in groups:
            make = _mean if group[0].mean else _single
            make(group, trace, slice(start, start + len(group)))
            start += len(group)
    return trace


def _single(group: Sequence[HeadSelection], trace: Trace, units: slice) -> None:
    """Make the recorders of heads of one layer."""
    w = trace.record_spec
    tokens = trace.record_tokens
    heads = [unit.heads[0] for unit in group]
    make_array = partial(trace.block.array, units)
    matrices = MatrixRecorder(w.stages, heads, w.rows, w.columns, into=(trace.packed, units.start))
    top = None
    if "top" in w.parts:
        top = TopRecorder(
            w.top, w.by, heads, w.rows, tokens.eligible, w.measures, make_array, tokens.ranks_all
        )
    if "rows" in w.parts:
        rows = [RowRecorder(heads, w.counted, tokens.sources, w.statistics, make_array)]
    else:
        rows = []
    sums = {
        name: make(heads, w, tokens, False)
        for name, make in SUM_RECORDERS.items()
        if name in w.parts
    }
    exact: list[Recorder | None] = [matrices if w.stages else None, top]
    every = [*(exact if w.rows else ()), *rows, *sums.values()]
    trace.recorders.setdefault(group[0].layers[0], []).extend(
        recorder for recorder in every if recorder is not None
    )
    trace.parts.append(UnitRecorders(matrices, top, None, rows, sums, units))


def _mean(group: Sequence[HeadSelection], trace: Trace, units: slice) -> None:
    """Make the recorders of a mean."""
    w = trace.record_spec
    tokens = trace.record_tokens
    (unit,) = group
    every_key = list(range(tokens.eligible.shape[1]))
    names: tuple[str, ...] = "allowed", "weights", "value"
    if w.by == "projected":
        names = *names, "projected"
    matrices = MatrixRecorder(
        w.stages, unit.heads, w.rows, w.columns, mean=True, into=(trace.packed, units.start)
    )
    contributions = None
    if "top" in w.parts:
        contributions = MatrixRecorder(names, unit.heads, w.rows, every_key, mean=True)
    rows = [
        RowRecorder(unit.heads, w.counted, tokens.sources, w.statistics)
        for _ in unit.layers
        if "rows" in w.parts
    ]
    sums = {
        name: make(unit.heads, w, tokens, True)
        for name, make in SUM_RECORDERS.items()
        if name in w.parts
    }
    mean_rows = None
    # of several layers, whole rows are kept until the last
    complete = w.counted if len(unit.layers) == 1 else w.rows
    if rows and complete:
        mean_rows = MeanRowRecorder(unit.heads, complete, tokens.sources, len(unit.layers))
    for index, layer in enumerate(unit.layers):
        exact = [matrices, contributions] if w.rows else []
        every = [*exact, *rows[index : index + 1], mean_rows, *sums.values()]
        trace.recorders.setdefault(layer, []).extend(
            recorder for recorder in every if recorder is not None
        )
    trace.parts.append(UnitRecorders(matrices, None, contributions, rows, sums, units, mean_rows))
