"""A Comparison: both sides' weights, their difference, and what moved per token."""

import re
from collections.abc import Iterator, Sequence

import numpy as np

from attnscope.comparison.tolerance import conclusion, worst_of_stage
from attnscope.report import Matrix, TextReport, Token
from attnscope.report.compare import Change, Comparison, HeadChange, Side
from attnscope.views.presentation.axes import Axis, source_kind, token_axis
from attnscope.views.presentation.header import more_options, notes, report_header, text_header, unknown_words
from attnscope.views.presentation.heads import Listing, head_numbers, strongest
from attnscope.views.presentation.numbers import digits_for, texts
from attnscope.views.presentation.overview import HEAVIEST, weight_map
from attnscope.views.presentation.parts import (
    Facts,
    Flow,
    Gap,
    HeatPanels,
    Matrices,
    MovedSources,
    Moves,
    Paragraph,
    StageMatrix,
    ViewPart,
)
from attnscope.views.presentation.scales import scale_for
from attnscope.views.presentation.settings import DisplaySettings
from attnscope.views.presentation.spans import Span, Spans, ours, token_span, untrusted

_PRINTED = 10  # heads that are printed each, where there are more
_LEGEND = "moved: share of the weight that moved (total variation) · JS: Jensen–Shannon divergence in bits"


def present_comparison(
    comparison: Comparison, settings: DisplaySettings, *, heat: bool = False, verdict: bool = False
) -> Iterator[ViewPart]:
    """Turn a comparison into parts.

    Args:
        comparison: What to show.
        settings: Digits, and whose options are named.
        heat: Pictures in place of numbers.
        verdict: Only the verdict of the tolerance.
    """
    if not verdict:
        yield from _sides(comparison, settings)
    yield from _verdict(comparison)
    if verdict:
        yield notes([*comparison.sides[0].report.provenance.notes, *_other_notes(comparison), *comparison.notes])
        return
    for change in comparison.changes:
        sides = comparison.sides[0], comparison.sides[change.side]
        shown = _most_moved(change)
        if len(shown) < len(change.heads):
            yield from _moved(sides, change, settings)
        for head in shown:
            yield Gap()
            yield from _change(sides, head, settings, heat)
    yield Gap()
    yield notes(comparison.notes)
    heads = [head for change in comparison.changes for head in change.heads]
    if all(head.mass is not None for head in heads):
        more = ["--head all", "--query ROWS", "--pool N", "--format json (every digit)"]
    else:
        yield Facts([("legend", ours(_LEGEND))] if any(head.partial is None for head in heads) else [])
        more = ["--head all", "--query WORD", "--format json (every digit)"]
    yield from more_options(more, settings)


def _most_moved(change: Change) -> list[HeadChange]:
    """Return the heads that are printed each: all, or those in which most weight moved."""
    moved = np.array([_share_moved(head) for head in change.heads])
    if len(moved) <= _PRINTED or np.isnan(moved).all():
        return change.heads
    order = np.argsort(-np.nan_to_num(moved, nan=-1.0), kind="stable")[:_PRINTED]
    return [change.heads[n] for n in order]


def _moved(sides: tuple[Side, Side], change: Change, settings: DisplaySettings) -> Iterator[ViewPart]:
    """How much moved in every head.

    A picture takes the second side's layers and heads; of several texts, the mean.
    """
    made = sides[1].report.provenance
    total, count = np.zeros((2, made.n_layers, made.n_heads))
    for head in change.heads:
        place, share = re.fullmatch(r"L(\d+)H(\d+)", head.second), _share_moved(head)
        if place and not np.isnan(share):
            total[int(place[1]), int(place[2])] += share
            count[int(place[1]), int(place[2])] += 1
    yield Gap()
    said = Span("  share of the weight of the average row that moved")
    yield Paragraph((Span("what moved", "title"), Span("  "), *_arrow(sides), said))
    with np.errstate(invalid="ignore"):
        values = (total / count).astype(np.float32)
    yield head_numbers(values, settings)
    yield Gap()
    yield strongest(values, None, Listing(), settings)
    others = settings.named("--layer and --head", "layer and head")
    yield Paragraph(ours(f"the {_PRINTED} that moved most follow; {others} select others", "dim"))


