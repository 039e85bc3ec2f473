"""Tiles in; what is kept of them out. What recorders keep, not the length of the text, decides memory.

Every recorder keeps float32 on the model's device, in the order of its own heads and rows, for the whole batch. A fully
masked row is NaN in whatever a recorder keeps of weights, contributions and output: there is no number to show.
"""

from attnscope.model.recorders.base import Sources
from attnscope.model.recorders.matrices import Matrices
from attnscope.model.recorders.rows import Rows
from attnscope.model.recorders.sheets import Sheets
from attnscope.model.recorders.sums import Columns, Pooled
from attnscope.model.recorders.top import Top, strongest

__all__ = ["Columns", "Matrices", "Pooled", "Rows", "Sheets", "Sources", "Top", "strongest"]
