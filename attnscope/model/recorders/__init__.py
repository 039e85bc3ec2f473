"""Reduce tiles to what is recorded. What recorders keep, not the length of the text, decides memory.

Every recorder keeps float32 on the model's device, in the order of its own heads and rows, for the whole batch. A fully
masked row is NaN in whatever a recorder keeps of weights, contributions and output: there is no number to show.
"""

from attnscope.model.recorders.base import KeyTokens
from attnscope.model.recorders.matrices import MatrixRecorder
from attnscope.model.recorders.packed import PackedMatrices
from attnscope.model.recorders.patterns import OffsetRecorder, TargetRecorder, UniformRecorder
from attnscope.model.recorders.rows import RowRecorder
from attnscope.model.recorders.sums import ColumnRecorder, MeanOutputRecorder, PooledRecorder
from attnscope.model.recorders.top import TopRecorder, strongest

__all__ = [
    "ColumnRecorder",
    "KeyTokens",
    "MatrixRecorder",
    "MeanOutputRecorder",
    "OffsetRecorder",
    "PackedMatrices",
    "PooledRecorder",
    "RowRecorder",
    "TargetRecorder",
    "TopRecorder",
    "UniformRecorder",
    "strongest",
]
