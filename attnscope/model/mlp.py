"""The MLP of a block, gated or not, or a mixture of them: a router chooses experts for each token."""

import torch
from torch import Tensor, nn

from attnscope.base.model_config import ModelConfig
from attnscope.model.linear import Linear, activate


class MLP(nn.Module):
    """down(act(up(x))), or if gated down(act(gate(x)) · up(x)) (Shazeer, 2020)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.activation, self.limit, self.plus_one = config.activation, config.glu_limit, config.glu_plus_one
        self.up = Linear(config.d_model, config.d_mlp, config.mlp_bias)
        self.gate = Linear(config.d_model, config.d_mlp, config.mlp_bias) if config.gated else None
        self.down = Linear(config.d_mlp, config.d_model, config.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map (…, D) to (…, D)."""
        hidden = self.up(x, self.activation) if self.gate is None else self._gated(self.gate, x)  # (…, F)
        output: Tensor = self.down(hidden)
        return output

    def _gated(self, gate: Linear, x: Tensor) -> Tensor:
        if self.limit is None and not self.plus_one:
            return gate(x, self.activation) * self.up(x)  # type: ignore[no-any-return]
        gated: Tensor = gate(x)
        up: Tensor = self.up(x)
        if self.limit is not None:
            gated, up = gated.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        return activate(self.activation, gated) * (up + 1 if self.plus_one else up)


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
