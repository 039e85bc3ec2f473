"""The matrices of a head in stage order, each with the arithmetic that made it."""

from dataclasses import dataclass

import numpy as np

from attnscope.report import STAGES, HeadReport, Matrix, TextReport
from attnscope.views.terminal.colours import Scale, scale_for
from attnscope.views.terminal.labels import Axis, dim_axis, token_axis, with_sink
from attnscope.views.terminal.numbers import Digits, digits_for, texts
from attnscope.views.terminal.screen import Screen


@dataclass(frozen=True)
class StageView:
    """One matrix, ready to be drawn.

    Attributes:
        name: The stage.
        arithmetic: What was done, such as `q·k`.
        matrix: The numbers.
        texts: Every cell as text.
        masked_rows: Which rows may attend to nothing.
        scale: Values of its colours.
        digits: How its numbers are written.
        rows: The queries.
        columns: The keys, or the dimensions of the value.
    """

    name: str
    arithmetic: str
    matrix: Matrix
    texts: list[list[str]]
    masked_rows: list[bool]
    scale: Scale
    digits: Digits
    rows: Axis
    columns: Axis


def stage_views(screen: Screen, text: TextReport, head: HeadReport) -> list[StageView]:
    """The stages that a head's report has, in the order in which they are computed."""
    rows = token_axis(screen, "query", text.tokens, text.queries)
    keys = token_axis(screen, source_kind(text), text.sources, text.keys)
    masked_rows = [position in head.fully_masked for position in text.queries]
    views = []
    for name in STAGES:
        if name not in head.stages:
            continue
        matrix = head.stages[name]
        columns = keys
        if name == "weights" and head.sink is not None:
            matrix, columns = np.column_stack((matrix, head.sink)), with_sink(keys)
        digits = digits_for(matrix, max(screen.precision, int(name == "weights")))  # 0 is not 0.3 without decimals
        if name == "output":
            columns = dim_axis(matrix.shape[1])
        cells = texts(name, matrix, masked_rows, digits)
        said = arithmetic(name, text, head)
        views.append(StageView(name, said, matrix, cells, masked_rows, scale_for(name, matrix), digits, rows, columns))
    return views


def source_kind(text: TextReport) -> str:
    """What the columns are called: keys are another text's under cross-attention."""
    return "key" if text.context is None else "context"


def arithmetic(stage: str, text: TextReport, head: HeadReport) -> str:
    """What a stage does to the one before, and what its cells may say besides numbers."""
    mean = "mean of " if "mean" in (head.layer, head.head) else ""
    if stage == "scores":
        return f"{mean}q·k"
    if stage == "scaled":
        return mean + _scaled(head)
    if stage == "masked":
        source = "scaled" if "scaled" in head.stages else _scaled(head)
        allowed = not np.isneginf(head.stages[stage]).any()
        return f"{mean}{source}; {'every key shown is allowed' if allowed else '· not allowed'}"
    masked = "; masked: no key is allowed" if head.fully_masked else ""
    if stage == "output":
        return f"{mean}weights · v{masked}"
    whole = "" if len(text.keys) == len(text.sources) else f" over all {len(text.sources)} keys"
    zeros = "; a plain 0 is exactly zero" if (head.stages[stage] == 0).any() else ""
    of = "softmax of masked and the head's sink" if head.sink is not None else "softmax of masked"
    one = "each row with its sink sums to 1" if head.sink is not None else "each row sums to 1"
    return f"{mean}{of}; {one}{whole}{zeros}{masked}"


def _scaled(head: HeadReport) -> str:
    said = f"scores × {head.scale:.4g}"
    if head.softcap is not None:
        said += f", soft-capped at {head.softcap:g}"
    return said if head.bias is None else f"{said}, plus {head.bias} bias"
