"""What replaces the matrices of a long text: a map, and the sources that get the most weight."""

from collections.abc import Iterator

import numpy as np

from attnscope.findings.arrays import Floats
from attnscope.findings.overview import Pooled
from attnscope.findings.run import HeadReport, TextReport
from attnscope.views.axes import ranked_out, source_kind, token_axis
from attnscope.views.numbers import digits_for
from attnscope.views.parts import GAP, Bar, Bars, ViewPart, WeightMap, paragraph
from attnscope.views.spans import Span, token_span

HEAVIEST = 10  # sources that are listed
NEIGHBOURS = 8  # tokens of context on each side of a source


def overview(text: TextReport, head: HeadReport) -> Iterator[ViewPart]:
    """Present what replaces the matrices of a head, if it has a map."""
    if head.pooled is not None:
        yield weight_map(text, head.pooled)
    if head.columns is not None:
        yield GAP
        yield from _most_attended(text, head, head.columns)


def weight_map(text: TextReport, pooled: Pooled) -> WeightMap:
    """Return the map of a text."""
    return WeightMap(source_kind(text), pooled.queries, pooled.keys, pooled.weights)


def _most_attended(text: TextReport, head: HeadReport, columns: Floats) -> Iterator[ViewPart]:
    """Present the heaviest sources of a whole text, with their weight and their share of all of it."""
    mass, left_out = columns.astype(np.float64), head.top.left_out
    total = float(mass.sum())
    excluded = ranked_out(text.sources, left_out)
    order = [int(key) for key in np.argsort(-np.where(excluded, -1.0, mass), kind="stable")[:HEAVIEST]]
    order = [key for key in order if mass[key] > 0 and not excluded[key]]
    without = f", without {' and '.join(left_out)}" if left_out else ""
    share = 100 * float(mass[order].sum()) / (total or 1.0)
    said = f"  of {len(mass):,} sources{without}, by total weight from all queries"
    said += f"; the {len(order)} below receive {share:.{0 if share >= 10 else 1}f}%"
    yield paragraph((Span("most attended", "bold"), Span(said, "dim")))
    if order:
        parts = (100 * mass[order] / total).astype(np.float32)
        digits = digits_for(parts, 1)
        bars = [
            Bar(
                n,
                float(mass[key] / mass[order[0]]),
                [f"{mass[key]:,.1f}", f"{digits.text(part)}%"],
                None,
                [token_span(text.sources, p) for p in reversed(range(max(0, key - NEIGHBOURS), key))],
                [token_span(text.sources, p) for p in range(key + 1, min(key + 1 + NEIGHBOURS, len(text.sources)))],
            )
            for n, (key, part) in enumerate(zip(order, parts.tolist(), strict=True))
        ]
        yield Bars(token_axis("source", text.sources, order), ["weight", "share"], [bars])
