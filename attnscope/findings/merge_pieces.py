"""Weights between words: the pieces of a word are one row and one column."""

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Annotated

import msgspec
import numpy as np

from attnscope.findings.arrays import Floats, Matrix, UnitMatrices, UnitVectors, along
from attnscope.findings.tokens import Token, group_words, spell_word


class TextWords(msgspec.Struct, frozen=True):
    """The words of a text, among its shown rows and columns.

    Attributes:
        queries: Positions of the shown tokens of every word of the rows.
        keys: Positions of the shown tokens of every word of the columns.
        query_names: The words of the rows.
        key_names: The words of the columns.
    """

    queries: Annotated[list[list[int]], along("query word")]
    keys: Annotated[list[list[int]], along("key word")]
    query_names: Annotated[list[str], along("query word")]
    key_names: Annotated[list[str], along("key word")]

    def contradictions(self, lengths: Mapping[str, int]) -> Iterator[tuple[str, str]]:
        """Yield contradictions that axes cannot express; see `axes`."""
        for name, words, count in (
            ("queries", self.queries, "token"),
            ("keys", self.keys, "source"),
        ):
            if not all(
                word and all(0 <= position < lengths[count] for position in word) for word in words
            ):
                yield (
                    name,
                    f"has a word without tokens, or a position outside 0 to {lengths[count] - 1}",
                )


class WordWeights(msgspec.Struct, frozen=True):
    """The weights of heads between words.

    Attributes:
        weights: Weight of each word on each word, summed over the tokens of the key's word and averaged over those of
            the query's, (unit, query word, key word); fully masked queries do not count, and a word of nothing else is
            null.
        sink: Weight that the tokens of a word give to the head's sink, averaged, (unit, query word); None if no head
            has a sink.
    """

    weights: Annotated[UnitMatrices, along("unit", "query word", "key word")]
    sink: Annotated[UnitVectors, along("unit", "query word")] | None = None


def whole_words(tokens: Sequence[Token], positions: Sequence[int]) -> list[int]:
    """Return the positions of all tokens in the words of these tokens, sorted."""
    wanted = set(positions)
    return [
        p
        for word in group_words(tokens, range(len(tokens)))
        if wanted.intersection(word)
        for p in word
    ]


def words_of(
    tokens: list[Token], sources: list[Token], queries: list[int], keys: list[int]
) -> TextWords:
    """Return the words of rows and columns."""
    rows = group_words(tokens, queries)
    columns = group_words(sources, keys)
    names = (
        [spell_word(tokens, word) for word in rows],
        [spell_word(sources, word) for word in columns],
    )
    return TextWords(rows, columns, *names)


def merge_weights(
    words: TextWords,
    weights: Matrix,
    places: tuple[list[int], list[int]],
    fully_masked: list[int],
    sink: Floats | None,
) -> WordWeights:
    """Merge the weights between tokens, (queries, keys), into weights between words, in float64.

    `places` are the positions of the rows and of the columns, `sink` what each query gives to the head's sink.
    """
    rows, columns = ({position: n for n, position in enumerate(side)} for side in places)
    masked = {rows[position] for position in fully_masked if position in rows}
    of_words = [[rows[p] for p in word] for word in words.queries]
    merged = merge_cells(
        weights, of_words, [[columns[p] for p in word] for word in words.keys], masked
    )
    drained = None
    if sink is not None:
        drained = merge_cells(sink[:, None], of_words, [[0]], masked)[:, 0].astype(np.float32)
    return WordWeights(merged.astype(np.float32), drained)


def merge_cells(
    weights: Matrix,
    rows: Sequence[Sequence[int]],
    columns: Sequence[Sequence[int]],
    masked: Container[int],
) -> Matrix:
    """Merge a matrix of weights: summed over columns, averaged over rows that are not masked; float64.

    `rows` and `columns` are those of every row and column of the result; a row is NaN if all of its rows are masked.
    """
    order = [column for members in columns for column in members]
    starts = np.cumsum([0, *map(len, columns)])[:-1]
    summed = np.add.reduceat(weights.astype(np.float64)[:, order], starts, axis=1)
    counted = [[row for row in members if row not in masked] for members in rows]
    nothing = np.full(len(columns), np.nan)
    return np.stack([summed[members].mean(0) if members else nothing for members in counted])
