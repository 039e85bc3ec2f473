"""A config and a seed in, a Stack with random weights out."""

import torch

from attnscope.config import ModelConfig
from attnscope.model.stack import Stack


def randomize(stack: Stack, seed: int) -> Stack:
    """Fill a Stack with random weights, the same for the same seed.

    Embeddings are standard normal, linear weights normal with variance 1/inputs, so that scaled scores have a
    spread of about 1; biases are 0, norms 1.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in stack.named_parameters():
        kind = name.rsplit(".", 1)[1]
        if parameter.ndim == 2:
            std = 1.0 if name.startswith("embed.") else parameter.shape[1] ** -0.5
            value = torch.empty(parameter.shape).normal_(0.0, std, generator=generator)
        else:
            norm = kind == "weight" and not stack.config.norm_plus_one
            value = torch.full(parameter.shape, 1.0 if norm else 0.0)
        parameter.data.copy_(value)
    return stack.eval()


def make_random(config: ModelConfig, seed: int, n_layers: int, dtype: torch.dtype, device: torch.device) -> Stack:
    """A Stack with random weights; the first `n_layers` blocks are the same however many there are."""
    return randomize(Stack(config, n_layers), seed).to(device=device, dtype=dtype)
