"""Record statistics of every row."""

from collections.abc import Sequence
from math import log
from threading import Lock

import torch
import torch.nn.functional as F
from torch import Tensor

from attnscope.model.inputs import AttentionSpec
from attnscope.model.matmul import matmul_transposed
from attnscope.model.recorders.base import BaseRecorder, KeyTokens
from attnscope.model.tile import Tile, Workspace, as_slice


class RowRecorder(BaseRecorder):
    """Statistics of every row: entropy, and how much weight goes where (see report.Rows).

    Args:
        heads: Query heads.
        rows: Query positions, sorted.
        sources: The key side.
        names: Statistics that are kept.

    Attributes:
        recorded: Statistic to (B, heads, rows).
        sink: What each row gives to the head's sink, likewise; None where the layer has none.
        fully_masked: Fully masked rows, (B, rows), bool. No weight says so: a sink may take all that a row has.
        specs: How scores became weights, by layer.
    """

    WITHIN = (16, 64, 256, 1024)
    NAMES = ("entropy", "first", "special", "self", "other", "distance", *(f"within_{n}" for n in WITHIN))

    def __init__(
        self, heads: Sequence[int], rows: Sequence[int], sources: KeyTokens, names: Sequence[str] = NAMES
    ) -> None:
        super().__init__(heads, rows)
        self.names = tuple(names)
        self.sources, self.content = sources, sources.content()
        shape = (sources.special.shape[0], len(self.heads), len(self.rows))
        self._all = torch.full((len(self.names), *shape), torch.nan, device=sources.special.device)
        self.recorded: dict[str, Tensor] = dict(zip(self.names, self._all, strict=True))
        self.sink: Tensor | None = None
        self.fully_masked = torch.zeros(shape[0], shape[2], dtype=torch.bool, device=sources.special.device)
        self._making = Lock()
        self.specs: dict[int, AttentionSpec] = {}

    def update(self, tile: Tile) -> None:
        """Reduce each row to its statistics."""
        self.specs[tile.inputs.layer] = tile.inputs.spec
        overlap = self.overlap(tile)
        if overlap is None:
            return
        fully_masked = overlap.fully_masked(tile)  # (B, 1, r)
        if fully_masked is not None:
            self.fully_masked[:, overlap.rows] = fully_masked[:, 0]
        sink = None if tile.sink is None else overlap.row_span(tile.sink)  # (B, h, r)
        if sink is not None:
            with self._making:
                if self.sink is None:
                    self.sink = torch.full_like(self._all[0], torch.nan)
            given = overlap.select_rows(sink)
            self.sink[:, overlap.index, overlap.rows] = (
                given if fully_masked is None else given.masked_fill(fully_masked, torch.nan)
            )
        if tile.k0 == tile.k1:
            return
        weights, masked = overlap.row_span(tile.weights), overlap.row_span(tile.masked)  # (B, h, r, k)
        first, last = self.rows[overlap.rows][0], self.rows[overlap.rows][-1] + 1
        found = {}
        if "entropy" in self.names:
            buffer = tile.workspace.buffer("recorder", masked.shape, masked.device)
            found["entropy"] = _entropy(weights, masked, buffer, tile, sink)
        if set(self.names) - {"entropy"}:
            found |= self._weight_by_group(weights, (first, last, tile.k0, tile.k1), tile.workspace)
        at = [i for i, name in enumerate(self.names) if name in found]
        values = overlap.select_rows(torch.stack([found[self.names[i]] for i in at]))  # (names, B, h, r)
        if fully_masked is not None:
            values = values.masked_fill(fully_masked, torch.nan)
        self._all[as_slice(at), :, overlap.index, overlap.rows] = values

    def _weight_by_group(
        self, weights: Tensor, box: tuple[int, int, int, int], workspace: Workspace
    ) -> dict[str, Tensor]:
        """How much weight goes where, (B, h, r) each, of the rows and keys of this box."""
        first, _, k0, k1 = box
        special, content = self.sources.special[:, k0:k1].float(), self.content[:, k0:k1].float()  # (B, k)
        columns = [special, content]
        if self.sources.same:
            columns += [one.expand_as(special) for one in _outside_rows(box, weights.device)]
        sums = matmul_transposed(weights.flatten(1, 2), torch.stack(columns, 1))  # (B, h·r, columns)
        sums = sums.view(*weights.shape[:3], -1).movedim(-1, 0)  # (columns, B, h, r)
        nothing = torch.zeros_like(sums[0])
        found = {"first": weights[..., 0] if k0 == 0 else nothing, "special": sums[0], "other": sums[1]}
        if self.sources.same:
            near = _DiagonalBand(weights, box, workspace)
            found["self"] = near.self_weight()
            mine = F.pad(content, (k0, 0))[:, None, first : box[1]]  # (B, 1, r), short where the range ends before
            mine = F.pad(mine, (0, weights.shape[2] - mine.shape[-1]))
            found["other"] = (sums[1] - near.self_weight() * mine).clamp_min_(0.0)
            found["distance"] = near.distance(sums[2], sums[3], sums[4])
            found |= {f"within_{n}": near.within(n) for n in self.WITHIN}
        return found


