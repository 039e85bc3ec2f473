"""Tiles in; statistics of every row out."""

from collections.abc import Sequence
from math import log
from threading import Lock

import torch
import torch.nn.functional as F
from torch import Tensor

from attnscope.model.call import Rule
from attnscope.model.products import product
from attnscope.model.recorders.base import Base, Sources
from attnscope.model.tile import Tile, Workspace, run


class Rows(Base):
    """Statistics of every row: entropy, and how much weight goes where (see report.Rows).

    Args:
        heads: Query heads.
        rows: Query positions, sorted.
        sources: The key side.
        names: Statistics that are kept.

    Attributes:
        kept: Statistic to (B, heads, rows).
        sink: What each row gives to the head's sink, likewise; None where the layer has none.
        dead: Fully masked rows, (B, rows), bool. No weight says so: a sink may take all that a row has.
        rules: How scores became weights, by layer.
    """

    WITHIN = (16, 64, 256, 1024)
    NAMES = ("entropy", "first", "special", "self", "other", "distance", *(f"within_{n}" for n in WITHIN))

    def __init__(
        self, heads: Sequence[int], rows: Sequence[int], sources: Sources, names: Sequence[str] = NAMES
    ) -> None:
        super().__init__(heads, rows)
        self.names = tuple(names)
        self.sources, self.content = sources, sources.content()
        shape = (sources.special.shape[0], len(self.heads), len(self.rows))
        self._all = torch.full((len(self.names), *shape), torch.nan, device=sources.special.device)
        self.kept: dict[str, Tensor] = dict(zip(self.names, self._all, strict=True))
        self.sink: Tensor | None = None
        self.dead = torch.zeros(shape[0], shape[2], dtype=torch.bool, device=sources.special.device)
        self._making = Lock()
        self.rules: dict[int, Rule] = {}

    def see(self, tile: Tile) -> None:
        """Reduce each row to its statistics."""
        self.rules[tile.call.layer] = tile.call.rule
        share = self.share(tile)
        if share is None:
            return
        dead = share.dead(tile)  # (B, 1, r)
        if dead is not None:
            self.dead[:, share.rows] = dead[:, 0]
        sink = None if tile.sink is None else share.span(tile.sink)  # (B, h, r)
        if sink is not None:
            with self._making:
                if self.sink is None:
                    self.sink = torch.full_like(self._all[0], torch.nan)
            given = share.of_span(sink)
            self.sink[:, share.index, share.rows] = given if dead is None else given.masked_fill(dead, torch.nan)
        if tile.k0 == tile.k1:
            return
        weights, masked = share.span(tile.weights), share.span(tile.masked)  # (B, h, r, k)
        first, last = self.rows[share.rows][0], self.rows[share.rows][-1] + 1
        found = {}
        if "entropy" in self.names:
            room = tile.workspace.room("recorder", masked.shape, masked.device)
            found["entropy"] = _entropy(weights, masked, room, tile, sink)
        if set(self.names) - {"entropy"}:
            found |= self._where(weights, (first, last, tile.k0, tile.k1), tile.workspace)
        at = [i for i, name in enumerate(self.names) if name in found]
        values = share.of_span(torch.stack([found[self.names[i]] for i in at]))  # (names, B, h, r)
        if dead is not None:
            values = values.masked_fill(dead, torch.nan)
        self._all[run(at), :, share.index, share.rows] = values

    def _where(self, weights: Tensor, box: tuple[int, int, int, int], workspace: Workspace) -> dict[str, Tensor]:
        """How much weight goes where, (B, h, r) each, of the rows and keys of this box."""
        first, _, k0, k1 = box
        special, content = self.sources.special[:, k0:k1].float(), self.content[:, k0:k1].float()  # (B, k)
        columns = [special, content]
        if self.sources.same:
            columns += [one.expand_as(special) for one in _beside(box, weights.device)]
        sums = product(weights.flatten(1, 2), torch.stack(columns, 1))  # (B, h·r, columns)
        sums = sums.view(*weights.shape[:3], -1).movedim(-1, 0)  # (columns, B, h, r)
        nothing = torch.zeros_like(sums[0])
        found = {"first": weights[..., 0] if k0 == 0 else nothing, "special": sums[0], "other": sums[1]}
        if self.sources.same:
            near = _Near(weights, box, workspace)
            found["self"] = near.own()
            mine = F.pad(content, (k0, 0))[:, None, first : box[1]]  # (B, 1, r), short where the range ends before
            mine = F.pad(mine, (0, weights.shape[2] - mine.shape[-1]))
            found["other"] = (sums[1] - near.own() * mine).clamp_min_(0.0)
            found["distance"] = near.distance(sums[2], sums[3], sums[4])
            found |= {f"within_{n}": near.within(n) for n in self.WITHIN}
        return found


