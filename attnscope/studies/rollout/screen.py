"""A measure of token to token over layers: a matrix, and the strongest sources of every token."""

from collections.abc import Iterator

from attnscope.findings.rollout import ROLLOUT_MEASURES, TokenRollout
from attnscope.findings.run import TextReport
from attnscope.studies.screens.contributors import fitted
from attnscope.studies.screens.stages import weight_panel
from attnscope.views.axes import token_axis
from attnscope.views.numbers import digits_for
from attnscope.views.parts import GAP, SHARES, Bar, Bars, HeatGrid, Matrices, Panel, ViewPart, paragraph
from attnscope.views.settings import DisplaySettings
from attnscope.views.spans import Span, ours


def present_rollout(
    text: TextReport, rollout: TokenRollout, settings: DisplaySettings, *, heat: bool
) -> Iterator[ViewPart]:
    """Present one matrix."""
    measure = ROLLOUT_MEASURES.get(rollout.measure)
    source = "" if measure is None else f"  {measure.meaning} ({measure.source})"
    yield paragraph((Span(f"{rollout.name} {rollout.measure}", "title"), Span(source, "dim")))
    matrix = _matrix(text, rollout, settings)
    yield GAP
    yield HeatGrid([matrix]) if heat else Matrices([matrix])
    if rollout.keys.shape[1]:
        yield GAP
        yield fitted(_ranking(text, rollout, settings, compact=heat), settings)


def _matrix(text: TextReport, rollout: TokenRollout, settings: DisplaySettings) -> Panel:
    nothing = [position in rollout.nothing for position in text.queries]
    lines, pictured = (ours(_said(text, rollout, mark)) for mark in ("0", "·"))
    axes = token_axis("query", text.tokens, text.queries), token_axis("key", text.sources, text.keys)
    # written and drawn as weights are: from 0, and 0 is exact
    return weight_panel(rollout.matrix, nothing, axes, ours(SHARES), lines, settings, pictured=pictured)


def _said(text: TextReport, rollout: TokenRollout, zero: str) -> str:
    scope = "" if len(text.keys) == len(text.sources) else f" over all {len(text.sources)} tokens"
    zeros = f"; {zero} is exactly zero" if (rollout.matrix == 0).any() else ""
    after, before = f"after layer {rollout.layers[-1]}", f"before layer {rollout.layers[0]}"
    masked = "; masked: no token reaches it" if rollout.nothing else ""
    return f"of each token {before} (column) in each token {after} (row); each row sums to 1{scope}{zeros}{masked}"


def _ranking(text: TextReport, rollout: TokenRollout, settings: DisplaySettings, *, compact: bool) -> Bars:
    digits = digits_for(rollout.values, settings.precision + 1)

    def sources(r: int) -> list[Bar]:
        ranked = zip(rollout.keys[r].tolist(), rollout.values[r].tolist(), strict=True)
        return [Bar(key, value, [digits.text(value)]) for key, value in ranked if key >= 0]

    rows = [None if position in rollout.nothing else sources(r) for r, position in enumerate(text.queries)]
    queries, keys = token_axis("query", text.tokens, text.queries), token_axis("key", text.sources)
    left_out = f", without {' and '.join(rollout.left_out)}" if rollout.left_out else ""
    return Bars(
        title=(Span("strongest sources", "bold"), Span(f"  share of each token{left_out}", "dim")),
        queries=queries,
        sources=keys,
        measures=["share"],
        rows=rows,
        compact=compact,
    )
