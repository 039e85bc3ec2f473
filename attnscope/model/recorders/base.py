"""What recorders share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from attnscope.model.matmul import has_float64
from attnscope.model.tile import Overlap, Recorder, Workspace


@dataclass(frozen=True)
class KeyTokens:
    """The key side of a batch, for recorders."""

    # tokens of each kind that row_statistics.KEY_TOKENS names, (B, K), bool
    kinds: Mapping[str, Tensor]
    real: Tensor  # tokens that are not padding, (B, K), bool
    self_attention: bool = True  # queries and keys are the same tokens (no cross-attention)
    _members: dict[tuple[str, ...], Tensor] = field(default_factory=dict, init=False)

    @property
    def special(self) -> Tensor:
        """Special tokens, (B, K), bool."""
        return self.kinds["special"]

    def members(self, kinds: tuple[str, ...]) -> Tensor:
        """Return 1 for a key that is content, or of each of these kinds, else 0, (B, 1 + kinds, K), for all layers."""
        if kinds not in self._members:
            self._members[kinds] = torch.stack(
                [self.content(), *(self.kinds[token_kind] for token_kind in kinds)], 1
            ).float()
        return self._members[kinds]

    def content(self) -> Tensor:
        """Return tokens that are neither special, nor padding, nor the first: (B, K), bool."""
        keep = self.real & ~self.special
        keep[:, 0] = False
        return keep


class SumRecorder(Recorder):
    """A recorder of sums over rows, of several heads, or of a mean over them and over every layer that it is shown."""

    path: str

    def __init__(self, heads: Sequence[int], rows: Sequence[int], *, mean: bool) -> None:
        super().__init__(heads, rows)
        self.mean = mean
        self.n_kept = 1 if mean else len(self.heads)

    def over_heads(self, part: Tensor, axis: int = 1) -> Tensor:
        """Return what a tile adds for its heads, or for the mean."""
        if self.mean:
            return part.sum(axis, keepdim=True)
        return part

    def place(self, overlap: "Overlap") -> list[int] | slice:
        """Return where the heads of a tile are added."""
        return slice(0, 1) if self.mean else overlap.index

    def compute(self) -> Tensor:
        """Return (B, heads, …); one head over a mean."""
        raise NotImplementedError

    def results(self) -> dict[str, Tensor]:
        """Return what a report keeps, by its path in findings.heads.UnitArrays, (B, heads, …) each."""
        return {self.path: self.compute()}


def exact_zeros(*shape: int, device: torch.device) -> Tensor:
    """Allocate sums over many tiles, in float64 if the device has it."""
    return torch.zeros(
        shape, dtype=torch.float64 if has_float64(device) else torch.float32, device=device
    )


def add_to(total: Tensor, part: Tensor, index: tuple[slice | list[int], ...]) -> None:
    """Add a part to a sum."""
    total[index] += part


def diagonal_band(
    values: Tensor, box: tuple[int, int, int, int], before: int, ahead: int, workspace: Workspace
) -> Tensor:
    """Shift every row of (B, h, r, k) so that keys at the same offset from their query are below each other.

    `box` is the first row, end of the rows, first key and end of the keys of these values. Returns (B, h, r, before + 1
    + ahead), 0 for keys outside the box, in memory of the workspace.
    """
    first_row, end_row, k0, k1 = box
    # all keys that any row has within reach
    start = first_row - before
    end = end_row + ahead
    inside = values[..., max(start - k0, 0) : max(min(end, k1) - k0, 0)]
    wide = workspace.buffer("near", (*values.shape[:3], end - start), values.device).zero_()
    wide[..., max(k0 - start, 0) :][..., : inside.shape[-1]] = inside
    # A row further down starts a key further right: one row's length and one cell more.
    step = (*wide.stride()[:2], wide.stride(2) + 1, 1)
    return wide.as_strided((*wide.shape[:3], before + 1 + ahead), step)
