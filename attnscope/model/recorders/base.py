"""Base of recorders: the heads and rows that a recorder shares with a tile."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from attnscope.model.recorders.span_tokens import SpanTokens
from attnscope.model.tile import Tile, as_slice
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


@dataclass(frozen=True)
class RecordedTokens:
    """Which tokens of a batch are recorded."""

    sources: KeyTokens
    eligible: Tensor  # keys that take part in the ranking of contributors, (B, K), bool
    shown: Tensor  # rows that each text's sums count, (B, Q), bool
    real: Tensor  # queries that are not padding, (B, Q), bool
    spans: SpanTokens | None = None  # spans of the tokens; None if these are not recorded


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
