"""The output head: final hidden states to logits over the vocabulary."""

import torch
from torch import Tensor, nn

from attnscope.base.model_config import ModelConfig, OutputHead
from attnscope.model.layers import make_norm
from attnscope.model.linear import Linear
from attnscope.model.matmul import linear


class PredictionHead(nn.Module):
    """Maps the last block's output to logits: a norm, a transform, a matrix, a bias and a cap, as configured."""

    def __init__(self, config: ModelConfig, final: OutputHead) -> None:
        super().__init__()
        self.final, d = final, config.d_model
        self.norm = make_norm(config) if final.norm else nn.Identity()
        self.transform = Linear(d, d, bias=True) if final.transform else None
        self.transform_norm = make_norm(config) if final.transform else nn.Identity()
        self.decoder = None if final.tied else Linear(d, config.vocab_size, bias=False)
        self.bias = nn.Parameter(torch.empty(config.vocab_size)) if final.bias else None

    def forward(self, hidden: Tensor, embedding: Tensor, *, capped: bool = True) -> Tensor:
        """Map final states, (N, D), to logits, (N, V), float32; a tied head multiplies by `embedding`, (V, D)."""
        x = self.norm(hidden)
        if self.transform is not None:
            x = self.transform_norm(self.transform(x, self.final.transform))
        logits = linear(x, embedding if self.decoder is None else self.decoder.weight, self.bias).float()
        if capped and self.final.softcap is not None:
            logits = torch.tanh(logits / self.final.softcap) * self.final.softcap
        return logits
