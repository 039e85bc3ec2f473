"""The strongest sources of every query."""

from collections.abc import Iterator

import numpy as np

from attnscope.report import HeadReport, Matrix, TextReport, Top
from attnscope.views.presentation.axes import source_kind, token_axis
from attnscope.views.presentation.numbers import Digits, digits_for
from attnscope.views.presentation.parts import Paragraph, Ranking, SourceRow, ViewPart
from attnscope.views.presentation.settings import DisplaySettings
from attnscope.views.presentation.spans import Span

SHARP = 4.0  # A source's share of weight over its share of content (or the reverse) that is worth a remark …
MATTERS = 0.2  # … where the larger of the two is at least this, 1 being the row's strongest source.
_LITTLE = ("▾", "more weight than content")
_MUCH = ("▴", "more content than weight")
_NAMES = {"weight": "weight", "value": "α·‖v‖", "projected": "α·‖vW‖"}


def contributors(text: TextReport, head: HeadReport, settings: DisplaySettings, *, compact: bool) -> Iterator[ViewPart]:
    """Present the strongest sources of every shown query.

    Args:
        text: The text.
        head: The head, with its `top`.
        settings: Digits.
        compact: One paragraph per query in place of one line per source.
    """
    top = head.top
    left_out = f", without {' and '.join(top.left_out)}" if top.left_out else ""
    norms = "α·‖v‖: weight × norm of the source's value"
    if top.projected is not None:
        norms += "; α·‖vW‖: after the output projection"
    said = f"  by {_NAMES.get(top.by, top.by)}{left_out}; {norms}"
    yield Paragraph((Span("top contributors", "bold"), Span(said, "dim")))
    yield _rank(text, head, settings, compact)


def _rank(text: TextReport, head: HeadReport, settings: DisplaySettings, compact: bool) -> Ranking:
    """Rank the sources of every query, with numbers as text and remarks."""
    top = head.top
    measures = {"weight": top.weight, "value": top.value}
    if top.projected is not None:
        measures["projected"] = top.projected
    digits = [digits_for(m, settings.precision + (name == "weight")) for name, m in measures.items()]
    ranked = measures.get(top.by, top.weight)
    full = 1.0 if top.by == "weight" else _largest(ranked)
    rows = [
        None if position in head.fully_masked else _sources(top, r, list(measures.values()), digits, ranked[r] / full)
        for r, position in enumerate(text.queries)
    ]
    queries = token_axis("query", text.tokens, text.queries)
    sources = token_axis(source_kind(text), text.sources)
    return Ranking(queries, sources, [_NAMES[name] for name in measures], rows, compact)


def _sources(top: Top, r: int, measures: list[Matrix], digits: list[Digits], bars: np.ndarray) -> list[SourceRow]:
    remarks = _remarks(top.weight[r], top.value[r] if top.projected is None else top.projected[r])
    return [
        SourceRow(
            key, float(bars[k]), [d.text(float(m[r, k])) for m, d in zip(measures, digits, strict=True)], remarks[k]
        )
        for k, key in enumerate(top.keys[r].tolist())
        if key >= 0
    ]


def _remarks(weight: np.ndarray, content: np.ndarray) -> list[tuple[str, str] | None]:
    """Where a source's rank by weight and its rank by content differ, and their shares of the row differ sharply."""
    remarks: list[tuple[str, str] | None] = [None] * len(weight)
    known = np.isfinite(weight) & np.isfinite(content)
    if known.sum() < 2 or not weight[known].max() or not content[known].max():
        return remarks
    weight, content = (np.where(known, a, np.float32(-1)) / a[known].max() for a in (weight, content))
    for k in np.flatnonzero(known):
        by_weight, by_content = int((weight > weight[k]).sum()), int((content > content[k]).sum())
        if by_weight < by_content and weight[k] >= max(MATTERS, SHARP * content[k]):
            remarks[k] = _LITTLE
        if by_content < by_weight and content[k] >= max(MATTERS, SHARP * weight[k]):
            remarks[k] = _MUCH
    return remarks


def _largest(matrix: Matrix) -> float:
    finite = matrix[np.isfinite(matrix)]
    return float(finite.max()) if finite.size and finite.max() > 0 else 1.0
