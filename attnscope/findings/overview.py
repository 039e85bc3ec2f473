"""A whole matrix of weights in a size that the text does not grow, as plain data: map and columns."""

from collections.abc import Iterator, Mapping
from typing import Annotated

import msgspec
import numpy as np

from attnscope.findings.arrays import Floats, Matrix, along


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


class Columns(msgspec.Struct, frozen=True):
    """Column sums: how much weight every source receives.

    Attributes:
        mass: Total weight that every source receives from all queries, one number for each token of the key side.
        total: Sum of `mass`: the number of queries that may attend to anything, minus the sink's share.
    """

    mass: Annotated[Floats, along("source")]
    total: float

    def contradictions(self, _lengths: Mapping[str, int]) -> Iterator[tuple[str, str]]:
        """Yield what axes cannot say; see `axes`."""
        if not np.isfinite(self.total):
            yield "total", f"is {self.total}"
