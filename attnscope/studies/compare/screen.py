"""A Comparison: both sides' weights, their difference, and what moved per token."""

from bisect import bisect
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from msgspec.structs import replace as struct_replace

from attnscope.findings.arrays import Matrix
from attnscope.findings.axes import take
from attnscope.findings.compare import Change, Comparison, HeadChange, Side
from attnscope.findings.heads import HeadReport
from attnscope.findings.provenance import Provenance
from attnscope.findings.run import Report, TextReport
from attnscope.findings.tokens import Token
from attnscope.request.selection import FEW, PRINTED
from attnscope.studies.compare.row_changes import differing_word, row_changes
from attnscope.studies.compare.span_screen import compare_spans
from attnscope.studies.compare.tolerance import conclusion, worst_of_stage
from attnscope.studies.heads.screen import answer_first, head_numbers, strongest
from attnscope.studies.screens.contributors import LITTLE, MEASURES
from attnscope.studies.screens.header import (
    WHAT_IF,
    arrow,
    describe_mask,
    describe_used,
    effect_of_mask,
    fully_masked,
    more_options,
    notes,
    random_weights_of,
    report_header,
    short_path,
    text_header,
    unknown_words,
)
from attnscope.studies.screens.overview import HEAVIEST, weight_map
from attnscope.studies.screens.stages import matrix_panel
from attnscope.views.axes import Axis, AxisKind, source_kind, token_axis
from attnscope.views.numbers import MINUS, Digits, digits_for, formatted
from attnscope.views.parts import (
    GAP,
    Column,
    Facts,
    FirstFitting,
    Matrices,
    Panel,
    Table,
    Text,
    ViewPart,
    paragraph,
)
from attnscope.views.settings import DisplaySettings, Listing
from attnscope.views.spans import TIE, Span, Spans, headed, ours, token_span, untrusted

_FEW = FEW + FEW // 2  # rows and columns that are all shown
_PRINTED = 10  # number of heads that are printed, if there are more
_NAMED = 12  # number of tokens without counterpart that are named
_LINES = 70  # of one head, above which only the rows and columns are shown where most moves
_CHANGED = 0.1  # of a weight, from which its change is listed
_BETWEEN = " · "  # separator of weights that change
_VISIBLE = 0.005  # share of a row's weight that is not printed as 0.00
_EXACT = 4  # digits of the strongest heads' values if two would not tell them apart
_NUMBERED = ("layer", "head")  # axes whose sides are labelled by a number, which alone says little
_SAID_BY_SIDES = (*_NUMBERED, "hide")  # axes that the labels of the sides name
_FUTURE = "future: weight on later tokens"
_LEGEND = (
    "moved: share of the weight that moved (total variation)",
    "JS: Jensen–Shannon divergence in bits",
    _FUTURE,
    "entropy: in bits",
)


def present_comparison(
    comparison: Comparison, settings: DisplaySettings, *, walk: ViewPart | None = None
) -> Iterator[ViewPart]:
    """Turn a comparison into parts; of the format `verdict`, only the verdict of the tolerance.

    `walk`: that of a page, which has the weights between spans; it precedes what is about heads.
    """
    heat = settings.format == "heat"
    verdict = settings.format == "verdict"
    if not settings.verbose:
        comparison = with_short_labels(comparison)
    if not verdict:
        yield from _sides(comparison, settings)
    yield from _verdict(comparison)
    if verdict:
        yield notes(
            [
                *comparison.sides[0].report.provenance.notes,
                *_other_notes(comparison),
                *comparison.notes,
            ]
        )
        return
    if walk is None:
        yield from compare_spans(comparison, settings, heat=heat)
    else:
        yield walk
    printed: list[HeadChange] = []
    for change in comparison.changes:
        sides = comparison.sides[0], comparison.sides[change.side]
        if settings.summary:
            count = 0
        elif _is_of_all_heads(comparison):
            count = 1
        else:
            count = _PRINTED
        shown_heads = change.most_moved(count)
        if len(shown_heads) < len(change.heads):
            yield from _moved(sides, change, len(shown_heads), settings)
            if all(head.largest_change == 0 for head in change.heads):
                continue
        printed += shown_heads
        for head in shown_heads:
            yield GAP
            yield from _ShownHead(sides, head, comparison.named, settings, heat).present()
    yield GAP
    of_texts = [
        note for side in comparison.sides for text in side.report.texts for note in text.notes
    ]
    yield notes(dict.fromkeys(of_texts))
    heads = [head for change in comparison.changes for head in change.heads]
    first_report = comparison.sides[0].report
    several_left_out = (
        len({head.head for text in first_report.texts for head in text.heads})
        < first_report.provenance.n_heads
    )
    more = []
    if several_left_out and comparison.axis not in ("head", "report"):
        more = ["--head all"]
    if all(head.mass is not None for head in heads):
        more += ["--query ROWS", "--pool N"]
    else:
        moves = [
            head
            for head in printed
            if head.partial is None and head.mass is None and _is_visible(head)
        ]
        legend = list(_LEGEND)
        if not any(map(_reads_ahead, moves)):
            legend.remove(_FUTURE)
        yield Facts([("legend", Text([ours(meaning) for meaning in legend], " · "))] * bool(moves))
        if any(len(head.queries) > 1 for head in heads):
            more += ["--query WORD"]
    yield from more_options([*more, "--json (every digit)"], settings)


