"""Batches: tokens of several texts as tensors, padded on the right."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnscope.model.recorders import KeyTokens
from attnscope.model.stack import Ids
from attnscope.report import Token
from attnscope.tokenization.words import pad_batch


@dataclass(frozen=True)
class TokenTensors:
    """Texts as tensors, padded on the right.

    Attributes:
        ids: Token ids and type ids, (B, T) each, int64.
        lengths: Real tokens of every text.
        special: Special tokens, (B, T), bool.
        real: Tokens that are not padding, (B, T), bool.
    """

    ids: Ids
    lengths: list[int]
    special: Tensor
    real: Tensor


def pad_texts(texts: Sequence[Sequence[Token]], device: torch.device) -> TokenTensors:
    """Tokens of several texts as tensors."""
    ids, types, lengths = pad_batch(texts)
    longest = max(lengths)
    special = [[t.special for t in tokens] + [False] * (longest - len(tokens)) for tokens in texts]
    real = torch.arange(longest, device=device)[None] < torch.tensor(lengths, device=device)[:, None]  # (B, T)
    both = torch.tensor(ids, device=device), torch.tensor(types, device=device)
    return TokenTensors(both, lengths, torch.tensor(special, device=device), real)


@dataclass(frozen=True)
class Batch:
    """What goes through a model at once.

    Attributes:
        tokens: The texts that queries are made of.
        context: The texts that keys and values are made of under cross-attention; None where they are the same.
        sources: What recorders need to know about the keys.
    """

    tokens: TokenTensors
    context: TokenTensors | None
    sources: KeyTokens


def make_batch(
    texts: Sequence[Sequence[Token]], contexts: Sequence[Sequence[Token]] | None, device: torch.device
) -> Batch:
    """Put texts side by side.

    Args:
        texts: Tokens of every text.
        contexts: Tokens of every text's context under cross-attention.
        device: Where the tensors go.
    """
    tokens = pad_texts(texts, device)
    context = None if contexts is None else pad_texts(contexts, device)
    keys = context or tokens
    return Batch(tokens, context, KeyTokens(keys.special, keys.real, same=context is None))
