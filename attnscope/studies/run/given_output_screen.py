"""How a given output of attention differs from the computed one: a line, and a picture of heads if it does."""

from collections.abc import Iterator

from attnscope.findings.given_output import GivenOutput
from attnscope.findings.run import TextReport
from attnscope.studies.heads.screen import Listing, head_grid, strongest
from attnscope.studies.screens.header import notes
from attnscope.views.numbers import digits_for
from attnscope.views.parts import GAP, Facts, ViewPart, paragraph
from attnscope.views.scales import Scale
from attnscope.views.settings import DisplaySettings
from attnscope.views.spans import Span, Spans, ours, token_span

_LISTED = 4  # other rules that are named


def present_given_output(text: TextReport, found: GivenOutput, settings: DisplaySettings) -> Iterator[ViewPart]:
    """Turn the comparison of a given output into parts."""
    place: Spans = (
        *ours(f"L{found.layer}H{found.head}, query {found.query} "),
        token_span(text.tokens, found.query),
        *ours(f", dimension {found.dimension}"),
    )
    if found.agrees:
        agreement = f"equals the computed one up to {found.largest:.1g} (rounding explains {found.limit:.1g})"
        yield Facts([("output", (Span("the given output ", "good"), *ours(agreement)))], remark=False)
        return
    numbers = f"; given {found.given:.6g}, computed {found.computed:.6g})"
    since = f", from layer {found.first_layer} on" if len(found.layers) > 1 else ""
    lines: list[tuple[str, Spans]] = [
        (
            "output",
            (
                Span("the given output differs ", "bad"),
                *ours(f"by up to {found.largest:.2g} ("),
                *place,
                *ours(f"{numbers}{since}; rounding explains {found.limit:.1g}"),
            ),
        )
    ]
    if found.explained_by is not None:
        best = found.tried[0]
        lines.append(("", ours(f"it is that of another rule: {best.rule} (difference {best.difference:.1g})", "bold")))
    elif found.tried:
        tried = ", ".join(f"{each.rule} {each.difference:.2g}" for each in found.tried[:_LISTED])
        lines.append(("tried", ours(f"no other rule explains it: {tried}")))
    yield Facts(lines, remark=False)
    yield GAP
    yield paragraph((Span("output", "title"), *ours("  largest |given − computed| of every head")))
    values = found.differences
    digits = digits_for(values, max(2, settings.precision))
    scale = Scale(0.0, float(values.max(initial=0.0)), False)
    yield head_grid(values, [[digits.text(value) for value in row] for row in values.tolist()], scale, digits)
    if found.layers != list(range(len(found.layers))):
        yield notes([f"rows are layers {', '.join(map(str, found.layers))}"])
    yield GAP
    yield strongest(values, None, Listing(), settings)
