"""Fill a Stack with random weights from a seed."""

import torch
from torch import nn

from attnscope.base.model_config import ModelConfig
from attnscope.model.stack import Stack


def randomize(stack: Stack, seed: int, dtype: torch.dtype = torch.float32) -> Stack:
    """Fill a Stack of float32 with random weights, the same for the same seed; each is turned into `dtype` at once.

    Embeddings are standard normal, linear weights normal with variance 1/inputs, so that scaled scores have a
    spread of about 1, and so are sinks; linear biases are normal with standard deviation 0.1; norms start at 1 and 0.
    """
    generator = torch.Generator().manual_seed(seed)
    for module in stack.modules():
        own = dict(module.named_parameters(recurse=False))
        if isinstance(module, (nn.Linear, nn.Embedding)):
            spread = 1.0 if isinstance(module, nn.Embedding) else module.in_features**-0.5
            for name, parameter in own.items():
                parameter.data.normal_(0.0, spread if name == "weight" else 0.1, generator=generator)
        elif "sinks" in own:
            own["sinks"].data.normal_(0.0, 1.0, generator=generator)
        else:  # norms
            for name, parameter in own.items():
                parameter.data.fill_(1.0 if name == "weight" and not stack.config.norm_plus_one else 0.0)
        for parameter in own.values():
            parameter.data = parameter.data.to(dtype)
    return stack.eval()


def make_random(config: ModelConfig, seed: int, n_layers: int, dtype: torch.dtype, device: torch.device) -> Stack:
    """Return a Stack with random weights; the first `n_layers` blocks are the same however many there are."""
    return randomize(Stack(config, n_layers), seed, dtype).to(device)
