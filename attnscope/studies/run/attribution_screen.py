"""What the parts of a model add to a logit: a ranking, a picture of layers × heads, and the tokens that they read."""

from collections.abc import Iterator

import numpy as np

from attnscope.base.layer_kinds import mixes_unseen
from attnscope.findings.attribution import Attribution, LogitEdge, TargetToken
from attnscope.findings.provenance import Provenance
from attnscope.findings.run import Report, TextReport
from attnscope.studies.heads.screen import head_numbers, strongest
from attnscope.views.numbers import column_texts, number_text
from attnscope.views.parts import GAP, Column, Table, Text, ViewPart, paragraph
from attnscope.views.settings import DisplaySettings, Listing
from attnscope.views.spans import Span, Spans, headed, ours, token_span

_PARTS = 12  # parts that are listed
_SOURCES = 8  # tokens that are listed


def present_attribution(
    report: Report, text: TextReport, attribution: Attribution, settings: DisplaySettings
) -> Iterator[ViewPart]:
    """Present the contribution of every part of the model to a token's logit."""
    yield GAP
    yield _heading(text, attribution, settings)
    parts = [(ours(name), value) for name, value in _parts(attribution, report.provenance)]
    yield _ranking("part", parts, attribution.total, _PARTS, settings)
    yield GAP
    yield paragraph(headed("heads", "  what each adds"))
    yield head_numbers(attribution.heads, settings)
    yield strongest(attribution.heads, None, Listing(signed=False), settings)
    yield GAP
    yield paragraph(headed("sources", "  what each token adds through all heads"))
    digits = len(str(len(text.tokens) - 1))
    named_values: list[tuple[Spans, float]] = [
        ((Span(f"{position:>{digits}} "), token_span(text.tokens, position)), value)
        for position, value in enumerate(attribution.sources.tolist())
    ]
    yield _ranking("token", named_values, float(attribution.sources.sum()), _SOURCES, settings)
    yield GAP
    caption = "  what a head adds by reading one token, largest first"
    yield paragraph(headed("head ← token", caption))
    yield Text([_edge(text, edge, settings) for edge in attribution.edges[:_SOURCES]], " · ", 1)


def _heading(text: TextReport, attribution: Attribution, settings: DisplaySettings) -> Text:
    what: Spans = (Span("logit of ", "bold"), _target(attribution.target))
    if attribution.against is not None:
        what = (*what, Span(" minus that of ", "bold"), _target(attribution.against))
    after = (
        Span(f"  after {attribution.position} ", "caption"),
        token_span(text.tokens, attribution.position, "caption"),
    )
    capped = ""
    if attribution.softcap is not None:
        capped = f", before the soft-cap of {attribution.softcap:g}"
    caption = f": {number_text(attribution.total, settings.precision)}, with the scale of the final norm frozen{capped}"
    return paragraph((*what, *after, Span(caption, "caption")))


def _edge(text: TextReport, edge: LogitEdge, settings: DisplaySettings) -> Spans:
    name = Span(f"L{edge.layer}H{edge.head} ← {edge.source} ")
    return (
        name,
        token_span(text.tokens, edge.source),
        Span(f" {number_text(edge.value, settings.precision)}", "bold"),
    )


def _target(token: TargetToken) -> Span:
    return Span(token.text, "bold", "token")


def _parts(attribution: Attribution, provenance: Provenance) -> list[tuple[str, float]]:
    """Return the parts of the sum: of a layer with a path beside its attention, that path and the MLP are one part."""
    parts = [
        ("embedding", attribution.embedding),
        ("biases of norm and head", attribution.constant),
    ]
    parts += [
        (f"L{layer}H{head}", float(value))
        for (layer, head), value in np.ndenumerate(attribution.heads)
    ]
    for layer, value in enumerate(attribution.mlps.tolist()):
        rest = "MLP"
        if layer not in provenance.attending:
            rest = "(whole layer)"
        elif provenance.layer_kinds and mixes_unseen(provenance.layer_kinds[layer]):
            rest = "rest"
        parts.append((f"L{layer} {rest}", value))
    parts += [
        (f"L{layer} attention bias", value)
        for layer, value in enumerate(attribution.attention_biases.tolist())
    ]
    return [(name, value) for name, value in parts if value]


def _ranking(
    heading: str,
    named_values: list[tuple[Spans, float]],
    total: float,
    limit: int,
    settings: DisplaySettings,
) -> Table:
    """Rank parts by the magnitude of their contribution, with the sum of the others and of all."""
    order = np.argsort([-abs(value) for _, value in named_values], kind="stable").tolist()
    shown_parts = [named_values[i] for i in order[:limit]]
    values = [value for _, value in shown_parts]
    labels = [label for label, _ in shown_parts]
    if len(named_values) > limit:
        left_out = len(named_values) - limit
        labels.append(ours(f"{left_out} other {heading}{'s' * (left_out > 1)}", "dim"))
        values.append(total - sum(values))
    largest = max(map(abs, values), default=0.0) or 1.0
    bars: list[float | None] = [value / largest for value in values]
    labels.append(ours("sum", "bold"))
    cells = column_texts([*values, total], settings.precision)
    return Table(heading, [Column("adds", cells)], labels=labels, bars=[*bars, None])
