"""A page of a Report: the header, and a walk through its heads, with every other head in summary."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope.findings.heads import HeadReport
from attnscope.findings.run import Report, TextReport
from attnscope.studies.ablate.head_effects import with_effects_of
from attnscope.studies.explore.saved import SavedSource, SavedText
from attnscope.studies.explore.scenes import head_axes, text_scene, walk_head
from attnscope.studies.run.every_head import EveryHead, with_roles
from attnscope.studies.screens.header import notes, report_header, text_headers, unknown_words
from attnscope.studies.screens.sound import present_sound
from attnscope.studies.screens.spans import span_tables
from attnscope.views.parts import GAP, ViewPart
from attnscope.views.settings import DisplaySettings
from attnscope.views.walk.scene import RankedSources, Scene, WalkHead

if TYPE_CHECKING:
    from attnscope.views.page.walk import Walk


def present_page(report: Report, settings: DisplaySettings) -> "Iterator[ViewPart | Walk]":
    """Turn a report into the parts of a page."""
    yield from unknown_words(report.texts)
    yield from report_header(
        report.provenance, report.mask, settings, cuts=report.cuts, labelled=True
    )
    yield from text_headers(report.texts, settings)
    for text in report.texts:
        if text.sound is not None:
            yield from present_sound(text, text.sound, settings)
    if any(text.heads for text in report.texts):
        from attnscope.views.page.walk import Walk

        source = walk_source(report, settings.every_head)
        if any(text.spans is not None or text.words is not None for text in report.texts):
            from attnscope.studies.run.span_walk import with_spans
            from attnscope.studies.run.word_walk import between_words

            source = with_spans(source, report, settings.made_by, between_words)
        yield Walk(source)
    elif all(text.rollouts for text in report.texts):
        from attnscope.studies.rollout.walk import rollout_walk

        yield rollout_walk(report)
    yield from _below(report, settings)


def _below(report: Report, settings: DisplaySettings) -> Iterator[ViewPart]:
    """Yield the parts of a text that are not in its walk."""
    if any(text.rollouts for text in report.texts):
        from attnscope.studies.rollout.screen import rollout_title

        yield rollout_title(report.texts[-1].rollouts[-1:])
    for n, text in enumerate(report.texts):
        if text.mixing is not None:
            from attnscope.studies.mixing.screen import present_mixing

            yield from present_mixing(report, text, text.mixing, settings, heat=True)
        if text.spans is not None:
            number = n if len(report.texts) > 1 else None
            yield from span_tables(text, text.spans, settings, number)
        if text.generated:
            from attnscope.studies.screens.predictions import continuation

            yield from continuation(text)
        if text.predictions and not text.heads:  # a walk has them
            from attnscope.studies.screens.predictions import predictions

            yield from predictions(report, text)
        if text.attribution is not None:
            from attnscope.studies.run.attribution_screen import present_attribution

            yield from present_attribution(report, text, text.attribution, settings)
        if text.notes:
            yield GAP
            yield notes(text.notes)


def walk_source(report: Report, every_head: EveryHead | None) -> SavedSource:
    """Return a walk through a report, with a summary of every other head."""
    saved = {}
    for n, text in enumerate(report.texts):
        summary = text if every_head is None else every_head.summary.texts[n]
        saved[n, 0] = _saved(report, text, summary, every_head, n)
    return SavedSource([text.text for text in report.texts], [report.mask.used], saved)


def _saved(
    report: Report, text: TextReport, summary: TextReport, every_head: EveryHead | None, index: int
) -> SavedText:
    named_heads = {head.ref: head for head in text.heads}
    other_heads = {head.ref: head for head in summary.heads}
    layers, heads = head_axes([*text.heads.units, *summary.heads.units])
    walks = {
        (layers.index(ref.layer), heads.index(ref.head)): partial(
            _head, text, summary, named_heads.get(ref), other_heads.get(ref)
        )
        for ref in {**other_heads, **named_heads}
    }

    def scene() -> Scene:
        made = _scene(report, text, summary)
        if every_head is None:
            return made
        if every_head.cell is not None:
            query, key = every_head.cell
            places = made.queries.places[query], made.keys.places[key]
            made = replace(made, start=places[0], start_key=places[1], display="lens")
        with_effects = with_effects_of(made, text, every_head.effects_of(index))
        return with_roles(with_effects, every_head.roles[index])

    return SavedText(scene, lambda: walks)


def _scene(report: Report, text: TextReport, summary: TextReport) -> Scene:
    axes = text_scene(report, text)
    heads = [*summary.heads, *(head for head in text.heads if head.ref not in summary.heads.units)]
    every = text_scene(report, summary, heads=heads)
    if any(head.stages for head in text.heads):
        stages = set(axes.stages)
    else:
        stages = set(every.stages)
    chosen_head = next((head for head in text.heads if head.chosen), text.heads[0])
    if len(axes.queries.positions) * len(axes.keys.positions) == 1:
        axes = replace(axes, start_key=0, display="lens")
    return replace(
        axes,
        layers=every.layers,
        heads=every.heads,
        numbers=every.numbers,
        stages=[stage for stage in ("scores", "scaled", "masked", "weights") if stage in stages]
        or ["weights"],
        first=(every.layers.index(chosen_head.layer), every.heads.index(chosen_head.head)),
    )


def _head(
    text: TextReport, summary: TextReport, named_head: HeadReport | None, other: HeadReport | None
) -> WalkHead:
    """Return a head on the axes of the text: the named one, else its summary."""
    if named_head is None:
        assert other is not None
        head = walk_head(summary, other)
        # Of texts with pictures, a page holds the weights of every head, rounded: they are maps on the pictures.
        return replace(_spread(head, text, summary), exact=bool(head.stages) and not text.images)
    head = walk_head(text, named_head)
    if other is None:
        return head
    more = _spread(walk_head(summary, other), text, summary)
    if head.sources is not None and more.sources is not None:
        ranks = head.sources.places.shape[1], more.sources.places.shape[1]
        if ranks[0] >= ranks[1]:
            return head
        return replace(head, sources=more.sources)
    return replace(head, sources=more.sources, rows=more.rows)


def _spread(head: WalkHead, text: TextReport, summary: TextReport) -> WalkHead:
    """Put the rows of a summary at their positions in the text."""
    queries = text.queries or list(range(len(text.tokens)))
    if summary.queries == queries or not summary.queries:
        return head
    places = np.searchsorted(queries, summary.queries)
    rows = {name: _placed(array, places, len(queries), np.nan) for name, array in head.rows.items()}
    masked = frozenset(int(places[row]) for row in head.masked_rows)
    sources = head.sources
    if sources is not None:
        measures = {
            name: _placed(array, places, len(queries), np.nan)
            for name, array in sources.measures.items()
        }
        places_in_rows = _placed(sources.places, places, len(queries), -1)
        sources = RankedSources(sources.by, places_in_rows, measures, sources.left_out)
    return replace(head, rows=rows, masked_rows=masked, sources=sources)


def _placed(array: np.ndarray, places: np.ndarray, length: int, nothing: float) -> Any:
    spread = np.full((length, *array.shape[1:]), nothing, dtype=array.dtype)
    spread[places] = array
    return spread
