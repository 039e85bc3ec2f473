"""One query's row as a list: a line for each key, with all stages, the weight as a bar, and the contribution."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from attnscope.findings.heads import HeadReport
from attnscope.studies.screens.contributors import MEASURES
from attnscope.views.axes import Axis
from attnscope.views.numbers import column_texts
from attnscope.views.parts import GAP, Column, Panel, Table, Text, ViewPart, paragraph
from attnscope.views.settings import DisplaySettings
from attnscope.views.spans import Span, Spans, ours

LISTED = 32  # keys of a long text that are listed


def row_list(
    panels: Sequence[Panel], settings: DisplaySettings, others: str, head: HeadReport | None = None
) -> Iterator[ViewPart]:
    """Present the only row of these panels, which all have keys as columns; the last one has the weights or shares.

    A long text lists the keys with the largest weights, and sums the weight of the others; `others` tells, after a
    semicolon, how to list these. The contributions of ranked keys are those of `head`.
    """
    weights = panels[-1]
    row = np.nan_to_num(weights.matrix[0].astype(np.float64))
    listed = list(range(row.size))
    if row.size > LISTED and settings.brief:
        listed = np.argsort(-row, kind="stable")[:LISTED].tolist()
    omitted = np.delete(row, listed)
    bars = row[listed].tolist() + [float(omitted.sum())] * bool(omitted.size)
    columns = []
    for panel in panels:
        # the sink has no score
        cells = [panel.texts[0][i] if i < len(panel.texts[0]) else "" for i in listed]
        if omitted.size:
            cells.append(panel.digits.text(bars[-1]) if panel is weights else "")
        columns.append(Column(panel.name, cells))
    formulas = [
        (*panel.title, Span(": "), *panel.arithmetic) for panel in panels if panel.arithmetic
    ]
    if head is not None:
        contributions = [*_contributions(head, weights.columns, listed, len(bars), settings)]
        columns += contributions
        if any("" in column.cells[: len(listed)] for column in contributions):
            names = " and ".join(str(column.heading) for column in contributions)
            count = head.top.keys.shape[1]
            formulas.append(
                ours(f"{names}: of the top {f'{count} keys' if count > 1 else 'key'} alone")
            )
    which = f"the {len(listed)} keys with the largest {weights.name}{others}"
    yield GAP
    yield from row_table(
        panels[0].rows,
        weights.columns.select(listed),
        columns,
        bars,
        len(panels) - 1,
        formulas,
        omitted.size,
        which,
    )


def row_table(
    query: Axis,
    keys: Axis,
    columns: Sequence[Column],
    bars: Sequence[float],
    measured: int,
    formulas: Iterable[Spans],
    omitted: int,
    which: str,
) -> Iterator[ViewPart]:
    """Present a row as a table of its keys; the last line sums the `omitted` ones, and `which` describes the others.

    `bars` draw the column of the index `measured`.
    """
    title = (Span("row", "bold"), Span(f" {query.number(0)} "), query.names[0])
    yield paragraph((*title, Span(f"  {which}" if omitted else "", "caption")))
    yield Text(
        [tuple(replace(span, look="caption") for span in line) for line in formulas],
        " │ ",
        remark=True,
    )
    labels = [ours(f"{omitted:,} others", "dim")] if omitted else ()
    yield Table(
        keys.kind, columns, keys=keys, labels=labels, bars=bars, measured=measured, spelled=True
    )


def _contributions(
    head: HeadReport, keys: Axis, listed: Sequence[int], lines: int, settings: DisplaySettings
) -> Iterator[Column]:
    """Yield the contributions of the ranked sources; those of other keys were not kept."""
    ranks = {int(key): rank for rank, key in enumerate(head.top.keys[0]) if key >= 0}
    for name, matrix in (("value", head.top.value), ("projected", head.top.projected)):
        if matrix is None or not any(keys.positions[i] in ranks for i in listed):
            continue
        values = [
            float(matrix[0, ranks[p]]) if (p := keys.positions[i]) in ranks else None
            for i in listed
        ]
        values += [None] * (lines - len(values))
        yield Column(MEASURES[name], column_texts(values, settings.precision))
