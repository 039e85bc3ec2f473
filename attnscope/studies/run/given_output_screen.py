"""How a given output of attention differs from the computed one: a line, and a picture of heads if it does."""

from collections.abc import Iterator

from attnscope.findings.given_output import GivenOutput
from attnscope.findings.run import TextReport
from attnscope.studies.heads.screen import head_grid, strongest
from attnscope.studies.screens.header import notes
from attnscope.views.numbers import digits_for
from attnscope.views.parts import GAP, Facts, ViewPart, paragraph
from attnscope.views.scales import Scale
from attnscope.views.settings import DisplaySettings, Listing
from attnscope.views.spans import Span, Spans, ours, token_span

_LISTED = 4  # other rules that are named


def present_given_output(
    text: TextReport, given_output: GivenOutput, settings: DisplaySettings
) -> Iterator[ViewPart]:
    """Turn the comparison of a given output into parts."""
    if given_output.agrees:
        agreement = f"equals the computed one up to {given_output.largest:.1g} (rounding explains {given_output.limit:.1g})"
        yield Facts(
            [("output", (Span("the given output ", "good"), *ours(agreement)))], remark=False
        )
        return
    gap_text = f"by up to {given_output.largest:.2g} (L{given_output.layer}H{given_output.head}, query {given_output.query} "
    numbers = f", dimension {given_output.dimension}; given {given_output.given:.6g}, computed {given_output.computed:.6g})"
    since = ""
    if len(given_output.layers) > 1:
        since = f", from layer {given_output.first_layer} on"
    rounding = f"{numbers}{since}; rounding explains {given_output.limit:.1g}"
    differs = (
        Span("the given output differs ", "bad"),
        Span(gap_text),
        token_span(text.tokens, given_output.query),
        Span(rounding),
    )
    lines: list[tuple[str, Spans]] = [("output", differs)]
    if given_output.explained_by is not None:
        best = given_output.tried[0]
        lines.append(
            (
                "",
                ours(
                    f"it is that of another rule: {best.rule} (difference {best.difference:.1g})",
                    "bold",
                ),
            )
        )
    elif given_output.tried:
        tried = ", ".join(
            f"{rule.rule} {rule.difference:.2g}" for rule in given_output.tried[:_LISTED]
        )
        lines.append(("tried", ours(f"no other rule explains it: {tried}")))
    yield Facts(lines, remark=False)
    yield GAP
    yield paragraph((Span("output", "title"), *ours("  largest |given − computed| of every head")))
    values = given_output.differences
    digits = digits_for(values, max(2, settings.precision))
    scale = Scale(0.0, float(values.max(initial=0.0)), False)
    yield head_grid(
        values, [[digits.text(value) for value in row] for row in values.tolist()], scale, digits
    )
    if given_output.layers != list(range(len(given_output.layers))):
        yield notes([f"rows are layers {', '.join(map(str, given_output.layers))}"])
    yield GAP
    yield strongest(values, None, Listing(), settings)
