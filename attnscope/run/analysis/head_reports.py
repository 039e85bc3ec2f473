"""Build the report of one layer and head over one text."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnscope.base.errors import UsageError, arg
from attnscope.findings.axes import declarations
from attnscope.findings.row_statistics import LINEAR, STATISTICS, Means
from attnscope.findings.row_statistics import Rows as RowFacts
from attnscope.findings.run import HeadReport, Pooled, Top
from attnscope.findings.tokens import LeftOut, Token
from attnscope.model.precision import to_float64
from attnscope.model.recorders import strongest
from attnscope.model.trace import HeadSelection, Trace, UnitRecorders
from attnscope.request.record_spec import RecordSpec


@dataclass(frozen=True)
class TextExtent:
    """A text as a whole."""

    n_queries: int
    n_keys: int
    counted: Tensor  # queries that averages count, (Q,), bool

    @classmethod
    def of(cls, tokens: Sequence[Token], n_keys: int, rows: Sequence[int] | None = None) -> "TextExtent":
        """Count words, or special tokens if there are no words, among some rows of a text; None for all rows."""
        words = [not tokens[row].special for row in (range(len(tokens)) if rows is None else rows)]
        return cls(len(tokens), n_keys, torch.tensor([word or not any(words) for word in words]))


@dataclass(frozen=True)
class TextSlice:
    """The shown part of a text of a batch."""

    text: int
    queries: list[int]
    keys: list[int]
    extent: TextExtent | None = None  # positions of the whole text, for its map and averages; None without them
    n_sources: int = 0  # number of tokens that its keys come from, for `received`


def head_report(
    unit: HeadSelection,
    recorded: UnitRecorders,
    trace: Trace,
    place: TextSlice,
    *,
    left_out: list[LeftOut],
    score_mod: str | None = None,
) -> HeadReport:
    """Return one unit's findings about one text.

    Args:
        left_out: Names of the tokens that are excluded from the ranking.
        score_mod: Name of the Python function that changed scores.
    """
    text, queries, extent, record_spec = place.text, place.queries, place.extent, trace.record_spec
    rows, counted = _index_of(queries, record_spec.rows), _index_of(queries, record_spec.counted)
    facts = {name: row_statistic(recorded, name, text)[counted] for name in STATISTICS}
    fully_masked = [
        q for q, nothing in zip(queries, masked_rows(recorded, text)[counted].tolist(), strict=True) if nothing
    ]
    if (sink := row_sink(recorded, text)) is not None:
        facts["sink"] = sink[counted]
    sums = {} if extent is None else whole_text_arrays(recorded, text, extent)
    if "received" in recorded.sums:
        sums["received"] = to_numpy(recorded.sums["received"].compute()[text, recorded.head][: place.n_sources])
    specs = {(spec.scale, spec.softcap, spec.bias_name) for row in recorded.rows for spec in row.specs.values()}
    if len(specs) > 1:
        raise UsageError("these layers scale their scores differently", where=arg("layer"), hint="select one layer")
    ((scale, softcap, bias),) = specs
    return HeadReport(
        layer="mean" if unit.mean_layer else unit.layers[0],
        head="mean" if unit.mean_head else unit.heads[0],
        chosen=unit.chosen,
        scale=scale,
        softcap=softcap,
        bias=bias,
        stages=_stages(recorded, record_spec, place, rows) if queries else {},
        fully_masked=fully_masked,
        top=_top(recorded, trace, text, rows, left_out),
        rows=RowFacts(**{name: to_numpy(values) for name, values in facts.items()}),
        pooled=None if extent is None else pooled_map(recorded, text, extent),
        means=None if extent is None else means(recorded, text, extent, len(queries)),
        score_mod=score_mod,
        **sums,
    )


def _stages(
    recorded: UnitRecorders, record_spec: RecordSpec, place: TextSlice, rows: "slice | Tensor"
) -> dict[str, Any]:
    columns, matrices, stages = _index_of(place.keys, record_spec.columns), recorded.matrices.compute(), {}
    for stage in record_spec.stages:
        matrix = matrices[stage][place.text, recorded.head][rows]
        stages[stage] = to_numpy(matrix if stage == "output" else matrix[:, columns])
    return stages


def _index_of(chosen: list[int], among: list[int]) -> "slice | Tensor":
    """Find positions within a sorted list that contains them all; a slice if they are adjacent there."""
    if not chosen:
        return slice(0, 0)
    index = torch.searchsorted(torch.tensor(among), torch.tensor(chosen))
    first, last = int(index[0]), int(index[-1])
    return slice(first, last + 1) if last - first + 1 == len(chosen) else index


def _top(recorded: UnitRecorders, trace: Trace, text: int, rows: "slice | Tensor", left_out: list[LeftOut]) -> Top:
    record_spec = trace.record_spec
    if not record_spec.rows:
        none = torch.empty(0, record_spec.top)
        keys, measures = none.long(), dict.fromkeys(("weight", "value", record_spec.by), none)
    elif recorded.top is not None:
        keys, measures = recorded.top.of(text, recorded.head, rows)
    else:
        keys, measures = top_of_mean(recorded, trace, text, rows)
    weight, value = to_numpy(measures["weight"]), to_numpy(measures["value"])
    projected = to_numpy(measures["projected"]) if "projected" in measures else None
    return Top(record_spec.by, keys.cpu().numpy(), weight, value, projected, left_out)


def top_of_mean(
    recorded: UnitRecorders, trace: Trace, text: int, rows: "slice | Tensor"
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return places and measures, (rows, rank), of the strongest sources of a mean over heads or layers."""
    assert recorded.contributions is not None
    mean = {name: values[text, 0][rows] for name, values in recorded.contributions.compute().items()}  # (r, K)
    mean["weight"] = mean.pop("weights")
    # A key is a source if any of the layers allows it, whatever the weight of a sink.
    excluded = (mean.pop("allowed") == 0) | ~trace.record_tokens.eligible[text]
    keys, values = strongest(mean[trace.record_spec.by].masked_fill(excluded, -torch.inf), trace.record_spec.top)
    none = (values == -torch.inf) | values.isnan()
    return keys.masked_fill(none, -1), {n: m.gather(-1, keys).masked_fill(none, torch.nan) for n, m in mean.items()}


