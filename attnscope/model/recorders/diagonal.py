"""A view of the weights near the diagonal, in which a column is an offset between key and query."""

from torch import Tensor

from attnscope.model.workspace import Workspace


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
