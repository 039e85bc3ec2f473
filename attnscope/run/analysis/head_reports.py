"""Build the report of one layer and head over one text."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnscope.base.errors import UsageError, arg
from attnscope.findings.row_statistics import STATISTICS
from attnscope.findings.row_statistics import Rows as RowFacts
from attnscope.findings.run import HeadReport, Top
from attnscope.findings.tokens import LeftOut
from attnscope.model.recorders import strongest
from attnscope.model.trace import HeadSelection, Trace, UnitRecorders
from attnscope.request.record_spec import RecordSpec
from attnscope.run.analysis.overview import TextExtent, means, pooled_map, whole_text_arrays
from attnscope.run.analysis.tensors import masked_rows, row_sink, row_statistic, to_numpy


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
    """Return the matrices of the rows and columns that are shown."""
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
