"""What changes in one query's row as a list: a line for each key, with both sides' weights and their difference."""

from collections.abc import Iterator, Sequence
from itertools import zip_longest

import numpy as np

from attnscope.studies.run.row_list import LISTED, row_table
from attnscope.views.parts import Column, Panel, ViewPart, joined
from attnscope.views.spans import Span, Spans, ours, untrusted

_HEADING = 14  # cells of a heading above numbers


def _headings(titles: Sequence[Spans]) -> list[Spans]:
    """Return the titles of both sides, long ones from the first word that differs on."""
    labels = ["".join(span.text for span in title) for title in titles]
    if max(map(len, labels)) <= _HEADING:
        return [*titles]
    start = differing_word(labels)
    return [untrusted(f"{'…' * (start > 0)}{label[start:]}") for label in labels]


def differing_word(strings: Sequence[str]) -> int:
    """Return the start of the first word that differs."""
    letters = enumerate(zip_longest(*strings))
    differs = next((index for index, several in letters if len(set(several)) > 1), 0)
    return strings[0].rfind(" ", 0, differs) + 1


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
        show_all: How to show all keys, after a semicolon; None if the user selected the keys, so that all of them are listed.
    """
    change = np.nan_to_num(difference.matrix[0].astype(np.float64))
    listed = list(range(change.size))
    if change.size > LISTED and show_all is not None:
        order = np.argsort(-np.abs(change), kind="stable")[:LISTED]
        listed = order[np.abs(change[order]) >= difference.digits.least].tolist()
    omitted = np.delete(np.arange(change.size), listed).tolist()
    bars = change[listed].tolist() + [float(change[omitted].sum())] * bool(omitted)
    side_columns = []
    headings = _headings([joined(panel.title) for panel in sides])
    for n, panel in enumerate(sides):
        at = {position: index for index, position in enumerate(panel.columns.positions)}
        places = [None if (key := pair[n]) is None else at[key] for pair in columns]
        cells = [
            "" if (column_index := places[i]) is None else panel.texts[0][column_index]
            for i in listed
        ]
        if omitted:
            known_columns = [
                column_index for i in omitted if (column_index := places[i]) is not None
            ]
            cells.append(
                panel.digits.text(float(panel.matrix[0][known_columns].sum(dtype=np.float64)))
            )
        side_columns.append(Column(headings[n], cells))
    cells = [difference.texts[0][i] for i in listed] + [difference.digits.text(bars[-1])] * bool(
        omitted
    )
    side_columns.append(Column("difference", cells))
    first_formula, second_formula = (panel.arithmetic for panel in sides)
    formulas = [(*panel.title, Span(": "), *panel.arithmetic) for panel in sides]
    formulas = [first_formula] if first_formula == second_formula else formulas
    bar = ours("; the longest bar is the largest difference")
    formulas.append((Span("difference: "), *difference.title, *bar))
    largest = max(map(abs, bars)) or 1.0
    which = f"the {len(listed)} keys whose weight changes most{show_all}"
    keys = difference.columns.select(listed)
    shares = [bar / largest for bar in bars]
    yield from row_table(
        difference.rows,
        keys,
        side_columns,
        shares,
        len(side_columns) - 1,
        formulas,
        len(omitted),
        which,
    )
