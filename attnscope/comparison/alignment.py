"""Align the tokens of two texts."""

from collections.abc import Sequence

import numpy as np

from attnscope.errors import AttnscopeError
from attnscope.report import Token

MAX_CELLS = 1 << 26  # pairs of tokens to compare, at most: a quarter of a GiB


def align(first: Sequence[Token], second: Sequence[Token]) -> list[tuple[int, int]]:
    """Return positions of the pieces that two texts share: a longest common subsequence (Wagner and Fischer, 1974).

    Raises:
        AttnscopeError: They are too long for that, and too different.
    """
    a, b = [t.piece for t in first], [t.piece for t in second]
    shortest = min(len(a), len(b))
    start = next((i for i in range(shortest) if a[i] != b[i]), shortest)
    rest = shortest - start
    end = next((i for i in range(rest) if a[-1 - i] != b[-1 - i]), rest)
    inner = _longest(a[start : len(a) - end], b[start : len(b) - end])
    head = [(i, i) for i in range(start)]
    tail = [(len(a) - end + i, len(b) - end + i) for i in range(end)]
    return [*head, *((start + i, start + j) for i, j in inner), *tail]


def _longest(a: Sequence[str], b: Sequence[str]) -> list[tuple[int, int]]:
    """Return a longest common subsequence between a common prefix and a common suffix."""
    if not a or not b:
        return []
    if len(a) * len(b) > MAX_CELLS:
        found = f"runs of {len(a):,} and {len(b):,} tokens differ, too many to align"
        raise AttnscopeError(found, hint="compare shorter texts, or the same text under another mask or model")
    longest = np.zeros((len(a) + 1, len(b) + 1), dtype=np.int32)  # of what is left from (i, j) on
    codes = {piece: n for n, piece in enumerate({*a, *b})}
    right = np.array([codes[p] for p in b])
    for i in range(len(a) - 1, -1, -1):
        taken = np.where(right == codes[a[i]], longest[i + 1, 1:] + 1, longest[i + 1, :-1])
        longest[i, :-1] = np.maximum.accumulate(taken[::-1])[::-1]
    pairs, i, j = [], 0, 0
    while i < len(a) and j < len(b):
        if a[i] == b[j]:
            pairs.append((i, j))
            i, j = i + 1, j + 1
        elif longest[i + 1, j] >= longest[i, j + 1]:
            i += 1
        else:
            j += 1
    return pairs