def _arrow(sides: tuple[Side, Side]) -> Spans:
    return *untrusted(sides[0].label), Span(" → "), *untrusted(sides[1].label)


def _share_moved(head: HeadChange) -> float:
    """Mean total variation of the rows, of a map the share of all weight that moved; NaN where rows are not whole."""
    if head.mass is not None:
        first, second = head.mass.astype(np.float64)
        return float(np.abs(second - first).sum() / 2 / max(first.sum(), 1e-30))
    known = head.total_variation[~np.isnan(head.total_variation)]
    return float(known.mean()) if known.size else float("nan")


def _verdict(comparison: Comparison) -> Iterator[ViewPart]:
    """Give the verdict of the tolerance, with the worst cell of every stage."""
    verdict = comparison.verdict
    if verdict is None:
        return
    lines = [("verdict", untrusted(conclusion(comparison, verdict), "good" if verdict.passed else "bad"))]
    lines += [(stage.stage, untrusted(worst_of_stage(comparison, stage))) for stage in verdict.stages]
    yield Facts(lines)


def _sides(comparison: Comparison, settings: DisplaySettings) -> Iterator[ViewPart]:
    """Say what produced the first side, and what differs in the others."""
    first = comparison.sides[0].report
    others = comparison.sides if comparison.axis in ("text", "model", "tokenizer") else comparison.sides[:1]
    yield from unknown_words([text for side in others for text in side.report.texts])
    yield from report_header(first, settings)
    for side in comparison.sides[1:]:
        if side.report.provenance.weights == "random" != first.provenance.weights:
            yield Paragraph((Span(" RANDOM WEIGHTS ", "alarm"), Span(" in "), *untrusted(side.label)))
    labels = untrusted(comparison.sides[0].label)
    for n, side in enumerate(comparison.sides[1:]):
        labels += (Span(", " if n else " → "), *untrusted(side.label))
    lines = [("compare", (Span(f"{comparison.axis}: "), *labels))]
    used = {side.report.mask.what_if for side in comparison.sides} - {None}
    if used and first.mask.what_if is None:
        lines.append(("what if", (Span(f"{used.pop()}; the model's own mask is "), *untrusted(first.mask.own))))
    yield Facts(lines)
    yield notes(_other_notes(comparison))
    for side in comparison.sides if comparison.axis == "text" else comparison.sides[:1]:
        for text in side.report.texts:
            yield text_header(text, len(side.report.texts), settings)


def _other_notes(comparison: Comparison) -> list[str]:
    """Collect notes on models that the first side's do not say."""
    said = comparison.sides[0].report.provenance.notes
    others = [(side.label, note) for side in comparison.sides[1:] for note in side.report.provenance.notes]
    return [f"{label}: {note}" for label, note in others if note not in said]


def _change(sides: tuple[Side, Side], head: HeadChange, settings: DisplaySettings, heat: bool) -> Iterator[ViewPart]:
    reports = [side.report.texts[head.text] for side in sides]
    which = head.first if head.first == head.second else f"{head.first} → {head.second}"
    where = f"  text {head.text}" if len(sides[0].report.texts) > 1 else ""
    named = zip(reports, (head.first, head.second), strict=True)
    found = [h.chosen for text, name in named for h in text.heads if _name(h.layer, h.head) == name]
    chosen = next(((Span("  "), *untrusted(said)) for said in found if said), ())
    yield Paragraph((Span(which, "title"), Span(f"{where}  "), *_arrow(sides), *chosen))
    yield from _alone(sides, reports, head)
    yield from _partial(sides, head)
    yield Gap()
    if head.mass is not None:
        yield from _pooled(sides, reports, head, head.mass)
        return
    if not head.queries or not head.keys:
        others = settings.named("--query and --key", "query and key")
        yield Paragraph(ours(f"no shown row or column is in both; select others with {others}"))
        return
    stages = [_weights(text, head, n, sides[n].label, settings) for n, text in enumerate(reports)]
    stages.append(_difference(reports[0], head, sides, settings))
    yield HeatPanels(stages) if heat else Matrices(stages)
    yield Gap()
    yield from _moves(reports, head)


