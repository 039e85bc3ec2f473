"""Draw a Comparison: both sides' weights, their difference, and what moved per token."""

import re
from collections.abc import Sequence
from typing import Literal

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attnscope.comparison.tolerance import conclusion, worst_of_stage
from attnscope.report import Matrix, TextReport
from attnscope.report.compare import Change, Comparison, HeadChange, Side
from attnscope.views.terminal.attended import put_moved_mass
from attnscope.views.terminal.colours import scale_for
from attnscope.views.terminal.header import (
    put_facts,
    put_notes,
    put_options,
    put_report_header,
    put_text_header,
    put_unknown_words,
)
from attnscope.views.terminal.heads import Listing, put_numbers, put_ranking
from attnscope.views.terminal.heat import put_heat
from attnscope.views.terminal.labels import Axis, token_axis, token_name
from attnscope.views.terminal.numbers import digits_for
from attnscope.views.terminal.numbers import texts as cell_texts
from attnscope.views.terminal.overview import put_map
from attnscope.views.terminal.screen import Screen, flow
from attnscope.views.terminal.stages import StageView, source_kind
from attnscope.views.terminal.tables import put_stage

_TABLE_FROM = 72  # columns that the table of moved weight needs
_NAME = 10
_PRINTED = 10  # heads that are printed each, where there are more


def render_comparison(
    comparison: Comparison, console: Console, *, format: str = "table", precision: int = 2, options: bool = True
) -> None:
    """Print a comparison.

    Args:
        comparison: What to show.
        console: Where to.
        format: `table`, `heat`, or `verdict` for only the verdict of the tolerance.
        precision: Digits after the point.
        options: Name the options of the command line that show more.
    """
    screen = Screen(console, precision, options)
    if format == "verdict":
        _put_verdict(screen, comparison)
        put_notes(screen, [*comparison.sides[0].report.provenance.notes, *_other_notes(comparison), *comparison.notes])
        return
    _put_sides(screen, comparison)
    _put_verdict(screen, comparison)
    for change in comparison.changes:
        first, second = comparison.sides[0], comparison.sides[change.side]
        for head in _put_moved(screen, (first, second), change):
            screen.say("")
            _put_change(screen, (first, second), head, format)
    screen.say("")
    put_notes(screen, comparison.notes)
    heads = [head for change in comparison.changes for head in change.heads]
    if all(head.mass is not None for head in heads):
        put_options(screen, ["--head all", "--query ROWS", "--pool N", "--format json (every digit)"])
        return
    legend = [("legend", Text(_LEGEND))] if any(head.partial is None for head in heads) else []
    put_facts(screen, legend)
    put_options(screen, ["--head all", "--query WORD", "--format json (every digit)"])


def _put_moved(screen: Screen, sides: tuple[Side, Side], change: Change) -> list[HeadChange]:
    """Print how much moved in every head, where there are too many to print each; the heads that are printed.

    A picture takes the second side's layers and heads; of several texts, the mean.
    """
    heads = change.heads
    places = [re.fullmatch(r"L(\d+)H(\d+)", head.second) for head in heads]
    moved = np.array([_share_moved(head) for head in heads])
    if len(heads) <= _PRINTED or np.isnan(moved).all():
        return heads
    made = sides[1].report.provenance
    total, count = np.zeros((2, made.n_layers, made.n_heads))
    for place, share in zip(places, moved, strict=True):
        if place and not np.isnan(share):
            total[int(place[1]), int(place[2])] += share
            count[int(place[1]), int(place[2])] += 1
    labels = [screen.safe(side.label) for side in sides]
    screen.say("")
    screen.say(
        ("what moved", "bold reverse"),
        f"  {labels[0]} → {labels[1]}  share of the weight of the average row that moved",
    )
    with np.errstate(invalid="ignore"):
        values = (total / count).astype(np.float32)
    put_numbers(screen, values)
    order = np.argsort(-np.nan_to_num(moved, nan=-1.0), kind="stable")[:_PRINTED]
    screen.say("")
    put_ranking(screen, values, None, Listing())
    others = screen.named("--layer and --head", "layer and head")
    screen.say((f"the {_PRINTED} that moved most follow; {others} select others", "dim"))
    return [heads[n] for n in order]


def _share_moved(head: HeadChange) -> float:
    """Mean total variation of the rows, of a map the share of all weight that moved; NaN where rows are not whole."""
    if head.mass is not None:
        first, second = head.mass.astype(np.float64)
        return float(np.abs(second - first).sum() / 2 / max(first.sum(), 1e-30))
    known = head.total_variation[~np.isnan(head.total_variation)]
    return float(known.mean()) if known.size else float("nan")


_LEGEND = "moved: share of the weight that moved (total variation) · JS: Jensen–Shannon divergence in bits"


def _put_verdict(screen: Screen, comparison: Comparison) -> None:
    """What the tolerance says, with the worst cell of every stage."""
    verdict = comparison.verdict
    if verdict is None:
        return
    lines = [("verdict", Text(screen.safe(conclusion(comparison, verdict)), "green" if verdict.passed else "bold red"))]
    for stage in verdict.stages:
        lines.append((stage.stage, Text(screen.safe(worst_of_stage(comparison, stage)))))
    put_facts(screen, lines)


