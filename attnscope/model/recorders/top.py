"""Tiles in; the strongest sources of every row out."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from attnscope.model.recorders.base import Base, Share
from attnscope.model.tile import Tile

_FEW = 8  # so many are found one after the other
_LONG, _CHUNK = 2048, 64


class Top(Base):
    """The strongest sources of every row.

    By weight, keys are ranked by their masked scores, which order them as weights do and still tell apart what has
    become 0 in float32.

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
        self.count, self.by, self.barred = min(count, eligible.shape[1]), by, ~eligible
        shape = (eligible.shape[0], len(self.heads), len(self.rows), self.count)
        self.keys = torch.full(shape, -1, dtype=torch.int64, device=eligible.device)
        self._weight = torch.full(shape, torch.nan, device=eligible.device)
        self._norms: dict[str, Tensor] = {}

    def see(self, tile: Tile) -> None:
        """Rank the keys that are allowed and eligible."""
        share = self.share(tile)
        if share is None or tile.k0 == tile.k1:
            return
        for name in self._names:
            if name != "weight" and name not in self._norms:
                norms = tile.call.value_norms if name == "value" else tile.call.projected_norms
                self._norms[name] = norms[:, self.heads]  # (B, heads, K)
        weights = share.cut(tile.weights)  # (B, h, r, k)
        keys, found = strongest(self._ranked(tile, share, weights), self.count)
        none, n = found == -torch.inf, keys.shape[-1]
        self.keys[:, share.index, share.rows, :n] = (keys + tile.k0).masked_fill_(none, -1)
        self._weight[:, share.index, share.rows, :n] = weights.gather(-1, keys).masked_fill_(none, torch.nan)

    def _ranked(self, tile: Tile, share: Share, weights: Tensor) -> Tensor:
        """What keys are ranked by, (B, h, r, k); −inf for those that take no part."""
        masked, barred = share.cut(tile.masked), self.barred[:, None, None, tile.k0 : tile.k1]
        if self.by == "weight" and not barred.any():
            return masked
        room = tile.workspace.room("recorder", masked.shape, masked.device)
        if self.by == "weight":
            return room.copy_(masked).masked_fill_(barred, -torch.inf)
        norms = tile.norms(self.by)[:, share.heads, None]  # (B, h, 1, k)
        return torch.mul(weights, norms, out=room).masked_fill_((masked == -torch.inf) | barred, -torch.inf)

    @property
    def measures(self) -> dict[str, Tensor]:
        """Weight and contributions of the strongest sources, (B, heads, rows, count); NaN where there are fewer."""
        keys = self.keys.clamp_min(0).flatten(2)

        def measure(name: str) -> Tensor:
            norms = self._norms.get(name)  # of no tile that held a key: every weight is NaN then
            return self._weight if norms is None else self._weight * norms.gather(-1, keys).view_as(self._weight)

        return {name: measure(name) for name in self._names}


def strongest(measure: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Places and values of the `count` largest entries of the last dimension; among equals the first places win.

    So a result never depends on how a text was cut into tiles. The order of entries of −inf is left open: they stand
    for nothing.

    Args:
        measure: (…, size), without NaN.
        count: How many are wanted of each row.

    Returns:
        Two tensors (…, count), or (…, size) where that is less.
    """
    size = measure.shape[-1]
    rows, count = measure.reshape(-1, size), min(count, size)  # (n, size)
    if count <= _FEW and size < _LONG and rows.device.type == "cpu":
        places, values = _one_by_one(rows, count)
    else:
        more = min(count + 1, size)  # one more, to see equals that were left outside
        places, values = _by_chunks(rows, more) if count <= _FEW and size >= _LONG else rows.topk(more, dim=-1)[::-1]
        tied = (values[:, 1:] == values[:, :-1]) & (values[:, 1:] > -torch.inf)
        places, values = places[:, :count], values[:, :count]
        if tied.any():
            tied = tied.any(-1)
            places, values = places.clone(), values.clone()
            places[tied], values[tied] = _one_by_one(rows[tied], count)
    return places.reshape(*measure.shape[:-1], count), values.reshape(*measure.shape[:-1], count)


def _one_by_one(rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """By NumPy's `argmax`, which gives the first of equals, and is the fastest for a few of short rows."""
    cells = rows.cpu().numpy()
    flat, starts = cells.reshape(-1), np.arange(0, cells.size, cells.shape[1])
    places, values = np.empty((count, len(rows)), np.int64), np.empty((count, len(rows)), np.float32)
    for i in range(count):
        places[i] = cells.argmax(-1)
        values[i] = flat[places[i] + starts]
        flat[places[i] + starts] = -np.inf
    for i in reversed(range(count)):  # put back what was taken; backwards, as −inf may have been taken from there, too
        flat[places[i] + starts] = values[i]
    return torch.from_numpy(places).T.to(rows.device), torch.from_numpy(values).T.to(rows.device)


def _by_chunks(rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """What is among the `count` largest lies in one of the `count` chunks with the largest maxima."""
    n, size = rows.shape
    whole = size // _CHUNK * _CHUNK
    peaks = rows[:, :whole].view(n, -1, _CHUNK).amax(-1)  # (n, size / chunk)
    best = []
    for _ in range(count):
        best.append(peaks.max(-1, keepdim=True).indices)
        peaks.scatter_(-1, best[-1], -torch.inf)
    starts = torch.cat(best, -1) * _CHUNK  # (n, count)
    lines = torch.arange(0, n * size, size, device=rows.device)[:, None]
    some = rows.view(-1).unfold(0, _CHUNK, 1).index_select(0, (lines + starts).flatten()).view(n, -1)
    if whole < size:
        some = torch.cat((some, rows[:, whole:]), -1)  # (n, count · chunk and the rest)
    values, at = some.topk(count, dim=-1)
    places = starts.gather(-1, (at // _CHUNK).clamp_(max=count - 1)) + at % _CHUNK
    return torch.where(at < count * _CHUNK, places, whole + at - count * _CHUNK), values
