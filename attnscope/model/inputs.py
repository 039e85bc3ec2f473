"""The inputs of one layer's attention: queries, keys, values, and how scores become weights."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from attnscope.request.masks.terms import Mask

_ALL = slice(None)


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
    # a logit per head, (H,), that takes part in the softmax and belongs to no key (gpt-oss), or one per head and query,
    # (B, H, Q) (Inkling 2); None for none
    sinks: Tensor | None = None

    def sink_logits(self, heads: Tensor | slice = _ALL, queries: slice = _ALL) -> Tensor | None:
        """Return the logits of sinks of some heads and queries, (B or 1, h, q or 1), float32; None without sinks."""
        if self.sinks is None:
            return None
        if self.sinks.ndim == 1:
            return self.sinks[heads].float()[None, :, None]
        return self.sinks[:, heads, queries].float()


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
    # rotation of `q` and `k`, if it was applied here and not in a model
    rotation: Rotation | None = None
    # factor on the output in front of the output projection, (B, H, Q, Ev or 1); None if there is none
    gate: Tensor | None = None
    # what the model's mask would be if no indexer had selected keys; None if none has
    unselective: Mask | None = None

    def group(self, heads: Tensor) -> Tensor:
        """Return the key/value head that serves each of these query heads."""
        return heads // (self.q.shape[1] // self.k.shape[1])

    def norms(self, name: str) -> Tensor:
        """Return the factor on a weight in a contribution without a gate, `value` or `projected`: (B, H, K), float32."""
        if name == "value":
            return self.value_norms
        return self.projected_norms

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
        if self._gram is None:
            return self.value_norms
        heads = self.q.shape[1]
        norms = []
        for head in range(heads):
            v = self.v[:, head // (heads // self.v.shape[1])].float()  # (B, K, Ev)
            norms.append(((v @ self._gram[head]) * v).sum(-1).clamp_min(0).sqrt())  # (B, K)
        return torch.stack(norms, dim=1)

    def gated_norms(self, name: str, heads: Tensor, rows: slice, keys: slice) -> Tensor:
        """Return ‖g_i ⊙ v_j‖ (`value`) or ‖(g_i ⊙ v_j) W_O^h‖ (`projected`) of some heads, (B, h, rows, keys), float32.

        A gate with one factor per head only scales the norms; else every query has values of its own.
        """
        assert self.gate is not None
        gate = self.gate[:, heads, rows].float()  # (B, h, q, Ev or 1)
        if gate.shape[-1] == 1:
            return gate.abs() * self.norms(name)[:, heads, None, keys]
        v = self.v[:, self.group(heads), keys].float()  # (B, h, k, Ev)
        if name == "value" or self._gram is None:
            return (gate.square() @ v.square().mT).sqrt()
        gram = self._gram[heads]
        rows_of_norms = []
        for row in gate.unbind(2):
            gated = v * row[:, :, None]
            rows_of_norms.append(((gated @ gram) * gated).sum(-1).clamp_min(0).sqrt())  # (B, h, k)
        return torch.stack(rows_of_norms, dim=2)

    @cached_property
    def _gram(self) -> Tensor | None:
        """W_O^h W_O^hᵀ of every head, (H, Ev, Ev), float32; None without an output projection."""
        if self.out_weight is None:
            return None
        # (H, D, Ev)
        w = (
            self.out_weight.float()
            .reshape(len(self.out_weight), self.q.shape[1], -1)
            .transpose(0, 1)
        )
        return w.mT @ w
