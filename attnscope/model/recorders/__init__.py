"""Reduce tiles to recorded values. Memory depends on what recorders keep, not on the length of the text.

Every recorder stores float32 on the model's device, in the order of its own heads and rows, for the whole batch. In a
fully masked row, weights, contributions and output are NaN, since they have no value.
"""

from attnscope.model.recorders.base import KeyTokens, SumRecorder
from attnscope.model.recorders.block import Block, MakeArray, own_array
from attnscope.model.recorders.heads import AveragedRows, HeadRecorder
from attnscope.model.recorders.matrices import MatrixRecorder
from attnscope.model.recorders.means import MeanRowRecorder
from attnscope.model.recorders.packed import PackedMatrices
from attnscope.model.recorders.patterns import (
    AlignmentRecorder,
    TargetRecorder,
    UniformRecorder,
    WordRecorder,
)
from attnscope.model.recorders.rows import RowRecorder
from attnscope.model.recorders.spans import SpanRecorder, SpanTokens, TokenReading
from attnscope.model.recorders.sums import (
    SUM_RECORDERS,
    ColumnRecorder,
    MeanOutputRecorder,
    PooledRecorder,
    RecordedTokens,
    ValueRecorder,
)
from attnscope.model.recorders.top import TopRecorder, strongest
