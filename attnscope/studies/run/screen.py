"""A Report: header, then per text, layer and head the matrices and the top contributors."""

from collections.abc import Iterator, Sequence

import numpy as np

from attnscope.findings.arrays import Matrix
from attnscope.findings.heads import HeadReport, Pooled
from attnscope.findings.narrowing import narrow_rows
from attnscope.findings.run import Report, TextReport
from attnscope.studies.run.row_list import row_list
from attnscope.studies.screens.contributors import brief, contributors, fitted, generated
from attnscope.studies.screens.header import (
    head_header,
    head_name,
    more_of_report,
    more_options,
    notes,
    report_header,
    text_headers,
    token_ids,
    unknown_words,
)
from attnscope.studies.screens.overview import least_attended, overview, weight_map
from attnscope.studies.screens.spans import present_spans, present_strips
from attnscope.studies.screens.stages import stage_matrices, text_axes
from attnscope.studies.screens.word_matrix import word_axes, word_contributors, word_matrix
from attnscope.views.numbers import Digits
from attnscope.views.parts import GAP, FirstFitting, Matrices, Panel, ViewPart, paragraph
from attnscope.views.scales import LogScale, Scale, scale_for
from attnscope.views.settings import DisplaySettings
from attnscope.views.spans import Span, ours

_MOST_EACH = 8  # heads of several layers that are drawn one below another with all stages
_MOST_OF_LAYER = 3  # heads of one layer that are
_MOST_RANKED = 24  # rows whose contributors are listed below maps on pictures
_UNLIKE = 3  # heads of a sheet of thumbnails that are named
_STRONGEST = 5  # heads of a sheet of a few keys that are named
_SHOWN = 0.005  # what would show as 0.00 is nothing
_MOST_LINES = 200  # lines of numbers that are printed for many heads


def present_report(report: Report, settings: DisplaySettings) -> Iterator[ViewPart]:
    """Turn a report into parts."""
    heat = settings.format == "heat"
    small = [
        (heat or not text.queries) and are_thumbnails(text, brief=heat and settings.brief)
        for text in report.texts
    ]
    if settings.streamed:
        yield GAP
    yield from unknown_words(report.texts)
    yield from report_header(
        report.provenance, report.mask, settings, cuts=report.cuts, labelled=True
    )
    headers = text_headers(report.texts, settings)
    for text, header, thumbnails in zip(report.texts, headers, small, strict=True):
        yield header
        if settings.ids:
            yield token_ids(text)
        if text.given_output is not None:
            from attnscope.studies.run.given_output_screen import present_given_output

            yield from present_given_output(text, text.given_output, settings)
        if text.spans is not None:
            yield from present_spans(text, text.spans, settings, heat=heat)
        if text.rollouts:
            from attnscope.studies.rollout.screen import present_rollouts

            yield from present_rollouts(text, settings, heat=heat)
        if text.mixing is not None:
            from attnscope.studies.mixing.screen import present_mixing

            yield from present_mixing(report, text, text.mixing, settings, heat=heat)
        if text.sound is not None:
            from attnscope.studies.screens.sound import present_sound

            yield from present_sound(text, text.sound, settings)
        if text.generated or text.attribution is not None:
            yield from _model_output(report, text, settings)
        if thumbnails:
            yield GAP
            yield from _thumbnails(text, settings)
        else:
            yield from _present_heads(report, text, settings, heat)
        if text.predictions:  # only what is shown is imported
            from attnscope.studies.screens.predictions import predictions

            yield from predictions(report, text)
        yield GAP
        if text.notes:
            yield notes(text.notes)
            if text is not report.texts[-1]:
                yield GAP
    more = more_of_report(report, settings, thumbnails=any(small))
    yield from more_options([*more, "--json (every digit)"], settings)


def _model_output(
    report: Report, text: TextReport, settings: DisplaySettings
) -> Iterator[ViewPart]:
    """Present the generated tokens, and the contribution of each part of the model to a logit."""
    if text.generated:
        from attnscope.studies.screens.predictions import continuation

        if not settings.streamed:
            yield from continuation(text)
        if text.spans is not None:
            yield from present_strips(text, text.spans, settings)
    if text.attribution is not None:
        from attnscope.studies.run.attribution_screen import present_attribution

        yield from present_attribution(report, text, text.attribution, settings)


