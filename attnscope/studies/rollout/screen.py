"""A measure of token to token over layers: a matrix or one row's list, and the strongest sources of every token."""

from collections.abc import Iterator

from msgspec.structs import replace

from attnscope.findings.rollout import ROLLOUT_MEASURES, TokenRollout
from attnscope.findings.run import TextReport
from attnscope.studies.run.row_list import row_list
from attnscope.studies.screens.contributors import fitted
from attnscope.studies.screens.stages import matrix_panel
from attnscope.views.axes import token_axis
from attnscope.views.numbers import digits_for
from attnscope.views.parts import GAP, SHARES, Bar, Bars, Matrices, Panel, ViewPart, paragraph
from attnscope.views.settings import DisplaySettings
from attnscope.views.spans import Span, ours


def present_rollout(
    text: TextReport, rollout: TokenRollout, settings: DisplaySettings, *, heat: bool
) -> Iterator[ViewPart]:
    """Present one matrix, or the only row as a list."""
    measure = ROLLOUT_MEASURES.get(rollout.measure)
    source = "" if measure is None else f"  {measure.meaning} ({measure.source})"
    yield paragraph((Span(f"{rollout.name} {rollout.measure}", "title"), Span(source, "dim")))
    in_list = len(text.queries) == 1 and not heat
    matrix = _matrix(text, rollout, settings, in_list=in_list)
    if in_list:
        yield from row_list([matrix], settings, f"{settings.named('--key', 'key')} selects others")
    else:
        yield GAP
        yield Matrices([matrix], heat)
    if rollout.keys.shape[1]:
        yield GAP
        yield fitted(_ranking(text, rollout, settings, compact=heat), settings)


def _matrix(text: TextReport, rollout: TokenRollout, settings: DisplaySettings, *, in_list: bool) -> Panel:
    nothing = [position in rollout.nothing for position in text.queries]
    lines, pictured = (ours(_said(text, rollout, mark, in_list=in_list)) for mark in ("0", "·"))
    axes = token_axis("query", text.tokens, text.queries), token_axis("key", text.sources, text.keys)
    # written and drawn as weights are: from 0, and 0 is exact
    panel = matrix_panel(rollout.matrix, nothing, axes, ours(SHARES), lines, settings, pictured=pictured)
    return replace(panel, name=SHARES) if in_list else panel  # the heading of its column


def _said(text: TextReport, rollout: TokenRollout, zero: str, *, in_list: bool) -> str:
    scope = "" if len(text.keys) == len(text.sources) else f" over all {len(text.sources)} tokens"
    zeros = f"; {zero} is exactly zero" if (rollout.matrix == 0).any() else ""
    after, before = f"after layer {rollout.layers[-1]}", f"before layer {rollout.layers[0]}"
    masked = "; masked: no token reaches it" if rollout.nothing else ""
    if in_list:
        return f"of each token {before} in this token {after}; all sum to 1{scope}{zeros}{masked}"
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
