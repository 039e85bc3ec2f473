"""Draw mask expressions, and hold what attnscope makes of them against their truth tables in NumPy."""

from random import Random
from typing import Any

import numpy as np
import torch

from attnscope.model.block_mask import BlockMask
from attnscope.model.masks import build_mask, documents_mask
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
        kind = random.choice(("own", "causal", "bidirectional", "window", "prefix", "block", "sink", "docs"))
        if kind == "docs":
            kind += f":{','.join(map(str, documents(random, n)))}"
        elif kind in ("window", "prefix", "block", "sink"):
            kind += f":{random.choice((1, 2, 3, 4, 7, 20, 10**17))}"
        terms.append(kind)
    return joined(random, terms), n


def check(expression: str, n: int, random: Random) -> None:
    """Compare everything that follows from an expression with its truth table.

    Raises:
        AssertionError: Something differs.
    """
    own = np.tri(n, dtype=bool)
    table = masks.allowed(expression, own)
    terms = parse_mask(expression)
    assert parse_mask(spell_mask(terms)) == terms, "an expression that is spelled means the same"
    resolved: dict[Any, Mask] = {
        term: documents_mask([term.lengths], n, _CPU) for term in leaves(terms) if isinstance(term, Documents)
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
    nothing = np.zeros(q1 - q0, bool) if block.fully_masked is None else block.fully_masked.numpy().reshape(-1)
    assert np.array_equal(np.broadcast_to(nothing, q1 - q0), ~rows.any(1)), "fully masked rows"
