"""One query's row as a list: a line for each key, with all stages, the weight as a bar, and the contribution."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from attnscope.findings.run import HeadReport
from attnscope.studies.screens.contributors import MEASURES
from attnscope.views.axes import Axis
from attnscope.views.numbers import column_texts
from attnscope.views.parts import GAP, Column, Panel, Table, Text, ViewPart, paragraph
from attnscope.views.settings import DisplaySettings
from attnscope.views.spans import Span, ours

LISTED = 32  # keys of a long text that are listed


def row_list(
    panels: Sequence[Panel], settings: DisplaySettings, others: str, head: HeadReport | None = None
) -> list[ViewPart]:
    """Present the only row of these panels, which all have keys as columns; the last one has the weights or shares.

    A long text lists the keys with the largest weights, and sums the weight of the others; `others` tells how to list
    these. The contributions of ranked keys are those of `head`.
    """
    weights = panels[-1]
    row = np.nan_to_num(weights.matrix[0].astype(np.float64))
    listed = list(range(row.size))
    if row.size > LISTED and settings.brief:
        listed = np.argsort(-row, kind="stable")[:LISTED].tolist()
    omitted = np.delete(row, listed)
    columns = []
    for panel in panels:
        cells = [panel.texts[0][i] if i < len(panel.texts[0]) else "" for i in listed]  # the sink has no score
        if omitted.size:
            cells.append(panel.digits.text(float(omitted.sum())) if panel is weights else "")
        columns.append(Column(panel.name, cells))
    bars = [float(row[i]) for i in listed] + ([float(omitted.sum())] if omitted.size else [])
    if head is not None:
        columns += _contributions(head, weights.columns, listed, len(bars), settings)
    title = (Span("row", "bold"), Span(f" {panels[0].rows.number(0)} "), panels[0].rows.names[0])
    order = f"  the {len(listed)} keys with the largest {weights.name}; {others}" if omitted.size else ""
    formulas = [
        (*panel.title, Span(": "), *panel.arithmetic, *ours(f"; {panel.small}" if panel.small else ""))
        for panel in panels
        if panel.arithmetic
    ]
    dim = [tuple(replace(span, look="dim") for span in formula) for formula in formulas]
    return [
        GAP,
        paragraph((*title, Span(order, "dim"))),
        Text(dim, between=" │ ", remark=True),
        Table(
            weights.columns.kind,
            columns,
            keys=weights.columns.select(listed),
            labels=[ours(f"{omitted.size:,} others", "dim")] if omitted.size else (),
            bars=bars,
            spelled=True,
        ),
    ]


def _contributions(
    head: HeadReport, keys: Axis, listed: Sequence[int], lines: int, settings: DisplaySettings
) -> list[Column]:
    """Return the contributions of the ranked sources; those of other keys were not kept."""
    columns = []
    ranks = {int(key): rank for rank, key in enumerate(head.top.keys[0]) if key >= 0}
    for name, matrix in (("value", head.top.value), ("projected", head.top.projected)):
        if matrix is None or not ranks:
            continue
        values = [float(matrix[0, ranks[p]]) if (p := keys.positions[i]) in ranks else None for i in listed]
        values += [None] * (lines - len(values))
        if any(value is not None for value in values):
            columns.append(Column(MEASURES[name], column_texts(values, settings.precision)))
    return columns
