"""Base of recorders: the heads and rows that a recorder shares with a tile."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from attnscope.model.precision import has_float64
from attnscope.model.tile import Tile, Workspace, as_slice
from attnscope.model.workers import Deferred


@dataclass(frozen=True)
class KeyTokens:
    """The key side of a batch, for recorders."""

    kinds: Mapping[str, Tensor]  # tokens of each kind that row_statistics.KEY_TOKENS names, (B, K), bool
    real: Tensor  # tokens that are not padding, (B, K), bool
    self_attention: bool = True  # queries and keys are the same tokens (no cross-attention)

    @property
    def special(self) -> Tensor:
        """Special tokens, (B, K), bool."""
        return self.kinds["special"]

    @cached_property
    def _members(self) -> dict[tuple[str, ...], Tensor]:
        return {}

    def members(self, kinds: tuple[str, ...]) -> Tensor:
        """Return 1 for a key that is content, or of each of these kinds, else 0, (B, 1 + kinds, K), for all layers."""
        if kinds not in self._members:
            self._members[kinds] = torch.stack([self.content(), *(self.kinds[kind] for kind in kinds)], 1).float()
        return self._members[kinds]

    def content(self) -> Tensor:
        """Return tokens that are neither special, nor padding, nor the first: (B, K), bool."""
        keep = self.real & ~self.special
        keep[:, 0] = False
        return keep


class BaseRecorder:
    """Heads and rows of a recorder, and the location of a tile's share of them."""

    def __init__(self, heads: Sequence[int], rows: Sequence[int]) -> None:
        self.heads: Sequence[int] = list(heads)
        self.rows = _as_range(rows)

    needs_scores = needs_masked = False  # `masked` is read only of tiles without a summary
    n_strongest = 0

    def score_range(self) -> tuple[int, int] | None:
        return None

    def select(self, numbers: Tensor) -> Tensor:
        """Return this recorder's heads and rows of a tensor of a whole layer, (B, H, Q, …)."""
        return numbers[:, as_slice(self.heads)][:, :, as_slice(self.rows)]

    def to_cpu(self) -> None:
        """Move recorded values to the CPU, because each later read of a GPU would wait."""
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(self, name, value.cpu())
            elif isinstance(value, dict):
                setattr(self, name, {key: x.cpu() if isinstance(x, Tensor) else x for key, x in value.items()})

    def update(self, tile: Tile) -> Deferred | None:
        """Record the heads and rows that a tile shares with this recorder, if there are any."""
        overlap = self.overlap(tile)
        return None if overlap is None else self._record(tile, overlap)

    def _record(self, tile: Tile, overlap: "Overlap") -> Deferred | None:
        raise NotImplementedError

    def overlap(self, tile: Tile) -> "Overlap | None":
        """Return the overlap of tile and recorder; None for no overlap."""
        index = tile.index
        at = {head: i for i, head in enumerate(range(index.start, index.stop) if isinstance(index, slice) else index)}
        heads = [h for h in self.heads if h in at]
        rows = slice(bisect_left(self.rows, tile.q0), bisect_left(self.rows, tile.q1))
        if not heads or rows.start == rows.stop:
            return None
        here = [self.heads.index(h) for h in heads]
        return Overlap([at[h] for h in heads], here, _moved(self.rows[rows], -tile.q0), rows)


class SumRecorder(BaseRecorder):
    """A recorder of sums over rows, of several heads, or of a mean over them and over every layer that it is shown."""

    def __init__(self, heads: Sequence[int], rows: Sequence[int], *, mean: bool) -> None:
        super().__init__(heads, rows)
        self.mean, self.n_kept = mean, 1 if mean else len(self.heads)

    def over_heads(self, part: Tensor, axis: int = 1) -> Tensor:
        """Return what a tile adds for its heads, or for the mean."""
        return part.sum(axis, keepdim=True) if self.mean else part

    def place(self, overlap: "Overlap") -> list[int] | slice:
        """Return where the heads of a tile are added."""
        return slice(0, 1) if self.mean else overlap.index

    def compute(self) -> Tensor:
        """Return (B, heads, …), the axes that record_parts declares; one head over a mean."""
        raise NotImplementedError


def exact_zeros(*shape: int, device: torch.device) -> Tensor:
    """Allocate sums over many tiles, in float64 if the device has it."""
    return torch.zeros(shape, dtype=torch.float64 if has_float64(device) else torch.float32, device=device)


def add_to(total: Tensor, part: Tensor, place: tuple[slice | list[int], ...]) -> None:
    """Add a part to a sum."""
    total[place] += part


def _as_range(places: Sequence[int]) -> Sequence[int]:
    """Return sorted places as a range if they are neighbours: no tile goes through all of its rows in Python."""
    if isinstance(places, range) or not places or places[-1] - places[0] + 1 != len(places):
        return places if isinstance(places, range) else list(places)
    return range(places[0], places[-1] + 1)


def _moved(places: Sequence[int], by: int) -> Sequence[int]:
    places = _as_range(places)
    return range(places.start + by, places.stop + by) if isinstance(places, range) else [place + by for place in places]


@dataclass(frozen=True)
class Overlap:
    """The heads and rows that a tile and a recorder have in common."""

    heads: list[int]  # their places in the tile
    here: list[int]  # their places in the recorder
    inside: Sequence[int]  # rows' places in the tile, a range if they are neighbours
    rows: slice

    @property
    def index(self) -> list[int] | slice:
        """`here`, as an index of a tensor of the recorder's heads."""
        return as_slice(self.here)

    def cut(self, stage: Tensor) -> Tensor:
        """Return these heads and rows of a stage of the tile, (B, h, r, …); a view if they are all or neighbours."""
        if self.heads != list(range(stage.shape[1])):
            stage = stage[:, self.heads]
        return stage[:, :, as_slice(self.inside)]

    def row_span(self, stage: Tensor) -> Tensor:
        """Return these heads of a stage of the tile, and a view of all rows from the first of these to the last."""
        if self.heads != list(range(stage.shape[1])):
            stage = stage[:, self.heads]
        return stage[:, :, self.inside[0] : self.inside[-1] + 1]

    def select_rows(self, values: Tensor) -> Tensor:
        """Return these rows of values of the tile's rows, (…, r)."""
        return values if isinstance(self.inside, range) else values[..., list(_moved(self.inside, -self.inside[0]))]

    def fully_masked(self, tile: Tile) -> Tensor | None:
        """Return which of these rows are fully masked, (B, h, r); None if no row of the tile is."""
        return None if tile.fully_masked is None else self.cut(tile.fully_masked.expand(tile.masked.shape[:3]))


def diagonal_band(
    values: Tensor, box: tuple[int, int, int, int], before: int, ahead: int, workspace: Workspace
) -> Tensor:
    """Shift every row of (B, h, r, k) so that keys at the same offset from their query are below each other.

    `box` is the first row, end of the rows, first key and end of the keys of these values. Returns (B, h, r, before + 1
    + ahead), 0 for keys outside the box, in memory of the workspace.
    """
    first, last, k0, k1 = box
    start, end = first - before, last + ahead  # all keys that any row has within reach
    inside = values[..., max(start - k0, 0) : max(min(end, k1) - k0, 0)]
    wide = workspace.buffer("near", (*values.shape[:3], end - start), values.device).zero_()
    wide[..., max(k0 - start, 0) :][..., : inside.shape[-1]] = inside
    # A row further down starts a key further right: one row's length and one cell more.
    step = (*wide.stride()[:2], wide.stride(2) + 1, 1)
    return wide.as_strided((*wide.shape[:3], before + 1 + ahead), step)
