"""What each generated token was read from: a strip of bars for every token, one bar for each span."""

from collections.abc import Iterator

import numpy as np

from attnscope.findings.run import TextReport
from attnscope.findings.spans import SpanReport
from attnscope.views.axes import token_axis
from attnscope.views.numbers import formatted
from attnscope.views.parts import GAP, Column, Facts, Table, ViewPart, paragraph
from attnscope.views.settings import DisplaySettings
from attnscope.views.spans import Span, Spans, ours, untrusted

_BARS = " ▁▂▃▄▅▆▇█"


def present_strips(text: TextReport, spans: SpanReport, settings: DisplaySettings) -> Iterator[ViewPart]:
    """Present the shares of every span for each generated token, and their mean over the answer."""
    shares = spans.generated
    if shares is None or not len(shares):
        return
    names = spans.text.names
    told = [kind == "text" for kind in spans.text.kinds]  # sinks and templates take most, whatever is read
    mean = np.nanmean(shares, axis=0)
    rows = np.vstack((shares, mean))
    full = float(np.nanmax(rows)) or 1.0
    yield GAP
    caption = "  each token was predicted from the token before it, whose weight on every span is shown, "
    caption += f"mean of all {spans.weights.shape[0] * spans.weights.shape[1]} heads"
    yield paragraph((Span("the answer, token by token", "title"), Span(caption, "dim")))
    legend: list[Span] = []
    for number, name in enumerate(names):
        legend += [Span(f"{' · ' if number else ''}{number} ", "dim"), *untrusted(name)]
    yield Facts([("spans", tuple(legend))], remark=False)
    most = [int(np.nanargmax(np.where(told, row, -1.0))) for row in rows] if any(told) else [0] * len(rows)
    digits = max(2, settings.precision)
    # One bar for each share; any weight at all is visible.
    steps = np.ceil(np.nan_to_num(rows) / full * (len(_BARS) - 1)).astype(int).clip(max=len(_BARS) - 1)
    columns = [
        Column(f"0–{len(names) - 1}", ["".join(_BARS[step] for step in row) for row in steps]),
        Column("most of text", [untrusted(names[n]) for n in most], left=True),
        Column("share", [formatted(float(row[n]), f"z.{digits}f") for row, n in zip(rows, most, strict=True)]),
    ]
    generated = [prediction.position + 1 for prediction in text.generated]
    axis = token_axis("new", text.tokens, generated)
    labels: list[Spans] = [(Span(f"{position} "), name) for position, name in zip(generated, axis.names, strict=True)]
    yield Table("new", columns, labels=[*labels, ours("mean", "bold")])
    full_share = formatted(full, f"z.{digits}f")
    yield paragraph(ours(f"a full bar is {full_share}; --format json has every number (spans.generated)", "dim"))
