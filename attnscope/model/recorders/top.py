"""Tiles in; the strongest sources of every row out."""

from collections.abc import Sequence

import torch
from torch import Tensor

from attnscope.model.attention import Tile
from attnscope.model.recorders.base import Base


class Top(Base):
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
        share = self.share(tile)
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
