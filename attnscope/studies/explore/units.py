"""Words and spans of a text as what a walk leads through: their axes, and the weights between them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attnscope.findings.arrays import Floats, Matrix
from attnscope.findings.merge_pieces import merge_cells
from attnscope.findings.run import TextReport
from attnscope.findings.spans import TextSpans
from attnscope.findings.tokens import Token, group_words
from attnscope.studies.screens.spans import span_axis
from attnscope.studies.screens.word_matrix import word_axis
from attnscope.views.walk.scene import Passage, Scene, Source, Variant, WalkHead

UNNAMED = ("ranges", "turns")  # divisions that come with a text: from Python, and from a chat
SpansOfHead = Callable[[int, int], tuple[Matrix, Floats | None] | None]


@dataclass(frozen=True)
class TextUnits:
    """The words and spans that the tokens of a text belong to."""

    tokens: Sequence[Token]
    sources: Sequence[Token]
    spans: TextSpans | None = None  # the spans; None if the text is not divided
    # weights between spans, (spans, spans), and on the head's sink, (spans,), by indices of layer and head; None if
    # unknown
    of_head: SpansOfHead = lambda _layer, _head: None
    division: str = ""  # the division, as `--spans` names it; empty if a command cannot name it


def text_units(text: TextReport, scene: Scene) -> TextUnits:
    """Return the words and spans of a text of a report."""
    spans = text.spans
    if spans is None:
        return TextUnits(text.tokens, text.sources)

    def of_head(layer: int, head: int) -> tuple[Matrix, Floats | None] | None:
        at = scene.layers[layer]
        which = scene.heads[head]
        # the report has all heads of the model, and no means
        if not isinstance(at, int) or not isinstance(which, int):
            return None
        return spans.weights[at, which], None if spans.sink is None else spans.sink[at, which]

    division = "" if spans.division in UNNAMED else spans.division
    return TextUnits(text.tokens, text.sources, spans.text, of_head, division)


class UnitSource(Source):
    """A source that shows tokens, words and spans.

    A subclass has `token_scene`, `token_head` and `units_of`, which take a variant of tokens.
    """

    def token_scene(self, variant: Variant) -> Scene | None:
        """Return the scene of tokens."""
        raise NotImplementedError

    def token_head(self, variant: Variant, layer: int, head: int) -> WalkHead | None:
        """Return a head of the scene of tokens."""
        raise NotImplementedError

    def units_of(self, variant: Variant) -> TextUnits | None:
        """Return the words and spans of the tokens; None if unknown."""
        raise NotImplementedError

    def scene(self, variant: Variant) -> Scene | None:
        """Return a scene; of tokens if the text has no such units, None before it is computed."""
        plain = of_tokens(variant)
        scene = self.token_scene(plain)
        if scene is None or variant.unit == "tokens" or variant.unit not in scene.units:
            return scene
        units = self.units_of(plain)
        if units is None:
            return scene
        return scene.made(variant, lambda: unit_scene(scene, units, variant.unit))

    def head(self, variant: Variant, layer: int, head: int) -> WalkHead | None:
        """Return a head; None before it is computed."""
        plain = of_tokens(variant)
        scene = None if variant.unit == "tokens" else self.scene(variant)
        if scene is None or scene.unit == "tokens":
            return self.token_head(plain, layer, head)
        units = self.units_of(plain)
        assert units is not None
        if scene.unit == "spans":
            return scene.made((layer, head), lambda: span_head(scene, units, layer, head))
        tokens = self.token_head(plain, layer, head)
        token_scene = self.token_scene(plain)
        if tokens is None or token_scene is None:
            return None
        if not tokens.holds("weights", 0, len(token_scene.queries.positions) - 1):
            return None
        return tokens.made(variant.unit, lambda: word_head(tokens, token_scene, scene))


def of_tokens(variant: Variant) -> Variant:
    """Return the token variant of a variant."""
    if variant.unit == "tokens":
        return variant
    return replace(variant, unit="tokens")


def unit_scene(scene: Scene, units: TextUnits, unit: str) -> Scene:
    """Return the scene of words or spans of a text."""
    if unit == "words":
        members = (
            group_words(units.tokens, scene.queries.positions),
            group_words(units.sources, scene.keys.positions),
        )
        queries = word_axis("query", units.tokens, members[0])
        keys = word_axis(scene.keys.kind, units.sources, members[1])
        division = ""
    else:
        assert units.spans is not None
        tokens = [units.spans.tokens(index) for index in range(len(units.spans.names))]
        members = (tokens, tokens)
        queries = span_axis("query", units.spans.names, units.spans.outside)
        keys = span_axis("key", units.spans.names, units.spans.outside)
        division = units.division
    places = tuple(
        {position: n for n, token in enumerate(members_of_axis) for position in token}
        for members_of_axis in members
    )
    start, start_key = (
        None if index is None else of_axis.get(axis.positions[index])
        for of_axis, axis, index in zip(
            places, (scene.queries, scene.keys), (scene.start, scene.start_key), strict=True
        )
    )
    if start is not None and queries.special[start]:
        start = start_key = None  # a walk does not begin in what a chat's template writes
    return replace(
        scene,
        start=start,
        start_key=start_key,
        queries=queries,
        keys=keys,
        sources=keys,
        passages=[_moved(passage, scene, places) for passage in scene.passages],
        stages=["weights"],
        width=0,
        unit=unit,
        members=members,
        division=division,
    )


def _moved(passage: Passage, scene: Scene, places: Sequence[dict[int, int]]) -> Passage:
    """Return a passage with the word or span that its token belongs to."""
    query = scene.queries.positions[passage.query] if passage.query >= 0 else -1
    key = scene.keys.positions[passage.key] if passage.key >= 0 else -1
    return replace(passage, query=places[0].get(query, -1), key=places[1].get(key, -1))


def word_head(head: WalkHead, tokens: Scene, words: Scene) -> WalkHead:
    """Return the weights of a head between words: summed over a word's keys, averaged over its queries."""
    assert words.members is not None
    axes = tokens.queries.positions, tokens.keys.positions
    places = [{position: n for n, position in enumerate(axis)} for axis in axes]
    rows, columns = (
        [[index_of[position] for position in word] for word in members]
        for index_of, members in zip(places, words.members, strict=True)
    )
    merged = merge_cells(head.stages["weights"], rows, columns, head.masked_rows).astype(np.float32)
    sink = head.rows.get("sink")
    if sink is None:
        means = {}
    else:
        means = {"sink": np.array([np.nanmean(sink[row]) for row in rows])}
    return _of_weights(head.layer, head.head, merged, means, head.chosen)


def span_head(scene: Scene, units: TextUnits, layer: int, head: int) -> WalkHead | None:
    """Return the weights of a head between spans; None if they are not known."""
    weights_and_sink = units.of_head(layer, head)
    if weights_and_sink is None:
        return None
    weights, sink = weights_and_sink
    rows = {} if sink is None else {"sink": sink}
    return _of_weights(
        scene.layers[layer], scene.heads[head], np.asarray(weights, dtype=np.float32), rows
    )


def _of_weights(
    layer: Any, head: Any, weights: Matrix, rows: dict[str, Floats], reason: str = ""
) -> WalkHead:
    masked = frozenset(np.flatnonzero(np.isnan(weights).all(1)).tolist())
    return WalkHead(
        layer, head, stages={"weights": weights}, masked_rows=masked, rows=rows, chosen=reason
    )
