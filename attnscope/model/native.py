"""Tokens and a Stack in; recorders filled out: our own engine, one padded batch at a time."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnscope.model.attention import Recorder
from attnscope.model.masks import Mask, build, compose, padding
from attnscope.model.recorders import Sources
from attnscope.model.stack import Stack, Watch
from attnscope.report import Token
from attnscope.selection import MaskTerm, parse_mask
from attnscope.tokens import as_batch


@dataclass(frozen=True)
class Batch:
    """Texts as tensors, padded on the right.

    Attributes:
        ids: (B, T), int64.
        segments: (B, T), int64.
        lengths: Real tokens of every text.
        sources: What recorders need to know about the tokens.
    """

    ids: Tensor
    segments: Tensor
    lengths: list[int]
    sources: Sources


def make_batch(texts: Sequence[Sequence[Token]], device: torch.device) -> Batch:
    """Put texts side by side."""
    ids, segments, lengths = as_batch(texts)
    longest = max(lengths)
    special = [[t.special for t in tokens] + [False] * (longest - len(tokens)) for tokens in texts]
    real = torch.arange(longest, device=device)[None] < torch.tensor(lengths, device=device)[:, None]  # (B, T)
    return Batch(
        torch.tensor(ids, device=device),
        torch.tensor(segments, device=device),
        lengths,
        Sources(torch.tensor(special, device=device), real),
    )


@dataclass(frozen=True)
class Native:
    """A stack that runs under a mask.

    Attributes:
        stack: The model.
        terms: The mask that the user asked for; `own` is the model's.
        same_scores: Recorders see the asked-for mask on the scores that the model computed under its own; otherwise the
            whole model runs under the asked-for one.
    """

    stack: Stack
    terms: tuple[MaskTerm, ...]
    same_scores: bool

    def forward(
        self,
        batch: Batch,
        recorders: Mapping[int, Sequence[Recorder]],
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Show every watched layer's attention over a batch to its recorders."""
        config = self.stack.config
        own = [build(parse_mask(config.mask_of(layer))) for layer in range(config.n_layers)]
        used = [build(self.terms, mask) for mask in own]
        pad = padding(batch.lengths, max(batch.lengths), batch.ids.device)
        observed: dict[int, Mask] = {}
        if self.same_scores:
            observed = {layer: compose((mask, pad)) for layer, mask in enumerate(used)}
        masks = own if self.same_scores else used
        self.stack.run(batch.ids, batch.segments, masks, pad, Watch(recorders, observed), progress)
