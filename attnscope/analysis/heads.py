"""A Trace in; findings about one layer and head over one text out: where kept tensors become a Report."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnscope.analysis.overview import Whole, column_mass, means, pooled_map
from attnscope.analysis.tensors import fully_masked, row_fact, row_sink, to_numpy
from attnscope.errors import UsageError
from attnscope.model.recorders import Rows, strongest
from attnscope.model.trace import Kept, Unit, Wanted
from attnscope.report import HeadReport, Top
from attnscope.report import Rows as RowFacts


@dataclass(frozen=True)
class Place:
    """Which text of a batch, and what of it is shown.

    Attributes:
        text: Its number in the batch.
        queries: Rows.
        keys: Columns.
        whole: What is needed to say something about the text as a whole; None where nothing is said.
    """

    text: int
    queries: list[int]
    keys: list[int]
    whole: Whole | None = None


def head_report(unit: Unit, kept: Kept, wanted: Wanted, place: Place, *, left_out: list[str]) -> HeadReport:
    """One unit's findings about one text.

    Args:
        unit: What is shown.
        kept: Its recorders, filled.
        wanted: What they were asked for.
        place: Which text, and what of it.
        left_out: What does not take part in the ranking.

    Raises:
        UsageError: A mean over layers that do not scale alike.
    """
    text, queries, whole = place.text, place.queries, place.whole
    rows, counted = _places(queries, wanted.rows), _places(queries, wanted.counted)
    facts = {name: row_fact(kept, name, text)[counted] for name in Rows.NAMES}
    dead = [q for q, nothing in zip(queries, fully_masked(kept, text)[counted].tolist(), strict=True) if nothing]
    sink = row_sink(kept, text)
    scale, softcap, bias = _rule(kept)
    return HeadReport(
        layer="mean" if unit.mean_layer else unit.layers[0],
        head="mean" if unit.mean_head else unit.heads[0],
        chosen=unit.chosen,
        scale=scale,
        softcap=softcap,
        bias=bias,
        stages=_stages(kept, wanted, place, rows) if queries else {},
        fully_masked=dead,
        top=_top(kept, wanted, text, rows, left_out),
        rows=RowFacts(**{name: to_numpy(values) for name, values in facts.items()}),
        sink=None if sink is None else to_numpy(sink[counted]),
        pooled=None if whole is None else pooled_map(kept, text, whole),
        columns=None if whole is None else column_mass(kept, text, whole),
        means=None if whole is None else means(kept, text, whole),
    )


def _stages(kept: Kept, wanted: Wanted, place: Place, rows: "slice | Tensor") -> dict[str, Any]:
    """The matrices of the rows and columns that are shown."""
    columns, matrices, found = _places(place.keys, wanted.columns), kept.matrices.result(), {}
    for stage in wanted.stages:
        matrix = matrices[stage][place.text, kept.head][rows]
        found[stage] = to_numpy(matrix if stage == "output" else matrix[:, columns])
    return found


def _places(chosen: list[int], among: list[int]) -> "slice | Tensor":
    """Where positions lie among sorted ones that hold them all; a slice where they are neighbours there."""
    if not chosen:
        return slice(0, 0)
    found = torch.searchsorted(torch.tensor(among), torch.tensor(chosen))
    first, last = int(found[0]), int(found[-1])
    return slice(first, last + 1) if last - first + 1 == len(chosen) else found


def _rule(kept: Kept) -> tuple[float, float | None, str | None]:
    """Scale, soft-cap and bias, which a unit's layers share."""
    rules = {(rule.scale, rule.softcap, rule.bias_name) for one in kept.rows for rule in one.rules.values()}
    if len(rules) > 1:
        raise UsageError("these layers scale their scores differently", where="--layer", hint="choose one layer")
    return rules.pop()


def _top(kept: Kept, wanted: Wanted, text: int, rows: "slice | Tensor", left_out: list[str]) -> Top:
    if not wanted.rows:
        none = torch.empty(0, wanted.top)
        keys, found = none.long(), dict.fromkeys(("weight", "value", wanted.by), none)
    elif kept.top is not None:
        keys, found = kept.top.of(text, kept.head, rows)
    else:
        keys, found = top_of_mean(kept, wanted, text, rows)
    projected = to_numpy(found["projected"]) if "projected" in found else None
    return Top(wanted.by, keys.cpu().numpy(), to_numpy(found["weight"]), to_numpy(found["value"]), projected, left_out)


def top_of_mean(kept: Kept, wanted: Wanted, text: int, rows: "slice | Tensor") -> tuple[Tensor, dict[str, Tensor]]:
    """Places and measures, (rows, rank), of the strongest sources of a mean over heads or layers."""
    assert kept.contributions is not None
    mean = {name: values[text, 0][rows] for name, values in kept.contributions.result().items()}  # (r, K)
    mean["weight"] = mean.pop("weights")
    # A key takes part where any of the layers lets it be seen, whatever a sink leaves of its weight.
    barred = (mean.pop("allowed") == 0) | ~wanted.eligible[text]
    keys, values = strongest(mean[wanted.by].masked_fill(barred, -torch.inf), wanted.top)
    none = (values == -torch.inf) | values.isnan()
    return keys.masked_fill(none, -1), {n: m.gather(-1, keys).masked_fill(none, torch.nan) for n, m in mean.items()}