def _pooled(
    sides: tuple[Side, Side], reports: Sequence[TextReport], head: HeadChange, mass: Matrix
) -> Iterator[ViewPart]:
    """Each side's map, and the sources whose weight changes most."""
    for text, name, side in zip(reports, (head.first, head.second), sides, strict=True):
        report = next(h for h in text.heads if _name(h.layer, h.head) == name)
        if report.pooled is not None:
            yield Paragraph(untrusted(side.label, "bold"))
            yield weight_map(text, report.pooled)
            yield Gap()
    yield from _moved_sources(reports[0].sources, mass, sides)


def _moved_sources(sources: Sequence[Token], mass: Matrix, sides: tuple[Side, Side]) -> Iterator[ViewPart]:
    """Present the sources whose weight differs most between two sides."""
    first, second = mass.astype(np.float64)
    change = second - first
    order = [int(key) for key in np.argsort(-np.abs(change), kind="stable")[:HEAVIEST] if change[key]]
    moved = np.abs(change).sum() / 2
    said = f"  sources whose total weight changes most; {moved:,.1f} of {first.sum():,.0f} moved"
    yield Paragraph((Span("what moved", "bold"), Span(said, "dim")))
    if order:
        columns = [[f"{values[key]:,.1f}" for key in order] for values in (first, second)]
        columns.append([f"{change[key]:+,.1f}" for key in order])
        labels = untrusted(sides[0].label), untrusted(sides[1].label)
        yield MovedSources(token_axis("source", sources, order), labels, columns)


def _alone(sides: tuple[Side, Side], reports: Sequence[TextReport], head: HeadChange) -> Iterator[ViewPart]:
    """Tokens that only one side has."""
    for text, alone, side in zip(reports, (head.only_first, head.only_second), sides, strict=True):
        if alone:
            title = (Span("only in ", "dim"), *untrusted(side.label, "dim"), Span(":", "dim"))
            names = [(Span(f"{p} ", "dim"), token_span(text.sources[p], "dim")) for p in alone]
            yield Flow([title, *names], " ")


def _partial(sides: tuple[Side, Side], head: HeadChange) -> Iterator[ViewPart]:
    """How much of every row is saved."""
    if head.partial is None:
        return
    for side, keys, of, outside in zip(sides, head.partial.keys, head.partial.of, head.partial.outside, strict=True):
        known = outside[~np.isnan(outside)]
        if keys < of and known.size:
            low, high = (f"{share:.2f}" for share in (known.min(), known.max()))
            share = low if low == high else f"{low} to {high}"
            said = Span(f" has {keys} of {of} keys; {share} of each row's weight is outside", "remark")
            yield Paragraph((*untrusted(side.label, "remark"), said))


def _weights(text: TextReport, head: HeadChange, side: int, label: str, settings: DisplaySettings) -> StageMatrix:
    """Return the weights of one side, over the aligned tokens."""
    name = (head.first, head.second)[side]
    report = next(h for h in text.heads if _name(h.layer, h.head) == name)
    queries, keys = [pair[side] for pair in head.queries], [pair[side] for pair in head.keys]
    rows, columns = [text.queries.index(q) for q in queries], [text.keys.index(k) for k in keys]
    matrix = report.stages["weights"][rows][:, columns]
    masked = [q in report.fully_masked for q in queries]
    axes = token_axis("query", text.tokens, queries), token_axis(source_kind(text), text.sources, keys)
    return _stage("weights", untrusted(label), ours("weights"), matrix, masked, axes, settings)


