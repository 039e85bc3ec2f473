"""Compare the pooled maps and column masses of two heads."""

import numpy as np

from attnscope.base.errors import AttnscopeError, arg
from attnscope.findings.compare import HeadChange
from attnscope.findings.run import HeadReport, TextReport
from attnscope.studies.compare.tolerance import MatrixPair

_Side = tuple[TextReport, HeadReport]


def pooled_change(number: int, first: _Side, second: _Side) -> tuple[HeadChange, list[MatrixPair]]:
    """Return the change between two maps of one text, and the maps.

    Args:
        first: Text and head of the first side; `second` is the other side.
    """
    (first_text, a), (second_text, b) = first, second
    if a.pooled is None or b.pooled is None or a.columns is None or b.columns is None:
        hint = f"select rows with {arg('query')}, or run both with {arg('pool')}"
        raise AttnscopeError("only one side has a map", where=str(a.ref), hint=hint)
    same_tokens = [t.piece for t in first_text.tokens] == [t.piece for t in second_text.tokens]
    same_sources = [t.piece for t in first_text.sources] == [t.piece for t in second_text.sources]
    if not same_tokens or not same_sources or a.pooled.weights.shape != b.pooled.weights.shape:
        hint = f"select rows with {arg('query')}, or use the same text and the same {arg('pool')}"
        raise AttnscopeError("maps of different tokens or runs cannot be compared", where=str(a.ref), hint=hint)
    none, empty = np.zeros(0, dtype=np.float32), np.zeros((0, 0), dtype=np.float32)
    before, after = a.pooled.weights.astype(np.float64), b.pooled.weights.astype(np.float64)
    maps = MatrixPair("pooled", before, after, a.pooled.queries, a.pooled.keys)
    change = HeadChange(
        text=number, first=a.ref, second=b.ref, queries=[], keys=[], only_first=[], only_second=[],
        difference=empty, total_variation=none, jensen_shannon=none, future=empty, entropy=empty,
        gained=[], gain=none, lost=[], loss=none, entered=[], left=[],
        worst=[maps.worst()],
        mass=np.array([a.columns, b.columns]),
    )  # fmt: skip
    return change, [maps]
