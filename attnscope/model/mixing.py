"""The exact matrix of a layer without softmax: M with out_i = Σ_j M_ij v_j, row by row.

Such a layer keeps a state S, (E, Ev), per head. For token t it decays the state, writes to it, and reads it:

    S_t = diag(α_t) S_{t−1} + w_t k_t (v_t − e_t)ᵀ,    out_t = S_tᵀ q_t (+ skip · v_t)

With the delta rule, e_t = (diag(α_t) S_{t−1})ᵀ k_t is what the state already holds for the key, which is taken away
before v_t is written (Yang et al., 2025, "Gated Delta Networks"); without it, e_t is 0. With Γ for the decay from one
token to another,

    M = tril(QKᵀ ⊙ Γ) (I + tril(diag(w) (KKᵀ ⊙ Γ), −1))⁻¹ diag(w) (+ skip · I)

where the inverse is there for the delta rule only. Row i is read from the right to the left: what is left of q_i when
it meets the state before a chunk is a vector of E numbers, so a row costs T·E, never T².

A layer that keeps a state for each channel (Mamba-1, RG-LRU) has a matrix for each: its heads are channels. The memory
of an xLSTM divides each row by max(|its sum|, 1). One that averages (RWKV-4) has rows that are positive and sum to 1:
M_ij is exp(k_j + the decay from j to i − 1), and exp(k_i + u) for the token itself, divided by their sum.

Differential attention (Ye et al., 2024, "Differential Transformer") has no state: its heads are pairs of heads
of softmax attention, whose queries and keys stand side by side in those of the pair, and M = softmax(Q₁K₁ᵀ) −
λ softmax(Q₂K₂ᵀ).
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import log

import torch
from torch import Tensor

from attnscope.model.matmul import has_float64

CHUNK = 64  # tokens whose triangular system is solved at once
_BLOCK = 1 << 22  # numbers in a block of rows, or in what a chunk of tokens needs


@dataclass(frozen=True)
class MixingInputs:
    """What one layer without softmax computes its output from, for one batch: in the shapes of the module docstring."""

    kind: str  # of base.layer_kinds
    # (B, G, T, E), with every factor on them; G divides H: each serves as many adjacent heads
    q: Tensor
    k: Tensor  # (B, G, T, E)
    v: Tensor  # (B, H, T, Ev)
    log_decay: Tensor  # log α, (B, H, T, 1) or, with a decay of each channel, (B, H, T, E)
    output: Tensor  # what the model itself computed, before norm and gate, (B, H, T, Ev)
    delta: bool = False  # whether the delta rule takes away what the state holds
    # w, (B, H, T): β of the delta rule, Δ of a state space; None for 1 everywhere
    write: Tensor | None = None
    rates: Tensor | None = (
        # factor on the log decay of each channel, (H, 1 or E), where it is a product; else None
        None
    )
    # factor on a token's own value that is added to its output, (H,); None for none
    skip: Tensor | None = None
    # u of a layer that averages, (H,); its keys are (B, H, T, 1), and it has no queries
    bonus: Tensor | None = None
    stabilizer: Tensor | None = None  # of a layer whose rows are divided, (B, H, T): see HeadMixing
    subtracted: Tensor | None = None  # λ of differential attention, (H,); None for every other kind
    # factor on the output, behind the norm or before it, (B, H, T, Ev); None if there is none, or if it is not seen
    gate: Tensor | None = None
    gated: bool = False  # whether `output` is what the model computed times the gate

    @property
    def n_heads(self) -> int:
        """Number of heads, or of channels."""
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
        return self._heads(text, head, length)

    def heads(
        self, text: int, heads: Sequence[int], length: int
    ) -> "Iterator[tuple[Sequence[int], HeadMixing]]":
        """Yield what makes the matrices of some heads of a text, as many at a time as a bounded memory holds."""
        width = self.k.shape[-1]
        decays = 1
        if self.rates is not None or self.log_decay.shape[-1] > 1:
            decays = width
        size = max(1, min(_BLOCK // (CHUNK * CHUNK * decays), 4 * _BLOCK // (width * length)))
        for start in range(0, len(heads), size):
            some = heads[start : start + size]
            yield some, self._heads(text, torch.tensor(some, device=self.k.device), length)

    def mean(self, text: int, length: int) -> "ChannelMean":
        """Return the mean over all channels of their matrices."""
        return ChannelMean(self, text, length)

    def gates(self) -> Tensor:
        """Mean over its numbers of the gate on each head's output, (B, H, T); NaN if none is seen."""
        if self.gate is None:
            return torch.full(self.v.shape[:3], torch.nan)
        gates: Tensor = self.gate.float().mean(-1)
        return gates

    def _heads(self, text: int, heads: int | Tensor, length: int) -> "HeadMixing":
        groups = heads // (self.n_heads // self.k.shape[1])
        write = None
        if self.write is not None:
            write = self.write[text, heads, :length].float()
        skip = None if self.skip is None else self.skip[heads].float()
        bonus = None if self.bonus is None else self.bonus[heads].float()
        stabilizer = None
        if self.stabilizer is not None:
            stabilizer = self.stabilizer[text, heads, :length].float()
        subtracted = None
        if self.subtracted is not None:
            subtracted = self.subtracted[heads].float()
        log_decay = self.log_decay[text, heads, :length].float()
        if self.rates is not None:
            log_decay = log_decay * self.rates[heads].float()[..., None, :]
        q = self.q[text, groups, :length].float()
        k = self.k[text, groups, :length].float()
        return HeadMixing(q, k, log_decay, write, self.delta, skip, bonus, stabilizer, subtracted)


