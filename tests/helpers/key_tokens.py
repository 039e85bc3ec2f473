"""The key side of a batch whose tokens have no text."""

import torch
from torch import Tensor

from attnscope.findings.row_statistics import KEY_TOKENS
from attnscope.model.recorders import KeyTokens


def key_tokens(
    special: Tensor, real: Tensor, others: Tensor | None = None, *, same: bool = True
) -> KeyTokens:
    """Special tokens, padding, and the tokens that are of every other kind that a statistic names, by default none."""
    others = torch.zeros_like(real) if others is None else others
    return KeyTokens(
        dict.fromkeys(KEY_TOKENS, others) | {"special": special}, real, self_attention=same
    )
