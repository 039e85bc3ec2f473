"""A measure of token to token over layers: matrices or one row's list, and the strongest sources of every token."""

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec.structs import replace

from attnscope.findings.rollout import COLLAPSED, ROLLOUT_MEASURES, TokenRollout
from attnscope.findings.run import TextReport
from attnscope.studies.run.row_list import row_list
from attnscope.studies.screens.contributors import fitted
from attnscope.studies.screens.stages import in_percent, matrix_panel, text_axes, weight_digits
from attnscope.views.axes import Axis, token_axis
from attnscope.views.parts import GAP, SHARES, Bar, Bars, Matrices, Panel, ViewPart, paragraph
from attnscope.views.settings import DisplaySettings
from attnscope.views.spans import Span, headed, ours, token_span


def present_rollouts(
    text: TextReport, settings: DisplaySettings, *, heat: bool
) -> Iterator[ViewPart]:
    """Present each matrix, or the only row as a list, in which each layer that has a matrix is a column."""
    rollouts = text.rollouts
    queries = token_axis("query", text.tokens, text.queries)
    if len(text.queries) == 1 and not heat:
        yield from (GAP, rollout_title(rollouts))
        yield from _collapse(text, rollouts[-1], settings)
        yield from row_list(
            _row(text, settings), settings, settings.named("--key", "key", "; {} selects others")
        )
        if len(rollouts) > 1:
            names = [rollout.name for rollout in rollouts]
            queries = Axis("layer", range(len(names)), [], [False] * len(names), len(names), names)
        yield from _ranking(text, rollouts, queries, settings, compact=False)
        return
    for rollout in rollouts:
        matrix = _matrix(text, rollout, settings)
        yield from (GAP, rollout_title([rollout]))
        yield from _collapse(text, rollout, settings)
        yield from (GAP, Matrices([matrix], heat))
        yield from _ranking(text, [rollout], queries, settings, compact=heat)


def rollout_title(rollouts: Sequence[TokenRollout]) -> ViewPart:
    """Name the measure and its layers, with its definition and source."""
    first_rollout = rollouts[0]
    last_rollout = rollouts[-1]
    if first_rollout is last_rollout:
        name = first_rollout.name
    else:
        name = f"{first_rollout.name} to {last_rollout.name}"
    measure = ROLLOUT_MEASURES.get(first_rollout.measure)
    source = "" if measure is None else f"  {measure.meaning} ({measure.source})"
    return paragraph(headed(f"{name} {first_rollout.measure}", source, "title"))


def _collapse(
    text: TextReport, rollout: TokenRollout, settings: DisplaySettings
) -> Iterator[ViewPart]:
    """Say that nearly all of every token stems from one token, if that is so."""
    collapse = rollout.collapse
    if collapse is None:
        return
    source = Span(f"{collapse.source} ", "caption"), token_span(text.sources, collapse.source)
    begin = f"  from layer {collapse.layer} on, at least {COLLAPSED:g} of every token stems from "
    last = f", and {collapse.share:.2f} of the last one after layer {rollout.layers[-1]}"
    said = f"{last}: the product hardly tells tokens apart"
    option = "--measure value-zeroing"
    argument = "measure value-zeroing"
    hint = "; {} shows each layer by itself"
    if before := rollout.before_collapse:
        option = f"--layer {before} stops before that, {option}"
        argument = f"layer {before} stops before that, {argument}"
    yield paragraph(
        (
            Span("collapsed", "bold"),
            Span(begin, "caption"),
            *source,
            Span(f"{said}{settings.named(option, argument, hint)}", "caption"),
        )
    )


def _matrix(text: TextReport, rollout: TokenRollout, settings: DisplaySettings) -> Panel:
    nothing = [position in rollout.nothing for position in text.queries]
    of = f"of each token before layer {rollout.layers[0]} (column) in each token after layer {rollout.layers[-1]} (row)"
    caption = ours(f"{of}; each row {_sums(text, [rollout], settings)}")
    # written and drawn as weights are: from 0, and 0 is exact
    panel_arguments = text_axes(text), ours(SHARES), caption, settings
    return matrix_panel(rollout.matrix, nothing, *panel_arguments)


def _row(text: TextReport, settings: DisplaySettings) -> list[Panel]:
    """Return the only row of every matrix: one column of a list each."""
    rollouts = text.rollouts
    query = text.queries[0]
    if len(rollouts) == 1:
        layers = rollouts[0].layers
        of = f"of each token before layer {layers[0]} in this token after layer {layers[-1]}; all"
        names = [SHARES]
    else:
        of = "of each token before a layer in this token after it; each layer's"
        names = [rollout.name for rollout in rollouts]
    lines = ours(f"{of} {_sums(text, rollouts, settings).replace('sums', 'sum')}")
    axes = (
        token_axis("query", text.tokens, [query] * len(rollouts)),
        token_axis("key", text.sources, text.keys),
    )
    matrix = np.concatenate([rollout.matrix for rollout in rollouts])
    nothing = [query in rollout.nothing for rollout in rollouts]
    panel = matrix_panel(matrix, nothing, axes, ours(SHARES), lines, settings)
    *others, last = (
        replace(panel, name=name, matrix=panel.matrix[n : n + 1], texts=panel.texts[n : n + 1])
        for n, name in enumerate(names)
    )
    return [*(replace(other, arithmetic=()) for other in others), last]


def _sums(text: TextReport, rollouts: Sequence[TokenRollout], settings: DisplaySettings) -> str:
    """State the sum of a row, and the meaning of cells without a share."""
    scope = ""
    if len(text.keys) != len(text.sources):
        scope = f" over all {len(text.sources)} tokens"
    masked = ""
    if any(rollout.nothing for rollout in rollouts):
        masked = "; masked: no token reaches it"
    return f"sums to 1{in_percent(settings)}{scope}{masked}"


def _ranking(
    text: TextReport,
    rollouts: Sequence[TokenRollout],
    queries: Axis,
    settings: DisplaySettings,
    *,
    compact: bool,
) -> Iterator[ViewPart]:
    """Rank the sources of every row of these matrices, which are one below the other."""
    if not rollouts[0].keys.shape[1]:
        return
    digits = weight_digits(
        np.concatenate([r.values for r in rollouts]), settings.precision + 1, settings
    )

    def sources(rollout: TokenRollout, r: int) -> list[Bar]:
        ranked = zip(rollout.keys[r].tolist(), rollout.values[r].tolist(), strict=True)
        return [Bar(key, value, [digits.text(value)]) for key, value in ranked if key >= 0]

    rows = [
        None if position in rollout.nothing else sources(rollout, r)
        for rollout in rollouts
        for r, position in enumerate(text.queries)
    ]
    left_out = ""
    if rollouts[0].left_out:
        left_out = f", without {' and '.join(rollouts[0].left_out)}"
    ranking = Bars(
        title=headed("strongest sources", f"  share of each token{left_out}"),
        queries=queries,
        sources=token_axis("key", text.sources),
        measures=["share %" if settings.percent else "share"],
        rows=rows,
        compact=compact,
    )
    yield GAP
    yield fitted(ranking, settings)
