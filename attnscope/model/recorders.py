"""Tiles in; what is kept of them out. What recorders keep, not the length of the text, decides memory.

Every recorder keeps float32 on the model's device, in the order of its own heads and rows, for the whole batch. A fully
masked row is NaN in whatever a recorder keeps of weights, contributions and output: there is no number to show.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import torch
from torch import Tensor

from attnscope.model.attention import Tile
from attnscope.model.call import Rule

_EMPTY = {"scores": torch.nan, "scaled": torch.nan, "masked": -torch.inf}  # elsewhere 0: weight on a key out of reach


@dataclass(frozen=True)
class Sources:
    """What recorders need to know about the key side of a batch.

    Attributes:
        special: Special tokens, (B, K), bool.
        real: Tokens that are not padding, (B, K), bool.
        same: Queries and keys are the same tokens (no cross-attention).
    """

    special: Tensor
    real: Tensor
    same: bool = True

    def content(self) -> Tensor:
        """Tokens that are neither special, nor padding, nor the first: (B, K), bool."""
        keep = self.real & ~self.special
        keep[:, 0] = False
        return keep


class _Base:
    """Heads and rows of a recorder, and where a tile's share of them lies."""

    def __init__(self, heads: Sequence[int], rows: Sequence[int]) -> None:
        self.heads: Sequence[int] = list(heads)
        self.rows: Sequence[int] = list(rows)

    def reach(self) -> tuple[int, int] | None:
        """No raw scores beyond what is allowed."""
        return None

    def _share(self, tile: Tile) -> "_Share | None":
        """What the tile and the recorder have in common; None for nothing."""
        at = {head: i for i, head in enumerate(tile.heads.tolist())}
        heads = [h for h in self.heads if h in at]
        rows = slice(bisect_left(self.rows, tile.q0), bisect_left(self.rows, tile.q1))
        if not heads or rows.start == rows.stop:
            return None
        here = [self.heads.index(h) for h in heads]
        return _Share([at[h] for h in heads], here, [row - tile.q0 for row in self.rows[rows]], rows)


@dataclass(frozen=True)
class _Share:
    """The heads and rows that a tile and a recorder have in common.

    Attributes:
        heads: Their places in the tile.
        here: Their places in the recorder.
        inside: Rows' places in the tile.
        rows: Rows' places in the recorder.
    """

    heads: list[int]
    here: list[int]
    inside: list[int]
    rows: slice

    def cut(self, stage: Tensor) -> Tensor:
        """These heads and rows of a stage of the tile, (B, h, r, …); a view where they are all or neighbours."""
        if self.heads != list(range(stage.shape[1])):
            stage = stage[:, self.heads]
        first, last = self.inside[0], self.inside[-1]
        return stage[:, :, first : last + 1] if last - first + 1 == len(self.inside) else stage[:, :, self.inside]

    def dead(self, tile: Tile) -> Tensor | None:
        """Fully masked rows among these, (B, 1, r)."""
        if tile.dead is None:
            return None
        return tile.dead.expand(tile.scores.shape[0], 1, tile.q1 - tile.q0)[:, :, self.inside]


class Matrices(_Base):
    """Whole matrices of the wanted stages, for the selected rows and columns.

    Args:
        stages: Stages, or contributions (`value`, `projected`).
        heads: Query heads.
        rows: Query positions, sorted.
        columns: Key positions, sorted; `output` is kept in its whole width.
        mean: Sum over heads (and over every layer that it is shown) instead of keeping each apart.
    """

    def __init__(
        self,
        stages: Sequence[str],
        heads: Sequence[int],
        rows: Sequence[int],
        columns: Sequence[int],
        *,
        mean: bool = False,
    ) -> None:
        super().__init__(heads, rows)
        self.stages, self.columns, self.mean = list(stages), list(columns), mean
        self.kept: dict[str, Tensor] = {}
        self.layers: set[int] = set()

    def reach(self) -> tuple[int, int] | None:
        """Raw scores are shown for keys that are not allowed, too."""
        if self.columns and {"scores", "scaled"} & set(self.stages):
            return self.columns[0], self.columns[-1] + 1
        return None

    def see(self, tile: Tile) -> None:
        """Copy the selected cells."""
        self.layers.add(tile.call.layer)
        share = self._share(tile)
        if share is None:
            return
        dead = share.dead(tile)
        for stage in self.stages:
            part = share.cut(tile.stage(stage))  # (B, h, r, k)
            if stage != "output":
                part = self._spread(stage, part, tile)  # (B, h, r, columns)
            if stage not in _EMPTY and dead is not None:
                part = part.masked_fill(dead[..., None], torch.nan)
            self._keep(stage, part, share)

    def _spread(self, stage: str, part: Tensor, tile: Tile) -> Tensor:
        """The wanted columns of a part, with what stands for keys that are out of the tile's reach."""
        columns = slice(bisect_left(self.columns, tile.k0), bisect_left(self.columns, tile.k1))
        inside = [column - tile.k0 for column in self.columns[columns]]
        if inside != list(range(part.shape[-1])):
            part = part[..., inside]
        if len(inside) == len(self.columns):
            return part
        spread = part.new_full((*part.shape[:-1], len(self.columns)), _EMPTY.get(stage, 0.0))
        spread[..., columns] = part
        return spread

    def _keep(self, stage: str, part: Tensor, share: _Share) -> None:
        if stage not in self.kept:
            shape = (part.shape[0], 1 if self.mean else len(self.heads), len(self.rows), part.shape[-1])
            self.kept[stage] = part.new_zeros(shape)
        if self.mean:
            self.kept[stage][:, 0, share.rows] += part.sum(1)
        else:
            self.kept[stage][:, share.here, share.rows] = part

    def result(self) -> dict[str, Tensor]:
        """Stage to (B, heads, rows, columns); one head, the mean, where `mean` was asked for."""
        if not self.mean:
            return self.kept
        count = len(self.heads) * max(1, len(self.layers))
        return {stage: total / count for stage, total in self.kept.items()}