def _present_heads(
    report: Report, text: TextReport, settings: DisplaySettings, heat: bool
) -> Iterator[ViewPart]:
    """Present all heads; beside an attributed logit, only one head unless its stages are named."""
    # beside spans, which average all heads, only those that the user selected are shown
    heads = [head for head in text.heads if text.spans is None or head.chosen is None]
    if text.attribution is not None and settings.brief and len(heads) > 1:
        option = settings.named("--stage weights", "stages='weights'", " ({})")
        yield GAP
        yield paragraph(
            ours(f"not shown: the weights of {len(heads):,} heads{option}", "caption"),
            remark=True,
        )
        return
    if (
        settings.brief
        and are_thumbnails(text)
        and text.images
        and all(_has_maps(text, head) for head in heads)
    ):
        from attnscope.studies.screens.pictures import present_all_maps

        yield GAP
        yield from present_all_maps(text, settings)
        return
    each = [
        part for head in heads for part in (GAP, *_present_head(report, text, head, settings, heat))
    ]
    if heat or not settings.brief or not are_thumbnails(text):
        yield from each
        return
    option = settings.named(
        "--layer L --head H, or --stage weights", "layer, head, stages", " ({})"
    )
    omitted = ours(
        f"not shown: numbers and contributors of {len(heads):,} heads{option}", "caption"
    )
    yield FirstFitting(
        [each],
        [GAP, *_thumbnails(text, settings), paragraph(omitted, remark=True)],
        lines=_MOST_LINES,
    )


def _present_head(
    report: Report, text: TextReport, head: HeadReport, settings: DisplaySettings, heat: bool
) -> Iterator[ViewPart]:
    yield from head_header(report, text, head, settings)
    if head.received is not None:
        yield GAP
        yield from least_attended(text, head, head.received, settings)
        if settings.brief:
            return
    on_pictures = bool(text.images) and _has_maps(text, head)
    if on_pictures:
        from attnscope.studies.screens.pictures import present_maps

        yield GAP
        yield from present_maps(text, head, settings)
    elif head.pooled is not None:
        yield GAP
        yield from overview(text, head)
    if not text.queries:
        return
    if head.words is not None:
        yield from _between_words(text, head, settings, heat)
    elif on_pictures and (heat or settings.brief):
        yield from _sources_of_drawn_rows(text, head, settings, heat)
    else:
        yield from _between_tokens(report, text, head, settings, heat)


def _between_words(
    text: TextReport, head: HeadReport, settings: DisplaySettings, heat: bool
) -> Iterator[ViewPart]:
    """Present the weights between words, and the strongest sources of each."""
    yield GAP
    yield Matrices([word_matrix(text, head, settings)], heat)
    if head.top.keys.shape[1]:
        yield GAP
        yield fitted(word_contributors(text, head, settings, compact=heat), settings)


def _sources_of_drawn_rows(
    text: TextReport, head: HeadReport, settings: DisplaySettings, heat: bool
) -> Iterator[ViewPart]:
    """Present the strongest sources of the rows that are drawn on pictures, unless they are many."""
    from attnscope.studies.screens.pictures import drawn_rows

    if not head.top.keys.shape[1]:
        return
    drawn_text = narrow_rows(text, drawn_rows(text))
    drawn_head = drawn_text.heads[text.heads.units.index(head.ref)]
    if len(drawn_text.queries) <= _MOST_RANKED:
        yield GAP
        yield brief(contributors(drawn_text, drawn_head, settings, compact=heat))


