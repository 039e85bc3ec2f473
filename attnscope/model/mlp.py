"""What a token is in, what the MLP makes of it out."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnscope.config import ModelConfig
from attnscope.model.linear import Linear


def activate(name: str, x: Tensor) -> Tensor:
    """The non-linearity of this name."""
    match name:
        case "gelu":
            return F.gelu(x)
        case "gelu_tanh":
            return F.gelu(x, approximate="tanh")
        case "quick_gelu":
            return x * torch.sigmoid(1.702 * x)
        case "relu":
            return F.relu(x)
        case _:
            return F.silu(x)


class MLP(nn.Module):
    """down(act(up(x))), or down(act(gate(x)) · up(x)) where it is gated (Shazeer, 2020)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.activation, self.limit, self.plus_one = config.activation, config.glu_limit, config.glu_plus_one
        self.up = Linear(config.d_model, config.d_mlp, config.mlp_bias)
        self.gate = Linear(config.d_model, config.d_mlp, config.mlp_bias) if config.gated else None
        self.down = Linear(config.d_mlp, config.d_model, config.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        """(…, D) to (…, D)."""
        up = self.up(x)  # (…, F)
        hidden = activate(self.activation, up) if self.gate is None else self._gated(self.gate(x), up)
        made: Tensor = self.down(hidden)
        return made

    def _gated(self, gate: Tensor, up: Tensor) -> Tensor:
        if self.limit is not None:
            gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        return activate(self.activation, gate) * (up + 1 if self.plus_one else up)