class Top(_Base):
    """The strongest sources of every row.

    Args:
        count: Sources a row.
        by: `weight`, `value` or `projected`.
        heads: Query heads.
        rows: Query positions, sorted.
        eligible: Keys that take part, (B, K), bool.
        names: Measures that are kept; None for weight and value, and projected where that ranks.
    """

    def __init__(
        self,
        count: int,
        by: str,
        heads: Sequence[int],
        rows: Sequence[int],
        eligible: Tensor,
        names: tuple[str, ...] | None = None,
    ) -> None:
        super().__init__(heads, rows)
        self._names = names or (("weight", "value", "projected") if by == "projected" else ("weight", "value"))
        self.count, self.by, self.eligible = min(count, eligible.shape[1]), by, eligible
        shape = (eligible.shape[0], len(self.heads), len(self.rows), self.count)
        self.keys = torch.full(shape, -1, dtype=torch.int64, device=eligible.device)
        self.measures = {name: torch.full(shape, torch.nan, device=eligible.device) for name in self._names}

    def see(self, tile: Tile) -> None:
        """Rank the keys that are allowed and eligible."""
        share = self._share(tile)
        if share is None or tile.k0 == tile.k1:
            return
        measures = {name: share.cut(tile.stage("weights" if name == "weight" else name)) for name in self._names}
        barred = (share.cut(tile.masked) == -torch.inf) | ~self.eligible[:, None, None, tile.k0 : tile.k1]
        keys, found = strongest(measures[self.by].masked_fill(barred, -torch.inf), self.count)
        none = found == -torch.inf
        n = keys.shape[-1]
        self.keys[:, share.here, share.rows, :n] = (keys + tile.k0).masked_fill(none, -1)
        for name, measure in measures.items():
            self.measures[name][:, share.here, share.rows, :n] = measure.gather(-1, keys).masked_fill(none, torch.nan)


def strongest(measure: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Places and values of the `count` largest entries of the last dimension; among equals the first places win.

    `topk` leaves the order of equals open; rows in which that shows are sorted instead, so that a result never depends
    on how a text was cut into tiles. The order of entries of −inf is left open: they stand for nothing.
    """
    size = measure.shape[-1]
    count = min(count, size)
    values, places = measure.topk(min(count + 1, size), dim=-1)  # one more, to see equals that were left outside
    tied = ((values[..., 1:] == values[..., :-1]) & (values[..., 1:] > -torch.inf)).any(-1)
    values, places = values[..., :count].clone(), places[..., :count].clone()
    if tied.any():
        exact = measure[tied].sort(dim=-1, descending=True, stable=True)
        values[tied], places[tied] = exact.values[:, :count], exact.indices[:, :count]
    return places, values


class Rows(_Base):
    """Statistics of every row: entropy, and how much weight goes where (see report.Rows).

    Args:
        heads: Query heads.
        rows: Query positions, sorted.
        sources: The key side.

    Attributes:
        kept: Statistic to (B, heads, rows).
        sink: What each row gives to the head's sink, likewise; None where the layer has none.
        rules: How scores became weights, by layer.
    """

    NAMES = ("entropy", "first", "special", "self", "other", "distance")

    def __init__(self, heads: Sequence[int], rows: Sequence[int], sources: Sources) -> None:
        super().__init__(heads, rows)
        self.sources, self.content = sources, sources.content()
        shape = (sources.special.shape[0], len(self.heads), len(self.rows))
        self.kept = {name: torch.full(shape, torch.nan, device=sources.special.device) for name in self.NAMES}
        self.sink: Tensor | None = None
        self.rules: dict[int, Rule] = {}

    def see(self, tile: Tile) -> None:
        """Reduce each row to its statistics."""
        self.rules[tile.call.layer] = tile.call.rule
        share = self._share(tile)
        if share is None:
            return
        weights = share.cut(tile.weights)  # (B, h, r, k)
        at = torch.tensor(self.rows[share.rows], device=weights.device)
        dead = share.dead(tile)
        for name, values in self._reduce(weights, at, slice(tile.k0, tile.k1)).items():
            kept = values if dead is None else values.masked_fill(dead, torch.nan)
            self.kept[name][:, share.here, share.rows] = kept
        if tile.sink is not None:
            if self.sink is None:
                self.sink = torch.full_like(self.kept["entropy"], torch.nan)
            self.sink[:, share.here, share.rows] = share.cut(tile.sink[..., None])[..., 0]

    def _reduce(self, weights: Tensor, at: Tensor, keys: slice) -> dict[str, Tensor]:
        """Each statistic, (B, h, r), of these rows of weights over this range of keys."""
        special = self.sources.special[:, keys].float()[:, None, :, None]  # (B, 1, k, 1)
        content = self.content[:, keys].float()
        nothing = weights.new_zeros(weights.shape[:3])
        found = {
            "entropy": torch.special.entr(weights).sum(-1) / log(2),
            "first": weights[..., 0] if keys.start == 0 < keys.stop else nothing,
            "special": (weights @ special).squeeze(-1),
            "other": (weights @ content[:, None, :, None]).squeeze(-1),
        }
        if self.sources.same:
            places = torch.arange(keys.start, keys.stop, device=at.device)
            onto = places[None] == at[:, None]  # (r, k)
            own = (weights * onto).sum(-1)
            found["self"] = own
            found["other"] = found["other"] - own * (onto & (content[:, None] > 0)).any(-1)[:, None].float()
            found["distance"] = (weights * (places[None] - at[:, None]).abs()).sum(-1)
        return found
