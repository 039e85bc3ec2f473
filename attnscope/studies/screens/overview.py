"""What replaces the matrices of a long text: a map, and the sources that get the most weight."""

from collections.abc import Iterator

import numpy as np

from attnscope.findings.arrays import Floats
from attnscope.findings.heads import HeadReport, Pooled
from attnscope.findings.run import TextReport
from attnscope.studies.screens.sound import head_map, sound_of_keys
from attnscope.studies.screens.stages import row_sum
from attnscope.views.axes import ranked_out, source_kind, token_axis
from attnscope.views.numbers import column_texts, digits_for
from attnscope.views.parts import (
    GAP,
    WEIGHTS,
    Bar,
    Bars,
    Column,
    Table,
    ViewPart,
    WeightMap,
    paragraph,
)
from attnscope.views.settings import DisplaySettings
from attnscope.views.spans import headed, token_span

HEAVIEST = 10  # sources that are listed
NEIGHBOURS = 8  # tokens of context on each side of a source


def overview(text: TextReport, head: HeadReport) -> Iterator[ViewPart]:
    """Present the map of a head in place of its matrices, if it has one."""
    if head.pooled is not None:
        sound = sound_of_keys(text)
        if sound is None:
            yield weight_map(text, head.pooled, has_sink=head.rows.sink is not None)
        else:
            yield head_map(text, head.pooled, sound)
    if head.columns is not None:
        yield GAP
        yield from _most_attended(text, head, head.columns)


def weight_map(
    text: TextReport, pooled: Pooled, of: str = WEIGHTS, *, has_sink: bool = False
) -> WeightMap:
    """Return the map of a text; `of` names its numbers, of which a sink has a part."""
    queries = token_axis("query", text.tokens, pooled.queries[:-1])
    keys = token_axis(source_kind(text), text.sources, pooled.keys[:-1])
    sums = row_sum(pooled.weights, has_sink=has_sink, is_heard=text.sound is not None)
    return WeightMap(pooled.queries, pooled.keys, pooled.weights, queries, keys, sums, of)


def least_attended(
    text: TextReport, head: HeadReport, received: Floats, settings: DisplaySettings
) -> Iterator[ViewPart]:
    """Present the tokens that receive the least weight from other tokens, in ascending order."""
    left_out = ranked_out(text.sources, head.top.left_out)
    order = [
        int(key)
        for key in np.argsort(received, kind="stable")
        if not (np.isnan(received[key]) or left_out[key])
    ]
    listed = order[: settings.least]
    without = ""
    if head.top.left_out:
        without = f", without {' and '.join(head.top.left_out)}"
    rows = "other tokens"
    if 0 < len(text.queries) < len(text.tokens):
        rows = "the shown rows"
    caption = f"  of {len(order):,} tokens{without}; received: weight from {rows}; 1 is an even "
    caption += "share, which a token receives if queries spread their weight evenly over the keys that they see"
    if not order:
        caption = f"  no token{without} that {rows} may attend to"
    yield paragraph(headed("least attended", caption))
    if not order:
        return
    values = [float(received[key]) for key in listed]
    columns = [Column("received", column_texts(values, max(2, settings.precision)))]
    keys = token_axis(source_kind(text), text.sources, listed)
    yield Table("token", columns, keys=keys, bars=[value / max(1.0, *values) for value in values])


def _most_attended(text: TextReport, head: HeadReport, columns: Floats) -> Iterator[ViewPart]:
    """Present the heaviest sources of a whole text, with their weight and their share of all of it."""
    mass = columns.astype(np.float64)
    left_out = head.top.left_out
    total = float(mass.sum())
    excluded = ranked_out(text.sources, left_out)
    order = [
        int(key) for key in np.argsort(-np.where(excluded, -1.0, mass), kind="stable")[:HEAVIEST]
    ]
    order = [key for key in order if mass[key] > 0 and not excluded[key]]
    without = f", without {' and '.join(left_out)}" if left_out else ""
    share = 100 * float(mass[order].sum()) / (total or 1.0)
    caption = f"  of {len(mass):,} sources{without}, by total weight from all queries"
    if order:
        verb = "receives" if len(order) == 1 else "receive"
        caption += f"; the {len(order)} below {verb} {share:.{0 if share >= 10 else 1}f} %"
    else:
        caption += ": none receives any"
    yield paragraph(headed("most attended", caption))
    if order:
        parts = (100 * mass[order] / total).astype(np.float32)
        digits = digits_for(parts, 1)
        bars = []
        for n, (key, part) in enumerate(zip(order, parts.tolist(), strict=True)):
            before = range(max(0, key - NEIGHBOURS), key)[::-1]
            after = range(key + 1, key + 1 + NEIGHBOURS)
            around = (
                [token_span(text.sources, p) for p in side if p < len(text.sources)]
                for side in (before, after)
            )
            numbers = [f"{mass[key]:,.1f}", f"{digits.text(part)} %"]
            bars.append(Bar(n, float(mass[key] / mass[order[0]]), numbers, None, *around))
        yield Bars(token_axis("source", text.sources, order), ["weight", "share"], [bars])
