"""A tile and a recorder in; the heads and rows that they have in common out: what every recorder starts from."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from attnscope.model.tile import Tile, run


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


class Base:
    """Heads and rows of a recorder, and where a tile's share of them lies."""

    def __init__(self, heads: Sequence[int], rows: Sequence[int]) -> None:
        self.heads: Sequence[int] = list(heads)
        self.rows: Sequence[int] = list(rows)

    raw = False  # only what comes after `scaled` is read

    def reach(self) -> tuple[int, int] | None:
        """No raw scores beyond what is allowed."""
        return None

    def share(self, tile: Tile) -> "Share | None":
        """What the tile and the recorder have in common; None for nothing."""
        at = {head: i for i, head in enumerate(tile.heads.tolist())}
        heads = [h for h in self.heads if h in at]
        rows = slice(bisect_left(self.rows, tile.q0), bisect_left(self.rows, tile.q1))
        if not heads or rows.start == rows.stop:
            return None
        here = [self.heads.index(h) for h in heads]
        return Share([at[h] for h in heads], here, [row - tile.q0 for row in self.rows[rows]], rows)


@dataclass(frozen=True)
class Share:
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

    @property
    def index(self) -> list[int] | slice:
        """`here`, as an index of a tensor of the recorder's heads."""
        return run(self.here)

    def cut(self, stage: Tensor) -> Tensor:
        """These heads and rows of a stage of the tile, (B, h, r, …); a view where they are all or neighbours."""
        if self.heads != list(range(stage.shape[1])):
            stage = stage[:, self.heads]
        first, last = self.inside[0], self.inside[-1]
        return stage[:, :, first : last + 1] if last - first + 1 == len(self.inside) else stage[:, :, self.inside]

    def span(self, stage: Tensor) -> Tensor:
        """These heads of a stage of the tile, and all rows from the first of these to the last: a view of rows."""
        if self.heads != list(range(stage.shape[1])):
            stage = stage[:, self.heads]
        return stage[:, :, self.inside[0] : self.inside[-1] + 1]

    def of_span(self, values: Tensor) -> Tensor:
        """These rows of what was made of a span, (…, r)."""
        first, last = self.inside[0], self.inside[-1]
        return values if last - first + 1 == len(self.inside) else values[..., [row - first for row in self.inside]]

    def dead(self, tile: Tile) -> Tensor | None:
        """Fully masked rows among these, (B, 1, r)."""
        if tile.dead is None:
            return None
        return tile.dead.expand(tile.masked.shape[0], 1, tile.q1 - tile.q0)[:, :, self.inside]
