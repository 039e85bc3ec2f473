"""Batches: tokens of several texts as tensors, padded on the right."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnscope.checkpoints.tokenization.words import pad_batch
from attnscope.findings.row_statistics import KEY_TOKENS
from attnscope.findings.tokens import Token
from attnscope.model.recorders import KeyTokens
from attnscope.model.stack import Ids


@dataclass(frozen=True)
class TokenTensors:
    """Texts as tensors, padded on the right.

    Attributes:
        ids: Token ids and type ids, (B, T) each, int64.
        lengths: Real tokens of every text.
        kinds: Which tokens are of each kind that a row statistic names, (B, T), bool; padding is of none.
        real: Tokens that are not padding, (B, T), bool.
    """

    ids: Ids
    lengths: list[int]
    kinds: Mapping[str, Tensor]
    real: Tensor

    @property
    def special(self) -> Tensor:
        """Special tokens, (B, T), bool."""
        return self.kinds["special"]

    def repeated(self, count: int) -> "TokenTensors":
        """Return one text repeated `count` times, side by side."""
        ids, types = (each.expand(count, -1) for each in self.ids)
        kinds = {name: each.expand(count, -1) for name, each in self.kinds.items()}
        return TokenTensors((ids, types), self.lengths * count, kinds, self.real.expand(count, -1))


def pad_texts(texts: Sequence[Sequence[Token]], device: torch.device) -> TokenTensors:
    """Return tokens of several texts as tensors."""
    ids, types, lengths = pad_batch(texts)
    longest = max(lengths)
    kinds = {
        name: torch.tensor(
            [[selects(t) for t in tokens] + [False] * (longest - len(tokens)) for tokens in texts], device=device
        )
        for name, selects in KEY_TOKENS.items()
    }
    real = torch.arange(longest, device=device)[None] < torch.tensor(lengths, device=device)[:, None]  # (B, T)
    both = torch.tensor(ids, device=device), torch.tensor(types, device=device)
    return TokenTensors(both, lengths, kinds, real)


@dataclass(frozen=True)
class Batch:
    """What goes through a model at once.

    Attributes:
        tokens: The texts of the queries.
        context: The texts of the keys and values in cross-attention; None in self-attention.
        sources: Facts about the keys that recorders need.
        texts: What `tokens` was made of.
    """

    tokens: TokenTensors
    context: TokenTensors | None
    sources: KeyTokens
    texts: Sequence[Sequence[Token]]

    def repeated(self, count: int) -> "Batch":
        """Return a batch of one text repeated `count` times."""
        tokens = self.tokens.repeated(count)
        context = None if self.context is None else self.context.repeated(count)
        keys = context or tokens
        sources = KeyTokens(keys.kinds, keys.real, same=context is None)
        return Batch(tokens, context, sources, [*self.texts] * count)


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
    return Batch(tokens, context, KeyTokens(keys.kinds, keys.real, same=context is None), texts)
