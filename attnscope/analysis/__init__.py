"""Turn a Trace into plain findings: pure functions, the only place where recorded tensors become a Report."""

from attnscope.analysis.arrays import unit_arrays, unit_names
from attnscope.analysis.choice import RankingRecorders, choose_heads
from attnscope.analysis.heads import TextSlice, head_report
from attnscope.analysis.overview import TextExtent

__all__ = ["RankingRecorders", "TextExtent", "TextSlice", "choose_heads", "head_report", "unit_arrays", "unit_names"]
