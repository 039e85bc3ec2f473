"""The exact matrix of a layer without softmax: M with out_i = Σ_j M_ij v_j, row by row.

Such a layer keeps a state S, (E, Ev), per head. For token t it decays the state, writes to it, and reads it:

    S_t = diag(α_t) S_{t−1} + w_t k_t (v_t − e_t)ᵀ,    out_t = S_tᵀ q_t (+ skip · v_t)

With the delta rule, e_t = (diag(α_t) S_{t−1})ᵀ k_t is what the state already holds for the key, which is taken away
before v_t is written (Yang et al., 2025, "Gated Delta Networks"); without it, e_t is 0. With Γ for the decay from one
token to another,

    M = tril(QKᵀ ⊙ Γ) (I + tril(diag(w) (KKᵀ ⊙ Γ), −1))⁻¹ diag(w) (+ skip · I)

where the inverse is there for the delta rule only. Row i is read from the right to the left: what is left of q_i when
it meets the state before a chunk is a vector of E numbers, so a row costs T·E, never T².
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import log

import torch
from torch import Tensor

from attnscope.model.precision import has_float64

CHUNK = 64  # tokens whose triangular system is solved at once
_BLOCK = 1 << 22  # numbers in a block of rows


@dataclass(frozen=True)
class MixingInputs:
    """What one layer without softmax computes its output from, for one batch: in the shapes of the module docstring."""

    kind: str  # of base.layer_kinds
    q: Tensor  # (B, G, T, E), with every factor on them; G divides H: each serves as many adjacent heads
    k: Tensor  # (B, G, T, E)
    v: Tensor  # (B, H, T, Ev)
    log_decay: Tensor  # log α, (B, H, T, 1) or, with a decay of each channel, (B, H, T, E)
    delta: bool  # whether the delta rule takes away what the state holds
    output: Tensor  # what the model itself computed, before norm and gate, (B, H, T, Ev)
    write: Tensor | None = None  # w, (B, H, T): β of the delta rule, Δ of a state space; None for 1 everywhere
    rates: Tensor | None = (
        None  # factor on the log decay of each channel, (H, 1 or E), where it is a product; else None
    )
    skip: Tensor | None = None  # factor on a token's own value that is added to its output, (H,); None for none

    @property
    def n_heads(self) -> int:
        """Number of heads."""
        return self.v.shape[1]

    @cached_property
    def value_norms(self) -> Tensor:
        """‖v_j‖, (B, H, T), float32."""
        norms: Tensor = self.v.float().norm(dim=-1)
        return norms

    def half_lives(self) -> Tensor:
        """Tokens after which half of the state is left if each decays it as this one, (B, H, T); inf without decay.

        With a decay of each channel, that of their geometric mean.
        """
        log_decay = self.log_decay.float().mean(-1)
        if self.rates is not None:
            log_decay = log_decay * self.rates.float().mean(-1)[:, None]
        return log(0.5) / log_decay.clamp_max(0)

    def one_head(self, text: int, head: int, length: int) -> "HeadMixing":
        """Return what makes the matrix of one head of a text of this many tokens."""
        group = head // (self.n_heads // self.k.shape[1])
        write = None if self.write is None else self.write[text, head, :length].float()
        skip = None if self.skip is None else float(self.skip[head])
        log_decay = self.log_decay[text, head, :length].float()
        if self.rates is not None:
            log_decay = log_decay * self.rates[head].float()
        q = self.q[text, group, :length].float()
        k = self.k[text, group, :length].float()
        return HeadMixing(q, k, log_decay, write, self.delta, skip)


@dataclass(frozen=True)
class HeadMixing:
    """What makes the matrix of one head of one text: see MixingInputs."""

    q: Tensor  # (T, E)
    k: Tensor  # (T, E)
    log_decay: Tensor  # (T, 1) or (T, E)
    write: Tensor | None  # (T,)
    delta: bool
    skip: float | None

    def direct(self) -> "HeadMixing":
        """Return the same without what the delta rule takes away and without the skip: decayed products alone."""
        return replace(self, delta=False, skip=None)

    def rows(self, rows: Sequence[int], chunk: int = CHUNK) -> Tensor:
        """Return rows of M, ascending, (R, T)."""
        index = torch.tensor(rows, dtype=torch.int64, device=self.k.device)
        matrix = self.k.new_zeros(len(rows), len(self.k))
        carried = self.k.new_zeros(len(rows), self.k.shape[1])  # what is left of each query behind the chunk
        stop = rows[-1] + 1 if rows else 0
        for start in reversed(range(0, stop, chunk)):
            end = min(start + chunk, len(self.k))
            part = self._chunk(start, end)
            first = bisect_left(rows, start)
            later = bisect_left(rows, end)
            scores = torch.cat((part.read_inside(self.q, index[first:later]), part.read_behind(carried[later:])))
            weights = part.solve(scores) * part.write
            matrix[first:, start:end] = weights
            carried[first:later] = self.q[index[first:later]] * part.decay[index[first:later] - start]
            carried[later:] *= part.decay[-1]
            if self.delta:
                carried[first:] -= weights @ part.erasing
        if self.skip is not None:
            matrix[torch.arange(len(rows), device=index.device), index] += self.skip
        return matrix

    def blocks(self, rows: Sequence[int]) -> Iterator[tuple[Sequence[int], Tensor]]:
        """Yield all of these rows of M in blocks, whose memory does not grow with the text."""
        size = max(1, min(4 * CHUNK, _BLOCK // max(1, len(self.k))))
        for start in range(0, len(rows), size):
            yield rows[start : start + size], self.rows(rows[start : start + size])

    @cached_property
    def _chunks(self) -> "dict[tuple[int, int], _Chunk]":
        """Chunks that blocks of rows have in common; a few times as large as the keys."""
        return {}

    def _chunk(self, start: int, end: int) -> "_Chunk":
        if (start, end) not in self._chunks:
            self._chunks[start, end] = self._make_chunk(start, end)
        return self._chunks[start, end]

    def _make_chunk(self, start: int, end: int) -> "_Chunk":
        write = self.k.new_ones(end - start) if self.write is None else self.write[start:end]
        log_decay = self.log_decay[start:end]
        log_decay = (log_decay.double() if has_float64(log_decay.device) else log_decay).cumsum(0)
        return _Chunk(start, self.k[start:end], log_decay, write, self.delta)


@dataclass(frozen=True)
class _Chunk:
    """Adjacent tokens whose columns are computed at once."""

    start: int
    k: Tensor  # (C, E)
    # from the state before the chunk to each of its tokens, (C, 1) or (C, E), in float64: differences of sums are taken
    log_decay: Tensor
    write: Tensor  # (C,)
    delta: bool

    @cached_property
    def decay(self) -> Tensor:
        """Decay of the state before the chunk up to each token."""
        return self.log_decay.to(self.k.dtype).exp()

    @cached_property
    def erasing(self) -> Tensor:
        """Keys as the state before the chunk meets them, (C, E)."""
        return self.decay * self.k

    @cached_property
    def reading(self) -> Tensor:
        """Keys as the state behind the chunk holds them, (E, C)."""
        return ((self.log_decay[-1] - self.log_decay).to(self.k.dtype).exp() * self.k).T.contiguous()

    @cached_property
    def inverse(self) -> Tensor:
        """Inverse of the triangular system of what each token takes away of the tokens before, (C, C)."""
        size = len(self.k)
        # the diagonal stands for 1
        system = self._products(self.k * self.write[:, None], torch.arange(size, device=self.k.device))
        unit = torch.eye(size, dtype=system.dtype, device=system.device)
        solved: Tensor = torch.linalg.solve_triangular(system, unit, upper=False, unitriangular=True)
        return solved

    def read_behind(self, carried: Tensor) -> Tensor:
        """Return the products of keys with queries behind the chunk, of which `carried` is left, (R, C)."""
        return carried @ self.reading

    def read_inside(self, q: Tensor, rows: Tensor) -> Tensor:
        """Return the products of keys with queries inside the chunk, decayed from key to query; 0 for later keys."""
        return self._products(q[rows], rows - self.start)

    def solve(self, scores: Tensor) -> Tensor:
        """Take away what the delta rule does."""
        if not self.delta:
            return scores
        return scores @ self.inverse

    def _products(self, vectors: Tensor, places: Tensor) -> Tensor:
        """Return products of keys with vectors at places of the chunk, decayed; 0 for keys behind them."""
        later = torch.arange(len(self.k), device=self.k.device) > places[:, None]
        between = self.log_decay[places][:, None] - self.log_decay  # (R, C, 1 or E)
        decay = between.to(self.k.dtype).masked_fill_(later[..., None], -torch.inf).exp_()
        if decay.shape[-1] == 1:
            return (vectors @ self.k.T) * decay[..., 0]
        return (vectors[:, None] * self.k * decay).sum(-1)
