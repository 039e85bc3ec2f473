"""How a given output of attention differs from the computed one: a line, and a picture of heads if it does."""

from collections.abc import Iterator

from attnscope.findings.given_output import GivenOutput
from attnscope.findings.run import TextReport
from attnscope.studies.heads.screen import head_grid, strongest
from attnscope.studies.screens.header import notes
from attnscope.studies.study import Listing
from attnscope.views.numbers import digits_for
from attnscope.views.parts import GAP, Facts, ViewPart, paragraph
from attnscope.views.scales import Scale
from attnscope.views.settings import DisplaySettings
from attnscope.views.spans import Span, Spans, ours, token_span

_LISTED = 4  # other rules that are named


def present_given_output(text: TextReport, given: GivenOutput, settings: DisplaySettings) -> Iterator[ViewPart]:
    """Turn the comparison of a given output into parts."""
    if given.agrees:
        agreement = f"equals the computed one up to {given.largest:.1g} (rounding explains {given.limit:.1g})"
        yield Facts([("output", (Span("the given output ", "good"), *ours(agreement)))], remark=False)
        return
    place = f"by up to {given.largest:.2g} (L{given.layer}H{given.head}, query {given.query} "
    numbers = f", dimension {given.dimension}; given {given.given:.6g}, computed {given.computed:.6g})"
    since = f", from layer {given.first_layer} on" if len(given.layers) > 1 else ""
    rounding = f"{numbers}{since}; rounding explains {given.limit:.1g}"
    differs = (
        Span("the given output differs ", "bad"),
        Span(place),
        token_span(text.tokens, given.query),
        Span(rounding),
    )
    lines: list[tuple[str, Spans]] = [("output", differs)]
    if given.explained_by is not None:
        best = given.tried[0]
        lines.append(("", ours(f"it is that of another rule: {best.rule} (difference {best.difference:.1g})", "bold")))
    elif given.tried:
        tried = ", ".join(f"{rule.rule} {rule.difference:.2g}" for rule in given.tried[:_LISTED])
        lines.append(("tried", ours(f"no other rule explains it: {tried}")))
    yield Facts(lines, remark=False)
    yield GAP
    yield paragraph((Span("output", "title"), *ours("  largest |given − computed| of every head")))
    values = given.differences
    digits = digits_for(values, max(2, settings.precision))
    scale = Scale(0.0, float(values.max(initial=0.0)), False)
    yield head_grid(values, [[digits.text(value) for value in row] for row in values.tolist()], scale, digits)
    if given.layers != list(range(len(given.layers))):
        yield notes([f"rows are layers {', '.join(map(str, given.layers))}"])
    yield GAP
    yield strongest(values, None, Listing(), settings)
