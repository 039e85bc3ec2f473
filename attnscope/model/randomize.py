"""Fill a Stack with random weights from a seed."""

from collections.abc import Sequence
from hashlib import sha256

import numpy as np
import torch
from torch import Tensor, nn

from attnscope.base.model_config import ModelConfig
from attnscope.model.stack import Stack

_ROW_PER_WORD = ("embed.tokens", "head.decoder")


def randomize(
    stack: Stack, seed: int, dtype: torch.dtype = torch.float32, words: Sequence[str] | None = None
) -> Stack:
    """Fill a Stack of float32 with random weights, the same for the same seed; each is turned into `dtype` at once.

    Embeddings are standard normal, linear weights normal with variance 1/inputs, so that scaled scores have a
    spread of about 1, and so are sinks; linear biases are normal with standard deviation 0.1; norms start at 1 and 0.
    If the vocabulary (`words`) is made from texts, a word's numbers depend on the word alone, and all other numbers do
    not depend on the vocabulary.
    """
    generator = torch.Generator().manual_seed(seed)
    for path, module in stack.named_modules():
        own = dict(module.named_parameters(recurse=False))
        if isinstance(module, (nn.Linear, nn.Embedding)):
            if isinstance(module, nn.Embedding):
                spread = 1.0
            else:
                spread = module.in_features**-0.5
            for name, parameter in own.items():
                if words is not None and path in _ROW_PER_WORD:
                    _draw_rows(parameter.data, words, seed, path).mul_(spread)
                else:
                    parameter.data.normal_(
                        0.0, spread if name == "weight" else 0.1, generator=generator
                    )
        elif "sinks" in own:
            own["sinks"].data.normal_(0.0, 1.0, generator=generator)
        else:  # norms
            for name, parameter in own.items():
                parameter.data.fill_(
                    1.0 if name == "weight" and not stack.config.norm_plus_one else 0.0
                )
        for parameter in own.values():
            parameter.data = parameter.data.to(dtype)
    return stack.eval()


def _draw_rows(table: Tensor, words: Sequence[str], seed: int, path: str) -> Tensor:
    """Fill each row of a table, (V, D), with standard normal numbers of its word's own.

    NumPy draws them, because a generator of torch uses only 32 bits of its seed: two words would draw the same numbers.
    Rows beyond the words are drawn together: there may be millions of them.
    """
    for row, word in zip(table, words, strict=False):
        digest = sha256(ascii((seed, path, word)).encode()).digest()
        row.copy_(
            torch.from_numpy(
                np.random.default_rng(list(digest)).standard_normal(len(row), np.float32)
            )
        )
    table[len(words) :].normal_(generator=torch.Generator().manual_seed(seed))
    return table


def make_random(
    config: ModelConfig,
    seed: int,
    n_layers: int,
    dtype: torch.dtype,
    device: torch.device,
    words: Sequence[str] | None = None,
) -> Stack:
    """Return a Stack with random weights; the first `n_layers` blocks are the same however many there are."""
    return randomize(Stack(config, n_layers), seed, dtype, words).to(device)