def _between_tokens(
    report: Report, text: TextReport, head: HeadReport, settings: DisplaySettings, heat: bool
) -> Iterator[ViewPart]:
    """Present the stages, and the strongest sources of each row, in the longest form that fits a screen."""
    stages = stage_matrices(text, head, settings, are_given=report.provenance.family == "weights")
    in_row = [stage for stage in stages if stage.name != "output"]
    if len(text.queries) == 1 and not heat and any(stage.name == "weights" for stage in in_row):
        names = ",".join(stage.name for stage in in_row)
        others = settings.named("--stage", "stages", f"; {{}} {names} lists all")
        yield from row_list(in_row, settings, others, head)
        stages = [stage for stage in stages if stage.name == "output"]
    ranking = None
    if head.top.keys.shape[1]:
        ranking = contributors(text, head, settings, compact=heat)
    if ranking is not None and text.generated and settings.brief and _all_rows(text):
        yield from generated(text, ranking)
        yield GAP
        omitted = [*(stage.name for stage in stages), "the contributors of the other rows"]
        yield from _not_shown(", ".join(omitted), stages, settings)
        return
    matrices = _forms_of_matrices(stages, settings, heat)
    rankings: list[list[ViewPart]] = [[]]
    if ranking is not None:
        rankings = [[GAP, ranking]]
        if settings.brief:
            rankings.append([GAP, brief(ranking)])
    forms = [[*matrix_set, *ranking_set] for matrix_set in matrices for ranking_set in rankings]
    if len(forms) == 1:
        yield from forms[0]
    else:
        picture = None
        if settings.brief and not heat:
            picture = _drawn(text, head, stages, settings, rankings[-1])
        yield FirstFitting(forms, picture)
    if ranking is not None and text.generated:
        yield from generated(text, ranking)


def _forms_of_matrices(
    stages: list[Panel], settings: DisplaySettings, heat: bool
) -> list[list[ViewPart]]:
    """Return the matrices of all stages, and unless the user chose these, those of the weights alone."""
    if not stages:
        return [[]]
    forms: list[list[ViewPart]] = [[GAP, Matrices(stages, heat)]]
    weights = [stage for stage in stages if stage.name == "weights"]
    others = ", ".join(stage.name for stage in stages if stage.name != "weights")
    if settings.brief and not heat and weights and others:
        forms.append([GAP, Matrices(weights), *_not_shown(others, stages, settings)])
    return forms


def _has_maps(text: TextReport, head: HeadReport) -> bool:
    """Tell whether rows of a head can be drawn on the pictures of its text."""
    if head.pooled is not None:
        return head.columns is not None
    return text.context is None and len(text.keys) == len(text.sources) and "weights" in head.stages


def _all_rows(text: TextReport) -> bool:
    """Tell whether all rows are shown, or those before generated tokens, because the user selected none."""
    predicting = [prediction.position for prediction in text.generated]
    return text.queries in (list(range(len(text.tokens))), predicting[-len(text.queries) :])


def _drawn(
    text: TextReport,
    head: HeadReport,
    stages: list[Panel],
    settings: DisplaySettings,
    ranking: list[ViewPart],
) -> list[ViewPart] | None:
    """Return the map of a text whose numbers would take several screens, and a ranking; None if it would not hold all."""
    sizes = len(text.tokens), len(text.sources)
    if (
        "weights" not in head.stages
        or head.stages["weights"].shape != sizes
        or head.rows.sink is not None
    ):
        return None
    queries, keys = (list(range(size + 1)) for size in sizes)
    pooled = Pooled(queries, keys, head.stages["weights"])
    omitted = ", ".join(
        [*(stage.name for stage in stages if stage.name != "weights"), "the weights as numbers"]
    )
    return [GAP, weight_map(text, pooled), *_not_shown(omitted, stages, settings), *ranking]


def _not_shown(what: str, stages: list[Panel], settings: DisplaySettings) -> list[ViewPart]:
    """State what is left out, and which options show it."""
    names = ",".join(stage.name for stage in stages)
    option = settings.named("--stage", "stages", f" ({{}} {names})")
    return [paragraph(ours(f"not shown: {what}{option}", "caption"), remark=True)]


def _are_maps(text: TextReport) -> bool:
    """Tell whether a map replaces the matrices of every head."""
    return not text.queries and all(head.pooled is not None for head in text.heads)


