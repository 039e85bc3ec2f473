"""The walk between the words of a text on its page, before that between its tokens."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from attnscope.findings.run import TextReport
from attnscope.studies.explore.saved import SavedText
from attnscope.studies.explore.units import TextUnits, unit_scene, word_head
from attnscope.studies.run.span_walk import (
    WORTH_NAMING,
    in_heads,
    quoted,
    ranked,
    read_most,
    reading_heads,
)
from attnscope.views.walk.scene import Scene, WalkHead

_Heads = dict[tuple[int, int], WalkHead]


def between_words(text: TextReport, tokens: SavedText) -> SavedText:
    """Return the walk between words, of all heads whose weights between tokens are known."""
    makers: dict[tuple[int, int], Callable[[], WalkHead]] = {}
    scene = unit_scene(tokens.scene(), TextUnits(text.tokens, text.sources), "words")
    heads: _Heads = {}
    for place in tokens.heads():
        head = tokens.head(place)
        if head is not None and head.exact and "weights" in head.stages:
            heads[place] = _between_words(head, tokens.scene(), scene)
            makers[place] = partial(heads.__getitem__, place)
    return SavedText(partial(_scene, tokens.scene(), scene, heads), lambda: makers)


def _between_words(head: WalkHead, tokens: Scene, words: Scene) -> WalkHead:
    merged = word_head(head, tokens, words)
    return replace(merged, sources=ranked(merged.stages["weights"]))


def _scene(tokens: Scene, words: Scene, heads: _Heads) -> Scene:
    """Return the scene, which begins at the word of the row that tokens begin at, and at what this reads most."""
    assert words.members is not None
    row = len(tokens.queries.positions) - 1 if tokens.start is None else tokens.start
    query = _word_of(tokens.queries.positions[row], words.members[0])
    if tokens.start_key is None:
        key, answer = _answer(words, heads, query)
    else:  # a question about a cell, which the page answers of every head
        key = _word_of(tokens.keys.positions[tokens.start_key], words.members[1])
        answer = ""
    return replace(
        words,
        start=query,
        start_key=key,
        predictions=[],  # of tokens
        numbers=[],
        roles=None,
        effects=None,
        no_effects="",
        display="lens",
        answer=answer,
    )


def _word_of(position: int, members: Sequence[Sequence[int]]) -> int:
    """Return the index of the word that a token belongs to."""
    return next(n for n, word in enumerate(members) if position in word)


def _answer(words: Scene, heads: _Heads, query: int) -> tuple[int | None, str]:
    """Return the other word that a word reads most in the first head, and say so."""
    first_head = heads.get(words.first)
    if first_head is None:
        return None, ""
    shares = np.nan_to_num(first_head.stages["weights"][query])
    reader = words.queries.positions[query]
    positions = list(words.keys.positions)
    order = np.argsort(-shares, kind="stable").tolist()
    # neither itself nor the first token nor special ones
    others = [
        n
        for n in order
        if shares[n] > 0 and positions[n] not in (0, reader) and not words.keys.special[n]
    ]
    if not others:
        return None, ""
    names = [quoted(name.text) for name in words.keys.names]
    said = f"{in_heads(first_head.name)}, {quoted(words.queries.names[query].text)} reads "
    said += f"{read_most(names, shares, others, 'words')}."
    if words.aligned and reader in positions:
        said += f" It reads itself {shares[positions.index(reader)]:.2f}"
        said += "".join(
            f", {names[n]} {shares[n]:.2f}"
            for n in order
            if (positions[n] == 0 or words.keys.special[n])
            and positions[n] != reader
            and shares[n] >= WORTH_NAMING
        )
        said += "."
    most = others[0]
    if 1 < len(heads) == len(words.layers) * len(words.heads):
        by_head = {
            head.name: float(np.nan_to_num(head.stages["weights"][query, most]))
            for head in heads.values()
        }
        said += f" {reading_heads(by_head, names[most])}"
    return most, said
