"""A whole matrix of weights in a size that the text does not grow, as plain data: map and columns."""

import msgspec

from attnscope.report.arrays import Floats, Matrix


class Pooled(msgspec.Struct, frozen=True):
    """A map that replaces a matrix of weights: whole rows, whole columns, no weight lost.

    A run is a stretch of neighbouring tokens: run i starts at token `queries[i]` and ends before `queries[i + 1]`.

    Attributes:
        queries: Where every run of queries starts, then the number of tokens.
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
