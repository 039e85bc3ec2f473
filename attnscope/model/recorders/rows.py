"""Tiles in; statistics of every row out."""

from collections.abc import Sequence
from math import log

import torch
from torch import Tensor

from attnscope.model.attention import Tile
from attnscope.model.call import Rule
from attnscope.model.recorders.base import Base, Sources


class Rows(Base):
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
        share = self.share(tile)
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
