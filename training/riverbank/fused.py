"""Compute cross-entropy from hidden states and the output embedding without a (pieces × vocabulary) tensor.

Plain cross-entropy writes and reads some 300 MB of logits five times a step: half of the whole step on a CPU.
Here a few hundred rows of logits at a time stay in cache, and their gradient is taken at once.
"""

from typing import Any

import torch
from torch.autograd.function import once_differentiable

ROWS = 256


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        states: torch.Tensor,
        table: torch.Tensor,
        bias: torch.Tensor,
        wanted: torch.Tensor,
        scale: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        half_table = table.to(torch.bfloat16)  # (V, D)
        half_states = states.to(torch.bfloat16)  # (N, D)
        grad_states = torch.empty_like(states, dtype=torch.float32)
        grad_table = torch.zeros_like(table, dtype=torch.float32)
        grad_bias = torch.zeros_like(bias)
        nats = torch.empty(len(states))
        for start in range(0, len(states), ROWS):
            part = slice(start, start + ROWS)
            logits = (half_states[part] @ half_table.T).float().add_(bias)  # (ROWS, V)
            total = logits.logsumexp(-1, keepdim=True)
            nats[part] = (total - logits.gather(1, wanted[part, None]))[:, 0]
            slope = logits.sub_(
                total
            ).exp_()  # the gradient of the logits: probabilities, less 1 at the wanted piece
            slope.scatter_add_(1, wanted[part, None], torch.full((len(slope), 1), -1.0))
            slope *= scale[part, None]
            grad_bias += slope.sum(0)
            half_slope = slope.to(torch.bfloat16)
            grad_states[part] = (half_slope @ half_table).float()
            grad_table += (half_slope.T @ half_states[part]).float()
        ctx.save_for_backward(grad_states.to(states.dtype), grad_table, grad_bias)
        ctx.mark_non_differentiable(nats)
        return (nats * scale).sum(), nats

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        states, table, bias = ctx.saved_tensors
        return states * outer, table * outer, bias * outer, None, None


def weighted_cross_entropy(
    states: torch.Tensor,
    table: torch.Tensor,
    bias: torch.Tensor,
    wanted: torch.Tensor,
    scale: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return Σ scale · nats, which can be differentiated, and the nats of each row, which can't.

    Args:
        states: `(N, D)`.
        table: output embedding, `(V, D)`.
        bias: `(V,)`.
        wanted: piece ids, `(N,)`.
        scale: weight of each row, `(N,)`.
    """
    total, nats = _Fused.apply(  # type: ignore[no-untyped-call]
        states, table, bias, wanted, scale
    )
    return total, nats