def with_short_labels(comparison: Comparison) -> Comparison:
    """Return a comparison whose sides are named by the ends of their paths, if these differ; `head 0` for a 0.

    Sides under which tokens are hidden are called `'The' hidden` and `nothing hidden`.
    """
    if comparison.axis == "text":
        return comparison
    if comparison.axis == "hide":
        labels = []
        for side in comparison.sides:
            if side.label == "none":
                labels.append("nothing hidden")
            else:
                labels.append(f"'{side.label}' hidden")
    else:
        prefix = f"{comparison.axis} " if comparison.axis in _NUMBERED else ""
        labels = [prefix + short_path(side.label) for side in comparison.sides]
    if len(set(labels)) < len(labels):
        return comparison
    sides = [
        struct_replace(side, label=label)
        for side, label in zip(comparison.sides, labels, strict=True)
    ]
    return struct_replace(comparison, sides=sides)


def _is_of_all_heads(comparison: Comparison) -> bool:
    """Tell whether heads were compared that the user did not select; these are summarised, not printed each."""
    selected = comparison.axis == "report" or {"layer", "head"} <= {*comparison.named}
    return not selected and comparison.axis not in _NUMBERED


def nothing_moved(change: Change) -> str:
    """Return how much weight moved at most, if every share of it would be printed as 0.00; else an empty text."""
    shares = np.array([head.share_moved for head in change.heads])
    largest = max(head.largest_change for head in change.heads)
    if not (shares < _VISIBLE).all() or np.isnan(largest):
        return ""
    heads = len({head.first for head in change.heads})
    texts = " of every text" if any(head.text for head in change.heads) else ""
    if not largest:
        return f"nothing: both sides have the same weights in all {heads:,} heads{texts}"
    return f"at most {largest:.1g} of a row's weight in any of {heads:,} heads{texts}"


def _moved(
    sides: tuple[Side, Side], change: Change, shown_count: int, settings: DisplaySettings
) -> Iterator[ViewPart]:
    """Present how much weight moved in every head.

    The grid has the second side's layers and heads; with several texts, it shows the mean. If it would show zeros, one
    line replaces it.
    """
    shares = np.array([head.share_moved for head in change.heads])
    if np.isnan(shares).all():
        if not shown_count:
            unknown = "  unknown: no row has all of its weights on both sides"
            yield GAP
            yield paragraph((Span("what moved", "title"), Span(unknown)))
        return
    largest = max(head.largest_change for head in change.heads)
    follow = list[ViewPart]()
    if shown_count and largest:
        others = settings.named("--layer and --head", "layer and head", "; {} select others")
        text = ours(f"{_following(shares, shown_count)}{others}", "caption")
        follow.append(paragraph(text, remark=True))
    yield GAP
    if summary := nothing_moved(change):
        why = _why_nothing(sides, change)
        yield paragraph((Span("what moved", "title"), Span(f"  {summary}{why}")))
        yield from follow
    else:
        title = Span("what moved", "title"), Span("  "), *arrow([side.label for side in sides])
        yield Text((title, ours("largest share of a row's weight that moved")), "  ")
        values = _mean_shares(change, sides[1].report.provenance)
        ranked = np.sort(values[np.isfinite(values)])[-2:].round(max(2, settings.precision))
        alike = ranked.size > 1 and ranked[0] == ranked[1]
        digits = max(_EXACT, settings.precision) if alike else settings.precision
        answer = [strongest(values, None, Listing(), replace(settings, precision=digits)), *follow]
        yield from answer_first(answer, [head_numbers(values, settings)], settings)


