"""Turn a Trace into plain findings: pure functions, the only place where recorded tensors become a Report."""

from attnscope.run.analysis.arrays import unit_arrays, unit_names
from attnscope.run.analysis.attribution import attribution
from attnscope.run.analysis.choice import RankingRecorders, choose_heads
from attnscope.run.analysis.generation import Continued, continue_text
from attnscope.run.analysis.heads import TextSlice, head_report
from attnscope.run.analysis.overview import TextExtent
from attnscope.run.analysis.predictions import predict
from attnscope.run.analysis.spans import SpanRecorders, span_tokens

__all__ = [
    "Continued",
    "RankingRecorders",
    "SpanRecorders",
    "TextExtent",
    "TextSlice",
    "attribution",
    "choose_heads",
    "continue_text",
    "head_report",
    "predict",
    "span_tokens",
    "unit_arrays",
    "unit_names",
]