def _entropy(weights: Tensor, masked: Tensor, room: Tensor, tile: Tile, sink: Tensor | None) -> Tensor:
    """The entropy of every row, (B, h, r), in bits, of weights and masked scores (B, h, r, k).

    −Σ w log w with log w = (s − s_max) + log w_max: two numbers a row instead of a logarithm a cell. Σ w is 1, less
    what a sink takes.
    """
    lower = torch.sub(masked, masked.amax(-1, keepdim=True), out=room)
    for side in (lower[..., : tile.clear[0] - tile.k0], lower[..., tile.clear[1] - tile.k0 :]):
        side.clamp_(min=-1e9)  # finite where not allowed, too: the weight there is 0
    top = weights.amax(-1)
    # 0 · log 0 is 0 where the sink leaves nothing that float32 can hold
    whole = top.log_() if sink is None else torch.special.xlogy(1 - sink, top)
    nats = lower.mul_(weights).sum(-1).add_(whole).neg_()
    return nats.div_(log(2)).clamp_min_(0.0)


def _beside(box: tuple[int, int, int, int], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Of the keys of a box, (k,) each: how far outside the run of rows they lie, whether to the left, to the right."""
    first, last, k0, k1 = box
    places = torch.arange(k0, k1, device=device)
    left, right = (first - places).clamp_min(0), (places - (last - 1)).clamp_min(0)
    return (left + right).float(), (left > 0).float(), (right > 0).float()


class _Near:
    """The weights of rows on keys near the diagonal.

    Args:
        weights: (B, h, r, k).
        box: The rows and keys of these weights: first row, end of the rows, first key, end of the keys.
        workspace: Memory to work in.
    """

    def __init__(self, weights: Tensor, box: tuple[int, int, int, int], workspace: Workspace) -> None:
        first, last, k0, k1 = box
        self.weights, self.box = weights, box
        self.furthest = max(last - 1 - k0, k1 - 1 - first)
        reach = max((n for n in Rows.WITHIN if n < self.furthest), default=0)  # all weight is nearer than the others
        self.behind, self.ahead = min(reach, max(0, last - 1 - k0)), min(reach, max(0, k1 - 1 - first))
        start, end = first - self.behind, last + self.ahead  # all keys that any row has within reach
        inside = weights[..., max(start - k0, 0) : max(min(end, k1) - k0, 0)]
        wide = workspace.room("near", (*weights.shape[:3], end - start), weights.device).zero_()
        wide[..., max(k0 - start, 0) :][..., : inside.shape[-1]] = inside
        # A row further down starts a key further right: one row's length and one cell more.
        step = (*wide.stride()[:2], wide.stride(2) + 1, 1)
        self.band = wide.as_strided((*wide.shape[:3], self.behind + 1 + self.ahead), step)

    def own(self) -> Tensor:
        """Weight on the query's own position, (B, h, r)."""
        return self.band[..., self.behind]

    def within(self, n: int) -> Tensor:
        """Weight on keys at most `n` positions away, (B, h, r)."""
        if n >= self.furthest:
            return self.weights.sum(-1)
        return self.band[..., max(0, self.behind - n) : self.behind + 1 + n].sum(-1)

    def distance(self, outside: Tensor, left: Tensor, right: Tensor) -> Tensor:
        """Mean |query − key|, (B, h, r).

        Args:
            outside: Σ w · how far a key lies outside the run of rows, (B, h, r).
            left: Weight on keys to the left of it.
            right: Weight on keys to the right of it.
        """
        first, last, k0, k1 = self.box
        rows = torch.arange(first, last, dtype=torch.float32, device=left.device)
        c0, c1 = min(max(first, k0), k1), max(min(last, k1), k0)
        apart = (rows[:, None] - torch.arange(c0, c1, dtype=torch.float32, device=left.device)).abs_()  # (r, c)
        inside = (self.weights[..., c0 - k0 : c1 - k0] * apart).sum(-1) if c0 < c1 else torch.zeros_like(left)
        return outside + left * (rows - first) + right * (last - 1 - rows) + inside
