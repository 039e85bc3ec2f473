"""A Trace in, plain findings out: pure functions, the only place where kept tensors become numbers to show."""

from attnscope.analysis.arrays import unit_arrays, unit_names
from attnscope.analysis.choice import choose, mass_on_others
from attnscope.analysis.heads import Place, head_report
from attnscope.analysis.overview import Whole

__all__ = ["Place", "Whole", "choose", "head_report", "mass_on_others", "unit_arrays", "unit_names"]
