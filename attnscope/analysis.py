"""A Trace in, plain findings out: pure functions, the only place where kept tensors become a Report."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from attnscope.errors import UsageError
from attnscope.model.recorders import Rows, strongest
from attnscope.model.trace import Kept, Trace, Unit, Wanted
from attnscope.report import HeadReport, Top
from attnscope.report import Rows as RowFacts
from attnscope.selection import Pick

MEASURE = "most mass on other words"


def choose(mass: Tensor | None, layers: Pick, heads: Pick, n_layers: int, n_heads: int) -> list[Unit]:
    """The units that a selection of layers and heads stands for.

    Args:
        mass: Mean weight on other, non-special tokens, (layers, heads); needed where a pick is `auto`.
        layers: What the user picked.
        heads: What the user picked.
        n_layers: Layers in the model.
        n_heads: Query heads in a layer.

    Raises:
        UsageError: A number is out of range.
    """
    all_layers, all_heads = layers.numbers(n_layers, "layer"), heads.numbers(n_heads, "head")
    if layers.word == "mean":
        return _over_mean_layer(mass, tuple(all_layers), heads, all_heads)
    reason = None
    if layers.word == "auto" and mass is not None:
        best = mass[:, all_heads].amax(1) if heads.word == "auto" else mass[:, all_heads].mean(1)  # (layers,)
        all_layers = [int(best.argmax())]
        reason = f"auto: {MEASURE} ({float(best.max()):.2f})"
    units = []
    for layer in all_layers:
        if heads.word == "mean":
            units.append(Unit((layer,), tuple(all_heads), mean_head=True, chosen=reason))
        elif heads.word == "auto" and mass is not None:
            head = int(mass[layer].argmax())
            units.append(Unit((layer,), (head,), chosen=f"auto: {MEASURE} ({float(mass[layer, head]):.2f})"))
        else:
            units += [Unit((layer,), (head,), chosen=reason) for head in all_heads]
    return units


def _over_mean_layer(mass: Tensor | None, layers: tuple[int, ...], pick: Pick, heads: list[int]) -> list[Unit]:
    if pick.word == "mean":
        return [Unit(layers, tuple(heads), mean_layer=True, mean_head=True)]
    if pick.word == "auto" and mass is not None:
        best = mass.mean(0)  # (heads,)
        reason = f"auto: {MEASURE} ({float(best.max()):.2f})"
        return [Unit(layers, (int(best.argmax()),), mean_layer=True, chosen=reason)]
    return [Unit(layers, (head,), mean_layer=True) for head in heads]


def mass_on_others(rows: Sequence[Rows], counted: Tensor) -> Tensor:
    """Mean weight on other, non-special tokens, over the rows that count: (layers, heads).

    Args:
        rows: One recorder a layer, over all heads and rows.
        counted: Rows that are real, non-special tokens, (B, Q), bool.
    """
    per_row = torch.stack([r.kept["other"] for r in rows])  # (L, B, H, Q)
    use = counted[None, :, None] & ~per_row.isnan()
    return (per_row.nan_to_num(0.0) * use).sum((1, 3)) / use.sum((1, 3)).clamp_min(1)


def head_report(
    unit: Unit,
    kept: Kept,
    wanted: Wanted,
    place: tuple[int, list[int], list[int]],
    *,
    left_out: list[str],
) -> HeadReport:
    """One unit's findings about one text.

    Args:
        unit: What is shown.
        kept: Its recorders, filled.
        wanted: What they were asked for.
        place: Number of the text in the batch, its rows and its columns.
        left_out: What does not take part in the ranking.

    Raises:
        UsageError: A mean over layers that do not scale alike.
    """
    text, queries, keys = place
    rows = [wanted.rows.index(q) for q in queries]
    columns = [wanted.columns.index(k) for k in keys]
    matrices = kept.matrices.result()
    stages = {}
    for stage in wanted.stages:
        matrix = matrices[stage][text, kept.head][rows]
        stages[stage] = to_numpy(matrix if stage == "output" else matrix[:, columns])
    facts = {name: _row_fact(kept, name, text)[rows] for name in Rows.NAMES}
    dead = [q for q, entropy in zip(queries, facts["entropy"].tolist(), strict=True) if entropy != entropy]
    scale, softcap, bias = _rule(kept)
    return HeadReport(
        layer="mean" if unit.mean_layer else unit.layers[0],
        head="mean" if unit.mean_head else unit.heads[0],
        chosen=unit.chosen,
        scale=scale,
        softcap=softcap,
        bias=bias,
        stages=stages,
        fully_masked=dead,
        top=_top(kept, wanted, text, rows, left_out),
        rows=RowFacts(**{name: to_numpy(values) for name, values in facts.items()}),
        sink=_sink(kept, text, rows),
    )


def unit_names(trace: Trace) -> list[tuple[int | str, int | str]]:
    """Layer and head of every unit: numbers, or `mean`."""
    return [
        ("mean" if unit.mean_layer else unit.layers[0], "mean" if unit.mean_head else unit.heads[0])
        for unit, _ in trace.kept
    ]


def unit_arrays(trace: Trace) -> dict[str, Any]:
    """Everything kept of a batch as NumPy arrays whose axes are text, unit, row and whatever follows.

    Returns:
        `top.keys` (int32), `top.weight` and so on, `rows.entropy` and so on, `columns`, `pooled`, `stages.weights` and
        so on; rows and columns are those of `Wanted`. With sheets, each of `stages` is a list of every text's own.
    """
    parts = []
    for _, together in groupby((kept for _, kept in trace.kept), key=lambda one: id(one.matrices)):
        units = list(together)  # heads of one layer, which share their recorders
        heads = [one.head for one in units]
        whole = _whole(units[0], trace)
        parts.append({n: x if heads == list(range(x.shape[1])) else x[:, heads] for n, x in whole.items()})
    found: dict[str, Any] = {name: torch.cat([part[name] for part in parts], 1).cpu().numpy() for name in parts[0]}
    if trace.sheets is not None:
        for stage in trace.wanted.stages:
            found[f"stages.{stage}"] = [text.numpy() for text in trace.sheets.texts(stage)]
    return found


def _whole(kept: Kept, trace: Trace) -> dict[str, Tensor]:
    """All that a unit and those that share its recorders keep, (B, heads, …) each; one head over a mean."""
    w, found = trace.wanted, dict[str, Tensor]()
    if w.keep.top:
        keys, measures = _whole_top(kept, w)
        found |= {"top.keys": keys.int()} | {f"top.{name}": measure for name, measure in measures.items()}
    if w.keep.rows:
        found |= {f"rows.{name}": _whole_rows(kept, name) for name in Rows.NAMES}
    if kept.columns is not None:
        found["columns"] = kept.columns.result()
    if kept.pooled is not None:
        found["pooled"] = kept.pooled.result()
    if trace.sheets is None:
        found |= {f"stages.{stage}": kept.matrices.result()[stage] for stage in w.stages}
    return found


def _whole_rows(kept: Kept, name: str) -> Tensor:
    """A statistic of every row, (B, heads, rows), or one head, the mean of all, over a mean."""
    each = [one.kept[name] for one in kept.rows]
    return torch.stack([one.mean(1, keepdim=True) for one in each]).mean(0) if kept.matrices.mean else each[0]


def _whole_top(kept: Kept, wanted: Wanted) -> tuple[Tensor, dict[str, Tensor]]:
    """The strongest sources in every text, (B, heads, rows, rank); one head over a mean."""
    if kept.top is not None:
        return kept.top.keys, kept.top.measures
    rows = list(range(len(wanted.rows)))
    each = [_top_of_mean(kept, wanted, text, rows) for text in range(len(wanted.eligible))]
    names = wanted.keep.measures or tuple(each[0][1])
    keys = torch.stack([keys for keys, _ in each])[:, None]
    return keys, {n: torch.stack([m[n] for _, m in each])[:, None] for n in names}


def _rule(kept: Kept) -> tuple[float, float | None, str | None]:
    """Scale, soft-cap and bias, which a unit's layers share."""
    rules = {(rule.scale, rule.softcap, rule.bias_name) for one in kept.rows for rule in one.rules.values()}
    if len(rules) > 1:
        raise UsageError("these layers scale their scores differently", where="--layer", hint="choose one layer")
    return rules.pop()


