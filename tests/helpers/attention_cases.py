"""Random calls of attention: shapes, groups of heads, masks of every kind, soft-cap, ALiBi, sizes of tiles."""

from dataclasses import dataclass
from functools import partial

import torch
from hypothesis import strategies as st
from torch import Tensor

from attnscope.model.inputs import AttentionInputs, AttentionSpec
from attnscope.model.masks import MatrixMask, PaddingMask, hidden_keys_mask, intersect
from attnscope.model.positions import alibi
from attnscope.model.recorders import KeyTokens
from attnscope.request.masks.terms import (
    Bidirectional,
    BlockDiagonal,
    Causal,
    Mask,
    Prefix,
    SlidingWindow,
)
from tests.helpers.key_tokens import key_tokens


@dataclass(frozen=True)
class Case:
    """A call with what a test needs to know about it."""

    inputs: AttentionInputs  # the call
    allowed: Tensor  # what its mask says, cell by cell, (B, Q, K), bool
    alibi: bool  # its rule has ALiBi's bias
    tile: int  # scores in a tile
    sources: KeyTokens  # random special tokens and padding

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Texts, heads, queries, keys."""
        return (*self.inputs.q.shape[:3], self.inputs.k.shape[2])


def whole(mask: Mask, batch: int, n_queries: int, n_keys: int) -> Tensor:
    """A mask cell by cell, (B, Q, K)."""
    cells = torch.empty(batch, n_queries, n_keys, dtype=torch.bool)
    for i in range(n_queries):
        for j in range(n_keys):
            one = mask.allowed(torch.tensor([[i]]), torch.tensor([[j]]))
            cells[:, i, j] = True if one is None else one.expand(batch, 1, 1, 1)[:, 0, 0, 0]
    return cells


@st.composite
def masks(draw: st.DrawFn, batch: int, n_queries: int, n_keys: int) -> Mask:
    """Up to three predicates, composed."""
    size = st.integers(1, 5)
    matrices = st.integers(0, 2**31).map(lambda seed: _matrix(seed, (n_queries, n_keys)))
    own_matrices = st.integers(0, 2**31).map(
        lambda seed: _matrix(seed, (batch, 1, n_queries, n_keys))
    )
    lengths = st.lists(st.integers(1, n_keys), min_size=batch, max_size=batch)
    hidden = st.lists(st.lists(st.integers(0, n_keys - 1)), min_size=batch, max_size=batch)
    simple = st.one_of(
        st.just(Bidirectional()),
        st.just(Causal()),
        size.map(SlidingWindow),
        size.map(Prefix),
        size.map(BlockDiagonal),
        lengths.map(lambda n: PaddingMask(torch.tensor(n))),
        hidden.map(lambda places: hidden_keys_mask(places, n_keys, torch.device("cpu"))),
        matrices,
        own_matrices,
    )
    return intersect(draw(st.lists(simple, max_size=3)))


def _matrix(seed: int, shape: tuple[int, ...]) -> Mask:
    """Random cells, and one row in five fully masked."""
    generator = torch.Generator().manual_seed(seed)
    cells = torch.rand(shape, generator=generator) < 0.6
    return MatrixMask(cells & (torch.rand((*shape[:-1], 1), generator=generator) < 0.8))


@st.composite
def cases(draw: st.DrawFn, *, square: bool = False, softcap: bool = True) -> Case:
    """A random call.

    Args:
        draw: Given by Hypothesis.
        square: Queries and keys are the same tokens.
        softcap: Scores may be soft-capped.
    """
    batch, groups, share = draw(st.integers(1, 2)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    n_queries = draw(st.integers(1, 7))
    n_keys = n_queries if square or draw(st.booleans()) else draw(st.integers(1, 7))
    width, value_width = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))

    def numbers(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator) * 1.5

    heads = groups * share
    with_alibi = draw(st.booleans())
    spec = AttentionSpec(
        scale=draw(st.sampled_from([0.1, 0.5, 1.0, 2.0])),
        mask=draw(masks(batch, n_queries, n_keys)),
        softcap=draw(st.sampled_from([None, 0.7, 3.0])) if softcap else None,
        bias=partial(alibi, n_heads=heads) if with_alibi else None,
    )
    inputs = AttentionInputs(
        0,
        numbers(batch, heads, n_queries, width),
        numbers(batch, groups, n_keys, width),
        numbers(batch, groups, n_keys, value_width),
        spec,
        out_weight=numbers(5, heads * value_width),
    )
    special = torch.rand(batch, n_keys, generator=generator) < 0.3
    real = torch.rand(batch, n_keys, generator=generator) < 0.8
    tile = draw(st.integers(1, 2 * batch * heads * n_queries * n_keys))
    allowed = whole(spec.mask, batch, n_queries, n_keys)
    return Case(
        inputs,
        allowed,
        with_alibi,
        tile,
        key_tokens(special, real, real & ~special, same=n_queries == n_keys),
    )
