"""Rows and columns of matrices: positions and tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from attnscope.findings.run import TextReport
from attnscope.findings.tokens import LEFT_OUT, LeftOut, Token
from attnscope.views.spans import Span, token_span

AxisKind = Literal["query", "key", "context", "source", "token", "new", "dim", "head", "layer"]
# Position of the column without a key.
SINK = -1


@dataclass(frozen=True)
class Axis:
    """Rows or columns of a matrix, or every token that could be one."""

    # kind of the entries; `context` is a key of another text, and `new` a generated token
    kind: AxisKind
    # position of each entry, as `--query` and `--key` count; SINK for the column of a head's sink
    positions: Sequence[int]
    names: Sequence[Span]  # each token; dimensions have none
    special: Sequence[bool]  # which entries are special tokens
    total: int  # how many entries there would be if none were left out
    numbers: Sequence[str] | None = None  # label of each position; None for the position itself
    words: bool = False  # whether entries are words, each at the position of its first piece
    announced: bool = False  # whether the screen says elsewhere that entries are left out

    @cached_property
    def digits(self) -> int:
        """Characters of the longest position."""
        return max((len(self.number(i)) for i in range(len(self.positions))), default=1)

    @cached_property
    def places(self) -> dict[int, int]:
        """Index of every position."""
        return {position: n for n, position in enumerate(self.positions)}

    @property
    def sinks(self) -> Sequence[bool]:
        """Which entries heads rest on: the first token, special ones, and learned sinks."""
        return [
            p in (0, SINK) or special
            for p, special in zip(self.positions, self.special, strict=True)
        ]

    @property
    def count(self) -> int:
        """Count the entries that are a token or a dimension."""
        return sum(p != SINK for p in self.positions)

    @property
    def needs_caption(self) -> bool:
        """Whether a matrix has to say that entries are left out."""
        return self.count < self.total and not self.announced

    @property
    def numbered(self) -> bool:
        """Whether positions number the entries from 0; positions of words and of two texts skip or repeat some."""
        return not self.words and (
            self.count < self.total or [*self.positions[: self.total]] == [*range(self.total)]
        )

    def number(self, index: int) -> str:
        """Return the position of an entry; nothing for the sink."""
        if self.numbers is not None:
            return self.numbers[index]
        if self.positions[index] != SINK:
            return str(self.positions[index])
        return ""

    def select(self, indices: Sequence[int]) -> "Axis":
        """Return these entries."""
        numbers = None
        if self.numbers is not None:
            numbers = [self.numbers[i] for i in indices]
        return replace(
            self,
            positions=[self.positions[i] for i in indices],
            names=[self.names[i] for i in indices if self.names],
            special=[self.special[i] for i in indices],
            numbers=numbers,
        )


def token_axis(
    axis_kind: AxisKind, tokens: Sequence[Token], positions: Sequence[int] | None = None
) -> Axis:
    """Return the axis of these positions of a text, or of all of them."""
    indices = range(len(tokens)) if positions is None else positions
    return Axis(
        axis_kind,
        indices,
        [token_span(tokens, p) for p in indices],
        [tokens[p].special for p in indices],
        len(tokens),
    )


def with_sink(keys: Axis) -> Axis:
    """Return the keys, then a column for the weight on no key."""
    return replace(
        keys,
        positions=[*keys.positions, SINK],
        names=[*keys.names, Span("(sink)")],
        special=[*keys.special, True],
    )


def dim_axis(size: int) -> Axis:
    """Return the axis of a value's dimensions."""
    return Axis("dim", range(size), [], [False] * size, size)


def source_kind(text: TextReport) -> AxisKind:
    """Return the name of the columns: under cross-attention, keys belong to another text."""
    return "key" if text.context is None else "context"


def format_positions(positions: Sequence[int]) -> str:
    """Write positions as text: `0–11`, `0, 5, 7–9`."""
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in position_runs(positions))


def position_runs(positions: Sequence[int]) -> list[list[int]]:
    """Return the first and the last of positions that follow each other."""
    runs: list[list[int]] = []
    for p in positions:
        if runs and p == runs[-1][1] + 1:
            runs[-1][1] = p
        else:
            runs.append([p, p])
    return runs


def ranked_out(sources: Sequence[Token], left_out: Sequence[LeftOut]) -> np.ndarray:
    """Say which sources do not take part in rankings."""
    special, first_excluded = (name in left_out for name in LEFT_OUT)
    excluded = np.array([token.special for token in sources]) & special
    excluded[0] |= first_excluded
    return excluded
