"""The inputs of one layer's attention: queries, keys, values, and how scores become weights."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from attnscope.request.masks.terms import Mask


@dataclass(frozen=True)
class AttentionSpec:
    """How scores become weights."""

    scale: float
    mask: Mask
    softcap: float | None = None  # c of c·tanh(x/c) on the scaled scores (Gemma 2); None for none
    # function of query positions (Q, 1), key positions (1, K) and head numbers (H,) to what is added to the scaled
    # scores, (H, Q, K) or (B, H, Q, K); None for none
    bias: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None
    bias_name: str | None = None  # name of the position bias; None if there is none
    # a logit per head, (H,), that takes part in the softmax and belongs to no key (gpt-oss); None for none
    sinks: Tensor | None = None


@dataclass(frozen=True)
class Rotation:
    """A rotation by positions that queries and keys went through."""

    q: Tensor  # queries before it, (B, H, Q, E)
    k: Tensor  # keys before it, (B, G, K, E)
    frequencies: Tensor  # angular frequency of each rotated pair, (R / 2,), in radians a token
    factor: float


@dataclass(frozen=True)
class AttentionInputs:
    """One layer's attention over one batch."""

    layer: int
    q: Tensor  # (B, H, Q, E)
    k: Tensor  # (B, G, K, E); H is a multiple of G
    v: Tensor  # (B, G, K, Ev)
    spec: AttentionSpec
    out_weight: Tensor | None = None  # the output projection, (D, H·Ev); None if the layer has none
    rotation: Rotation | None = None  # rotation of `q` and `k`, if it was applied here and not in a model

    def group(self, heads: Tensor) -> Tensor:
        """Return the key/value head that serves each of these query heads."""
        return heads // (self.q.shape[1] // self.k.shape[1])

    @cached_property
    def value_norms(self) -> Tensor:
        """‖v_j‖ for every query head, (B, H, K), float32; NaN without values."""
        norms = self.v.float().norm(dim=-1)  # (B, G, K)
        if not self.v.shape[-1]:
            norms = torch.full_like(norms, torch.nan)
        wide: Tensor = norms.repeat_interleave(self.q.shape[1] // norms.shape[1], dim=1)
        return wide

    @cached_property
    def projected_norms(self) -> Tensor:
        """‖v_j W_O^h‖ for every query head, (B, H, K), float32 (Kobayashi et al., 2020).

        ‖v W‖² = v (W Wᵀ) vᵀ, so each head needs only its (Ev, Ev) Gram matrix, never a vector per query and source.
        """
        if self.out_weight is None:
            return self.value_norms
        heads = self.q.shape[1]
        w = self.out_weight.float().reshape(len(self.out_weight), heads, -1).transpose(0, 1)  # (H, D, Ev)
        gram = w.mT @ w  # (H, Ev, Ev)
        norms = []
        for head in range(heads):
            v = self.v[:, head // (heads // self.v.shape[1])].float()  # (B, K, Ev)
            norms.append(((v @ gram[head]) * v).sum(-1).clamp_min(0).sqrt())  # (B, K)
        return torch.stack(norms, dim=1)
