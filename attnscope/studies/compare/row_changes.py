"""What changes in one query's row as a list: a line for each key, with both sides' weights and their difference."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from attnscope.studies.run.row_list import LISTED
from attnscope.views.parts import Column, Panel, Table, Text, ViewPart, paragraph
from attnscope.views.spans import Span, ours


def row_changes(
    sides: Sequence[Panel],
    difference: Panel,
    columns: Sequence[tuple[int | None, int | None]],
    show_all: str | None,
) -> Iterator[ViewPart]:
    """Present the only row of two sides' weights and of their difference.

    Of a long row, the keys whose weight changes most are listed, and the weights of the others are summed.

    Args:
        sides: The weights of each side, over the keys that it has.
        difference: The second side minus the first, over all `columns`.
        columns: Positions in both sides; None if a side does not have the key.
        show_all: Option that shows all keys; None if the user selected the keys, so that all of them are listed.
    """
    change = np.nan_to_num(difference.matrix[0].astype(np.float64))
    listed = list(range(change.size))
    if change.size > LISTED and show_all is not None:
        order = np.argsort(-np.abs(change), kind="stable")[:LISTED]
        listed = order[np.abs(change[order]) >= difference.digits.least].tolist()
    omitted = np.delete(np.arange(change.size), listed).tolist()
    shown = []
    for n, panel in enumerate(sides):
        at = {position: index for index, position in enumerate(panel.columns.positions)}
        keys = [pair[n] for pair in columns]
        cells = ["" if (key := keys[i]) is None else panel.texts[0][at[key]] for i in listed]
        if omitted:
            known = [at[key] for i in omitted if (key := keys[i]) is not None]
            cells.append(panel.digits.text(float(panel.matrix[0][known].sum(dtype=np.float64))))
        shown.append(Column(panel.title, cells))
    cells = [difference.texts[0][i] for i in listed]
    bars = [*change[listed]]
    if omitted:
        bars.append(change[omitted].sum())
        cells.append(difference.digits.text(float(bars[-1])))
    shown.append(Column("difference", cells))
    largest = max(map(abs, bars)) or 1.0
    title = (Span("row", "bold"), Span(f" {difference.rows.number(0)} "), difference.rows.names[0])
    which = f"  the {len(listed)} keys whose weight changes most; {show_all} lists all" if omitted else ""
    yield paragraph((*title, Span(which, "dim")))
    formulas = [(*panel.title, *ours(f": weights{_small(panel)}")) for panel in sides]
    if _small(sides[0]) == _small(sides[1]):
        formulas = [ours(f"weights{_small(sides[0])}")]
    own = _small(difference) if _small(difference) != _small(sides[0]) else ""
    bar = ours(f"{own}; the longest bar is the largest difference")
    formulas.append((Span("difference: "), *difference.title, *bar))
    yield Text([tuple(replace(span, look="dim") for span in line) for line in formulas], " │ ", remark=True)
    yield Table(
        difference.columns.kind,
        shown,
        keys=difference.columns.select(listed),
        labels=[ours(f"{len(omitted):,} others", "dim")] if omitted else (),
        bars=[float(bar / largest) for bar in bars],
        spelled=True,
    )


def _small(panel: Panel) -> str:
    return f"; {panel.small}" if panel.small else ""