def pooled_map(recorded: UnitRecorders, text: int, extent: TextExtent) -> Pooled:
    """Return the map of one text, without the runs that longer texts of its batch have.

    Args:
        recorded: Recorders of one unit, `pooled` among them.
    """
    pooled = recorded.sums["pooled"].compute()[text, recorded.head]  # (n, n)
    queries, keys = _starts(extent.n_queries, pooled.shape[0]), _starts(extent.n_keys, pooled.shape[1])
    return Pooled(queries, keys, to_numpy(pooled[: len(queries) - 1, : len(keys) - 1]))


def _starts(count: int, size: int) -> list[int]:
    """Return the starts of runs, and the end: token i is in run i·n // count, as in PooledRecorder."""
    n = min(size, count)
    return [-(-i * count // n) for i in range(n + 1)]


def whole_text_arrays(recorded: UnitRecorders, text: int, extent: TextExtent) -> dict[str, Any]:
    """Return the fields of a HeadReport that are recorded as sums over a whole text, by name; see pooled_map."""
    lengths = {"token": extent.n_queries, "source": extent.n_keys}
    arrays = {}
    for name, along in declarations(HeadReport).items():
        if name in recorded.sums:
            array = recorded.sums[name].compute()[text, recorded.head]
            arrays[name] = to_numpy(array[tuple(slice(lengths.get(axis)) for axis in along.axes)])
    return arrays


def means(recorded: UnitRecorders, text: int, extent: TextExtent, n_shown: int) -> Means:
    """Return averages over the rows of one text that count; see pooled_map."""
    facts = {name: row_statistic(recorded, name, text) for name in STATISTICS}
    if (sink := row_sink(recorded, text)) is not None:
        facts["sink"] = sink
    # statistics of every token, since the text is pooled; in a batch, padding follows a shorter text
    facts = {name: values[: extent.n_queries][extent.counted] for name, values in facts.items()}
    if recorded.contributions is not None and len(recorded.rows) > 1 and n_shown < extent.n_queries:
        # Over several layers, only rows that are shown are kept, and those that other texts of the batch show.
        facts |= {name: torch.full_like(values, torch.nan) for name, values in facts.items() if not LINEAR.get(name, 1)}
    return Means(**{name: _mean(values) for name, values in facts.items()})


def _mean(values: Tensor) -> float | None:
    known = to_float64(values[~values.isnan()])
    return float(known.mean()) if known.numel() else None


def to_numpy(tensor: Tensor) -> Any:
    """Return a float32 array of its own on the CPU."""
    return tensor.float().cpu().numpy()


def row_statistic(recorded: UnitRecorders, name: str, text: int) -> Tensor:
    """Return a statistic of every counted row, (rows,).

    For a mean, the statistic of the mean rows; NaN for rows that are not kept.
    """
    if recorded.contributions is None:
        fact: Tensor = recorded.rows[0].recorded[name][text, recorded.head]
        return fact
    if not LINEAR[name]:
        mean: Tensor = mean_row_statistic(recorded, name)[text, 0]
        return mean
    return torch.stack([r.recorded[name][text].mean(0) for r in recorded.rows]).mean(0)


def mean_row_statistic(recorded: UnitRecorders, name: str) -> Tensor:
    """Return a statistic of mean rows that is not the mean over heads, (B, 1, rows); NaN for rows not kept."""
    counted, kept = recorded.rows[0], recorded.mean_rows
    if kept is not None and list(kept.rows) == list(counted.rows):
        return kept.recorded[name]
    values = torch.full_like(counted.recorded[name][:, :1], torch.nan)
    if kept is not None:
        values[:, :, torch.searchsorted(torch.tensor(counted.rows), torch.tensor(kept.rows))] = kept.recorded[name]
    return values


def row_sink(recorded: UnitRecorders, text: int) -> Tensor | None:
    """Return the weight of every counted row on the sink, (rows,); None if there is no sink."""
    sinks = [rows.sink for rows in recorded.rows if rows.sink is not None]
    if not sinks:
        return None
    if recorded.contributions is None:
        return sinks[0][text, recorded.head]
    return torch.stack([sink[text].mean(0) for sink in sinks]).mean(0)


def masked_rows(recorded: UnitRecorders, text: int) -> Tensor:
    """Return which counted rows may see nothing, (rows,), bool; over a mean, in any of its heads."""
    if recorded.contributions is None:
        rows: Tensor = recorded.rows[0].fully_masked[text, recorded.head]
        return rows
    return torch.stack([recorder.fully_masked[text].any(0) for recorder in recorded.rows]).any(0)