def _why_nothing(sides: tuple[Side, Side], change: Change) -> str:
    """Say that rows cannot differ if they are before the first token that does; empty if they could."""
    if any(head.largest_change for head in change.heads):
        return ""
    for head in change.heads:
        tokens = zip(*(side.report.texts[head.text].tokens for side in sides), strict=False)
        differs = next((n for n, (a, b) in enumerate(tokens) if a.piece != b.piece), None)
        if differs is None or any(query >= differs for query, _ in head.queries):
            return ""
    rows = "this row is" if len(change.heads[0].queries) == 1 else "these rows are"
    return f": {rows} before the first token that differs"


def _following(shares: Matrix, count: int) -> str:
    """Say which heads follow, and how many others have the same share in all digits that are ever listed."""
    if count != 1:
        return f"the {count} heads in which most moved follow"
    digits = np.round(shares, _EXACT)
    most = np.nanmax(digits)
    tied = int((digits == most).sum())
    if tied > 1:
        return f"{tied} heads tie at {most:.{_EXACT}f}, one of which follows"
    return "the head in which most moved follows"


def _mean_shares(change: Change, provenance: Provenance) -> Matrix:
    """Return the share of weight that moved in every head of a model, (layers, heads), averaged over texts."""
    total, count = np.zeros((2, provenance.n_layers, provenance.n_heads))
    for head in change.heads:
        share = head.share_moved
        layer, head_index = head.second
        if isinstance(layer, int) and isinstance(head_index, int) and not np.isnan(share):
            total[layer, head_index] += share
            count[layer, head_index] += 1
    with np.errstate(invalid="ignore"):
        return (total / count).astype(np.float32)


def _verdict(comparison: Comparison) -> Iterator[ViewPart]:
    """Give the verdict of the tolerance, with the worst cell of every stage."""
    verdict = comparison.verdict
    if verdict is None:
        return
    lines = [
        ("verdict", untrusted(conclusion(comparison, verdict), "good" if verdict.passed else "bad"))
    ]
    lines += [
        (stage.stage, untrusted(worst_of_stage(comparison, stage))) for stage in verdict.stages
    ]
    yield Facts(lines, remark=False)


def _sides(comparison: Comparison, settings: DisplaySettings) -> Iterator[ViewPart]:
    """Present the provenance of the first side, and how the others differ."""
    first_report = comparison.sides[0].report
    if comparison.axis == "text":
        shown_sides = comparison.sides
    else:
        shown_sides = comparison.sides[:1]
    if comparison.axis == "hide":  # the labels say what each side hides
        mask = first_report.mask
        what_if = None if mask.used == mask.own else mask.what_if
        first_report = struct_replace(
            first_report, mask=struct_replace(mask, hidden=None, what_if=what_if)
        )
    yield from unknown_words([text for side in shown_sides for text in side.report.texts])
    for side in comparison.sides[1:]:
        if comparison.axis in ("model", "tokenizer"):
            pairs = zip(first_report.texts, side.report.texts, strict=True)
            others = [other for text, other in pairs if other.tokens != text.tokens]
            yield from unknown_words(others, untrusted(side.label))
    yield from report_header(
        first_report.provenance,
        first_report.mask,
        settings,
        cuts=first_report.cuts,
        compared=comparison.axis,
    )
    for side in comparison.sides[1:]:
        yield from random_weights_of(side.label, side.report.provenance, first_report.provenance)
    labels = untrusted(comparison.sides[0].label)
    for n, side in enumerate(comparison.sides[1:]):
        labels += (Span(", " if n else " → "), *untrusted(side.label))
    if comparison.axis in _SAID_BY_SIDES:
        line = labels
    else:
        line = Span(f"{comparison.axis}: "), *labels
    lines = [("compare", line)]
    used = {side.report.mask.what_if for side in comparison.sides} - {None}
    if comparison.axis not in ("mask", "hide"):
        for side in comparison.sides[1:]:
            mask = side.report.mask
            if describe_used(mask) != describe_used(first_report.mask):
                lines.append(
                    (
                        "mask",
                        (
                            *untrusted(side.label),
                            Span(": "),
                            *describe_mask(mask, side.report.provenance.weights),
                        ),
                    )
                )
    elif used and (comparison.axis == "mask" or first_report.mask.what_if is None):
        line = (*line, Span(WHAT_IF.get(str(used.pop()), "")))
        lines = [("compare", line)]
    if comparison.axis == "mask":
        lines = [("compare", (*line, *_own_mask(first_report)))]
        for side in comparison.sides:
            if effect := effect_of_mask(side.report.mask):
                lines.append(("", (*untrusted(side.label), Span(": "), *effect)))
    for side in comparison.sides:
        for text in side.report.texts:
            if masked := fully_masked(text):
                lines.append(("masked", (*untrusted(side.label), Span(": "), *masked)))
    yield Facts(lines)
    yield notes([*_other_notes(comparison), *comparison.notes])
    for several in zip(*(side.report.texts for side in shown_sides), strict=True):
        differs = differing_word([text.text for text in several])
        for side, text in zip(shown_sides, several, strict=True):
            if comparison.axis == "hide":
                text = struct_replace(text, hidden=[])
            name = "text" if len(side.report.texts) == 1 else f"text {text.index}"
            if len(shown_sides) > 1 and name == "text":
                name = f"text {comparison.sides.index(side)}"
            yield text_header(text, settings, name, around=differs)


