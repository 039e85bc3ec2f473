"""The matrices of a head in stage order, each with the arithmetic that made it."""

import numpy as np

from attnscope.findings.arrays import Matrix
from attnscope.findings.heads import STAGES, HeadReport
from attnscope.findings.run import TextReport
from attnscope.views.axes import Axis, dim_axis, source_kind, token_axis, with_sink
from attnscope.views.numbers import NO_WEIGHT, Digits, digits_for, scale_text, texts
from attnscope.views.parts import Panel
from attnscope.views.scales import scale_for
from attnscope.views.settings import DisplaySettings
from attnscope.views.spans import TIE, Spans, ours

# of position biases, as their papers write them
BIAS_NAMES = {"alibi": "ALiBi", "relative": "relative position"}
ROUNDING = 1e-3  # by which the sum of a row may differ from 1


def text_axes(text: TextReport) -> tuple[Axis, Axis]:
    """Return the axes of the shown rows and columns."""
    return (
        token_axis("query", text.tokens, text.queries),
        token_axis(source_kind(text), text.sources, text.keys),
    )


def stage_matrices(
    text: TextReport, head: HeadReport, settings: DisplaySettings, *, are_given: bool = False
) -> list[Panel]:
    """Return the stages of a head's report in the order of computation; of given weights, nothing more is known."""
    rows, keys = text_axes(text)
    masked_rows = [position in head.fully_masked for position in text.queries]
    matrices = []
    for name in STAGES:
        if name not in head.stages:
            continue
        matrix = head.stages[name]
        columns = keys
        if name == "weights" and head.rows.sink is not None:
            matrix = np.column_stack((matrix, head.rows.sink))
            columns = with_sink(keys)
        if name == "output":
            columns = dim_axis(matrix.shape[1])
        caption, pictured = (
            ours(
                "given, not computed"
                if are_given
                else _arithmetic(name, text, head, settings, picture=picture)
            )
            for picture in (False, True)
        )
        panel_arguments = (rows, columns), ours(name), caption, settings
        matrices.append(
            matrix_panel(matrix, masked_rows, *panel_arguments, name=name, pictured=pictured)
        )
    return matrices


def weight_digits(weights: Matrix, precision: int, settings: DisplaySettings) -> Digits:
    """Return the format of weights: with these decimals, or as percentages."""
    digits = digits_for(weights, precision)
    if settings.percent:
        return digits.as_percent()
    return digits


def row_sum(
    weights: Matrix, total: str = "1", *, has_sink: bool = False, is_heard: bool = False
) -> str:
    """State what rows of weights sum to; those without an allowed key are NaN, and a sink has a part of each.

    Args:
        is_heard: Whether the keys are frames of a sound, behind which models may read padding.
    """
    if weights.size and np.isnan(weights).all():
        return "no row has weights"
    if has_sink:
        return f"each row with its sink sums to {total}"
    sums = weights.astype(np.float64).sum(1)
    if (np.abs(sums - 1) > ROUNDING).any():
        if is_heard:
            return f"each row sums to {total} with the padding"
        return f"each row sums to {total}, less where all keys of a head are cut"
    return f"each row sums to {total}"


def in_percent(settings: DisplaySettings) -> str:
    """Return what a caption adds if weights are percentages."""
    return ", in %" if settings.percent else ""


def matrix_panel(
    matrix: Matrix,
    masked: list[bool],
    axes: tuple[Axis, Axis],
    title: Spans,
    caption: Spans,
    settings: DisplaySettings,
    *,
    name: str = "weights",
    pictured: Spans | None = None,
) -> Panel:
    """Return a stage, or another matrix of weights or of their differences."""
    stage = name if name in STAGES else "weights"
    if stage == "weights":
        # 0 is not 0.3 without decimals
        digits = weight_digits(matrix, max(settings.precision, 1), settings)
    else:
        digits = digits_for(matrix, settings.precision)
    if stage == "weights" and (matrix == 0).any():
        zeros = ours(f"; {NO_WEIGHT}{TIE}is exactly zero")
        caption = (*caption, *zeros)
        pictured = None if pictured is None else (*pictured, *zeros)
    cells = texts(stage, matrix, masked, digits)
    scale = scale_for(name, matrix, settings.ramp, None if settings.sinks else axes[1].sinks)
    panel_arguments = matrix, cells, *axes, scale, digits, masked, caption, pictured or caption
    return Panel(name, title, *panel_arguments)


def _arithmetic(
    stage: str, text: TextReport, head: HeadReport, settings: DisplaySettings, *, picture: bool
) -> str:
    """Return the formula of a stage, and the meaning of cells without a number."""
    mean = "mean of " if "mean" in (head.layer, head.head) else ""
    whole_rows = len(text.keys) == len(text.sources)
    if stage == "scores":
        return f"{mean}q·k"
    if stage == "scaled":
        return mean + _scaled(head)
    if stage == "masked":
        source = "scaled" if "scaled" in head.stages else _scaled(head)
        cells = head.stages[stage]
        meaning = "all allowed" if whole_rows else "all of these are allowed"
        if cells.size == 1:
            meaning = "this key is allowed"
        if np.isneginf(cells).any():
            meaning = f"{NO_WEIGHT}{TIE}is not allowed"
            weights = head.stages.get("weights")
            if weights is not None and (weights[np.isneginf(cells)] > 0).any():
                meaning += " in one or more of them"
        return f"{mean}{source}; {meaning}"
    masked = "; masked: no key is allowed" if head.fully_masked else ""
    if stage == "output":
        return f"{mean}weights · v{masked}"
    scope = "" if whole_rows else " over the keys that it may see"
    sink = " (column +)" if picture else ""
    of = "softmax of masked"
    has_sink = head.rows.sink is not None
    if has_sink:
        of = f"softmax of masked and the head's sink{sink}"
    whole = head.stages["weights"] if whole_rows else head.stages["weights"][:0]
    if settings.percent:
        of += ", in %"
    if len(head.fully_masked) == len(text.queries):
        return f"{mean}{of}{masked}"
    total = "100 %" if settings.percent else "1"
    sums = row_sum(whole, total, has_sink=has_sink, is_heard=text.sound is not None)
    return f"{mean}{of}; {sums}{scope}{masked}"


def _scaled(head: HeadReport) -> str:
    text = f"scores {scale_text(head.scale, head.head_width, reason=True)}"
    if head.softcap is not None:
        text += f", soft-capped at {head.softcap:g}"
    if head.bias is not None:
        text += f", plus {BIAS_NAMES.get(head.bias, head.bias)} bias"
    if head.score_mod is None:
        return text
    return f"{text}, changed by {head.score_mod}"
