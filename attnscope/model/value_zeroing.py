"""Run a layer again without the value vectors of a token (Mohebbi et al., 2023)."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from attnscope.model.hooks import AttentionHooks
from attnscope.model.inputs import AttentionInputs
from attnscope.model.matmul import to_float64
from attnscope.model.stack import RunBlock
from attnscope.request.masks.terms import Mask


class WithoutValues(AttentionHooks):
    """Attention in which each text of a batch lacks the values of one position, (B,), in every head."""

    def __init__(self, positions: Tensor) -> None:
        super().__init__({}, all_outputs=True)
        self.positions = positions

    def attend(self, inputs: AttentionInputs) -> Tensor | None:
        """Compute the attention of the layer with these values set to 0."""
        v = inputs.v.clone()
        v[torch.arange(len(v), device=v.device), :, self.positions] = 0
        return super().attend(replace(inputs, v=v))


def output_changes(
    run_block: RunBlock,
    x: Tensor,
    y: Tensor,
    mask: Mask,
    copies: int,
    advance: Callable[[int], None],
) -> Tensor:
    """Return 1 − cos(y_i, y_i without the value of j), (T, T) in float64, 0 if i cannot see j or the rest is rounding.

    x and y are the layer's input and output, (1, T, D) each.
    """
    n = x.shape[1]
    unchanged = to_float64(y[0])
    # 1 − cos of a change by one step of the data type, relative to the output's length; shares would magnify it
    rounding = max(torch.finfo(y.dtype).eps, 1e-6) ** 2 / 2
    changes = torch.zeros(n, n, dtype=torch.float64, device=unchanged.device)
    for start in range(0, n, copies):
        positions = torch.arange(start, min(start + copies, n), device=x.device)
        # (copies, T, D)
        again = run_block(x.expand(len(positions), -1, -1), WithoutValues(positions))
        cosine = torch.cosine_similarity(to_float64(again), unchanged, dim=-1)
        change = (1 - cosine).T
        changes[:, start : start + len(positions)] = change.where(change > rounding, 0.0)
        advance(len(positions))
    at = torch.arange(n, device=x.device)
    allowed = mask.allowed(at[:, None], at[None])
    if allowed is None:
        return changes
    # The other rows' difference is rounding: a batch of another size may be summed in another order.
    seen = allowed.expand(*allowed.shape[:-2], n, n).reshape(-1, n, n).any(0).to(changes.device)
    return changes.masked_fill(~seen, 0.0)