def are_thumbnails(text: TextReport, *, brief: bool = False) -> bool:
    """Tell whether a text has so many heads that they are drawn side by side; two suffice if no stages were named."""
    layers = {head.layer for head in text.heads}
    numbered = all(
        isinstance(index, int) for head in text.heads for index in (head.layer, head.head)
    )
    are_drawn = all("weights" in head.stages or head.pooled is not None for head in text.heads)
    if brief:
        limit = 1
    elif len(layers) > 1 and not _are_maps(text):
        limit = _MOST_EACH
    else:
        limit = _MOST_OF_LAYER
    return numbered and are_drawn and len(text.heads) > limit


def _thumbnails(text: TextReport, settings: DisplaySettings) -> Iterator[ViewPart]:
    """Yield the weights of every head, on one scale, with the queries and keys of the first, or on the pictures.

    The scale is logarithmic for maps of long texts, whose cells are much smaller than 1, as it is for the map of one
    head.
    """
    if text.images and all(_has_maps(text, head) for head in text.heads):
        from attnscope.studies.screens.pictures import present_all_maps

        yield from present_all_maps(text, settings)
        return
    if text.words is None:
        axes = text_axes(text)
    else:
        axes = word_axes(text, text.words)
    weights = [_weights(head) for head in text.heads]
    sinks = None if settings.sinks or _are_maps(text) else axes[1].sinks
    all_rows = np.concatenate(weights)
    scale: Scale | LogScale
    if _are_maps(text):
        scale = LogScale.of(all_rows)
    else:
        scale = scale_for("weights", all_rows, settings.ramp, sinks)
    panel_arguments = *axes, scale, Digits(2)
    titles = [ours(head_name(head)) for head in text.heads]
    panels = [
        Panel("weights", title, matrix, [], *panel_arguments)
        for title, matrix in zip(titles, weights, strict=True)
    ]
    places = [(int(head.layer), int(head.head)) for head in text.heads]
    of_keys = len(text.keys) < len(text.context or text.tokens) and not _are_maps(text)
    if of_keys:
        name = "most weight on these keys"
        meaning = "" if len(weights[0]) == 1 else "  mean of the rows"
        named = _strongest(weights)
    else:
        name = "least like the mean of all heads"
        meaning = "  share of a row's weight that is elsewhere"
        named = _least_alike(weights)
    yield Matrices(panels, True, places, [index for index, _ in named])
    if named:
        items = [f"{head_name(text.heads[index])} {share:.2f}" for index, share in named]
        listed = Span(f"  {' · '.join(items)}")
        yield paragraph((Span(name, "bold"), listed, Span(meaning, "caption")))


def _strongest(weights: Sequence[Matrix]) -> list[tuple[int, float]]:
    """Return the heads whose rows give most to the shown keys, each with the sum of a row, averaged over rows."""
    sums = np.array([np.nan_to_num(matrix).sum(axis=-1).mean() for matrix in weights])
    order = np.argsort(-sums, kind="stable")[:_STRONGEST].tolist()
    return [(index, float(sums[index])) for index in order if sums[index] >= _SHOWN]


def _least_alike(weights: Sequence[Matrix]) -> list[tuple[int, float]]:
    """Return the heads that differ most from the mean of all, each with half the sum of differences of a row."""
    if len(weights) <= _UNLIKE:
        return []
    mean = np.mean([np.nan_to_num(matrix) for matrix in weights], axis=0)
    shares = [
        float(np.abs(np.nan_to_num(matrix) - mean).sum(axis=-1).mean()) / 2 for matrix in weights
    ]
    order = np.argsort(-np.array(shares), kind="stable")[:_UNLIKE].tolist()
    return [(index, shares[index]) for index in order if shares[index] >= _SHOWN]


def _weights(head: HeadReport) -> Matrix:
    """Return the weights to show: of the shown rows and columns, or of a map."""
    if head.words is not None:
        return head.words.weights
    if "weights" in head.stages and head.stages["weights"].size:
        return head.stages["weights"]
    assert head.pooled is not None
    return head.pooled.weights