def _own_mask(report: Report) -> Spans:
    """Name the model's own mask, and others that it was trained under."""
    mask = report.mask
    if report.provenance.weights == "given":
        return untrusted(f" (the given mask: {mask.own})")
    if mask.trained:
        return untrusted(f" (the model's masks: {' or '.join((mask.own, *mask.trained))})")
    return untrusted(f" (the model's own: {mask.own})")


def _other_notes(comparison: Comparison) -> list[str]:
    """Collect notes on models that the first side does not have."""
    first_notes = comparison.sides[0].report.provenance.notes
    other_notes = [
        (side.label, note) for side in comparison.sides[1:] for note in side.report.provenance.notes
    ]
    return [f"{label}: {note}" for label, note in other_notes if note not in first_notes]


@dataclass(frozen=True)
class _ShownHead:
    """One layer and head of two sides, over one text."""

    sides: tuple[Side, Side]
    head: HeadChange
    named: Sequence[str]  # which of `query` and `key` the user selected
    settings: DisplaySettings
    heat: bool

    @cached_property
    def reports(self) -> list[TextReport]:
        """The text on both sides."""
        return [side.report.texts[self.head.text] for side in self.sides]

    @cached_property
    def heads(self) -> list[HeadReport]:
        """The head on both sides."""
        refs = zip(self.reports, (self.head.first, self.head.second), strict=True)
        return [text.heads[text.heads.units.index(ref)] for text, ref in refs]

    def present(self) -> Iterator[ViewPart]:
        """Present what differs."""
        head = self.head
        sides = self.sides
        settings = self.settings
        same = head.first == head.second
        which = str(head.first) if same else f"{head.first} → {head.second}"
        where = f"  text {head.text}" if len(sides[0].report.texts) > 1 else ""
        chosen_rules = [
            head_report.chosen
            for head_report in self.heads
            if head_report.chosen and not settings.data_only
        ]
        if chosen_rules:
            rule_spans = Span("  "), *untrusted(chosen_rules[0])
        else:
            rule_spans = ()
        if same:
            between = Span("  "), *arrow([side.label for side in sides])
        else:
            between = ()
        yield paragraph((Span(which, "title"), Span(where), *between, *rule_spans))
        yield from self._alone()
        yield from self._partial()
        yield GAP
        # maps are in place of matrices, or beside selected rows
        for text, head_report, side in zip(self.reports, self.heads, sides, strict=True):
            if head_report.pooled is not None:
                yield paragraph(untrusted(side.label, "bold"))
                has_sink = head_report.rows.sink is not None
                yield weight_map(text, head_report.pooled, has_sink=has_sink)
                yield GAP
        if head.mass is not None:
            yield from _moved_sources(self.reports[0].sources, head, sides)
            return
        if not head.queries or not head.keys:
            others = settings.named("--query and --key", "query and key", "; select others with {}")
            yield paragraph(ours(f"no shown row or column is in both{others}"))
            return
        columns = shown_columns(self.reports, head)
        if len(head.queries) == 1 and not self.heat:
            if head.largest_change != 0:
                if "key" in self.named:
                    show_all = None
                else:
                    show_all = settings.named("--key", "key", f"; {{}} 0:{len(columns)} lists all")
                panels = self._both(columns)
                yield from row_changes(panels, self._difference(columns), columns, show_all)
                yield GAP
            yield from self._moves()
            return
        sizes = {"query": len(head.queries), "key": len(columns)}
        # A few rows more are shown, too: leaving out one of eleven would say more than it saves.
        wide = {name for name, size in sizes.items() if size > _FEW and name not in self.named}
        few = self._numbers(columns, wide)
        if not wide or any(sizes[name] > PRINTED for name in wide):
            yield from few
        else:
            yield FirstFitting([list(self._numbers(columns))], list(few), lines=_LINES)

    def _numbers(self, columns: "Columns", few: Collection[str] = ()) -> Iterator[ViewPart]:
        """Present both sides' weights, their difference and the moved weight.

        `few`: those of `query` and `key` of which only the ones are shown where most moves.
        """
        if few and self.head.largest_change == 0:  # there are no rows where most moves
            yield from self._moves()
            return
        shown_head = self
        left_out = list[tuple[str, int, int, str]]()
        if "query" in few:
            rows = _largest(np.abs(self._differences(columns)).sum(1), FEW)
            shown_head = replace(self, head=take(self.head, "query", rows))
            option = self.settings.named("--query", "query")
            left_out.append(("rows", len(rows), len(self.head.queries), option))
        if "key" in few:
            largest_columns = _moving(shown_head._differences(columns), FEW)
            option = self.settings.named("--key", "key")
            left_out.append(("columns", len(largest_columns), len(columns), option))
            columns = [columns[n] for n in largest_columns]
        if left_out:
            counts = " and ".join(f"{count} of {of:,} {what}" for what, count, of, _ in left_out)
            ranges = " and ".join(f"{option} 0:{of}" for _, _, of, option in left_out)
            show = "show" if len(left_out) > 1 else "shows"
            hint = "" if self.settings.fixed else f"; {ranges} {show} all"
            yield paragraph(
                ours(f"{counts}, where most weight moves{hint}", "caption"), remark=True
            )
        panels = [*shown_head._both(columns), shown_head._difference(columns)]
        if left_out:
            panels = [
                struct_replace(panel, columns=replace(panel.columns, announced=True))
                for panel in panels
            ]
        yield Matrices(panels, self.heat)
        yield GAP
        yield from shown_head._moves()

    def _alone(self) -> Iterator[ViewPart]:
        both = self.head.only_first, self.head.only_second
        for text, alone, side in zip(self.reports, both, self.sides, strict=True):
            if alone:
                title = (
                    Span("only in ", "caption"),
                    *untrusted(side.label, "caption"),
                    Span(": ", "caption"),
                )
                names = [
                    (Span(f"{p} ", "caption"), token_span(text.sources, p, "caption"))
                    for p in alone[:_NAMED]
                ]
                if len(alone) > _NAMED:
                    names.append(
                        (Span(f"{len(alone) - _NAMED} ", "caption"), Span("more", "caption"))
                    )
                yield Text([(*title, *names[0]), *names[1:]], " · ")

    def _partial(self) -> Iterator[ViewPart]:
        """State how much of every row is saved."""
        partial = self.head.partial
        if partial is None:
            return
        for side, keys, of, outside in zip(
            self.sides, partial.keys, partial.of, partial.outside, strict=True
        ):
            known_shares = outside[~np.isnan(outside)]
            if keys < of and known_shares.size:
                low, high = (f"{share:.2f}" for share in (known_shares.min(), known_shares.max()))
                share = low if low == high else f"{low} to {high}"
                text = Span(
                    f" has {keys} of {of} keys; {share} of each row's weight is outside", "remark"
                )
                yield paragraph((*untrusted(side.label, "remark"), text))

    def _rows(self, side: int | None = None) -> Axis:
        """Return the queries as a side labels them, or by both texts' tokens if one replaces another."""
        first_tokens, second_tokens = (text.tokens for text in self.reports)
        if side is not None and any(i != j for i, j in self.head.queries):
            return token_axis(
                "query",
                (first_tokens, second_tokens)[side],
                [pair[side] for pair in self.head.queries],
            )
        return both_axis("query", first_tokens, second_tokens, self.head.queries)

    def _weights(self, side: int, columns: "Columns") -> Panel:
        """Return the weights of one side over the aligned tokens and its tokens without a counterpart."""
        text = self.reports[side]
        fully_masked = self.heads[side].fully_masked
        keys = sorted(key for column in columns if (key := column[side]) is not None)
        matrix = self._on_keys(side, keys)
        masked = [pair[side] in fully_masked for pair in self.head.queries]
        axes = self._rows(side), token_axis(source_kind(text), text.sources, keys)
        caption = ours("weights")
        label = untrusted(self.sides[side].label)
        return matrix_panel(matrix, masked, axes, label, caption, self.settings)

    def _both(self, columns: "Columns") -> list[Panel]:
        """Return the weights of both sides, on one scale."""
        panels = [self._weights(n, columns) for n in range(2)]
        largest = max((panel.scale for panel in panels), key=lambda scale: scale.high)
        return [struct_replace(panel, scale=largest) for panel in panels]

    def _difference(self, columns: "Columns") -> Panel:
        first_text, second_text = self.reports
        axis = both_axis(source_kind(first_text), first_text.sources, second_text.sources, columns)
        labels = (*untrusted(self.sides[1].label), Span(" − "), *untrusted(self.sides[0].label))
        masked = (np.isnan(self.head.entropy[0]) | np.isnan(self.head.entropy[1])).tolist()
        axes = (self._rows(), axis)
        name = "difference"
        matrix = self._differences(columns)
        return matrix_panel(matrix, masked, axes, labels, ours(name), self.settings, name=name)

    def _on_keys(self, side: int, keys: Sequence[int | None]) -> Matrix:
        """Return the weights of the aligned queries on keys of a side; 0 for a missing one."""
        text = self.reports[side]
        rows = self.heads[side].stages["weights"][
            [text.queries.index(pair[side]) for pair in self.head.queries]
        ]
        padded = np.column_stack((rows, np.zeros(len(rows), dtype=np.float32)))
        return padded[:, [-1 if key is None else text.keys.index(key) for key in keys]]

    def _differences(self, columns: "Columns") -> Matrix:
        """Return the second side's weights minus the first's; a missing column has weight 0."""
        first_weights, second_weights = (
            self._on_keys(n, [column[n] for column in columns]).astype(np.float64) for n in range(2)
        )
        return (second_weights - first_weights).astype(np.float32)

    def _moves(self) -> Iterator[ViewPart]:
        """Present how much weight moved for each token, from where to where, and every weight that changed much."""
        head = self.head
        if not _is_visible(head):
            largest = head.largest_change
            change = "nothing: both sides have the same weights"
            if largest:
                change = f"at most {largest:.1g} of a row's weight"
            where = "this mean" if "mean" in head.first else "this head"
            yield paragraph(headed("what moved", f"  {change} in {where}"))
            return
        yield paragraph(ours("what moved in each row", "bold"))
        titles = _TITLES if head.partial is None else _PARTIAL_TITLES
        moves = [self._move(n, len(titles)) for n in range(len(head.queries))]
        yield _table(titles, moves, without=() if _reads_ahead(head) else ("future",))
        rows = [
            row
            for n in range(len(head.queries))
            if not head.total_variation[n] < _VISIBLE and (row := self._changes(n))
        ]
        if rows:
            labels, *columns = zip(*rows, strict=True)
            ranks = min(head_report.top.keys.shape[1] for head_report in self.heads)
            by = self.heads[0].top.by
            kinds = f"enters the top {ranks}", f"leaves the top {ranks}", "other changes"
            meaning = f"  before→after; other changes: by {_CHANGED:.2f} or more"
            meaning += f"; the top is by {MEASURES[by]}" * (by != "weight")
            yield GAP
            yield paragraph(headed("weights that change", meaning))
            filled = [
                Column(kind, column, left=True)
                for kind, column in zip(kinds, columns, strict=True)
                if any(column)
            ]
            yield Table("query", filled, labels=labels, indent=0, beside=True)

    def _name(self, pair: tuple[int, int]) -> Spans:
        return Span(f"{_number(*pair)}{TIE}"), _both(
            self.reports[0].tokens, self.reports[1].tokens, pair
        )

    def _move(self, n: int, cells: int) -> list[Spans]:
        head = self.head
        name = self._name(self.head.queries[n])
        if np.isnan(head.entropy[:, n]).any():
            return [name, ours("masked"), *([()] * (cells - 2))]

        def both(values: Matrix) -> Spans:
            if np.isnan(values[:, n]).any():
                return ()
            return ours(f"{values[0, n]:z.2f}→{values[1, n]:z.2f}")

        if head.partial is not None:
            return [name, both(head.partial.outside), both(head.future), both(head.entropy)]
        first_keys = {second: first for first, second in head.keys}
        gained = head.gained[n]
        lost = head.lost[n]
        gains = self._largest_change((first_keys.get(gained), gained), float(head.gain[n]), "+")
        loses = self._largest_change((lost, dict(head.keys).get(lost)), float(head.loss[n]), MINUS)
        moved = ours(self._moved_digits.text(float(head.total_variation[n])))
        divergence = ours(self._divergence_digits.text(float(head.jensen_shannon[n])))
        return [name, moved, divergence, both(head.future), both(head.entropy), gains, loses]

    def _largest_change(
        self, key: tuple[int | None, int | None], amount: float, sign: str
    ) -> Spans:
        """Name the key that gains or loses most; nothing if it would print as zero."""
        digits = self._moved_digits
        if not abs(amount) >= digits.least:
            return ()
        return Span(f"{sign}{digits.text(amount)} "), *self._key(key)

    @property
    def _moved_digits(self) -> Digits:
        """The digits of shares of weight that moved: more than two if all are small."""
        return digits_for(self.head.total_variation[None], 2)

    @property
    def _divergence_digits(self) -> Digits:
        digits = self._moved_digits
        if digits.decimals == 2:
            return digits
        return digits_for(self.head.jensen_shannon[None], 2)

    def _changes(self, n: int) -> list[Spans]:
        """Return a query's keys that enter or leave the top contributors, and those whose weight changes much.

        A key whose weight would print as 0.00 on a side is not in its top, and one that enters or leaves does so with
        a change of its weight, not by its rank alone. Empty if there is no such key.
        """
        rankings = {(head.top.by, *head.top.left_out) for head in self.heads}
        tops = [self._listed(side, n) if len(rankings) == 1 else [] for side in range(2)]
        entered = set(self.head.entered[n])
        left = set(self.head.left[n])
        first_keys = {second: first for first, second in self.head.keys}
        second_keys = dict(self.head.keys)
        pairs: Columns = [(key, second_keys.get(key)) for key in tops[0]]
        pairs += [(first_keys.get(key), key) for key in tops[1]]
        pairs += shown_columns(self.reports, self.head)
        enters: Columns = []
        leaves: Columns = []
        others: Columns = []
        for first, second in dict.fromkeys(pairs):
            weights = self._weight(0, n, first), self._weight(1, n, second)
            change = weights[1] - weights[0]
            if self.head.partial is None:  # what a side does not have, it does not attend to
                change = float(np.nansum([weights[1], -weights[0]]))
            in_top = first in tops[0], second in tops[1]
            if in_top[1] and (second in entered or not in_top[0]) and not change < _VISIBLE:
                enters.append((first, second))
            elif in_top[0] and (first in left or not in_top[1]) and not change > -_VISIBLE:
                leaves.append((first, second))
            elif abs(change) >= _CHANGED:
                others.append((first, second))
        cells = [self._weights_of(n, keys) for keys in (enters, leaves, others)]
        if any(cells):
            return [self._name(self.head.queries[n]), *cells]
        return []

    def _listed(self, side: int, n: int) -> list[int]:
        """Return a query's top contributors on a side that have enough weight to be listed, strongest first."""
        top = self.heads[side].top
        row = self.reports[side].queries.index(self.head.queries[n][side])
        listed = zip(top.keys[row].tolist(), top.weight[row].tolist(), strict=True)
        return [key for key, weight in listed if top.by != "weight" or weight >= LITTLE]

    def _weight(self, side: int, n: int, key: int | None) -> float:
        """Return a query's weight on a key of a side; NaN if the side lacks it, or if it is not known."""
        text = self.reports[side]
        if key not in text.keys:
            return float("nan")
        row = text.queries.index(self.head.queries[n][side])
        return float(self.heads[side].stages["weights"][row, text.keys.index(key)])

    def _weights_of(self, n: int, pairs: "Columns") -> Spans:
        spans: list[Span] = []
        for pair in pairs:
            weights = [self._weight(side, n, key) for side, key in enumerate(pair)]
            numbers = "→".join(f"{weight:.2f}" for weight in weights if not np.isnan(weight))
            spans += [
                Span(", " if spans else ""),
                *self._key(pair),
                Span(f"{TIE}{numbers}"),
            ]
        return tuple(spans)

    def _key(self, pair: tuple[int | None, int | None]) -> Spans:
        """Name a key of both sides, or of the one that has it."""
        first_text, second_text = self.reports
        name = _both(first_text.sources, second_text.sources, pair)
        return Span(f"{_number(*pair)}{TIE}"), name


