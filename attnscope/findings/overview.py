"""A whole matrix of weights in a size that the text does not grow, as plain data."""

from typing import Annotated

import msgspec

from attnscope.findings.arrays import Matrix, along


class Pooled(msgspec.Struct, frozen=True):
    """A map that replaces a matrix of weights: whole rows, whole columns, no weight lost.

    A run is a sequence of adjacent tokens: run i starts at token `queries[i]` and ends before `queries[i + 1]`.

    Attributes:
        queries: Start of every run of queries, then the number of tokens.
        keys: Start of every run of keys, then the number of tokens.
        weights: Average weight of the run's queries on the run's keys together, (runs of queries, runs of keys). A row
            sums to 1, or to 1 minus the sink's share; it is null if no query of the run may attend to anything.
    """

    queries: Annotated[list[int], along("query run", runs="token")]
    keys: Annotated[list[int], along("key run", runs="source")]
    weights: Annotated[Matrix, along("query run", "key run")]
