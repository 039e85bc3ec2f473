"""A whole matrix of weights in a size that the text does not grow, as plain data: map, columns, averages."""

import msgspec

from attnscope.report.arrays import Floats, Matrix


class Pooled(msgspec.Struct, frozen=True):
    """A map that stands for a matrix of weights: whole rows, whole columns, no weight lost.

    A run is a stretch of neighbouring tokens: run i starts at token `queries[i]` and ends before `queries[i + 1]`.

    Attributes:
        queries: Where every run of queries starts, and behind them the number of tokens.
        keys: Likewise of keys.
        weights: What a query of the run gives, on average, to the keys of the run together, (runs of queries, runs of
            keys). A row sums to 1, or to 1 minus what the head's sink takes; it is null where no query of the run may
            attend to anything.
    """

    queries: list[int]
    keys: list[int]
    weights: Matrix


class Columns(msgspec.Struct, frozen=True):
    """Who is attended to.

    Attributes:
        mass: Weight that every source gets from all queries together, one number for each token of the key side.
        total: Their sum: the number of queries that may attend to anything, minus what the head's sink takes.
    """

    mass: Floats
    total: float


class Means(msgspec.Struct, frozen=True):
    """Statistics of a row (see Rows), averaged over every query of the text; special tokens count only where all are.

    Attributes:
        entropy: −Σ α log₂ α, in bits.
        first: Weight on the first token.
        special: Weight on special tokens.
        self: Weight on the query's own position; None under cross-attention.
        other: Weight on the rest.
        distance: |query − key| in tokens; None under cross-attention.
        within_16: Weight on keys at most 16 tokens away; None under cross-attention, as are those that follow.
        within_64: At most 64.
        within_256: At most 256.
        within_1024: At most 1,024.
        sink: What goes to the head's sink; None where it has none.
    """

    entropy: float | None
    first: float | None
    special: float | None
    self: float | None
    other: float | None
    distance: float | None
    within_16: float | None
    within_64: float | None
    within_256: float | None
    within_1024: float | None
    sink: float | None = None