def _largest(values: Matrix, count: int) -> list[int]:
    """Return the indices of the largest values, in ascending order; a masked row's NaN is smallest."""
    return sorted(
        int(n) for n in np.argsort(-np.nan_to_num(values, nan=-1.0), kind="stable")[:count]
    )


def _moving(differences: Matrix, count: int) -> list[int]:
    """Return the columns where a row moves most, and others where most moves, in ascending order."""
    sizes = np.abs(np.nan_to_num(differences))
    largest = sizes.argmax(1)[np.argsort(-sizes.max(1), kind="stable")]
    order = np.argsort(-sizes.sum(0), kind="stable")
    return sorted([*dict.fromkeys([*largest.tolist(), *order.tolist()])][:count])


def _moved_sources(
    sources: Sequence[Token], head: HeadChange, sides: tuple[Side, Side]
) -> Iterator[ViewPart]:
    assert head.mass is not None
    first_mass, second_mass = head.mass.astype(np.float64)
    change = second_mass - first_mass
    order = [
        int(key) for key in np.argsort(-np.abs(change), kind="stable")[:HEAVIEST] if change[key]
    ]
    caption = (
        f"  {100 * head.share_moved:.0f} % of all weight; sources whose total weight changes most:"
    )
    yield paragraph(headed("what moved", caption))
    if order:
        columns = [
            Column(untrusted(side.label), [f"{values[key]:,.1f}" for key in order])
            for side, values in zip(sides, (first_mass, second_mass), strict=True)
        ]
        columns.append(Column("change", [formatted(change[key], "+z,.1f") for key in order]))
        yield Table("source", columns, token_axis("source", sources, order), indent=0)