def _put_sides(screen: Screen, comparison: Comparison) -> None:
    """What produced the first side, and what differs in the others."""
    first = comparison.sides[0].report
    others = comparison.sides if comparison.axis in ("text", "model", "tokenizer") else comparison.sides[:1]
    put_unknown_words(screen, [text for side in others for text in side.report.texts])
    put_report_header(screen, first)
    for side in comparison.sides[1:]:
        if side.report.provenance.weights == "random" != first.provenance.weights:
            screen.say((" RANDOM WEIGHTS ", "bold white on red"), f" in {screen.safe(side.label)}")
    labels = [screen.safe(side.label) for side in comparison.sides]
    lines = [("compare", Text(f"{comparison.axis}: {labels[0]} → {', '.join(labels[1:])}"))]
    used = {side.report.mask.what_if for side in comparison.sides} - {None}
    if used and first.mask.what_if is None:
        lines.append(("what if", Text(f"{used.pop()}; the model's own mask is {screen.safe(first.mask.own)}")))
    put_facts(screen, lines)
    put_notes(screen, _other_notes(comparison))
    for side in comparison.sides if comparison.axis == "text" else comparison.sides[:1]:
        for text in side.report.texts:
            put_text_header(screen, text, len(side.report.texts))


def _other_notes(comparison: Comparison) -> list[str]:
    """Notes on models that the first side's do not say."""
    said = comparison.sides[0].report.provenance.notes
    others = [(side.label, note) for side in comparison.sides[1:] for note in side.report.provenance.notes]
    return [f"{label}: {note}" for label, note in others if note not in said]


def _put_change(screen: Screen, sides: tuple[Side, Side], head: HeadChange, format: str) -> None:
    texts = [side.report.texts[head.text] for side in sides]
    which = head.first if head.first == head.second else f"{head.first} → {head.second}"
    where = f"  text {head.text}" if len(sides[0].report.texts) > 1 else ""
    names = head.first, head.second
    found = [
        h.chosen for text, name in zip(texts, names, strict=True) for h in text.heads if _name(h.layer, h.head) == name
    ]
    chosen = next((f"  {screen.safe(said)}" for said in found if said), "")
    labels = [screen.safe(side.label) for side in sides]
    screen.say((which, "bold reverse"), f"{where}  {labels[0]} → {labels[1]}{chosen}")
    _put_alone(screen, texts, head, labels)
    _put_partial(screen, head, labels)
    screen.say("")
    if head.mass is not None:
        _put_pooled(screen, texts, head, labels)
        return
    if not head.queries or not head.keys:
        others = screen.named("--query and --key", "query and key")
        screen.say("", f"no shown row or column is in both; select others with {others}")
        return
    stages = [_weights(screen, text, head, n, labels[n]) for n, text in enumerate(texts)]
    stages.append(_difference(screen, texts[0], head, labels))
    if format == "heat":
        put_heat(screen, stages)
    else:
        for stage in stages:
            put_stage(screen, stage)
            screen.say("")
    _put_moves(screen, texts, head)


def _put_pooled(screen: Screen, texts: Sequence[TextReport], head: HeadChange, labels: Sequence[str]) -> None:
    """Each side's map, and the sources whose weight changes most."""
    for text, name, label in zip(texts, (head.first, head.second), labels, strict=True):
        report = next(h for h in text.heads if _name(h.layer, h.head) == name)
        if report.pooled is not None:
            screen.say((label, "bold"), "")
            put_map(screen, text, report.pooled)
            screen.say("")
    assert head.mass is not None
    put_moved_mass(screen, texts[0].sources, head.mass, labels)


def _put_alone(screen: Screen, texts: Sequence[TextReport], head: HeadChange, labels: Sequence[str]) -> None:
    """Tokens that only one side has."""
    for text, alone, label in zip(texts, (head.only_first, head.only_second), labels, strict=True):
        if alone:
            names = [Text(f"{p} {token_name(screen, text.sources[p])}", "dim") for p in alone]
            screen.put(flow([Text(f"only in {label}:", "dim"), *names], screen.width, " "))


def _put_partial(screen: Screen, head: HeadChange, labels: Sequence[str]) -> None:
    """How much of every row is saved."""
    if head.partial is None:
        return
    for label, keys, of, outside in zip(labels, head.partial.keys, head.partial.of, head.partial.outside, strict=True):
        known = outside[~np.isnan(outside)]
        if keys < of and known.size:
            low, high = (f"{share:.2f}" for share in (known.min(), known.max()))
            share = low if low == high else f"{low} to {high}"
            screen.say((f"{label} has {keys} of {of} keys; {share} of each row's weight is outside", "yellow"))


