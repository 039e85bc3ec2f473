"""Weights between words: the pieces of a word are one row and one column."""

from collections.abc import Sequence

import numpy as np

from attnscope.findings.heads import HeadReport
from attnscope.findings.merge_pieces import TextWords
from attnscope.findings.run import TextReport
from attnscope.findings.tokens import Token, group_words, spell_word
from attnscope.studies.screens.contributors import LITTLE
from attnscope.studies.screens.stages import in_percent, matrix_panel, weight_digits
from attnscope.views.axes import Axis, AxisKind, ranked_out, source_kind, with_sink
from attnscope.views.parts import Bar, Bars, Panel, Remainder
from attnscope.views.settings import DisplaySettings
from attnscope.views.spans import Origin, Span, headed, ours


def word_axes(text: TextReport, words: TextWords) -> tuple[Axis, Axis]:
    """Return the words of the rows and of the columns, each at the position of its first token."""
    rows = word_axis("query", text.tokens, words.queries)
    return rows, word_axis(source_kind(text), text.sources, words.keys)


def word_matrix(text: TextReport, head: HeadReport, settings: DisplaySettings) -> Panel:
    """Present the weights between words as a matrix."""
    words = text.words
    merged = head.words
    assert words is not None and merged is not None
    matrix = merged.weights
    rows, columns = word_axes(text, words)
    if merged.sink is not None:
        matrix = np.column_stack((matrix, merged.sink))
        columns = with_sink(columns)
    masked = [bool(np.isnan(row).all()) for row in matrix]
    caption = ours(
        f"between words: summed over a word's keys, averaged over its queries{in_percent(settings)}"
    )
    return matrix_panel(matrix, masked, (rows, columns), ours("weights"), caption, settings)


def word_contributors(
    text: TextReport, head: HeadReport, settings: DisplaySettings, *, compact: bool
) -> Bars:
    """Rank the words that every word attends to, by weight; words with a left-out token are left out."""
    words = text.words
    merged = head.words
    assert words is not None and merged is not None
    out = ranked_out(text.sources, head.top.left_out)
    excluded = np.array([bool(out[word].any()) for word in words.keys])
    digits = weight_digits(merged.weights, settings.precision + 1, settings)
    all_keys = len(text.keys) == len(text.sources)
    rows, columns = word_axes(text, words)
    bars: list[list[Bar] | None] = []
    remainders: list[Remainder | None] = []
    for row in merged.weights.astype(np.float64):
        order = np.argsort(-np.where(excluded | np.isnan(row), -1.0, row), kind="stable")[
            : head.top.keys.shape[1]
        ]
        listed = [int(n) for n in order if row[n] > 0 and not excluded[n]]
        kept_words = [n for n in listed if row[n] >= LITTLE or settings.verbose or not all_keys]
        if np.isnan(row).all():
            bars.append(None)
        else:
            bars.append([Bar(n, float(row[n]), [digits.text(float(row[n]))]) for n in kept_words])
        remainder = None
        if all_keys and not settings.verbose:
            others = np.where(excluded, 0.0, row)
            others[kept_words] = 0
            remainder = Remainder(int((others > 0).sum()), float(np.nansum(others)), digits)
        remainders.append(remainder)
    left_out = ""
    if head.top.left_out:
        left_out = f", without {' and '.join(head.top.left_out)}"
    left_out += "" if all_keys else ", of the columns shown"
    return Bars(
        columns,
        ["weight %" if settings.percent else "weight"],
        bars,
        rows,
        title=headed("top contributors", f"  words, by weight{left_out}"),
        remainders=remainders,
        compact=compact,
    )


def word_axis(axis_kind: AxisKind, tokens: Sequence[Token], words: Sequence[Sequence[int]]) -> Axis:
    """Return the axis of words, each at the position of its first piece."""
    origins: list[Origin] = [
        "unknown token" if any(tokens[p].unknown for p in word) else "token" for word in words
    ]
    names = [
        Span(spell_word(tokens, word), origin=origin)
        for word, origin in zip(words, origins, strict=True)
    ]
    special = [tokens[word[0]].special for word in words]
    count = len(group_words(tokens, range(len(tokens))))
    return Axis(axis_kind, [word[0] for word in words], names, special, count, words=True)
