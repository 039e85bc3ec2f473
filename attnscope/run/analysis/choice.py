"""Choose the layers and heads to show: by the question that a run asks, or without one by content."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnscope.findings.attribution import Attribution
from attnscope.model.batch import Batch
from attnscope.model.recorders import ColumnRecorder, WordRecorder
from attnscope.model.recorders.patterns import FURTHEST
from attnscope.model.tile import Recorder
from attnscope.model.trace import HeadSelection
from attnscope.request.selection import IndexSelection

_NEXT = 4  # heads that are named after the strongest one
_LEAST = 0.005  # smaller weights would be 0.00


@dataclass(frozen=True)
class HeadRanking:
    """The values by which `auto` ranks heads."""

    description: str  # phrase for the head with the largest value; `{}` stands for the value
    mean: str  # phrase for the layer with the largest average, with `{}` for it
    none: str  # phrase for the first head if every value is 0
    values: Tensor  # the value of every head, (layers, heads)
    layers: Sequence[int]  # the layers of its rows
    # the model's own mask, under which they were measured; None for the mask that is shown
    mask: str | None = None
    # whether the values are weights of named rows on named keys, which are told of more heads
    is_cell: bool = False


class RankingRecorders:
    """Recorders for `auto`: of the weight on named keys, or of the content weight (docs/heads.md).

    Args:
        queries: Named rows of every text; None if none are named.
        keys: Named keys of every text; None if none are named.
        layers: The layers to rank.
    """

    def __init__(
        self,
        batch: Batch,
        queries: Sequence[Sequence[int]] | None,
        keys: Sequence[Sequence[int]] | None,
        layers: Sequence[int],
        n_heads: int,
    ) -> None:
        real = batch.tokens.real
        sources = batch.sources
        heads = range(n_heads)
        self._layers = layers
        words = real & ~batch.tokens.special
        # A text of only special tokens has no other rows.
        words |= real & ~words.any(1, keepdim=True)
        self._rows = words if queries is None else _at(queries, real)
        self._named = queries is not None
        self._keys = None if keys is None else _at(keys, sources.real)
        self._columns: list[ColumnRecorder] = []
        self._words: list[WordRecorder] = []
        self.recorders: dict[int, list[Recorder]] = {}
        reach = FURTHEST if sources.self_attention else None
        for layer in layers:
            if keys is not None:
                self._columns.append(
                    ColumnRecorder(heads, range(real.shape[1]), self._rows, sources)
                )
                self.recorders[layer] = [self._columns[-1]]
                continue
            counted = words | self._rows
            self._words.append(
                WordRecorder(heads, counted, sources.content(), reach=reach, measured=self._rows)
            )
            self.recorders[layer] = [self._words[-1]]

    def compute(self) -> HeadRanking:
        """Return the ranking, after the model has run."""
        count = self._rows.sum()
        if self._keys is not None:
            wanted = self._keys[:, None].float()
            values = (
                torch.stack(
                    [(recorder.compute() * wanted).sum((0, 2)) for recorder in self._columns]
                )
                / count
            )
            if not self._named:
                who = "all words"
            elif count == 1:
                who = "this query"
            else:
                who = "these queries"
            weight = f"weight from {who} on {'this key' if self._keys.sum() == 1 else 'these keys'}"
            mean = f"the layer with the most {weight} ({{}} on average over these heads)"
            none = f"no head has {weight}, so the first is shown"
            return HeadRanking(
                f"most {weight} ({{}})", mean, none, values.cpu(), self._layers, is_cell=True
            )
        values = (
            torch.stack([recorder.excess.cpu().double().sum(0) for recorder in self._words])
            / count.cpu()
        )
        if not self._named:
            rows = "all words here"  # attnscope heads averages over other texts
        elif count == 1:
            rows = "this query"
        else:
            rows = "these queries"
        weight = f"content weight from {rows}"
        description = f"most {weight} ({{}})"
        mean = f"the layer with the most {weight} ({{}} on average over these heads)"
        none = f"no head has {weight}, so the first is shown"
        return HeadRanking(description, mean, none, values, self._layers)


def logit_ranking(attributions: Sequence[Attribution]) -> HeadRanking:
    """Rank heads by what they add to the logits that are taken apart, averaged over texts."""
    targets = dict.fromkeys(
        (text.target.text, None if text.against is None else text.against.text)
        for text in attributions
    )
    target, against = next(iter(targets))
    logit = "their logits" if len(targets) > 1 else f"the logit of '{target}'"
    if len(targets) == 1 and against is not None:
        logit += f" minus that of '{against}'"
    values = torch.stack([torch.from_numpy(text.heads).double() for text in attributions]).mean(0)
    return HeadRanking(
        f"adds most to {logit} ({{}})",
        f"its heads add most to {logit} ({{}} on average over these heads)",
        f"no head adds to {logit}, so the first is shown",
        values,
        range(len(values)),
    )


def _at(places: Sequence[Sequence[int]], like: Tensor) -> Tensor:
    """Return a mask of the shape of `like` that is True at the given positions of each text."""
    mask = torch.zeros_like(like)
    for text, positions in enumerate(places):
        mask[text, torch.tensor(positions, dtype=torch.int64, device=like.device)] = True
    return mask


def choose_heads(
    ranking: HeadRanking | None,
    layers: IndexSelection,
    heads: IndexSelection,
    n_layers: int,
    n_heads: int,
) -> list[HeadSelection]:
    """Return the units of a selection of layers and heads.

    Args:
        ranking: Values that rank heads; needed if a selection is `auto`.
    """
    all_layers = list(layers.numbers(n_layers, "layer"))
    all_heads = list(heads.numbers(n_heads, "head", by_layer=True))
    if layers.word == "mean":
        return _over_mean_layer(ranking, tuple(all_layers), heads, all_heads)
    reason = None
    if layers.word == "auto" and ranking is not None:
        values = ranking.values[:, all_heads]
        best = values.amax(1) if heads.word == "auto" else values.mean(1)  # (layers,)
        all_layers = [ranking.layers[int(best.argmax())]]
        # The value belongs to one head, or to several.
        single = heads.word == "mean" or len(all_heads) == 1
        if n_layers > 1:
            what = "" if heads.word == "auto" else "layer "
            reason = _auto(
                ranking.description if single else ranking.mean, ranking, best.max(), what
            )
    units = []
    for layer in all_layers:
        if heads.word == "mean":
            units.append(HeadSelection((layer,), tuple(all_heads), mean_head=True, chosen=reason))
        elif heads.word == "auto" and ranking is not None:
            of_layer = ranking.values[ranking.layers.index(layer)]  # (heads,)
            head = int(of_layer.argmax())
            if n_heads > 1:
                reason = _auto(ranking.description, ranking, of_layer[head])
                if ranking.is_cell and layers.word == "auto":
                    reason += _next_heads(ranking)
            units.append(HeadSelection((layer,), (head,), chosen=reason))
        else:
            units += [HeadSelection((layer,), (head,), chosen=reason) for head in all_heads]
    if heads.pairs:
        units_by_pair = {(unit.layers[0], unit.heads[0]): unit for unit in units}
        return [units_by_pair[pair] for pair in dict.fromkeys(heads.pairs)]
    return units


def _auto(description: str, ranking: HeadRanking, value: Tensor, what: str = "") -> str:
    under = "" if ranking.mask is None else f" under the mask {ranking.mask}"
    return f"{what}chosen automatically{under}: {description.format(f'{float(value):.2f}') if value else ranking.none}"


def _next_heads(ranking: HeadRanking) -> str:
    """Name the heads after the strongest, as far as a screen would write their values: `; then L3H8 0.47, …`."""
    values = ranking.values
    order = values.flatten().argsort(descending=True, stable=True)[1 : _NEXT + 1].tolist()
    heads = [
        f"L{ranking.layers[index // values.shape[1]]}H{index % values.shape[1]} {float(values.flatten()[index]):.2f}"
        for index in order
        if values.flatten()[index] >= _LEAST
    ]
    return f"; then {', '.join(heads)}" if heads else ""


def _over_mean_layer(
    ranking: HeadRanking | None, layers: tuple[int, ...], pick: IndexSelection, heads: list[int]
) -> list[HeadSelection]:
    if pick.word == "mean":
        return [HeadSelection(layers, tuple(heads), mean_layer=True, mean_head=True)]
    if pick.word == "auto" and ranking is not None:
        best = ranking.values.mean(0)  # (heads,)
        reason = _auto(ranking.description, ranking, best.max())
        return [HeadSelection(layers, (int(best.argmax()),), mean_layer=True, chosen=reason)]
    return [HeadSelection(layers, (head,), mean_layer=True) for head in heads]
