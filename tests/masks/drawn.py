"""Draw mask expressions, and hold what attnscope makes of them against their truth tables in NumPy."""

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import torch
from torch.nn.attention.flex_attention import create_mask

from attnscope.model.masks import FunctionMask, build_mask, documents_mask
from attnscope.model.tile_stages import BlockMask
from attnscope.model.tiling import TileBlock
from attnscope.request.masks.expression import parse_mask, spell_mask
from attnscope.request.masks.terms import Causal, Documents, Mask, leaves
from attnscope.run.cost import pairs_by_window
from tests.referee import masks
from tests.referee.draw import documents, joined

Table = np.ndarray[Any, np.dtype[np.bool_]]
_CPU = torch.device("cpu")


def draw(random: Random) -> tuple[str, int]:
    """A random expression, and the tokens of a text that it fits."""
    n, terms = random.choice((1, 2, 3, 5, 9, 14)), []
    for _ in range(random.choice((1, 2, 2, 3, 4, 6))):
        kind = random.choice(
            ("own", "causal", "bidirectional", "window", "prefix", "block", "sink", "docs")
        )
        if kind == "docs":
            kind += f":{','.join(map(str, documents(random, n)))}"
        elif kind in ("window", "prefix", "block", "sink"):
            kind += f":{random.choice((1, 2, 3, 4, 7, 20, 10**17))}"
        terms.append(kind)
    return joined(random, terms), n


def check(expression: str, n: int, random: Random) -> None:
    """Compare everything that follows from an expression with its truth table."""
    own = np.tri(n, dtype=bool)
    table = masks.allowed(expression, own)
    terms = parse_mask(expression)
    assert parse_mask(spell_mask(terms)) == terms, "an expression that is spelled means the same"
    resolved: dict[Any, Mask] = {
        term: documents_mask([term.lengths], n, _CPU)
        for term in leaves(terms)
        if isinstance(term, Documents)
    }
    for mask in (build_mask(terms, Causal(), resolved), build_mask(terms, Causal())):
        assert np.array_equal(_whole(mask, n), table), "the whole matrix"
        for _ in range(3):
            q0 = random.randrange(n)
            _check_block(mask, table, q0, random.randint(q0 + 1, n))
    if "own" not in expression:
        windows = [None, 1, 3, 100]
        near = np.abs(np.subtract.outer(range(n), range(n)))
        counted = [int((table & (near < (window or n))).sum()) for window in windows]
        assert pairs_by_window(terms, windows, n) == counted, "the number of pairs"


def _whole(mask: Mask, n: int) -> Table:
    allowed = mask.allowed(torch.arange(n)[:, None], torch.arange(n)[None])
    return np.ones((n, n), bool) if allowed is None else allowed.expand(1, 1, n, n)[0, 0].numpy()


def _check_block(mask: Mask, table: Table, q0: int, q1: int) -> None:
    """Compare a block of queries, as tiles evaluate it, with the table."""
    n, rows = len(table), table[q0:q1]
    k0, k1 = mask.key_range(q0, q1, n)
    assert 0 <= k0 <= k1 <= n
    assert not rows[:, :k0].any(), "a key before the range is visible"
    assert not rows[:, k1:].any(), "a key behind the range is visible"
    a, b = mask.all_visible_range(q0, q1, n)
    a, b = (max(a, k0), min(b, k1)) if max(a, k0) < min(b, k1) else (k0, k0)
    assert rows[:, a:b].all(), "a key that all are to see is hidden"
    block = BlockMask.of(mask, TileBlock(q0, q1, k0, k1), (a, b), _CPU)
    scores = torch.zeros(1, 2, q1 - q0, k1 - k0)
    block.apply_(scores)
    assert np.array_equal(scores[0, 1].numpy() == 0, rows[:, k0:k1]), "a tile"
    nothing = (
        np.zeros(q1 - q0, bool)
        if block.fully_masked is None
        else block.fully_masked.numpy().reshape(-1)
    )
    assert np.array_equal(np.broadcast_to(nothing, q1 - q0), ~rows.any(1)), "fully masked rows"


def draw_function(random: Random) -> tuple[Callable[..., Any], tuple[int, int, int, int]]:
    """A random `mask_mod` of FlexAttention, and numbers of texts, heads, queries and keys."""
    sizes = random.randint(1, 3), random.randint(1, 4), random.randint(1, 12), random.randint(1, 12)
    documents = torch.tensor([random.randrange(3) for _ in range(12)]).sort().values
    table = (
        torch.rand(sizes, generator=torch.Generator().manual_seed(random.randrange(1 << 30))) < 0.5
    )
    size, head, text = random.randint(1, 5), random.randrange(4), random.randrange(3)
    parts: list[Callable[..., Any]] = [
        lambda b, h, q, k: q >= k,
        lambda b, h, q, k: (q - k).abs() < size,
        lambda b, h, q, k: k < size,
        lambda b, h, q, k: documents[q] == documents[k],
        lambda b, h, q, k: torch.where(h == head, q >= k, q <= k + size),
        lambda b, h, q, k: (b != text) | (k % (h + 1) == 0),
        lambda b, h, q, k: table[b, h, q, k],
        # a reduction, which only vmap keeps within a cell
        lambda b, h, q, k: torch.stack([q == k, h == head]).any(),
    ]
    first, second = random.choice(parts), random.choice(parts)
    join = random.choice((torch.logical_and, torch.logical_or))
    return (lambda b, h, q, k: join(first(b, h, q, k), second(b, h, q, k))), sizes


def check_function(
    function: Callable[..., Any], sizes: tuple[int, int, int, int], random: Random
) -> None:
    """Compare a function's mask, block by block and for some heads, with what FlexAttention makes of it."""
    texts, heads, queries, keys = sizes
    # (B, H, Q, K)
    expected = create_mask(function, texts, heads, queries, keys, device="cpu").numpy()
    mask = FunctionMask(function, texts, heads, queries, torch.device("cpu"))
    for _ in range(3):
        q0 = random.randrange(queries)
        block = TileBlock(q0, random.randint(q0 + 1, queries), 0, keys)
        chosen = sorted(random.sample(range(heads), random.randint(1, heads)))
        found = BlockMask.of(mask, block, (0, 0), _CPU, torch.tensor(chosen))
        scores = torch.zeros(texts, len(chosen), block.q1 - q0, keys)
        found.apply_(scores)
        rows = expected[:, chosen, q0 : block.q1]
        assert np.array_equal(scores.numpy() == 0, rows), "a tile"
        nothing = np.zeros(1, bool) if found.fully_masked is None else found.fully_masked.numpy()
        assert np.array_equal(np.broadcast_to(nothing, rows.shape[:3]), ~rows.any(-1)), (
            "fully masked rows"
        )


def check_as_function(expression: str, n: int) -> None:
    """Compare an expression with FlexAttention's mask of the function that says the same."""
    terms = parse_mask(expression)
    resolved: dict[Any, Mask] = {
        term: documents_mask([term.lengths], n, _CPU)
        for term in leaves(terms)
        if isinstance(term, Documents)
    }
    table = torch.from_numpy(masks.allowed(expression, np.tri(n, dtype=bool)))
    flex = create_mask(lambda b, h, q, k: table[q, k], None, None, n, n, device="cpu")[0, 0]
    assert np.array_equal(_whole(build_mask(terms, Causal(), resolved), n), flex.numpy()), (
        "FlexAttention's mask"
    )
