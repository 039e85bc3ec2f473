"""Two heads' pooled maps and columns in; what differs between them out. NumPy on plain data."""

import numpy as np

from attnscope.errors import AttnscopeError
from attnscope.report import HeadReport, TextReport
from attnscope.report.compare import Cell, HeadChange

_Side = tuple[TextReport, HeadReport, str]


def pooled_change(number: int, first: _Side, second: _Side) -> HeadChange:
    """What changes between two maps of one text.

    Args:
        number: Number of the text.
        first: Text, head and its name.
        second: The other side's.

    Raises:
        AttnscopeError: A side has no map, or the two are of different runs or different tokens.
    """
    (one, a, name), (other, b, other_name) = first, second
    if a.pooled is None or b.pooled is None or a.columns is None or b.columns is None:
        hint = "name rows with --query, or run both with --pool"
        raise AttnscopeError("only one side has a map", where=name, hint=hint)
    same = [t.piece for t in one.tokens] == [t.piece for t in other.tokens]
    same_sources = [t.piece for t in one.sources] == [t.piece for t in other.sources]
    if not same or not same_sources or a.pooled.weights.shape != b.pooled.weights.shape:
        hint = "name rows with --query, or give the same text and the same --pool"
        raise AttnscopeError("maps of different tokens or runs cannot be compared", where=name, hint=hint)
    none, empty = np.zeros(0, dtype=np.float32), np.zeros((0, 0), dtype=np.float32)
    return HeadChange(
        text=number, first=name, second=other_name, queries=[], keys=[], only_first=[], only_second=[],
        difference=empty, total_variation=none, jensen_shannon=none, future=empty, entropy=empty,
        gained=[], gain=none, lost=[], loss=none, entered=[], left=[],
        worst=[_worst(a, b)],
        mass=np.array([a.columns.mass, b.columns.mass]),
    )  # fmt: skip


def _worst(a: HeadReport, b: HeadReport) -> Cell:
    """The runs between which the maps differ most, by the first query and key of each."""
    assert a.pooled is not None and b.pooled is not None
    one, other = a.pooled.weights, b.pooled.weights
    apart = np.isfinite(one) != np.isfinite(other)
    size = np.where(apart, np.inf, np.nan_to_num(np.abs(other - one)))
    row, column = (int(i) for i in np.unravel_index(int(size.argmax()), size.shape))
    values = [float(x[row, column]) if np.isfinite(x[row, column]) else None for x in (one, other)]
    difference = None if apart[row, column] else float(size[row, column])
    return Cell("pooled", a.pooled.queries[row], a.pooled.keys[column], values[0], values[1], difference)
