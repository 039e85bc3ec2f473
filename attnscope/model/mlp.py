"""The MLP of a block, gated or not."""

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
