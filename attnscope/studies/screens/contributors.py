"""The strongest sources of every query."""

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from attnscope.findings.arrays import Matrix
from attnscope.findings.heads import HeadReport, Top
from attnscope.findings.run import TextReport
from attnscope.studies.screens.stages import weight_digits
from attnscope.views.axes import ranked_out, source_kind, token_axis
from attnscope.views.numbers import Digits, digits_for
from attnscope.views.parts import GAP, Bar, Bars, FirstFitting, Remainder, ViewPart
from attnscope.views.settings import DisplaySettings
from attnscope.views.spans import Spans, headed, ours

LITTLE = 0.005  # weight below which sources are not listed one by one
_ROUNDING = 1e-6  # weight that rounding may leave of 1 where a row lists all its sources
SHARP = 4.0  # ratio of a source's shares of weight and of content that is worth a remark
MATTERS = 0.2  # smallest share, relative to the row's strongest source, that is worth a remark
MEASURES = {"weight": "weight", "value": "α·‖v‖", "projected": "α·‖vW‖"}


def contributors(
    text: TextReport, head: HeadReport, settings: DisplaySettings, *, compact: bool
) -> Bars:
    """Present the strongest sources of every shown query, with numbers and remarks; compact in one paragraph each."""
    top = head.top
    left_out = f", without {' and '.join(top.left_out)}" if top.left_out else ""
    title = headed("top contributors", f"  by {MEASURES.get(top.by, top.by)}{left_out}")
    measures = top.measures
    digits = [digits_for(m, settings.precision) for m in measures.values()]
    digits[0] = weight_digits(top.weight, settings.precision + 1, settings)
    ranked = measures.get(top.by, top.weight)
    full = 1.0
    if top.by != "weight":
        full = float(ranked[np.isfinite(ranked)].max(initial=0.0)) or 1.0
    words = [position for position in text.queries if position < len(text.tokens) - text.padding]
    rows: list[list[Bar] | None] = []
    for r, position in enumerate(words):
        if position in head.fully_masked:
            rows.append(None)
        else:
            rows.append(_sources(top, r, list(measures.values()), digits, ranked[r] / full))
    remainders: list[Remainder | None] = [None] * len(rows)
    if top.by == "weight" and not settings.verbose:
        for r, row in enumerate(rows):
            rows[r], remainders[r] = _summed(text, head, r, row, digits[0])
    if len(measures) > 1:
        meaning = _norms(list(measures), titled=top.by == "value" and not left_out)
    else:
        meaning = ()
    by = 0
    if top.by in measures:
        by = list(measures).index(top.by)
    return Bars(
        token_axis(source_kind(text), text.sources),
        [
            "weight %" if settings.percent else "weight",
            *(MEASURES[name] for name in list(measures)[1:]),
        ],
        rows,
        token_axis("query", text.tokens, words),
        title=title,
        meaning=meaning,
        remainders=remainders,
        by=by,
        compact=compact,
    )


def fitted(ranking: Bars, settings: DisplaySettings) -> ViewPart:
    """Return a ranking, briefer if it fills more than a screen."""
    if settings.brief:
        return FirstFitting([[ranking], [brief(ranking)]])
    return ranking


def brief(ranking: Bars) -> Bars:
    """Return the short form of a ranking."""
    return msgspec.structs.replace(ranking, compact=True, brief=True)


def _norms(measures: Sequence[str], *, titled: bool) -> Spans:
    """Explain α·‖v‖ and α·‖vW‖; a title in front may already name α·‖v‖."""
    text = f"{':' if titled else '; α·‖v‖:'} weight × norm of the source's value"
    return ours(
        text + ("; α·‖vW‖: after the output projection" if "projected" in measures else ""),
        "caption",
    )


def generated(text: TextReport, ranking: Bars) -> Iterator[ViewPart]:
    """Present the strongest sources of each generated token, in the row of the query before it."""
    rows = {query: row for row, query in enumerate(text.queries)}
    before = [prediction.position for prediction in text.generated if prediction.position in rows]
    if before:
        caption = "  what the token before each attended to when the model predicted it"
        yield GAP
        yield msgspec.structs.replace(
            ranking,
            title=headed("generated tokens", caption),
            meaning=_norms(
                [name for name, meaning in MEASURES.items() if meaning in ranking.measures],
                titled=False,
            ),
            queries=token_axis("new", text.tokens, [position + 1 for position in before]),
            rows=[ranking.rows[rows[position]] for position in before],
            remainders=[ranking.remainders[rows[position]] for position in before],
            compact=False,
        )


def _summed(
    text: TextReport, head: HeadReport, r: int, row: list[Bar] | None, digits: Digits
) -> tuple[list[Bar] | None, Remainder | None]:
    """Leave out sources with little weight; count all that are not listed, and sum their weight.

    Without whole rows of the matrix, they are not counted, and their weight is what is left of 1.
    """
    if not row:
        return row, None
    of = dict(zip(head.top.keys[r].tolist(), head.top.weight[r].tolist(), strict=True))
    kept_sources = [source for source in row if of[source.index] >= LITTLE]
    kept_indices = [source.index for source in kept_sources]
    if "weights" in head.stages and len(text.keys) == len(text.sources):
        excluded = ranked_out(text.sources, head.top.left_out)
        others = np.where(excluded, 0.0, head.stages["weights"][r].astype(np.float64))
        others[kept_indices] = 0
        return kept_sources, Remainder(int((others > 0).sum()), float(np.nansum(others)), digits)
    if head.top.left_out:
        return row, None
    drained = 0.0 if head.rows.sink is None else float(head.rows.sink[r])
    left = 1 - sum(of[index] for index in kept_indices) - drained
    return kept_sources, Remainder(None, left if left > _ROUNDING else 0.0, digits)


def _sources(
    top: Top, r: int, measures: list[Matrix], digits: list[Digits], bars: np.ndarray
) -> list[Bar]:
    content = next(
        numbers for numbers in (top.projected, top.value, top.weight) if numbers is not None
    )
    remarks = _remarks(top.weight[r], content[r])
    return [
        Bar(
            key,
            float(bars[k]),
            [d.text(float(m[r, k])) for m, d in zip(measures, digits, strict=True)],
            remarks[k],
        )
        for k, key in enumerate(top.keys[r].tolist())
        if key >= 0
    ]


def _remarks(weight: np.ndarray, content: np.ndarray) -> list[tuple[str, str] | None]:
    """Remark on a source whose ranks by weight and by content differ, and whose shares differ sharply."""
    remarks: list[tuple[str, str] | None] = [None] * len(weight)
    is_known = np.isfinite(weight) & np.isfinite(content)
    if is_known.sum() < 2 or not weight[is_known].max() or not content[is_known].max():
        return remarks
    weight, content = (
        np.where(is_known, a, np.float32(-1)) / a[is_known].max() for a in (weight, content)
    )
    for k in np.flatnonzero(is_known):
        by_weight = int((weight > weight[k]).sum())
        by_content = int((content > content[k]).sum())
        if by_weight < by_content and weight[k] >= max(MATTERS, SHARP * content[k]):
            remarks[k] = "▾", "high weight, small value"
        if by_content < by_weight and content[k] >= max(MATTERS, SHARP * weight[k]):
            remarks[k] = "▴", "low weight, large value"
    return remarks