# positions in both sides; None if a side lacks the token
Columns = list[tuple[int | None, int | None]]


def shown_columns(reports: Sequence[TextReport], head: HeadChange) -> Columns:
    """Return the columns of the difference.

    Those that both sides have, and, unless only some of these are shown, those that one side alone has: what they
    gain or lose has moved, too.
    """
    columns: Columns = list(head.keys)
    count = len(reports[0].sources)
    if head.partial is None and len(head.keys) + len(head.only_first) == count:
        columns += [(i, None) for i in head.only_first] + [(None, j) for j in head.only_second]
        firsts = [*(i for i, _ in head.keys), count]
        seconds = [j for _, j in head.keys]

        def place(column: tuple[int | None, int | None]) -> tuple[int, int, int]:
            i = column[0]
            j = column[1] or 0
            # a token of the second side alone is before the next shared one
            if i is None:
                return firsts[bisect(seconds, j)], -1, j
            return i, 0, 0

        columns.sort(key=place)
    return columns


def both_axis(
    axis_kind: AxisKind,
    first_tokens: Sequence[Token],
    second_tokens: Sequence[Token],
    pairs: Sequence[tuple[int | None, int | None]],
) -> Axis:
    """Return the axis of tokens of two texts: `4 river/lake`; `5/– bank/–` is only in the first text."""
    names = [_both(first_tokens, second_tokens, pair) for pair in pairs]
    positions = [i if i is not None else j or 0 for i, j in pairs]
    special = [
        (second_tokens if i is None else first_tokens)[position].special
        for (i, _), position in zip(pairs, positions, strict=True)
    ]
    total = len(first_tokens) + sum(i is None for i, _ in pairs)
    return Axis(axis_kind, positions, names, special, total, [_number(*pair) for pair in pairs])


