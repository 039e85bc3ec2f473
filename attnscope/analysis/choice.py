"""Choose the layers and heads to show."""

from collections.abc import Sequence

import torch
from torch import Tensor

from attnscope.model.recorders import RowRecorder
from attnscope.model.trace import HeadSelection
from attnscope.selection import IndexSelection

MEASURE = "most weight on other words"


def choose_heads(
    mass: Tensor | None, layers: IndexSelection, heads: IndexSelection, n_layers: int, n_heads: int
) -> list[HeadSelection]:
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
    all_layers, all_heads = list(layers.numbers(n_layers, "layer")), list(heads.numbers(n_heads, "head"))
    if layers.word == "mean":
        return _over_mean_layer(mass, tuple(all_layers), heads, all_heads)
    reason = None
    if layers.word == "auto" and mass is not None:
        best = mass[:, all_heads].amax(1) if heads.word == "auto" else mass[:, all_heads].mean(1)  # (layers,)
        all_layers = [int(best.argmax())]
        one = heads.word == "mean" or len(all_heads) == 1  # else the figure is none of a single head
        reason = _auto(best.max()) if one else f"auto layer: {MEASURE}, {float(best.max()):.2f} over these heads"
    units = []
    for layer in all_layers:
        if heads.word == "mean":
            units.append(HeadSelection((layer,), tuple(all_heads), mean_head=True, chosen=reason))
        elif heads.word == "auto" and mass is not None:
            head = int(mass[layer].argmax())
            units.append(HeadSelection((layer,), (head,), chosen=_auto(mass[layer, head])))
        else:
            units += [HeadSelection((layer,), (head,), chosen=reason) for head in all_heads]
    return units


def _auto(mass: Tensor) -> str:
    return f"auto: {MEASURE} ({float(mass):.2f})"


def _over_mean_layer(
    mass: Tensor | None, layers: tuple[int, ...], pick: IndexSelection, heads: list[int]
) -> list[HeadSelection]:
    if pick.word == "mean":
        return [HeadSelection(layers, tuple(heads), mean_layer=True, mean_head=True)]
    if pick.word == "auto" and mass is not None:
        best = mass.mean(0)  # (heads,)
        reason = _auto(best.max())
        return [HeadSelection(layers, (int(best.argmax()),), mean_layer=True, chosen=reason)]
    return [HeadSelection(layers, (head,), mean_layer=True) for head in heads]


def mass_on_other_words(rows: Sequence[RowRecorder], counted: Tensor) -> Tensor:
    """Mean weight on other, non-special tokens, over the rows that count: (layers, heads).

    Args:
        rows: One recorder a layer, over all heads and rows.
        counted: Rows that are real, non-special tokens, (B, Q), bool.
    """
    per_row = torch.stack([r.recorded["other"] for r in rows])  # (L, B, H, Q)
    use = counted[None, :, None] & ~per_row.isnan()
    return (per_row.nan_to_num(0.0) * use).sum((1, 3)) / use.sum((1, 3)).clamp_min(1)
