"""Align the tokens of two texts."""

from collections.abc import Hashable, Sequence
from itertools import pairwise

import numpy as np

from attnscope.base.errors import AttnscopeError
from attnscope.findings.tokens import Token

MAX_CELLS = 1 << 26  # largest number of token pairs to compare: a quarter of a GiB


def align(first_tokens: Sequence[Token], second_tokens: Sequence[Token]) -> list[tuple[int, int]]:
    """Return positions of a longest common subsequence of two texts' pieces."""
    return _common([t.piece for t in first_tokens], [t.piece for t in second_tokens])


def align_characters(
    first_tokens: Sequence[Token], second_tokens: Sequence[Token]
) -> list[tuple[int, int]]:
    """Return positions of tokens of one text that cover the same characters, by whichever tokenizer.

    Tokens that cover none are aligned by their pieces.
    """
    return _common([_characters(t) for t in first_tokens], [_characters(t) for t in second_tokens])


def _characters(token: Token) -> tuple[str | int | None, ...]:
    if token.start is None:
        return (token.piece,)
    return token.segment, token.start, token.end


def _common(a: Sequence[Hashable], b: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Return positions of a longest common subsequence (Wagner and Fischer, 1974)."""
    shortest = min(len(a), len(b))
    start = next((i for i in range(shortest) if a[i] != b[i]), shortest)
    remaining = shortest - start
    end = next((i for i in range(remaining) if a[-1 - i] != b[-1 - i]), remaining)
    inner = _longest(a[start : len(a) - end], b[start : len(b) - end])
    head = [(i, i) for i in range(start)]
    tail = [(len(a) - end + i, len(b) - end + i) for i in range(end)]
    return [*head, *((start + i, start + j) for i, j in inner), *tail]


def _longest(a: Sequence[Hashable], b: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Return a longest common subsequence between a common prefix and a common suffix."""
    if not a or not b:
        return []
    if len(a) * len(b) > MAX_CELLS:
        message = f"runs of {len(a):,} and {len(b):,} tokens differ, too many to align"
        raise AttnscopeError(
            message, hint="compare shorter texts, or the same text under another mask or model"
        )
    # length of the common subsequence from (i, j) on
    longest = np.zeros((len(a) + 1, len(b) + 1), dtype=np.int32)
    codes = {piece: n for n, piece in enumerate({*a, *b})}
    right = np.array([codes[p] for p in b])
    for i in range(len(a) - 1, -1, -1):
        taken = np.where(right == codes[a[i]], longest[i + 1, 1:] + 1, longest[i + 1, :-1])
        longest[i, :-1] = np.maximum.accumulate(taken[::-1])[::-1]
    pairs = []
    i = 0
    j = 0
    while i < len(a) and j < len(b):
        if a[i] == b[j]:
            pairs.append((i, j))
            i = i + 1
            j = j + 1
        elif longest[i + 1, j] >= longest[i, j + 1]:
            i += 1
        else:
            j += 1
    return pairs


def pair_replaced(
    first_tokens: Sequence[Token], second_tokens: Sequence[Token], shared: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return positions of shared tokens and of tokens that replace each other, in order.

    Between two shared tokens, tokens are paired one by one if both sides have equally many, as are the pieces of one
    word as far as both words have them. Other tokens have no counterpart. `shared` is what `align` found.
    """
    ends = [(-1, -1), *shared, (len(first_tokens), len(second_tokens))]
    pairs = list(shared)
    for (i, j), (i_end, j_end) in pairwise(ends):
        first_run = range(i + 1, i_end)
        second_run = range(j + 1, j_end)
        one_word = _is_word([first_tokens[p] for p in first_run]) and _is_word(
            [second_tokens[p] for p in second_run]
        )
        if len(first_run) == len(second_run) or one_word:
            pairs += [
                pair
                for pair in zip(first_run, second_run, strict=False)
                if _alike(first_tokens[pair[0]], second_tokens[pair[1]])
            ]
    return sorted(pairs)


def _is_word(tokens: Sequence[Token]) -> bool:
    """Tell whether tokens are adjacent, with nothing between them."""
    return all(
        a.end is not None and a.end == b.start and a.segment == b.segment
        for a, b in pairwise(tokens)
    )


def _alike(token: Token, other: Token) -> bool:
    return (token.special, token.segment) == (other.special, other.segment)