def _number(first_position: int | None, second_position: int | None) -> str:
    """Write the position, or both positions if they differ."""
    if first_position == second_position:
        return str(first_position)
    return "/".join(
        "–" if position is None else str(position) for position in (first_position, second_position)
    )


def _both(
    first_tokens: Sequence[Token],
    second_tokens: Sequence[Token],
    pair: tuple[int | None, int | None],
) -> Span:
    """Name a token, or two that replace each other: `river/lake`; `river/–` is only in the first text."""
    spans = [
        Span("–") if at is None else token_span(text, at)
        for text, at in zip((first_tokens, second_tokens), pair, strict=True)
    ]
    first_span, second_span = spans
    if first_span.text == second_span.text:
        return first_span
    unknown = any(span.origin == "unknown token" for span in spans)
    name = f"{first_span.text}/{second_span.text}"
    return Span(name, "", "unknown token" if unknown else "token")


_TITLES = ("query", "moved", "JS", "future", "entropy", "gains most", "loses most")
# the values that do not need whole rows
_PARTIAL_TITLES = ("query", "outside", "future", "entropy")


# columns of names of tokens
_WORDS = ("gains most", "loses most")


def _table(
    titles: Sequence[str], rows: Sequence[Sequence[Spans]], without: Collection[str]
) -> Table:
    labels, *cells = zip(*rows, strict=True)
    columns = [
        Column(title, column, left=title in _WORDS)
        for title, column in zip(titles[1:], cells, strict=True)
        if title not in without
    ]
    return Table("query", columns, labels=labels, indent=0)


def _reads_ahead(head: HeadChange) -> bool:
    """Return whether a side has weight on later tokens; under causal masks none has."""
    return bool(np.nansum(head.future) > 0)


def _is_visible(head: HeadChange) -> bool:
    """Tell whether the moved weight is not 0 at two decimals, or is unknown."""
    return head.partial is not None or not head.largest_change < _VISIBLE
