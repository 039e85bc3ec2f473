"""The key side of a batch whose tokens have no text."""

import torch
from torch import Tensor

from attnscope.model.recorders import KeyTokens
from attnscope.report.row_statistics import KEY_TOKENS


def key_tokens(special: Tensor, real: Tensor, *, same: bool = True) -> KeyTokens:
    """Special tokens and padding; no token is of any other kind that a statistic names."""
    return KeyTokens(dict.fromkeys(KEY_TOKENS, torch.zeros_like(real)) | {"special": special}, real, same=same)
