"""Record the values that heads read."""

from collections.abc import Sequence

import torch
from torch import Tensor

from attnscope.model.recorders.base import BaseRecorder
from attnscope.model.tile import Tile


class ValueRecorder(BaseRecorder):
    """The values of heads, for every key of the first text; of any row, since a recorder sees the tiles of its rows."""

    def __init__(self, heads: Sequence[int], rows: Sequence[int]) -> None:
        super().__init__(heads, rows)
        self.recorded: Tensor | None = None

    def update(self, tile: Tile) -> None:
        inputs = tile.inputs
        if self.recorded is None:
            groups = inputs.group(torch.tensor(self.heads))
            self.recorded = inputs.v[0, groups].float()

    def compute(self) -> Tensor:
        """Return the values, (heads, K, Ev)."""
        assert self.recorded is not None
        return self.recorded
