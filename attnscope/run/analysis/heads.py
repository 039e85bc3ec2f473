"""Cut what a pass recorded into the heads of every text."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnscope.base.errors import UsageError, arg
from attnscope.findings.arrays import Array
from attnscope.findings.axes import declared_at, gathered
from attnscope.findings.heads import HeadRef, Heads, UnitArrays, run_starts
from attnscope.findings.row_statistics import LINEAR, Means
from attnscope.findings.tokens import LeftOut, Token
from attnscope.model.matmul import to_float64
from attnscope.model.trace import Trace
from attnscope.run.text_plan import TextPlan

# Name of the array of rows that may see nothing.
FULLY_MASKED = "fully_masked"
# What is recorded of texts that are shown as a map.
_OF_WHOLE_TEXTS = ("columns", "pooled.")


@dataclass(frozen=True)
class TextPart:
    """The shown part of a text of a batch."""

    text: int  # its number in the batch
    queries: list[int]
    keys: list[int]
    n_tokens: int
    n_sources: int  # number of tokens that its keys come from
    n_spans: int = 0  # 0 without spans
    # among the recorded rows, which averages count; None for a text without averages, maps and sums
    counted: list[bool] | None = None


def text_part(index: int, plan: TextPlan, counted: list[bool] | None = None) -> TextPart:
    """Return what a plan shows of a text."""
    n_spans = 0 if plan.spans is None else len(plan.spans.names)
    n_sources = len(plan.context or plan.tokens)
    return TextPart(index, plan.queries, plan.keys, len(plan.tokens), n_sources, n_spans, counted)


def counted_rows(tokens: Sequence[Token]) -> list[bool]:
    """Return which rows averages count: words, or special tokens if there are no words."""
    words = [not token.special for token in tokens]
    return [word or not any(words) for word in words]


def unit_refs(trace: Trace) -> list[HeadRef]:
    """Return layer and head of every unit."""
    return [
        HeadRef(
            "mean" if unit.mean_layer else unit.layers[0],
            "mean" if unit.mean_head else unit.heads[0],
        )
        for unit in trace.units
    ]


def text_arrays(trace: Trace, part: TextPart, *, own_ranks: bool = False) -> dict[str, Any]:
    """Return the arrays of a text by their paths in UnitArrays: its own rows, columns and sources only.

    Args:
        own_ranks: A text with fewer sources than ranks has fewer ranks, as it would alone.
    """
    spec = trace.record_spec
    recorded = trace.arrays(part.text)
    of_rows = {"query": _index_of(part.queries, spec.counted)}
    cuts: dict[str, Any] = {
        "query": _index_of(part.queries, spec.rows),
        "key": _index_of(part.keys, spec.columns),
        "rank": slice(part.n_sources if own_ranks else None),
        "source": slice(part.n_sources),
        "query run": slice(part.n_tokens),
        "key run": slice(part.n_sources),
        "span": slice(part.n_spans),
        "key span": slice(part.n_spans),
    }
    arrays: dict[str, Any] = {}
    for path, array in recorded.items():
        is_row = path.startswith(("rows.", FULLY_MASKED))
        axes = ("unit", "query") if path == FULLY_MASKED else declared_at(UnitArrays, path).axes
        if not (path.startswith("stages.") and spec.packed):
            for axis_index, axis in enumerate(axes):
                index = (cuts | of_rows if is_row else cuts).get(axis, slice(None))
                array = array[(*[slice(None)] * axis_index, index)]
        arrays[path] = array
    if "pooled.weights" in arrays:
        n_queries, n_keys = arrays["pooled.weights"].shape[1:]
        arrays["pooled.queries"] = run_starts(part.n_tokens, n_queries)
        arrays["pooled.keys"] = run_starts(part.n_sources, n_keys)
    return arrays


def text_heads(
    trace: Trace, part: TextPart, *, left_out: list[LeftOut], score_mod: str | None
) -> Heads:
    """Return what every unit gave for one text.

    Args:
        left_out: Names of the tokens that are excluded from the ranking.
        score_mod: Name of the Python function that changed scores.

    Raises:
        UsageError: The layers of a mean scale their scores differently.
    """
    arrays = text_arrays(trace, part)
    masked = arrays.pop(FULLY_MASKED)
    means = None
    if part.counted is None:
        arrays = {
            path: array for path, array in arrays.items() if not path.startswith(_OF_WHOLE_TEXTS)
        }
    else:
        means = _means(trace, part)
    if not part.queries:
        arrays = {path: array for path, array in arrays.items() if not path.startswith("stages.")}
    arrays |= {"top.by": trace.record_spec.by, "top.left_out": left_out}
    scale, softcap, bias, head_width = zip(*_scaling(trace), strict=True)
    widths = [trace.packed.output_widths[index] for index in trace.order]
    return Heads(
        units=unit_refs(trace),
        chosen=[unit.chosen for unit in trace.units],
        scale=list(scale),
        head_width=list(head_width),
        softcap=list(softcap),
        bias=list(bias),
        fully_masked=[
            [part.queries[row] for row in np.flatnonzero(rows).tolist()] for rows in masked
        ],
        means=means,
        score_mod=score_mod,
        widths=widths if len(set(widths)) > 1 else None,
        **gathered(UnitArrays, arrays),
    )


def _scaling(trace: Trace) -> list[tuple[float, float | None, str | None, int | None]]:
    """Return scale, softcap, name of the bias, and width of queries and keys, of every unit."""
    scaling: list[Any] = [None] * len(trace.units)
    for recorders in trace.parts:
        specs = {
            (spec.scale, spec.softcap, spec.bias_name)
            for row in recorders.rows
            for spec in row.specs.values()
        }
        widths = {width for row in recorders.rows for width in row.widths.values()}
        if len(specs) > 1:
            raise UsageError(
                "these layers scale their scores differently",
                where=arg("layer"),
                hint="select one layer",
            )
        for index in range(recorders.units.start, recorders.units.stop):
            ((scale, softcap, bias),) = specs
            scaling[index] = scale, softcap, bias, min(widths) if len(widths) == 1 else None
    return [scaling[index] for index in trace.order]


def _means(trace: Trace, part: TextPart) -> Means:
    """Return averages over the rows of one text that count, for every unit."""
    counted = np.array(part.counted)
    means: dict[str, Any] = {}
    for path, array in trace.arrays(part.text).items():
        name = path.removeprefix("rows.")
        if name != path:
            # In a batch, padding follows a shorter text.
            rows = torch.from_numpy(array[:, : len(counted)][:, counted])
            partial = len(part.queries) < part.n_tokens and not LINEAR.get(name, True)
            # Over several layers, only rows that are shown are kept, and those that other texts of the batch show.
            means[name] = [
                None if partial and len(unit.layers) > 1 else _mean(values)
                for unit, values in zip(trace.units, rows, strict=True)
            ]
    return Means(**means)


def _mean(values: Tensor) -> float | None:
    known_values = to_float64(values[~values.isnan()])
    if known_values.numel():
        return float(known_values.mean())
    return None


def _index_of(items: Sequence[int], among: Sequence[int]) -> "slice | Array":
    """Find ascending positions within ascending ones that contain them all: a slice, which copies nothing, of neighbours."""
    if not items:
        return slice(0, 0)
    first_index = bisect_left(among, items[0])
    last_index = bisect_left(among, items[-1])
    if last_index - first_index + 1 == len(items):
        return slice(first_index, last_index + 1)
    return np.searchsorted(among, items)
