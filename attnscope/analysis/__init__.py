"""Turn a Trace into plain findings: pure functions, the only place where recorded tensors become a Report."""

from attnscope.analysis.arrays import unit_arrays, unit_names
from attnscope.analysis.attribution import attribution
from attnscope.analysis.choice import RankingRecorders, choose_heads
from attnscope.analysis.generation import Continued, continue_text
from attnscope.analysis.heads import TextSlice, head_report
from attnscope.analysis.overview import TextExtent
from attnscope.analysis.predictions import predict

__all__ = [
    "Continued",
    "RankingRecorders",
    "TextExtent",
    "TextSlice",
    "attribution",
    "choose_heads",
    "continue_text",
    "head_report",
    "predict",
    "unit_arrays",
    "unit_names",
]