def _difference(text: TextReport, head: HeadChange, sides: tuple[Side, Side], settings: DisplaySettings) -> StageMatrix:
    rows = token_axis("query", text.tokens, [q for q, _ in head.queries])
    columns = token_axis(source_kind(text), text.sources, [k for k, _ in head.keys])
    said = (*untrusted(sides[1].label), Span(" − "), *untrusted(sides[0].label))
    masked = (np.isnan(head.entropy[0]) | np.isnan(head.entropy[1])).tolist()
    return _stage("difference", said, ours("difference"), head.difference, masked, (rows, columns), settings)


def _stage(
    stage: str,
    title: Spans,
    said: Spans,
    matrix: Matrix,
    masked: list[bool],
    axes: tuple[Axis, Axis],
    settings: DisplaySettings,
) -> StageMatrix:
    digits = digits_for(matrix, max(settings.precision, 1))
    cells = texts("weights", matrix, masked, digits)
    return StageMatrix(stage, title, said, said, matrix, cells, masked, scale_for(stage, matrix), digits, *axes)


_TITLES = ("query", "moved", "JS", "future", "entropy", "gains", "loses")
_PARTIAL_TITLES = ("query", "outside", "future", "entropy")  # what can be said without whole rows


def _moves(reports: Sequence[TextReport], head: HeadChange) -> Iterator[ViewPart]:
    """Per token: how much weight moved, from where to where, and which contributors are new."""
    yield Paragraph(ours("what moved", "bold"))
    titles = _TITLES if head.partial is None else _PARTIAL_TITLES
    rows = [_move(reports, head, n, len(titles)) for n in range(len(head.queries))]
    yield Moves(titles, [title in ("query", "gains", "loses") for title in titles], rows)
    yield from _top(reports, head)


def _move(reports: Sequence[TextReport], head: HeadChange, n: int, cells: int) -> list[Spans]:
    name = _token(reports[0].tokens, head.queries[n][0])
    if np.isnan(head.entropy[:, n]).any():
        return [name, ours("masked"), *([()] * (cells - 2))]

    def both(values: Matrix) -> Spans:
        return () if np.isnan(values[:, n]).any() else ours(f"{values[0, n]:z.2f}→{values[1, n]:z.2f}")

    if head.partial is not None:
        return [name, both(head.partial.outside), both(head.future), both(head.entropy)]
    gains = _side_of_move(reports[1], head.gained[n], float(head.gain[n]), "+")
    loses = _side_of_move(reports[0], head.lost[n], float(head.loss[n]), "−")
    moved, divergence = ours(f"{head.total_variation[n]:.2f}"), ours(f"{head.jensen_shannon[n]:.2f}")
    return [name, moved, divergence, both(head.future), both(head.entropy), gains, loses]


def _side_of_move(text: TextReport, position: int, amount: float, sign: str) -> Spans:
    return () if position < 0 else (Span(f"{sign}{amount:.2f} "), *_token(text.sources, position))


def _token(tokens: Sequence[Token], position: int) -> Spans:
    return Span(f"{position} "), token_span(tokens[position])


def _top(reports: Sequence[TextReport], head: HeadChange) -> Iterator[ViewPart]:
    """Which tokens entered and left each query's top contributors."""
    items: list[Spans] = []
    for (position, _), entered, left in zip(head.queries, head.entered, head.left, strict=True):
        if entered or left:
            item = (*_token(reports[0].tokens, position), Span(":"))
            for sign, text, positions in (("+", reports[1], entered), ("−", reports[0], left)):
                for p in positions:
                    name = token_span(text.sources[p])
                    item += (Span(f" {sign}"), name, Span(f" {p}"))
            items.append(item)
    if items:
        items[0] = (*ours("top contributors: ", "dim"), *items[0])
        yield Flow(items, " · ")


def _name(layer: int | str, head: int | str) -> str:
    which = "mean" if layer == "mean" else f"L{layer}"
    if head == "mean":
        return which if which == "mean" else f"{which} mean"
    return f"mean H{head}" if which == "mean" else f"{which}H{head}"