class Rows:
    """Something that has a matrix."""

    length: int  # number of tokens
    matrices = 1  # how many matrices are computed at once

    def rows(self, rows: Sequence[int]) -> Tensor:
        """Return rows of M, ascending, (R, T)."""
        raise NotImplementedError

    def blocks(self, rows: Sequence[int]) -> Iterator[tuple[Sequence[int], Tensor]]:
        """Yield all of these rows of M in blocks, whose memory does not grow with the text."""
        size = max(1, min(4 * CHUNK, _BLOCK // max(1, self.matrices * self.length)))
        for start in range(0, len(rows), size):
            yield rows[start : start + size], self.rows(rows[start : start + size])


@dataclass(frozen=True)
class ChannelMean(Rows):
    """The mean over all channels of the matrices of one text, with their signs."""

    inputs: MixingInputs
    text: int
    length: int
    plain: bool = False  # see `direct`

    @property
    def write(self) -> Tensor | None:
        """Mean write strength of every token, (T,)."""
        write = self.inputs.write
        if write is None:
            return None
        return write[self.text, :, : self.length].float().mean(0)

    def direct(self) -> "ChannelMean":
        """Return the same without the skip; see HeadMixing."""
        return replace(self, plain=True)

    def rows(self, rows: Sequence[int]) -> Tensor:
        """Return the mean of all channels' rows."""
        channels = range(self.inputs.n_heads)
        total = self.inputs.v.new_zeros(len(rows), self.length, dtype=torch.float32)
        for _, mixing in self.inputs.heads(self.text, channels, self.length):
            total += (mixing.direct() if self.plain else mixing).rows(rows).sum(0)
        return total / len(channels)


@dataclass(frozen=True)
class HeadMixing(Rows):
    """What makes the matrix of one head of one text, or of several heads in front of every shape: see MixingInputs."""

    q: Tensor  # (T, E)
    k: Tensor  # (T, E)
    log_decay: Tensor  # (T, 1) or (T, E)
    write: Tensor | None  # (T,)
    delta: bool
    skip: Tensor | float | None
    bonus: Tensor | float | None = None
    stabilizer: Tensor | None = None  # (T,); each row is divided by max(|its sum|, 1) plus this
    subtracted: Tensor | float | None = None  # λ

    @property
    def length(self) -> int:  # type: ignore[override]
        """Number of tokens."""
        return self.k.shape[-2]

    @property
    def matrices(self) -> int:  # type: ignore[override]
        """Number of heads."""
        return self.k[..., 0, 0].numel()

    def direct(self) -> "HeadMixing":
        """Return the same without what the delta rule takes away, the skip, and what is subtracted."""
        return replace(
            self, delta=False, skip=None, subtracted=None if self.subtracted is None else 0.0
        )

    def factors(self, row: int) -> tuple[Tensor, Tensor] | None:
        """Return q·k of one row, and the decay from every key to it, (T,) each; 0 for later keys.

        None if every channel has a decay of its own, so that these are no factors.
        """
        if self.bonus is not None or self.subtracted is not None or self.log_decay.shape[-1] > 1:
            return None
        passed = self._doubled(self.log_decay).cumsum(-2)[..., 0]
        later = torch.arange(self.length, device=passed.device) > row
        decay = (
            (passed[..., row, None] - passed).to(self.k.dtype).masked_fill(later, -torch.inf).exp()
        )
        return (self.k @ self.q[..., row, :]).masked_fill(later, 0.0), decay

    def dimensions(self, row: int, key: int) -> Tensor | None:
        """Return q ⊙ k, the same decayed from key to row, and what the delta rule leaves of it, (3, E).

        The last, summed and times the write strength of the key (and divided as the row is), is M. None if there are
        no dimensions to sum over.
        """
        if self.bonus is not None or self.subtracted is not None or self.k.shape[-1] == 1:
            return None
        q = self.q[row].double()
        between = self._doubled(self.log_decay[key + 1 : row + 1])
        decayed = q * between.sum(0).exp()
        left = decayed
        if self.delta and self.write is not None:
            left = q
            keys = self.k[key + 1 : row + 1].double()
            writes = self.write[key + 1 : row + 1].double()
            for k, write, log_decay in zip(
                keys.flip(0), writes.flip(0), between.flip(0), strict=True
            ):
                left = (left - write * (left @ k) * k) * log_decay.exp()
        return torch.stack((q, decayed, left)) * self.k[key].double()

    def rows(self, rows: Sequence[int], chunk: int = CHUNK) -> Tensor:
        """Return rows of M, ascending, (R, T)."""
        index = torch.tensor(rows, dtype=torch.int64, device=self.k.device)
        if self.bonus is not None:
            return self._averages(
                index, torch.as_tensor(self.bonus, dtype=self.k.dtype, device=index.device)
            )
        if self.subtracted is not None:
            return self._difference(
                index, torch.as_tensor(self.subtracted, dtype=self.k.dtype, device=index.device)
            )
        matrix = self.k.new_zeros(*self.k.shape[:-2], len(rows), self.length)
        # what is left of each query behind the chunk
        carried = self.k.new_zeros(*self.k.shape[:-2], len(rows), self.k.shape[-1])
        stop = rows[-1] + 1 if rows else 0
        for start in reversed(range(0, stop, chunk)):
            end = min(start + chunk, self.length)
            part = self._chunk(start, end)
            first = bisect_left(rows, start)
            later = bisect_left(rows, end)
            inside = part.read_inside(self.q, index[first:later])
            scores = torch.cat((inside, part.read_behind(carried[..., later:, :])), -2)
            weights = part.solve(scores) * part.write[..., None, :]
            matrix[..., first:, start:end] = weights
            here = index[first:later]
            carried[..., first:later, :] = self.q[..., here, :] * part.decay[..., here - start, :]
            carried[..., later:, :] *= part.decay[..., -1:, :]
            if self.delta:
                carried[..., first:, :] -= weights @ part.erasing
        if self.stabilizer is not None:
            matrix /= (
                matrix.sum(-1, keepdim=True).abs().clamp_min(1) + self.stabilizer[..., index, None]
            )
        if self.skip is not None:
            skip = torch.as_tensor(self.skip, dtype=matrix.dtype, device=index.device)
            matrix[..., torch.arange(len(rows), device=index.device), index] += skip[..., None]
        return matrix

    def _difference(self, rows: Tensor, factor: Tensor) -> Tensor:
        """Return rows of differential attention: see the module docstring."""
        later = torch.arange(self.length, device=rows.device) > rows[:, None]
        first, second = (
            (q @ k.mT).masked_fill(later, -torch.inf).softmax(-1)
            for q, k in zip(self.q[..., rows, :].chunk(2, -1), self.k.chunk(2, -1), strict=True)
        )
        return first - factor[..., None, None] * second

    def _averages(self, rows: Tensor, bonus: Tensor) -> Tensor:
        """Return rows of a layer that averages: see the module docstring."""
        # (T,), of a state up to each token
        passed = self._doubled(self.log_decay).cumsum(-2)[..., 0]
        before = (passed - self._doubled(self.log_decay)[..., 0])[..., rows, None]
        logits = (before - passed[..., None, :]).to(self.k.dtype) + self.k[..., None, :, 0]
        keys = torch.arange(self.length, device=rows.device)
        own = (self.k[..., rows, 0] + bonus[..., None])[..., None]
        logits = torch.where(keys == rows[:, None], own, logits)
        return logits.masked_fill_(keys > rows[:, None], -torch.inf).softmax(-1)

    @cached_property
    def _chunks(self) -> "dict[tuple[int, int], _Chunk]":
        """Chunks that blocks of rows have in common; a few times as large as the keys."""
        return {}

    def _chunk(self, start: int, end: int) -> "_Chunk":
        if (start, end) not in self._chunks:
            self._chunks[start, end] = self._make_chunk(start, end)
        return self._chunks[start, end]

    def _make_chunk(self, start: int, end: int) -> "_Chunk":
        k = self.k[..., start:end, :]
        if self.write is None:
            write = torch.ones_like(k[..., 0])
        else:
            write = self.write[..., start:end]
        log_decay = self._doubled(self.log_decay[..., start:end, :]).cumsum(-2)
        return _Chunk(start, k, log_decay, write, self.delta)

    @staticmethod
    def _doubled(log_decay: Tensor) -> Tensor:
        if has_float64(log_decay.device):
            return log_decay.double()
        return log_decay


@dataclass(frozen=True)
class _Chunk:
    """Adjacent tokens whose columns are computed at once."""

    start: int
    k: Tensor  # (C, E)
    # from the state before the chunk to each of its tokens, (C, 1) or (C, E), in float64: differences of sums are taken
    log_decay: Tensor
    write: Tensor  # (C,)
    delta: bool

    @property
    def length(self) -> int:
        return self.k.shape[-2]

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
        return (
            (self.log_decay[..., -1:, :] - self.log_decay).to(self.k.dtype).exp() * self.k
        ).mT.contiguous()

    @cached_property
    def inverse(self) -> Tensor:
        """Inverse of the triangular system of what each token takes away of the tokens before, (C, C)."""
        # the diagonal stands for 1
        places = torch.arange(self.length, device=self.k.device)
        system = self._products(self.k * self.write[..., None], places)
        unit = torch.eye(self.length, dtype=system.dtype, device=system.device)
        solved: Tensor = torch.linalg.solve_triangular(
            system, unit, upper=False, unitriangular=True
        )
        return solved

    def read_behind(self, carried: Tensor) -> Tensor:
        """Return the products of keys with queries behind the chunk, of which `carried` is left, (R, C)."""
        return carried @ self.reading

    def read_inside(self, q: Tensor, rows: Tensor) -> Tensor:
        """Return the products of keys with queries inside the chunk, decayed from key to query; 0 for later keys."""
        return self._products(q[..., rows, :], rows - self.start)

    def solve(self, scores: Tensor) -> Tensor:
        """Take away what the delta rule does."""
        if not self.delta:
            return scores
        return scores @ self.inverse

    def _products(self, vectors: Tensor, places: Tensor) -> Tensor:
        """Return products of keys with vectors at places of the chunk, decayed; 0 for keys behind them."""
        later = torch.arange(self.length, device=self.k.device) > places[:, None]
        # (R, C, 1 or E)
        between = self.log_decay[..., places, None, :] - self.log_decay[..., None, :, :]
        decay = between.to(self.k.dtype).masked_fill_(later[..., None], -torch.inf).exp_()
        if decay.shape[-1] == 1:
            return (vectors @ self.k.mT) * decay[..., 0]
        return (vectors[..., None, :] * self.k[..., None, :, :] * decay).sum(-1)