def _sink(kept: Kept, text: int, rows: list[int]) -> Any:
    sinks = [one.sink for one in kept.rows if one.sink is not None]
    if not sinks:
        return None
    if kept.contributions is None:
        return to_numpy(sinks[0][text, kept.head][rows])
    return to_numpy(torch.stack([sink[text].mean(0) for sink in sinks]).mean(0)[rows])


def _row_fact(kept: Kept, name: str, text: int) -> Tensor:
    """A statistic of every row; over a mean, the mean of the heads' (and layers') statistics."""
    if kept.contributions is None:
        return kept.rows[0].kept[name][text, kept.head]
    return torch.stack([r.kept[name][text].mean(0) for r in kept.rows]).mean(0)


def _top(kept: Kept, wanted: Wanted, text: int, rows: list[int], left_out: list[str]) -> Top:
    if kept.top is not None:
        keys = kept.top.keys[text, kept.head][rows]
        found = {name: values[text, kept.head][rows] for name, values in kept.top.measures.items()}
    else:
        keys, found = _top_of_mean(kept, wanted, text, rows)
    projected = to_numpy(found["projected"]) if "projected" in found else None
    return Top(wanted.by, keys.cpu().numpy(), to_numpy(found["weight"]), to_numpy(found["value"]), projected, left_out)


def _top_of_mean(kept: Kept, wanted: Wanted, text: int, rows: list[int]) -> tuple[Tensor, dict[str, Tensor]]:
    assert kept.contributions is not None
    mean = {name: values[text, 0][rows] for name, values in kept.contributions.result().items()}  # (r, K)
    mean["weight"] = mean.pop("weights")
    # a mean is −inf where any of the layers masks the key; where another lets it be seen it has weight
    barred = ((mean.pop("masked") == -torch.inf) & (mean["weight"] == 0)) | ~wanted.eligible[text]
    keys, values = strongest(mean[wanted.by].masked_fill(barred, -torch.inf), wanted.top)
    none = (values == -torch.inf) | values.isnan()
    return keys.masked_fill(none, -1), {n: m.gather(-1, keys).masked_fill(none, torch.nan) for n, m in mean.items()}


def to_numpy(tensor: Tensor) -> Any:
    """A float32 array of its own on the CPU."""
    return tensor.float().cpu().numpy()
