"""nn.Linear as fast as torch can, with weights that are filled in later."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnscope.model.matmul import layer_uses_onednn, linear

_FUSED = {"gelu": ("gelu", "none"), "gelu_tanh": ("gelu", "tanh"), "relu": ("relu", "")}  # oneDNN's names for them


class Linear(nn.Linear):
    """nn.Linear that leaves its weights as they are made: the checkpoint, or a seed, fills them."""

    def forward(self, input: Tensor, activation: str | None = None) -> Tensor:
        """Apply the layer as nn.Linear does, then a non-linearity, in oneDNN if it supports that."""
        after = (
            _FUSED.get(activation or "") if layer_uses_onednn(input, self.weight) else None
        )  # saves a pass over a wide tensor
        product = linear(input, self.weight, self.bias, after)
        return product if activation is None or after else activate(activation, product)

    def reset_parameters(self) -> None:
        """Do nothing."""


def activate(name: str, x: Tensor) -> Tensor:
    """Return the non-linearity of this name."""
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
