"""Recompute what recorders keep, from stages in float64.

Recorders keep contributors, row statistics, column sums, averages and pooled maps while the model runs. This module
recomputes them from the whole matrices of the same pass, by their definitions in `report`, without using the code of
the recorders.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from attnscope.engines.protocol import Engine
from attnscope.findings.arrays import Array
from attnscope.findings.check import Check
from attnscope.findings.heads import HeadReport
from attnscope.findings.record_parts import reported_parts
from attnscope.findings.row_statistics import LAYER_STATISTICS, ROW_STATISTICS, WholeRows
from attnscope.findings.tokens import Token
from attnscope.model.batch import Batch
from attnscope.model.recorders import RecordedTokens
from attnscope.model.tile import Recorder
from attnscope.model.trace import HeadSelection, Trace, make_trace
from attnscope.request.record_spec import RecordSpec
from attnscope.run.analysis.heads import TextPart, text_heads
from attnscope.studies.check.measures import make_check
from attnscope.studies.check.observe import LayerStages, layer_numbers

_TOP = 3


@dataclass(frozen=True)
class Selection:
    """One selection of heads and rows: recorders treat whole layers and single rows differently."""

    heads: list[int]
    rows: list[int]
    by: str  # measure that ranks contributors
    special: bool  # whether special tokens and the first token take part in the ranking
    pool: int | None = None  # number of runs of a pooled map, each way; None for no map and no sums


def selections(n_heads: int, n_queries: int) -> list[Selection]:
    """Return the selections to check: everything, a few neighbours, and rows that are not neighbours."""
    heads = list(range(n_heads))
    rows = list(range(n_queries))
    return [
        Selection(heads, rows, "weight", special=True, pool=max(1, n_queries * 2 // 3)),
        Selection(heads[: max(1, n_heads // 2)], rows[-1:], "weight", special=True),
        Selection(heads[::-2][::-1], rows[::2], "value", special=False),
        Selection(heads[-1:], rows[n_queries // 2 :], "projected", special=True),
    ]


class RecorderCheck:
    """Check what the recorders of several runs keep of one text."""

    def __init__(self, engine: Engine, tokens: list[Token], context: list[Token] | None) -> None:
        self._layers = engine.layers
        self._n_heads = engine.sizes[1]
        self._tokens = tokens
        self._context = context
        self._sources = tokens if context is None else context
        self._selections = selections(self._n_heads, len(tokens))
        self._traces: list[Trace] = []

    def recorders(self, batch: Batch) -> Mapping[int, Sequence[Recorder]]:
        """Make the recorders of every layer, as `attnscope run` would."""
        self._traces = [self._trace(selection, batch) for selection in self._selections]
        return {layer: [r for t in self._traces for r in t.recorders[layer]] for layer in self._layers}

    def _trace(self, selection: Selection, batch: Batch) -> Trace:
        shown_rows = torch.zeros_like(batch.tokens.real)
        shown_rows[:, selection.rows] = True
        record_spec = RecordSpec(
            stages=(),
            rows=selection.rows,
            counted=selection.rows,
            columns=list(range(len(self._sources))),
            top=_TOP,
            by=selection.by,
            parts=reported_parts(selection.pool),
            pool=selection.pool or 0,
        )
        eligible = batch.sources.real if selection.special else batch.sources.content()
        record_tokens = RecordedTokens(batch.sources, eligible, shown_rows, batch.tokens.real)
        units = [HeadSelection((layer,), (head,)) for layer in self._layers for head in selection.heads]
        return make_trace(units, record_spec, record_tokens)

    def checks(self, layers: Sequence[LayerStages], limit: float) -> list[Check]:
        """Compare the recorded numbers with the stages of the same pass.

        The limit is a share of the largest value of a kind if that is above 1.
        """
        stages_of = dict(zip(layer_numbers(layers), layers, strict=True))
        gaps = {layer: torch.zeros(3, self._n_heads, dtype=torch.float64) for layer in stages_of}
        for selection, trace in zip(self._selections, self._traces, strict=True):
            words = np.array([not token.special for token in self._tokens])
            counted = words if words.any() else ~words
            averaged = counted.tolist() if selection.pool else None
            part = TextPart(0, selection.rows, [], len(self._tokens), len(self._sources), counted=averaged)
            trace.finish()
            for report in text_heads(trace, part, left_out=[]):
                layer = int(report.layer)
                head = int(report.head)
                alone = self._context is None
                recomputed = RecomputedHead(stages_of[layer], head, self._sources, self_attention=alone)
                errors = [
                    recomputed.contributors(report, selection),
                    recomputed.statistics(report, selection),
                    recomputed.sums(report, counted) if selection.pool else 0.0,
                ]
                gaps[layer][:, head] = gaps[layer][:, head].maximum(torch.tensor(errors, dtype=torch.float64))
        names = ("contributors are the strongest sources", "row statistics follow from weights",
                 "maps, sums and means follow from weights")  # fmt: skip
        checks = []
        for n, name in enumerate(names):
            deviations = [of_layer[n] for of_layer in gaps.values()]
            checks.append(make_check(name, deviations, limit, list(gaps)))
        return checks


class RecomputedHead:
    """One head's stages in float64, and the findings recomputed from them."""

    def __init__(self, seen: LayerStages, head: int, sources: Sequence[Token], *, self_attention: bool) -> None:
        self._dead = _numpy(seen.fully_masked[0, head]).astype(bool)  # (Q,)
        self._masked = _numpy(seen.stages["masked"][0, head])  # (Q, K)
        self._weights = np.where(self._dead[:, None], 0.0, _numpy(seen.stages["weights"][0, head]))
        self._of_layer = {  # by name, as in row_statistics.LAYER_STATISTICS
            name: np.where(self._dead, np.nan, numbers) for name, numbers in _layer_numbers(seen, head).items()
        }
        self._sources = sources
        self._special = np.array([token.special for token in sources])
        self._self_attention = self_attention
        value = _numpy(seen.inputs.v[0, head // (seen.inputs.q.shape[1] // seen.inputs.v.shape[1])])  # (K, Ev)
        # norms of the value that each query reads of each key, (Q, K), or (1, K) without a gate
        gate = np.ones((1, 1)) if seen.inputs.gate is None else _numpy(seen.inputs.gate[0, head])
        gated = [value * factors for factors in gate]
        self._norms = {"weight": np.ones((1, len(value))), "value": np.linalg.norm(gated, axis=-1)}
        if seen.projection is None:
            self._norms["projected"] = self._norms["value"]
        else:
            width = value.shape[1]
            part = _numpy(seen.projection[:, head * width : (head + 1) * width])  # (D, Ev)
            self._norms["projected"] = np.linalg.norm([of_row @ part.T for of_row in gated], axis=-1)

    def _norms_of(self, name: str, query: int) -> Array:
        norms = self._norms[name]
        of_row: Array = norms[min(query, len(norms) - 1)]
        return of_row

    def contributors(self, report: HeadReport, selection: Selection) -> float:
        """Return the largest error of the recorded strongest sources; infinite for an invalid key."""
        eligible = np.ones(len(self._special), dtype=bool) if selection.special else ~self._special
        if not selection.special:
            eligible[0] = False
        measures = {"weight": report.top.weight, "value": report.top.value, "projected": report.top.projected}
        worst = 0.0
        for row, query in enumerate(selection.rows):
            free = eligible & (self._masked[query] > -np.inf) & ~self._dead[query]
            listed = report.top.keys[row]
            keys = listed[listed >= 0]
            if len(keys) != min(_TOP, int(free.sum())) or len(set(keys)) < len(keys) or not free[keys].all():
                return np.inf
            for name, values in measures.items():
                if values is not None:
                    factors = self._weights[query] * self._norms_of(name, query)
                    expected = np.where(listed < 0, np.nan, factors[listed])
                    worst = max(worst, _apart(values[row], expected))
            # Ranking by weight uses the very scores that the recorder saw, so no deviation is allowed.
            exact = selection.by == "weight"
            ranks = self._masked[query] if exact else self._weights[query] * self._norms_of(selection.by, query)
            free[keys] = False
            order = np.concatenate((ranks[keys], [ranks[free].max()] if free.any() and len(keys) else []))
            rise = float(np.diff(order).max(initial=0.0))
            if rise > 0 and exact:
                return np.inf
            worst = max(worst, rise / max(1.0, float(np.abs(order).max(initial=0.0))))
        return worst

    def statistics(self, report: HeadReport, selection: Selection) -> float:
        """Return the largest difference between recorded and recomputed row statistics."""
        expected = self._statistics()
        gaps = [_apart(getattr(report.rows, name), values[selection.rows]) for name, values in expected.items()]
        recorded = {name: getattr(report.rows, name) for name in LAYER_STATISTICS}
        recorded = {name: numbers for name, numbers in recorded.items() if numbers is not None}
        for name, numbers in recorded.items():
            absent = np.where(self._dead, np.nan, LAYER_STATISTICS[name].absent)
            gaps.append(_apart(numbers, self._of_layer.get(name, absent)[selection.rows]))
        fully_masked = [query for query in selection.rows if self._dead[query]]
        complete = report.fully_masked == fully_masked and self._of_layer.keys() <= recorded.keys()
        return max(gaps) if complete else np.inf

    def _statistics(self) -> dict[str, Array]:
        """Return every statistic, (Q,) each; NaN for a row that sees nothing, or if it has no meaning."""
        n_queries, n_keys = self._weights.shape
        places = np.arange(n_queries)[:, None], np.arange(n_keys)[None]
        rows = WholeRows(self._weights, self._masked, *places, self._sources, self_attention=self._self_attention)
        nothing = np.full(n_queries, np.nan)
        by_name = {
            statistic.name: statistic.recount(rows) if self._self_attention or not statistic.aligned else nothing
            for statistic in ROW_STATISTICS
        }
        return {name: np.where(self._dead, np.nan, values) for name, values in by_name.items()}

    def sums(self, report: HeadReport, counted: Array) -> float:
        """Return the largest difference of the pooled map, column sums and averages from recomputed ones."""
        assert report.pooled is not None and report.columns is not None and report.means is not None
        mass = self._weights.sum(0)
        gaps = [_apart(report.columns, mass)]
        gaps.append(_apart(report.pooled.weights, self._pooled(report.pooled.queries, report.pooled.keys)))
        facts = self._statistics() | self._of_layer
        for name, values in facts.items():
            known_values = values[counted & ~np.isnan(values)]
            mean = getattr(report.means, name)
            expected = np.array(known_values.mean() if known_values.size else np.nan)
            gaps.append(_apart(np.array(np.nan if mean is None else mean), expected))
        return max(gaps)

    def _pooled(self, queries: Sequence[int], keys: Sequence[int]) -> Array:
        """Return the mean weight that the queries of a run give to each run of keys; rows that see nothing are left
        out.
        """
        by_run = np.stack([self._weights[:, start:end].sum(1) for start, end in pairwise(keys)], 1)  # (Q, runs)
        pooled = np.full((len(queries) - 1, by_run.shape[1]), np.nan)
        for run, (start, end) in enumerate(pairwise(queries)):
            live = by_run[start:end][~self._dead[start:end]]
            if len(live):
                pooled[run] = live.mean(0)
        return pooled


def _layer_numbers(seen: LayerStages, head: int) -> dict[str, Array]:
    """Return the numbers of a head's rows that only some layers have, (Q,) each."""
    inputs = seen.inputs
    numbers = {}
    if inputs.spec.sinks is not None:
        numbers["sink"] = _numpy(seen.sink[0, head])
    if inputs.gate is not None:
        numbers["gate"] = _numpy(inputs.gate[0, head]).mean(-1)
    if inputs.unselective is not None:
        scaled = _numpy(seen.stages["scaled"][0, head])
        places = [torch.arange(n, device=inputs.q.device) for n in scaled.shape]
        visible = inputs.unselective.allowed(places[0][:, None], places[1][None])
        every = scaled if visible is None else np.where(_numpy(visible[0, 0]) > 0, scaled, -np.inf)
        largest = every.max(-1, keepdims=True)
        powers = np.exp(every - largest)
        sink = 0.0 if inputs.spec.sinks is None else np.exp(float(inputs.spec.sinks[head]) - largest[:, 0])
        selected = _numpy(seen.stages["masked"][0, head]) > -np.inf
        numbers["unselected"] = (powers * ~selected).sum(-1) / (powers.sum(-1) + sink)
    return numbers


def _numpy(tensor: Tensor) -> Array:
    array: Array = tensor.cpu().double().numpy()
    return array


def _apart(recorded: Array, expected: Array) -> float:
    """Return the largest difference, as a share of the largest magnitude if that is above 1.

    NaN equals NaN alone.
    """
    a = np.asarray(recorded, np.float64)
    b = np.asarray(expected, np.float64)
    if not np.array_equal(np.isnan(a), np.isnan(b)):
        return np.inf
    gap = float(np.fmax.reduce(np.abs(a - b), axis=None, initial=0.0))
    return gap / max(1.0, float(np.fmax.reduce(np.abs(b), axis=None, initial=0.0)))
