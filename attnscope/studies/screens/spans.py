"""Weights between spans: a matrix, what one span reads, the text in shades of that, and a strip for each new token."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

import numpy as np

from attnscope.findings.arrays import Matrix
from attnscope.findings.hints import Hint
from attnscope.findings.images import is_register, picture_of
from attnscope.findings.run import TextReport
from attnscope.findings.spans import SpanReport
from attnscope.findings.tokens import BEGINS_WORD, Token
from attnscope.request.spans import RESERVED
from attnscope.studies.screens.header import counted, notes
from attnscope.studies.screens.stages import in_percent, matrix_panel, row_sum, weight_digits
from attnscope.views.axes import Axis, AxisKind, token_axis, with_sink
from attnscope.views.numbers import Digits, formatted, written
from attnscope.views.parts import (
    GAP,
    Column,
    Facts,
    Matrices,
    Panel,
    Table,
    Text,
    ViewPart,
    paragraph,
)
from attnscope.views.scales import LogScale, Scale
from attnscope.views.settings import DisplaySettings
from attnscope.views.spans import Span, Spans, headed, note, ours, token_span, untrusted

MOST = 20  # rows and columns of a matrix of spans
_ATTENDED = 3  # most attended tokens of a span that are named
_BARS = " ▁▂▃▄▅▆▇█"
_LONGEST = 240  # characters of a span's text that are shown; of more, its start and its end


@dataclass(frozen=True)
class ShownSpans:
    """Spans of a screen; neighbours are joined if there are many."""

    names: list[str]
    outside: list[bool]  # whether each is no part of the text, such as its special tokens
    members: list[list[int]]  # numbers of the spans that are joined in each
    sizes: list[int]

    def join(self, weights: Matrix, sizes: Sequence[int]) -> Matrix:
        """Join rows and columns: weights are summed over keys, and averaged over the tokens of queries."""
        summed = np.stack([weights[:, members].sum(1) for members in self.members], axis=1)
        rows = np.full((len(self.members), len(self.members)), np.nan)
        for row, members in zip(rows, self.members, strict=True):
            if live := [span for span in members if not np.isnan(summed[span]).all()]:
                row[:] = np.average(
                    summed[live], axis=0, weights=[float(sizes[span]) for span in live]
                )
        return rows


def joined_spans(span_report: SpanReport) -> ShownSpans:
    """Join neighbours of about equal length until at most MOST remain; the reading span stays alone."""
    spans = span_report.text
    sizes = spans.sizes
    groups = [[index] for index in range(len(spans.names))]
    alone = {n for n, span_kind in enumerate(spans.kinds) if span_kind != "text"} | {
        span_report.query
    }
    while len(groups) > MOST:
        pairs = [(*first_group, *second_group) for first_group, second_group in pairwise(groups)]
        together = [
            (sum(sizes[n] for n in pair), at)
            for at, pair in enumerate(pairs)
            if not alone & {*pair}
        ]
        if not together:
            break
        _, at = min(together)
        groups[at : at + 2] = [[*groups[at], *groups[at + 1]]]
    names = []
    for g in groups:
        if len(g) == 1:
            names.append(spans.names[g[0]])
        else:
            names.append(_range_name(spans.names[g[0]], spans.names[g[-1]]))
    outside = [spans.outside[group[0]] for group in groups]
    return ShownSpans(names, outside, groups, [sum(sizes[n] for n in group) for group in groups])


def _range_name(first_name: str, last_name: str) -> str:
    """Write `sentence 3–7`, or `Doc 1 – Question`."""
    stem = first_name.rstrip("0123456789")
    if last_name.startswith(stem) and first_name[len(stem) :] and last_name[len(stem) :].isdigit():
        return f"{first_name}–{last_name[len(stem) :]}"
    return f"{first_name} – {last_name}"


def present_spans(
    text: TextReport,
    spans: SpanReport,
    settings: DisplaySettings,
    *,
    heat: bool = False,
) -> Iterator[ViewPart]:
    """Present the weights between the spans of a text, and what one span reads."""
    yield GAP
    panel = span_panel(spans, joined_spans(spans), settings)
    yield Matrices([panel], heat)
    yield GAP
    yield from _reading(text, spans, panel.scale, settings)


def span_tables(
    text: TextReport, spans: SpanReport, settings: DisplaySettings, number: int | None = None
) -> Iterator[ViewPart]:
    """Present what the walk between spans on a page has no place for: the tokens of a span that are read most.

    Args:
        number: That of the text; None for an only text.
    """
    shown_spans = joined_spans(spans)
    name = Span(spans.text.names[spans.query], "bold", "untrusted")
    begin = "What " if number is None else f"What in text {number} "
    yield paragraph((Span(begin, "bold"), name, Span(" reads of each span", "bold")))
    yield _attended(text, spans, shown_spans, settings)
    if settings.verbose:
        yield _by_layer(spans, shown_spans, settings)
        yield _by_token(text, spans, settings)


def averaged_heads(spans: SpanReport) -> tuple[list[tuple[int, int]] | None, str]:
    """Return the layers and heads that a span matrix averages (None for all), and their name."""
    selected = spans.selected
    n_heads = spans.weights.shape[1]
    n_layers = len(_attending(spans))
    if selected is None or len(selected) == n_layers * n_heads:
        return None, f"mean of all {n_layers * n_heads} heads"
    if len(selected) == 1:
        return selected, f"L{selected[0][0]}H{selected[0][1]}"
    layers, heads = ({head[axis] for head in selected} for axis in (0, 1))
    if len(layers) == 1 and len(selected) == n_heads:
        return selected, f"mean of the {n_heads} heads of L{min(layers)}"
    if len(heads) == 1 and len(selected) == n_layers:
        return selected, f"mean of H{min(heads)} in all {n_layers} layers"
    return selected, f"mean of {len(selected)} heads"


def _attending(spans: SpanReport) -> list[int]:
    """Return the layers with attention over tokens: the others have no weights. A mask can leave none any."""
    attending = [
        layer for layer, weights in enumerate(spans.weights) if not np.isnan(weights).all()
    ]
    return attending or list(range(len(spans.weights)))


def mean_weights(
    spans: SpanReport, heads: Sequence[tuple[int, int]] | None
) -> tuple[Matrix, Matrix | None]:
    """Return the mean over heads of the weights, (spans, spans), and of the weights on sinks; None without sinks."""
    if heads is not None:
        selection = tuple(np.array(heads).T)
    else:
        selection = slice(None), slice(None)
    size = len(spans.text.names)
    weights = spans.weights[selection].reshape(-1, size, size).astype(np.float64)
    sink = None
    if spans.sink is not None:
        sink = spans.sink[selection].reshape(-1, size).astype(np.float64)
    with np.errstate(invalid="ignore"):
        return _mean(weights), None if sink is None else _mean(sink)


def _mean(values: Matrix) -> Matrix:
    """Average over heads; heads in which a span sees nothing are left out."""
    is_known = ~np.isnan(values)
    count = is_known.sum(0)
    mean: Matrix = np.where(
        count > 0, np.where(is_known, values, 0.0).sum(0) / np.maximum(count, 1), np.nan
    )
    return mean


def span_panel(spans: SpanReport, shown_spans: ShownSpans, settings: DisplaySettings) -> Panel:
    """Return the matrix of spans, with a column for the sink if there is one."""
    heads, whose = averaged_heads(spans)
    weights, sink = mean_weights(spans, heads)
    sizes = spans.text.sizes
    matrix = shown_spans.join(weights, sizes).astype(np.float32)
    rows = span_axis("query", shown_spans.names, shown_spans.outside)
    columns = replace(rows, kind="key")
    if sink is not None:
        sums = [np.nansum([sink[n] * sizes[n] for n in members]) for members in shown_spans.members]
        column = [total / size for total, size in zip(sums, shown_spans.sizes, strict=True)]
        matrix = np.column_stack((matrix, np.array(column, dtype=np.float32)))
        columns = with_sink(columns)
    masked = [bool(np.isnan(row[: len(shown_spans.names)]).all()) for row in matrix]
    joined = ""
    if len(shown_spans.names) < len(spans.text.names):
        joined = f"; {len(spans.text.names)} spans, neighbours joined"
    meaning = "weight from the row's tokens (averaged) to the column's tokens (summed)"
    row_sums = row_sum(matrix, "100 %" if settings.percent else "1")
    text = f"{whose}: {meaning}{in_percent(settings)}; {row_sums}{joined}"
    return matrix_panel(matrix, masked, (rows, columns), ours("spans"), ours(text), settings)


def span_axis(axis_kind: AxisKind, names: Sequence[str], outside: Sequence[bool]) -> Axis:
    """Return the axis of spans, of which some are outside of the text, such as its special tokens."""
    return Axis(
        axis_kind,
        range(len(names)),
        [Span(name, origin="untrusted") for name in names],
        outside,
        len(names),
    )


def _reading(
    text: TextReport, spans: SpanReport, scale: Scale | LogScale, settings: DisplaySettings
) -> Iterator[ViewPart]:
    """Present the reading of a span: each span's share, its most attended tokens, and the shaded text.

    `scale`: that of the matrix, whose colours the text has.
    """
    heads, whose = averaged_heads(spans)
    weights, sink = mean_weights(spans, heads)
    shares = weights[spans.query]
    names = spans.text.names
    name = Span(names[spans.query], "bold", "untrusted")
    caption = f"  {counted(len(spans.rows), 'token')}, {whose}: share of their weight on each span"
    yield paragraph((name, Span(" reads", "bold"), Span(caption, "caption")))
    if np.isnan(shares).all():
        yield paragraph(ours("its tokens may attend to nothing", "caption"))
        return
    shown_spans = joined_spans(spans)
    share = [float(np.nansum(shares[members])) for members in shown_spans.members]
    labels = [untrusted(name) for name in shown_spans.names]
    values = list(share)
    sizes = [str(size) for size in shown_spans.sizes]
    if sink is not None:
        labels.append(ours("(sink)"))
        values.append(float(sink[spans.query]))
        sizes.append("")
    largest = max(values) or 1.0
    columns = [
        Column("tokens", sizes, "dim"),
        Column("share" + in_percent(settings), _share_texts(values, settings)),
    ]
    yield Table(
        "span",
        columns,
        labels=labels,
        bars=[value / largest for value in values],
        measured=len(columns) - 1,
        axis=(largest, ""),
    )
    if settings.verbose:
        yield GAP
        yield _by_layer(spans, shown_spans, settings)
        yield GAP
        yield _by_token(text, spans, settings)
    yield GAP
    yield _attended(text, spans, shown_spans, settings)
    yield GAP
    meaning = f"  each span with its share of the weight{in_percent(settings)}"
    yield paragraph(headed("text", meaning))
    yield _shaded(text, spans, shares, scale, settings)
    yield notes(span_notes(shown_spans.names))


def span_notes(names: Sequence[str]) -> list[str]:
    """Say what spans hold that are named by what they are, not by the text."""
    said = [f"{name}: {meaning}" for name, meaning in RESERVED.items() if name in names]
    return [f"{'; '.join(said)}."] if said else []


def _digits(decimals: int, settings: DisplaySettings) -> Digits:
    if settings.percent:
        return Digits(decimals).as_percent()
    return Digits(decimals)


def _share_texts(shares: Sequence[float], settings: DisplaySettings) -> list[str]:
    return written(shares, weight_digits(np.array(shares), max(2, settings.precision), settings))


def _attended(
    text: TextReport, spans: SpanReport, shown_spans: ShownSpans, settings: DisplaySettings
) -> Table:
    """Present the tokens of each span that receive most weight over all heads."""
    cells = []
    digits = _digits(3, settings)
    received = np.nan_to_num(spans.received)
    for members in shown_spans.members:
        tokens = [at for at, span in enumerate(spans.text.of_token) if span in members]
        most_attended = sorted(tokens, key=lambda at: (-received[at], at))[:_ATTENDED]
        numbers = (Span(f" {digits.text(spans.received[at])}", "caption") for at in most_attended)
        named_spans = [
            (token_span(text.tokens, at), weight_span)
            for at, weight_span in zip(most_attended, numbers, strict=True)
        ]
        cells.append(Text(named_spans, " · "))
    title = f"most attended tokens, mean of all heads{in_percent(settings)}"
    labels = [untrusted(name) for name in shown_spans.names]
    return Table("span", [Column(title, cells, left=True)], labels=labels)


def _by_layer(spans: SpanReport, shown_spans: ShownSpans, settings: DisplaySettings) -> Table:
    """Return the shares of every layer, averaged over heads."""
    layers = [
        mean_weights(spans, [(layer, head) for head in range(spans.weights.shape[1])])[0][
            spans.query
        ]
        for layer in _attending(spans)
    ]
    columns = []
    for name, members in zip(shown_spans.names, shown_spans.members, strict=True):
        columns.append(
            Column(
                untrusted(name),
                _share_texts([float(layer[members].sum()) for layer in layers], settings),
            )
        )
    return Table("layer", columns, labels=[ours(f"L{layer}") for layer in _attending(spans)])


def _by_token(text: TextReport, spans: SpanReport, settings: DisplaySettings) -> Table:
    """Present the spans that each token of the reading span attends to most; of many tokens, the last."""
    count = min(MOST, len(spans.rows))
    digits = _digits(max(2, settings.precision), settings)
    sources = []
    for shares in np.nan_to_num(spans.shares[-count:]):
        best = [n for n in np.argsort(-shares, kind="stable")[:_ATTENDED].tolist() if shares[n] > 0]
        named_spans = [
            (*untrusted(spans.text.names[n]), Span(f" {digits.text(shares[n])}", "caption"))
            for n in best
        ]
        sources.append(Text(named_spans, " · "))
    rows = spans.rows[-count:]
    labels: list[Spans] = [(Span(f"{row} "), token_span(text.tokens, row)) for row in rows]
    left_out = ""
    if count < len(spans.rows):
        left_out = f"; the last {count} of {len(spans.rows)} tokens"
    title = f"spans that the token reads most, mean of all heads{in_percent(settings)}{left_out}"
    return Table("token", [Column(title, sources, left=True)], labels=labels)


def _shaded(
    text: TextReport,
    spans: SpanReport,
    shares: Matrix,
    scale: Scale | LogScale,
    settings: DisplaySettings,
) -> Text:
    """Return the text, each span in the colour that its share has on a scale."""
    digits = _digits(max(2, settings.precision), settings)
    items: list[Spans] = []
    for span, run in groupby(
        range(len(spans.text.of_token)), lambda position: spans.text.of_token[position]
    ):
        share = float(np.nan_to_num(shares[span]))
        words = _excerpt(text, list(run), settings)
        if not words.strip():  # line breaks of a template; the table has their share
            continue
        label = Span(f"[{spans.text.names[span]} {digits.text(share)}] ", "dim", "untrusted")
        shaded = Span(words, "", "untrusted", shade=scale.place(share), scale=scale)
        items.append((label, shaded))
    return Text(items, " ")


def spell_run(tokens: Sequence[Token]) -> str:
    """Spell tokens that are in no given text, with blanks between words; of a picture, count them."""
    if len(tokens) > 1 and all(picture_of(token) for token in tokens):
        return f"{len(tokens)} patches"
    blank = [
        index > 0 and (token.piece.startswith(BEGINS_WORD) or is_register(token))
        for index, token in enumerate(tokens)
    ]
    return "".join(
        " " * begins + (token.text or token.piece)
        for token, begins in zip(tokens, blank, strict=True)
    )


def _excerpt(text: TextReport, positions: Sequence[int], settings: DisplaySettings) -> str:
    """Return the characters of a run of tokens; of a long run, of the first and the last."""
    placed = [
        text.tokens[at]
        for at in positions
        if text.tokens[at].start is not None and not text.tokens[at].made
    ]
    if not placed:
        return spell_run([text.tokens[at] for at in positions])
    full_text = text.text if placed[0].segment == 0 else text.pair or ""
    excerpt = " ".join(full_text[placed[0].start : placed[-1].end].split())
    if len(excerpt) <= _LONGEST or settings.verbose:
        return excerpt
    return f"{excerpt[: 2 * _LONGEST // 3]} … {excerpt[-_LONGEST // 3 :]}"


def present_strips(
    text: TextReport, spans: SpanReport, settings: DisplaySettings
) -> Iterator[ViewPart]:
    """Present the shares of every span for each generated token, and their mean over the answer."""
    shares = spans.generated
    if shares is None or not len(shares):
        return
    names = spans.text.names
    # sinks and templates take most, whatever is read
    told = [span_kind == "text" for span_kind in spans.text.kinds]
    mean = np.nanmean(shares, axis=0)
    rows = np.vstack((shares, mean))
    full = float(np.nanmax(rows)) or 1.0
    yield GAP
    caption = (
        "  each token was predicted from the token before it, whose weight on every span is shown, "
    )
    caption += f"mean of all {len(_attending(spans)) * spans.weights.shape[1]} heads"
    yield paragraph(headed("the answer, token by token", caption, "title"))
    legend: list[Span] = []
    for index, name in enumerate(names):
        legend += [Span(f"{' · ' if index else ''}{index} ", "dim"), *untrusted(name)]
    yield Facts([("spans", tuple(legend))], remark=False)
    if any(told):
        largest = [int(np.nanargmax(np.where(told, row, -1.0))) for row in rows]
    else:
        largest = [0] * len(rows)
    digits = max(2, settings.precision)
    # One bar for each share; any weight at all is visible.
    steps = (
        np.ceil(np.nan_to_num(rows) / full * (len(_BARS) - 1)).astype(int).clip(max=len(_BARS) - 1)
    )
    columns = [
        Column(f"0–{len(names) - 1}", ["".join(_BARS[step] for step in row) for row in steps]),
        Column("most of text", [untrusted(names[n]) for n in largest], left=True),
        Column(
            "share",
            [
                formatted(float(row[n]), f"z.{digits}f")
                for row, n in zip(rows, largest, strict=True)
            ],
        ),
    ]
    generated = [prediction.position + 1 for prediction in text.generated]
    axis = token_axis("new", text.tokens, generated)
    labels: list[Spans] = [
        (Span(f"{position} "), name) for position, name in zip(generated, axis.names, strict=True)
    ]
    yield Table("new", columns, labels=[*labels, ours("mean", "bold")])
    full_share = formatted(full, f"z.{digits}f")
    yield paragraph(note(Hint.EVERY_SHARE.after(f"a full bar is {full_share}"), "caption"))
