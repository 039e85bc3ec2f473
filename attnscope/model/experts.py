"""Mixture of experts: a router chooses experts for each token, and only those run."""

import torch
from torch import Tensor, nn

from attnscope.base.model_config import ModelConfig
from attnscope.model.linear import Linear
from attnscope.model.mlp import MLP


class Experts(nn.Module):
    """Σ share · expert(x) over the experts with the highest logits for a token (Shazeer et al., 2017).

    Shares are the softmax of the chosen experts' logits, as in Mixtral (Jiang et al., 2024, section 2.1) and gpt-oss.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.per_token = config.experts_per_token
        self.router = Linear(config.d_model, config.n_experts, config.router_bias)
        self.experts = nn.ModuleList(MLP(config) for _ in range(config.n_experts))

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, T, D) to (B, T, D)."""
        tokens = x.flatten(0, -2)  # (N, D)
        best, chosen = self.router(tokens).topk(self.per_token, dim=-1)  # (N, k) each
        shares = best.float().softmax(-1).to(x.dtype)
        output = torch.zeros_like(tokens)
        for number in chosen.unique().tolist():
            at, rank = (chosen == number).nonzero(as_tuple=True)  # whose it is, and which of their choices
            output.index_add_(0, at, self.experts[number](tokens[at]) * shares[at, rank, None])
        return output.view_as(x)
