"""Batches: tokens of several texts as tensors, padded on the right."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnscope.base.errors import AttnscopeError
from attnscope.findings.row_statistics import KEY_TOKENS, select_tokens
from attnscope.findings.tokens import Token
from attnscope.model.frame import upload
from attnscope.model.masks import padding_mask
from attnscope.model.recorders import KeyTokens
from attnscope.model.stack import Ids
from attnscope.request.masks.terms import Mask

_TYPES = "token_type_ids"  # how the names of inputs end that have a value for each token


@dataclass(frozen=True)
class TokenTensors:
    """Texts as tensors, padded on the right."""

    # token ids, type ids and position ids, (B, T) each, int64; None for positions that the model counts
    ids: Ids
    lengths: list[int]  # real tokens of every text
    # tokens of each kind that a row statistic names, (B, T), bool; padding is of none
    kinds: Mapping[str, Tensor]
    real: Tensor  # tokens that are not padding, (B, T), bool

    @property
    def special(self) -> Tensor:
        """Special tokens, (B, T), bool."""
        return self.kinds["special"]

    @property
    def positions(self) -> Tensor | None:
        """Position ids, (B, T), int64; None if the model counts them."""
        return self.ids[2] if len(self.ids) > 2 else None

    def padding(self, *, padded_rows: bool = True) -> Mask:
        """Return the mask that hides padding; see PaddingMask."""
        return padding_mask(
            self.lengths, max(self.lengths), self.real.device, padded_rows=padded_rows
        )

    def repeated(self, count: int) -> "TokenTensors":
        """Return one text repeated `count` times, side by side."""
        ids, types = (tensor.expand(count, -1) for tensor in self.ids[:2])
        positions = None
        if self.positions is not None:
            positions = self.positions.expand(count, -1)
        kinds = {name: tensor.expand(count, -1) for name, tensor in self.kinds.items()}
        return TokenTensors(
            (ids, types, positions), self.lengths * count, kinds, self.real.expand(count, -1)
        )


def pad_texts(
    texts: Sequence[Sequence[Token]],
    device: torch.device,
    positions: Sequence[Sequence[int] | None] = (),
    width: int = 0,
) -> TokenTensors:
    """Return texts as tensors, at least `width` wide.

    `positions` are the position ids of every text, None if the model counts them.
    """
    lengths = [len(tokens) for tokens in texts]
    longest = max(*lengths, width)
    shape = len(texts), longest
    # NumPy reads lists of numbers several times as fast as torch
    real_tokens = np.arange(longest)[None] < np.array(lengths)[:, None]
    ids_and_types = np.zeros((2, *shape), np.int64)
    ids_and_types[0, real_tokens] = [token.id for tokens in texts for token in tokens]
    ids_and_types[1, real_tokens] = [token.type_id for tokens in texts for token in tokens]
    flags = np.zeros((1 + len(KEY_TOKENS), *shape), np.bool_)
    flags[0] = real_tokens
    for of_kind, selects in zip(flags[1:], KEY_TOKENS.values(), strict=True):
        of_kind[real_tokens] = select_tokens(texts, selects)
    numbers = upload(torch.from_numpy(ids_and_types), device)
    real, *kinds = upload(torch.from_numpy(flags), device)
    placed = None
    if any(ids is not None for ids in positions):
        every = [
            list(range(n) if ids is None else ids)
            for ids, n in zip(positions, lengths, strict=True)
        ]
        placed = upload(torch.tensor([ids + [0] * (longest - len(ids)) for ids in every]), device)
    return TokenTensors(
        (numbers[0], numbers[1], placed), lengths, dict(zip(KEY_TOKENS, kinds, strict=True)), real
    )


@dataclass(frozen=True)
class Batch:
    """Texts that go through a model together."""

    tokens: TokenTensors
    # the texts of the keys and values in cross-attention; None in self-attention
    context: TokenTensors | None
    texts: Sequence[Sequence[Token]]  # the Tokens behind `tokens`
    # what the model takes besides, or in place of, token ids, by the name of its argument; empty for texts alone
    media: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def keys(self) -> TokenTensors:
        """The texts of the keys and values."""
        return self.context or self.tokens

    @cached_property
    def sources(self) -> KeyTokens:
        """The same for recorders, which share what is computed from it."""
        return KeyTokens(self.keys.kinds, self.keys.real, self_attention=self.context is None)

    def repeated(self, count: int) -> "Batch":
        """Return a batch of one text repeated `count` times."""
        context = None if self.context is None else self.context.repeated(count)
        media = {name: torch.cat([tensor] * count) for name, tensor in self.media.items()}
        return Batch(self.tokens.repeated(count), context, [*self.texts] * count, media)


def make_batch(
    texts: Sequence[Sequence[Token]],
    contexts: Sequence[Sequence[Token]] | None,
    device: torch.device,
    positions: Sequence[Sequence[int] | None] = (),
    media: Sequence[Mapping[str, Any]] = (),
    width: int = 0,
) -> Batch:
    """Put texts side by side; `media` are the inputs of each that are no token ids, see MediaText.inputs.

    Args:
        width: Fewest keys of a text, padding included, for a model that pads its input itself.
    """
    context = None if contexts is None else pad_texts(contexts, device, width=width)
    tokens = pad_texts(texts, device, positions, width if contexts is None else 0)
    return Batch(
        tokens, context, texts, join_media(media, max(tokens.lengths), device) if media else {}
    )


def join_media(
    media: Sequence[Mapping[str, Any]], longest: int, device: torch.device
) -> dict[str, Tensor]:
    """Join the inputs of texts along their first axis; `longest` is the length of the longest text."""
    joined: dict[str, list[Tensor]] = {}
    types = {
        name: np.zeros((1, 0), dtype=np.int64)
        for inputs in media
        for name in inputs
        if name.endswith(_TYPES)
    }
    for inputs in media:
        # A text without pictures has tokens, and nothing else, to add.
        tensors = {
            name: torch.from_numpy(np.ascontiguousarray(array))
            for name, array in (types | {**inputs}).items()
        }
        for name, tensor in padded_media(tensors, longest).items():
            joined.setdefault(name, []).append(tensor)
    for name, of_texts in joined.items():
        if len({tensor.shape[1:] for tensor in of_texts}) > 1:
            message = (
                f"the pictures or sounds of these texts have different sizes or numbers ({name})"
            )
            raise AttnscopeError(message, hint="run the texts one by one")
    return {name: torch.cat(of_texts).to(device) for name, of_texts in joined.items()}


def padded_media(media: Mapping[str, Tensor], length: int) -> dict[str, Tensor]:
    """Return inputs of a text for a longer one: the types of tokens, (1, tokens), are 0 for the others."""
    return {
        name: torch.nn.functional.pad(tensor, (0, length - tensor.shape[1]))
        if name.endswith(_TYPES)
        else tensor
        for name, tensor in media.items()
    }
