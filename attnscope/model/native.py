"""Tokens and a Stack in; recorders filled out: our own engine, one padded batch at a time."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnscope.model.masks import Mask, build, compose, padding
from attnscope.model.recorders import Sources
from attnscope.model.stack import Ids, Stack
from attnscope.model.tile import Recorder
from attnscope.model.watch import Watch
from attnscope.report import Token
from attnscope.selection import MaskTerm, parse_mask
from attnscope.tokens import as_batch


@dataclass(frozen=True)
class Texts:
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


def side_by_side(texts: Sequence[Sequence[Token]], device: torch.device) -> Texts:
    """Tokens of several texts as tensors."""
    ids, types, lengths = as_batch(texts)
    longest = max(lengths)
    special = [[t.special for t in tokens] + [False] * (longest - len(tokens)) for tokens in texts]
    real = torch.arange(longest, device=device)[None] < torch.tensor(lengths, device=device)[:, None]  # (B, T)
    both = torch.tensor(ids, device=device), torch.tensor(types, device=device)
    return Texts(both, lengths, torch.tensor(special, device=device), real)


@dataclass(frozen=True)
class Batch:
    """What goes through a model at once.

    Attributes:
        tokens: The texts that queries are made of.
        context: The texts that keys and values are made of under cross-attention; None where they are the same.
        sources: What recorders need to know about the keys.
    """

    tokens: Texts
    context: Texts | None
    sources: Sources


def make_batch(
    texts: Sequence[Sequence[Token]], contexts: Sequence[Sequence[Token]] | None, device: torch.device
) -> Batch:
    """Put texts side by side.

    Args:
        texts: Tokens of every text.
        contexts: Tokens of every text's context under cross-attention.
        device: Where the tensors go.
    """
    tokens = side_by_side(texts, device)
    context = None if contexts is None else side_by_side(contexts, device)
    keys = context or tokens
    return Batch(tokens, context, Sources(keys.special, keys.real, same=context is None))


@dataclass(frozen=True)
class Native:
    """A stack that runs under a mask.

    Attributes:
        stack: The model.
        terms: The mask that the user asked for; `own` is the model's.
        same_scores: Recorders see the asked-for mask on the scores that the model computed under its own; otherwise the
            whole model runs under the asked-for one.
        files: The masks that the expression's files hold.
        tile_elements: See `attend`.
        whole: Every layer's output is computed, also where nobody goes on with it.
    """

    stack: Stack
    terms: tuple[MaskTerm, ...]
    same_scores: bool
    files: Mapping[str, Mask]
    tile_elements: int | None = None
    whole: bool = False

    def forward(
        self,
        batch: Batch,
        recorders: Mapping[int, Sequence[Recorder]],
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Show every watched layer's attention over a batch to its recorders."""
        config, keys = self.stack.config, batch.context or batch.tokens
        own = [build(parse_mask(config.mask_of(layer))) for layer in range(len(self.stack.blocks))]
        used = [build(self.terms, mask, self.files) for mask in own]
        pad = padding(keys.lengths, max(keys.lengths), keys.real.device)
        observed: dict[int, Mask] = {}
        if self.same_scores:
            observed = {layer: compose((mask, pad)) for layer, mask in enumerate(used)}
        self.stack.run(
            batch.tokens.ids,
            own if self.same_scores else used,
            pad,
            Watch(recorders, observed, self.tile_elements, self.whole),
            context=None if batch.context is None else batch.context.ids,
            progress=progress,
        )

    @property
    def sizes(self) -> tuple[int, int]:
        """Layers, and query heads in each."""
        return self.stack.config.n_layers, self.stack.config.n_heads

    def mask_in_words(self) -> str:
        """The model's own mask."""
        return self.stack.config.mask_in_words()
