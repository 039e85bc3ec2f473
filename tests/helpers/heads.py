"""Heads of a report one by one: made by hand and put together, or taken apart from its JSON."""

from typing import Any

import numpy as np

from attnscope.findings.heads import HeadRef, Heads, Pooled, Top
from attnscope.findings.merge_pieces import WordWeights
from attnscope.findings.row_statistics import Means, Rows


def stacked(heads: list[dict[str, Any]]) -> Heads:
    """Heads of a text, each a dict of the attributes of a HeadReport."""

    def column(name: str) -> list[Any]:
        return [head.get(name) for head in heads]

    def arrays(name: str, kind: Any) -> Any:
        """A struct of arrays from one struct for each head."""
        items = column(name)
        if not items or items[0] is None:
            return None
        fields = {}
        for field in kind.__struct_fields__:
            values = [getattr(item, field) for item in items]
            along_units = kind is Means or isinstance(values[0], np.ndarray)
            value = values[0]
            if along_units:
                value = values if kind is Means else np.stack(values)
            fields[field] = None if values[0] is None and kind is not Means else value
        return kind(**fields)

    def stacked_arrays(name: str) -> Any:
        items = column(name)
        return None if not items or items[0] is None else np.stack(items)

    widths = [head["stages"]["output"].shape[1] for head in heads if "output" in head["stages"]]
    stages = {}
    for stage in heads[0]["stages"] if heads else ():
        matrices = [head["stages"][stage] for head in heads]
        if stage == "output":
            matrices = [
                np.pad(m, ((0, 0), (0, max(widths) - m.shape[1])), constant_values=np.nan)
                for m in matrices
            ]
        stages[stage] = np.stack(matrices)
    return Heads(
        units=[HeadRef(head["layer"], head["head"]) for head in heads],
        chosen=column("chosen"),
        scale=column("scale"),
        head_width=[head["head_width"] for head in heads]
        if heads and heads[0].get("head_width")
        else None,
        softcap=column("softcap"),
        bias=column("bias"),
        fully_masked=column("fully_masked"),
        stages=stages,
        top=arrays("top", Top),
        rows=arrays("rows", Rows),
        pooled=arrays("pooled", Pooled),
        means=arrays("means", Means),
        words=arrays("words", WordWeights),
        columns=stacked_arrays("columns"),
        received=stacked_arrays("received"),
        score_mod=heads[0].get("score_mod") if heads else None,
        widths=widths if len(set(widths)) > 1 else None,
    )


def of_head(heads: Heads, index: int) -> dict[str, Any]:
    """The attributes of one head, to be changed and stacked again."""
    names = {name for name in Heads.__struct_fields__ if name not in ("units", "spans", "widths")}
    return {name: getattr(heads[index], name) for name in ("layer", "head", *sorted(names))}


def changed(heads: Heads, **changes: Any) -> Heads:
    """Heads with the same change of each."""
    return stacked([of_head(heads, index) | changes for index in range(len(heads))])


def unstacked(data: Any) -> Any:
    """The same JSON of findings, with the heads of every text one by one."""
    if isinstance(data, list):
        return [unstacked(entry) for entry in data]
    if not isinstance(data, dict):
        return data
    taken = {name: unstacked(value) for name, value in data.items()}
    heads = taken.get("heads")
    if isinstance(heads, dict) and "tokens" in taken and (not heads or "units" in heads):
        taken["heads"] = heads_of(taken)
    return taken


def heads_of(text: dict[str, Any]) -> list[dict[str, Any]]:
    """Take the heads of a text of a report apart, as JSON: a dict for each layer and head."""
    heads = text["heads"]
    found = []
    for index, (layer, head) in enumerate(heads.get("units", [])):
        taken: dict[str, Any] = {"layer": layer, "head": head, "score_mod": heads.get("score_mod")}
        taken |= {
            name: heads[name][index]
            for name in ("chosen", "scale", "softcap", "bias", "fully_masked")
        }
        taken |= {
            name: heads[name][index] if name in heads else None for name in ("columns", "received")
        }
        taken["stages"] = {
            stage: matrices[index] for stage, matrices in heads.get("stages", {}).items()
        }
        if "widths" in heads and "output" in taken["stages"]:
            taken["stages"]["output"] = [
                row[: heads["widths"][index]] for row in taken["stages"]["output"]
            ]
        for part in ("rows", "means", "words"):
            values_of = heads.get(part)
            if values_of is not None:
                values_of = {"sink": None} | {
                    name: None if values is None else values[index]
                    for name, values in values_of.items()
                }
            taken[part] = values_of
        top = {"projected": None, "left_out": []} | heads["top"]
        taken["top"] = top | {
            name: top[name][index]
            for name in ("keys", "weight", "value", "projected")
            if top.get(name) is not None
        }
        taken["pooled"] = heads.get("pooled")
        if taken["pooled"] is not None:
            taken["pooled"] = taken["pooled"] | {"weights": taken["pooled"]["weights"][index]}
        found.append(taken)
    return found
