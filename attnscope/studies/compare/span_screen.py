"""Weights between the spans of two sides, and their difference: spans are paired by name, whatever their order."""

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec.structs import replace

from attnscope.findings.compare import Comparison, Side
from attnscope.findings.run import TextReport
from attnscope.findings.spans import SpanReport
from attnscope.studies.screens.spans import MOST, averaged_heads, mean_weights, span_axis
from attnscope.studies.screens.stages import matrix_panel
from attnscope.views.parts import GAP, Matrices, ViewPart, paragraph
from attnscope.views.settings import DisplaySettings
from attnscope.views.spans import Span, headed, ours, untrusted


def compare_spans(
    comparison: Comparison, settings: DisplaySettings, *, heat: bool = False
) -> Iterator[ViewPart]:
    """Present the span matrices of every side beside the first's; nothing if a side has none."""
    first_side, *other_sides = comparison.sides
    for side in other_sides:
        for text, other in zip(first_side.report.texts, side.report.texts, strict=False):
            if text.spans is not None and other.spans is not None:
                of_heads = comparison.axis in ("layer", "head")
                yield from _compare(
                    first_side, side, (text, other), settings, heat=heat, of_heads=of_heads
                )


def _compare(
    first_side: Side,
    second_side: Side,
    reports: tuple[TextReport, TextReport],
    settings: DisplaySettings,
    *,
    heat: bool,
    of_heads: bool,
) -> Iterator[ViewPart]:
    """Present the spans that two texts share by name.

    `of_heads`: whether the sides differ by their heads; otherwise the first one's selection holds for both.
    """
    spans = [text.spans for text in reports if text.spans is not None]
    names = [[*report.text.names] for report in spans]
    shared = [name for name in names[0] if name in names[1]]
    if not shared:
        return
    places = [[own.index(name) for name in shared] for own in names]
    averaged = [
        averaged_heads(report) for report in of_compared_heads(reports, spans, of_heads=of_heads)
    ]
    before, after = (
        mean_weights(report, heads)[0][np.ix_(at, at)].astype(np.float32)
        for report, (heads, _), at in zip(spans, averaged, places, strict=True)
    )
    moved = np.abs(np.nan_to_num(after) - np.nan_to_num(before)).sum(0) + np.abs(
        after - before
    ).sum(1)
    kept_indices = sorted(np.argsort(-np.nan_to_num(moved), kind="stable")[:MOST].tolist())
    shown_names = [shared[n] for n in kept_indices]
    outside = [spans[0].text.outside[places[0][n]] for n in kept_indices]
    before, after = (matrix[np.ix_(kept_indices, kept_indices)] for matrix in (before, after))
    whose = " and ".join(dict.fromkeys(name for _, name in averaged))
    caption = f"  paired by name; {whose}: weight from the row's tokens (averaged) to the column's tokens (summed)"
    left_out = ""
    if len(shown_names) < len(shared):
        left_out = f"; the {MOST} of {len(shared)} whose weights moved most"
    yield GAP
    yield paragraph(headed("spans", f"{caption}{left_out}", "title"))
    for side, own, other in ((first_side, names[0], names[1]), (second_side, names[1], names[0])):
        if alone := [name for name in own if name not in other]:
            pieces = untrusted(", ".join(alone))
            yield paragraph(
                (
                    *ours("only in ", "caption"),
                    *untrusted(side.label),
                    *ours(": ", "caption"),
                    *pieces,
                )
            )
    axes = span_axis("query", shown_names, outside), span_axis("key", shown_names, outside)
    difference = (*untrusted(second_side.label), Span(" − "), *untrusted(first_side.label))
    panels = []
    for name, title, matrix in (
        ("weights", untrusted(first_side.label), before),
        ("weights", untrusted(second_side.label), after),
        ("difference", difference, after - before),
    ):
        panels.append(
            matrix_panel(
                matrix,
                [bool(np.isnan(row).all()) for row in matrix],
                axes,
                title,
                ours(name),
                settings,
                name=name,
            )
        )
    yield Matrices(panels, heat)


def of_compared_heads(
    texts: Sequence[TextReport], spans: Sequence[SpanReport], *, of_heads: bool
) -> list[SpanReport]:
    """Return the spans of every side with the heads that are averaged: those that it shows, or the first one's.

    `of_heads`: whether the sides differ by their heads.
    """
    if not of_heads:
        return [replace(report, selected=spans[0].selected) for report in spans]
    return [_of_shown_heads(text, report) for text, report in zip(texts, spans, strict=True)]


def _of_shown_heads(text: TextReport, spans: SpanReport) -> SpanReport:
    """Return the spans of the heads that a side shows; of all heads if these are means."""
    shown_heads = [(head.layer, head.head) for head in text.heads]
    numbered = [
        (layer, head)
        for layer, head in shown_heads
        if isinstance(layer, int) and isinstance(head, int)
    ]
    selected = spans.selected
    if len(numbered) == len(shown_heads):
        selected = numbered
    return replace(spans, selected=selected)