def _weights(screen: Screen, text: TextReport, head: HeadChange, side: int, label: str) -> StageView:
    """The weights of one side, over the aligned tokens."""
    name = (head.first, head.second)[side]
    report = next(h for h in text.heads if _name(h.layer, h.head) == name)
    queries, keys = [pair[side] for pair in head.queries], [pair[side] for pair in head.keys]
    rows, columns = [text.queries.index(q) for q in queries], [text.keys.index(k) for k in keys]
    matrix = report.stages["weights"][rows][:, columns]
    masked = [q in report.fully_masked for q in queries]
    axes = token_axis(screen, "query", text.tokens, queries), token_axis(screen, source_kind(text), text.sources, keys)
    return _stage(screen, "weights", label, matrix, masked, axes)


def _difference(screen: Screen, text: TextReport, head: HeadChange, labels: Sequence[str]) -> StageView:
    rows = token_axis(screen, "query", text.tokens, [q for q, _ in head.queries])
    columns = token_axis(screen, source_kind(text), text.sources, [k for k, _ in head.keys])
    said = f"{labels[1]} − {labels[0]}"
    masked = (np.isnan(head.entropy[0]) | np.isnan(head.entropy[1])).tolist()
    return _stage(screen, "difference", said, head.difference, masked, (rows, columns))


def _stage(
    screen: Screen, stage: str, said: str, matrix: Matrix, masked: list[bool], axes: tuple[Axis, Axis]
) -> StageView:
    digits = digits_for(matrix, max(screen.precision, 1))
    cells = cell_texts("weights", matrix, masked, digits)
    return StageView(stage, said, matrix, cells, masked, scale_for(stage, matrix), digits, *axes)


def _put_moves(screen: Screen, texts: Sequence[TextReport], head: HeadChange) -> None:
    """Per token: how much weight moved, from where to where, and which contributors are new."""
    screen.say(("what moved", "bold"))
    rows = [_move(screen, texts, head, n) for n in range(len(head.queries))]
    titles = _TITLES if head.partial is None else _PARTIAL_TITLES
    if screen.width >= _TABLE_FROM:
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
        for title in titles:
            justify: Literal["left", "right"] = "left" if title in ("query", "gains", "loses") else "right"
            table.add_column(Text(title), justify=justify, overflow="fold")
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        screen.put(table)
    else:
        for row in rows:
            named = [f"{title} {cell}" for title, cell in zip(titles[1:], row[1:], strict=True) if cell]
            screen.put(flow([Text(row[0], "bold"), *map(Text, named)], screen.width, "  "))
    _put_top(screen, texts, head)


_TITLES = ("query", "moved", "JS", "future", "entropy", "gains", "loses")
_PARTIAL_TITLES = ("query", "outside", "future", "entropy")  # what can be said without whole rows


def _move(screen: Screen, texts: Sequence[TextReport], head: HeadChange, n: int) -> tuple[str, ...]:
    position = head.queries[n][0]
    name = f"{position} {_short(token_name(screen, texts[0].tokens[position]))}"
    if np.isnan(head.entropy[:, n]).any():
        return (name, "masked", *([""] * ((len(_TITLES) if head.partial is None else len(_PARTIAL_TITLES)) - 2)))

    def both(values: Matrix) -> str:
        return "" if np.isnan(values[:, n]).any() else f"{values[0, n]:z.2f}→{values[1, n]:z.2f}"

    if head.partial is not None:
        return name, both(head.partial.outside), both(head.future), both(head.entropy)
    gains = _side_of_move(screen, texts[1], head.gained[n], float(head.gain[n]), "+")
    loses = _side_of_move(screen, texts[0], head.lost[n], float(head.loss[n]), "−")
    moved, divergence = f"{head.total_variation[n]:.2f}", f"{head.jensen_shannon[n]:.2f}"
    return name, moved, divergence, both(head.future), both(head.entropy), gains, loses


def _side_of_move(screen: Screen, text: TextReport, position: int, amount: float, sign: str) -> str:
    if position < 0:
        return ""
    return f"{sign}{amount:.2f} {position} {_short(token_name(screen, text.sources[position]))}"


def _short(name: str) -> str:
    return name if len(name) <= _NAME else name[: _NAME - 1] + "…"


def _put_top(screen: Screen, texts: Sequence[TextReport], head: HeadChange) -> None:
    """Which tokens entered and left each query's top contributors."""
    items = []
    for (position, _), entered, left in zip(head.queries, head.entered, head.left, strict=True):
        if entered or left:
            new = [f"+{token_name(screen, texts[1].sources[p])} {p}" for p in entered]
            old = [f"−{token_name(screen, texts[0].sources[p])} {p}" for p in left]
            items.append(Text(f"{position} {token_name(screen, texts[0].tokens[position])}: {' '.join(new + old)}"))
    if items:
        items[0] = Text.assemble(("top contributors: ", "dim"), items[0])
        screen.put(flow(items, screen.width, " · "))


def _name(layer: int | str, head: int | str) -> str:
    which = "mean" if layer == "mean" else f"L{layer}"
    if head == "mean":
        return which if which == "mean" else f"{which} mean"
    return f"mean H{head}" if which == "mean" else f"{which}H{head}"
