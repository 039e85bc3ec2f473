"""Weights between words: the pieces of a word are one row and one column."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attnscope.findings.arrays import Matrix
from attnscope.findings.run import HeadReport, TextReport
from attnscope.findings.tokens import Token, group_words, spell_word
from attnscope.studies.screens.contributors import LITTLE, rest_of
from attnscope.views.axes import Axis, ranked_out, source_kind, with_sink
from attnscope.views.numbers import digits_for, texts
from attnscope.views.parts import Bar, Bars, Panel
from attnscope.views.scales import scale_for
from attnscope.views.settings import DisplaySettings
from attnscope.views.spans import Span, ours


@dataclass(frozen=True)
class Words:
    """The weights of a head between words.

    Attributes:
        queries: Positions of the shown pieces of every word of the query side.
        keys: Likewise of the key side.
        weights: (words, words), float64; NaN where no piece of a row may attend to anything.
        sink: What a word's queries give to the head's sink on average, (words,); None where it has none.
    """

    queries: list[list[int]]
    keys: list[list[int]]
    weights: Matrix
    sink: Matrix | None


def merge_words(text: TextReport, head: HeadReport) -> Words:
    """Merge pieces into words: weights are summed over a word's keys, and averaged over its queries.

    A row of words therefore sums to the same value as its rows of tokens. Fully masked queries do not count.
    """
    queries, keys = group_words(text.tokens, text.queries), group_words(text.sources, text.keys)
    weights = head.stages["weights"].astype(np.float64)
    columns = {position: n for n, position in enumerate(text.keys)}
    rows = {position: n for n, position in enumerate(text.queries)}
    summed = np.stack([weights[:, [columns[p] for p in word]].sum(1) for word in keys], axis=1)
    counted = [[rows[p] for p in word if p not in head.fully_masked] for word in queries]
    nothing = np.full(len(keys), np.nan)
    merged = np.stack([summed[some].mean(0) if some else nothing for some in counted])
    sink = None
    if head.rows.sink is not None:
        sink = np.array([head.rows.sink[some].astype(np.float64).mean() if some else np.nan for some in counted])
    return Words(queries, keys, merged, sink)


def word_matrix(text: TextReport, head: HeadReport, settings: DisplaySettings) -> Panel:
    """Present the weights between words as a matrix."""
    words = merge_words(text, head)
    matrix = words.weights.astype(np.float32)
    rows = _axis("query", text.tokens, words.queries)
    columns = _axis(source_kind(text), text.sources, words.keys)
    if words.sink is not None:
        matrix, columns = np.column_stack((matrix, words.sink.astype(np.float32))), with_sink(columns)
    masked = [bool(np.isnan(row).all()) for row in matrix]
    digits = digits_for(matrix, max(settings.precision, 1))
    cells = texts("weights", matrix, masked, digits)
    said = ours("between words: summed over a word's keys, averaged over its queries")
    scale = scale_for("weights", matrix)
    return Panel("weights", ours("weights"), matrix, cells, rows, columns, scale, digits, masked, said, said)


def word_contributors(text: TextReport, head: HeadReport, settings: DisplaySettings, *, compact: bool) -> Bars:
    """Rank the words that every word attends to, by weight; words with a token that is left out are left out."""
    words = merge_words(text, head)
    out = ranked_out(text.sources, head.top.left_out)
    excluded = np.array([bool(out[word].any()) for word in words.keys])
    digits = digits_for(words.weights.astype(np.float32), settings.precision + 1)
    whole = len(text.keys) == len(text.sources)
    bars: list[list[Bar] | None] = []
    rest: list[tuple[str, str] | None] = []
    for row in words.weights:
        order = np.argsort(-np.where(excluded | np.isnan(row), -1.0, row), kind="stable")[: head.top.keys.shape[1]]
        listed = [int(n) for n in order if row[n] > 0 and not excluded[n]]
        kept = [n for n in listed if row[n] >= LITTLE or settings.verbose or not whole]
        masked = bool(np.isnan(row).all())
        bars.append(None if masked else [Bar(n, float(row[n]), [digits.text(float(row[n]))]) for n in kept])
        rest.append(rest_of(row, kept, excluded, digits) if len(kept) < len(listed) else None)
    left_out = f", without {' and '.join(head.top.left_out)}" if head.top.left_out else ""
    left_out += "" if whole else ", of the columns shown"
    return Bars(
        _axis(source_kind(text), text.sources, words.keys),
        ["weight"],
        bars,
        _axis("query", text.tokens, words.queries),
        title=(Span("top contributors", "bold"), Span(f"  words, by weight{left_out}", "dim")),
        rest=rest,
        compact=compact,
    )


def _axis(kind: str, tokens: Sequence[Token], words: Sequence[Sequence[int]]) -> Axis:
    """Return the axis of words, each at the position of its first piece."""
    names = [
        Span(
            spell_word(tokens, word),
            origin="unknown token" if any(tokens[p].unknown for p in word) else "token",
        )
        for word in words
    ]
    special = [tokens[word[0]].special for word in words]
    count = len(group_words(tokens, range(len(tokens))))
    return Axis(kind, [word[0] for word in words], names, special, count, words=True)