def _entropy(weights: Tensor, masked: Tensor, buffer: Tensor, tile: Tile, sink: Tensor | None) -> Tensor:
    """The entropy of every row, (B, h, r), in bits, of weights and masked scores (B, h, r, k).

    −Σ w log w with log w = (s − s_max) + log w_max: two numbers a row instead of a logarithm a cell. Σ w is 1, less
    what a sink takes.
    """
    lower = torch.sub(masked, masked.amax(-1, keepdim=True), out=buffer)
    for side in (lower[..., : tile.all_visible_range[0] - tile.k0], lower[..., tile.all_visible_range[1] - tile.k0 :]):
        side.clamp_(min=-1e9)  # finite where not allowed, too: the weight there is 0
    top = weights.amax(-1)
    # 0 · log 0 is 0 where the sink leaves nothing that float32 can hold
    whole = top.log_() if sink is None else torch.special.xlogy(1 - sink, top)
    nats = lower.mul_(weights).sum(-1).add_(whole).neg_()
    return nats.div_(log(2)).clamp_min_(0.0)


def _outside_rows(box: tuple[int, int, int, int], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Of the keys of a box, (k,) each: how far outside the run of rows they lie, whether to the left, to the right."""
    first, last, k0, k1 = box
    places = torch.arange(k0, k1, device=device)
    left, right = (first - places).clamp_min(0), (places - (last - 1)).clamp_min(0)
    return (left + right).float(), (left > 0).float(), (right > 0).float()


class _DiagonalBand:
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
        reach = max(
            (n for n in RowRecorder.WITHIN if n < self.furthest), default=0
        )  # all weight is nearer than the others
        self.before, self.ahead = min(reach, max(0, last - 1 - k0)), min(reach, max(0, k1 - 1 - first))
        start, end = first - self.before, last + self.ahead  # all keys that any row has within reach
        inside = weights[..., max(start - k0, 0) : max(min(end, k1) - k0, 0)]
        wide = workspace.buffer("near", (*weights.shape[:3], end - start), weights.device).zero_()
        wide[..., max(k0 - start, 0) :][..., : inside.shape[-1]] = inside
        # A row further down starts a key further right: one row's length and one cell more.
        step = (*wide.stride()[:2], wide.stride(2) + 1, 1)
        self.band = wide.as_strided((*wide.shape[:3], self.before + 1 + self.ahead), step)

    def self_weight(self) -> Tensor:
        """Weight on the query's own position, (B, h, r)."""
        return self.band[..., self.before]

    def within(self, n: int) -> Tensor:
        """Weight on keys at most `n` positions away, (B, h, r)."""
        if n >= self.furthest:
            return self.weights.sum(-1)
        return self.band[..., max(0, self.before - n) : self.before + 1 + n].sum(-1)

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
