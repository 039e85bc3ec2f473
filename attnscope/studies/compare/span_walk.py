"""The walk between the spans of both sides on the page of a comparison, before that between their tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from attnscope.base.system.escape import escape_control
from attnscope.findings.arrays import Floats, Matrix
from attnscope.findings.compare import Comparison
from attnscope.findings.heads import HeadRef
from attnscope.findings.run import TextReport
from attnscope.findings.spans import SpanReport
from attnscope.studies.compare.span_screen import of_compared_heads
from attnscope.studies.explore.saved import SavedSource, SavedText
from attnscope.studies.run.span_walk import (
    Sizes,
    SpanSource,
    attending,
    averaged_head,
    quoted,
    span_heads,
    span_scene,
)
from attnscope.studies.screens.spans import span_axis
from attnscope.views.axes import Axis
from attnscope.views.walk.effects import tied_names
from attnscope.views.walk.scene import MOVED, Alignment, HeadNumber, Scene, WalkHead

_NAMED = 2  # spans whose change the answer names
_VISIBLE = 0.005  # share of a span's weight that is not written as 0.00


@dataclass(frozen=True)
class _Side:
    """The spans of a text on one side, and the heads that its walk leads through."""

    label: str
    text: TextReport
    spans: SpanReport
    sizes: Sizes

    @cached_property
    def heads(self) -> dict[tuple[int, int], WalkHead]:
        """All heads and means."""
        return {at: make() for at, make in span_heads(self.spans, self.sizes).items()}

    def name(self, at: tuple[int, int]) -> str:
        """Name a head by its indices."""
        layer, head = at
        return str(HeadRef(self.sizes[0][layer], self.sizes[1][head]))


@dataclass(frozen=True)
class _Pair:
    """The spans of two sides, paired by name; −1 for a key that a side lacks."""

    first: _Side
    second: _Side
    rows: list[tuple[int, int]]
    columns: list[tuple[int, int]]

    def weights(self, at: tuple[int, int]) -> tuple[Matrix, Matrix]:
        """Return what the paired rows of a head give each key on both sides, and then its sink."""
        before, after = (
            _on(side.heads[at], [row[n] for row in self.rows], [key[n] for key in self.columns])
            for n, side in enumerate((self.first, self.second))
        )
        return before, after

    def moved(self, at: tuple[int, int]) -> Floats:
        """Return the share of each paired row's weight that moved; NaN for a row that reads nothing on a side."""
        before, after = self.weights(at)
        share: Floats = 0.5 * np.abs(after - before).sum(1)
        return share

    def changes(self, at: tuple[int, int], row: int) -> list[int]:
        """Return the keys of a head's row, that whose weight changed most first."""
        before, after = (weights[row, :-1] for weights in self.weights(at))
        order: list[int] = np.argsort(
            -np.abs(np.nan_to_num(after - before)), kind="stable"
        ).tolist()
        return order

    @cached_property
    def every(self) -> dict[tuple[int, int], Floats]:
        """What moved in the parts of the text in every head; NaN for its other rows, if there are parts."""
        outside = [self.first.spans.text.outside[row] for row, _ in self.rows]
        if all(outside):
            return {at: self.moved(at) for at in self.first.heads}
        return {at: np.where(outside, np.nan, self.moved(at)) for at in self.first.heads}

    @property
    def names(self) -> list[str]:
        """Names of the keys."""
        texts = self.first.spans.text, self.second.spans.text
        return [texts[0].names[i] if i >= 0 else texts[1].names[j] for i, j in self.columns]

    @property
    def alignment(self) -> Alignment | None:
        """The spans side by side; None if both sides have the same."""
        if self.first.spans.text.names == self.second.spans.text.names:
            return None
        return Alignment(self.rows, self.columns, self._axis(self.rows), self._axis(self.columns))

    def _axis(self, pairs: Sequence[tuple[int, int]]) -> Axis:
        first_text = self.first.spans.text
        second_text = self.second.spans.text
        names = []
        outside = []
        numbers = []
        for i, j in pairs:
            text, index = (first_text, i) if i >= 0 else (second_text, j)
            name = text.names[index]
            if i < 0:
                name = f"–/{name}"
            elif j < 0:
                name = f"{name}/–"
            names.append(name)
            outside.append(text.outside[index])
            numbers.append(str(i) if i == j else "/".join("–" if n < 0 else str(n) for n in (i, j)))
        return replace(span_axis("key", names, outside), numbers=numbers)


def _on(head: WalkHead, rows: Sequence[int], keys: Sequence[int]) -> Matrix:
    """Return the weights of rows on keys, 0 for a missing one, and on the sink."""
    weights = head.stages["weights"][list(rows)].astype(np.float64)
    sink = head.rows.get("sink", np.zeros(len(head.stages["weights"])))[list(rows), None]
    padded = np.column_stack((weights, np.zeros(len(rows))))
    return np.column_stack((padded[:, list(keys)], sink))


def with_compared_spans(source: SavedSource, comparison: Comparison) -> SavedSource:
    """Put a walk between the spans of each text before the one between its tokens, if both sides share any."""
    names: list[str] = []
    saved: dict[tuple[int, int], SavedText] = {}
    is_divided = False
    texts = list(zip(*(side.report.texts for side in comparison.sides), strict=True))
    for n, of_sides in enumerate(texts):
        which = f" of {n} {of_sides[0].text}" if len(texts) > 1 else ""
        between_spans = _between_spans(source, comparison, n, of_sides)
        if between_spans:
            is_divided = True
            saved |= {(len(names), side): text for side, text in enumerate(between_spans)}
            names.append(f"as spans{which}")
        saved |= {(len(names), side): source.saved[n, side] for side in range(len(of_sides))}
        names.append(f"as tokens{which}")
    if not is_divided:
        return source
    return SpanSource(names, source.masks, saved, compared=source.compared)


def _between_spans(
    source: SavedSource, comparison: Comparison, number: int, texts: Sequence[TextReport]
) -> list[SavedText]:
    """Return the walk between the spans of a text on every side; nothing if sides share no spans."""
    spans = [text.spans for text in texts if text.spans is not None]
    if len(spans) < len(texts):
        return []
    spans = of_compared_heads(texts, spans, of_heads=comparison.axis in ("layer", "head"))
    sizes = _sizes(comparison.axis, texts, spans)
    sides = [
        _Side(side.label, text, report, of_side)
        for side, text, report, of_side in zip(comparison.sides, texts, spans, sizes, strict=True)
    ]
    first_side, *others = sides
    pairs = [_paired(first_side, other) for other in others]
    if not all(pair.rows for pair in pairs):
        return []
    between_spans = []
    for n, (side, pair) in enumerate(zip(sides, [pairs[0], *pairs], strict=True)):
        scene = partial(_scene, source.saved[number, n], side, pair, "query" in comparison.named)
        between_spans.append(SavedText(scene, partial(span_heads, side.spans, side.sizes)))
    return between_spans


def _sizes(axis: str, texts: Sequence[TextReport], spans: Sequence[SpanReport]) -> list[Sizes]:
    """Return the layers and heads of every side: those that it is about, or else those that all sides have, and means."""
    layers = sorted(set.intersection(*(set(attending(report)) for report in spans)))
    heads = range(min(report.weights.shape[1] for report in spans))
    sizes = []
    for text in texts:
        of_side: Sizes = [*layers, "mean"], [*heads, "mean"]
        if axis == "layer":
            of_side = list(dict.fromkeys(unit.layer for unit in text.heads.units)), of_side[1]
        elif axis == "head":
            of_side = of_side[0], list(dict.fromkeys(unit.head for unit in text.heads.units))
        sizes.append(of_side)
    return sizes


def _paired(first_side: _Side, second_side: _Side) -> _Pair:
    """Pair the spans of two sides by their names, whatever their order."""
    names, others = (side.spans.text.names for side in (first_side, second_side))
    rows = [(n, others.index(name)) for n, name in enumerate(names) if name in others]
    columns = [(n, others.index(name) if name in others else -1) for n, name in enumerate(names)]
    columns += [(-1, n) for n, name in enumerate(others) if name not in names]
    return _Pair(first_side, second_side, rows, columns)


def _scene(tokens: SavedText, side: _Side, pair: _Pair, asked: bool) -> Scene:
    """Return the scene of a side, which begins where most weight moved.

    Args:
        asked: Whether the user named the row.
    """
    scene = span_scene(side.text, side.spans, tokens.scene(), side.sizes)
    alignment = pair.alignment if side is pair.second else None
    scene = replace(scene, alignment=alignment)
    if averaged_head(pair.first.spans) is None:
        scene = replace(scene, command=None)  # no command shows the mean of some heads by that name
    largest = {at: _largest(moved) for at, moved in pair.every.items()}
    first = _first(pair, largest)
    own = 1 if side is pair.second else 0
    row = _row(pair, first, asked=asked)
    key = pair.columns[pair.changes(first, row)[0]][own]
    scene = replace(
        scene, first=first, start=pair.rows[row][own], start_key=None if key < 0 else key
    )
    known = [share for share in largest.values() if not np.isnan(share)]
    if (
        not known or max(known) < _VISIBLE
    ):  # on a scale of its own, the largest number would look like much
        most = max(known, default=0.0)
        answer = "What moved: nothing, both sides have the same weights between spans."
        if most:
            answer = f"What moved: at most {most:.1g} of a part's weight in any head."
        return replace(scene, answer=answer)
    values = np.array([*largest.values()], dtype=np.float32)
    values = values.reshape(len(side.sizes[0]), len(side.sizes[1]))
    labels = [escape_control(side.label) for side in (pair.first, pair.second)]
    meaning = f"Largest share of a part that moved, from {labels[0]} to {labels[1]}."
    number = HeadNumber(MOVED, meaning, values, is_share=True)
    answer = _answer(pair, first, row, largest, asked=asked)
    return replace(scene, numbers=[number], display=MOVED, answer=answer)


def _largest(moved: Floats) -> float:
    known = moved[~np.isnan(moved)]
    return float(known.max()) if known.size else float("nan")


def _first(pair: _Pair, largest: dict[tuple[int, int], float]) -> tuple[int, int]:
    """Return the head, or the mean, of the terminal's matrices; else the head in which most moved."""
    refs = [
        averaged_head(side.spans) or HeadRef("mean", "mean") for side in (pair.first, pair.second)
    ]
    places = [
        tuple(
            numbers.index(number) if number in numbers else -1
            for number, numbers in zip(ref, side.sizes, strict=True)
        )
        for ref, side in zip(refs, (pair.first, pair.second), strict=True)
    ]
    layer, head = places[0]
    if places[0] == places[1] and -1 not in places[0]:
        return layer, head
    return max(largest, key=lambda at: np.nan_to_num(largest[at], nan=-1.0))


def _row(pair: _Pair, at: tuple[int, int], *, asked: bool) -> int:
    """Return the paired row that the answer is about: the one that was asked for, or that in which most moved."""
    reading = [n for n, (row, _) in enumerate(pair.rows) if row == pair.first.spans.query]
    if asked and reading:
        return reading[0]
    return int(np.nan_to_num(pair.every[at], nan=-1.0).argmax())


def _answer(
    pair: _Pair,
    first: tuple[int, int],
    row: int,
    largest: dict[tuple[int, int], float],
    *,
    asked: bool,
) -> str:
    """Say how much of a part's weight moved, from where to where, and in which head most moved."""
    whose = " and ".join(dict.fromkeys(_whose(side, first) for side in (pair.first, pair.second)))
    reader = quoted(pair.first.spans.text.names[pair.rows[row][0]])
    before, after = (weights[row, :-1] for weights in pair.weights(first))
    changes = [
        f"{quoted(pair.names[n])} {before[n]:.2f} → {after[n]:.2f}"
        for n in pair.changes(first, row)[:_NAMED]
        if abs(after[n] - before[n]) >= _VISIBLE
    ]
    most = "" if asked else "most, "
    said = f"{reader} moves {most}{pair.moved(first)[row]:.2f} of its weight ({whose})"
    said += f"{': ' * bool(changes)}{', '.join(changes)}."
    return said + _strongest(pair, largest)


def _whose(side: _Side, first: tuple[int, int]) -> str:
    """Name the head, or say which heads a mean is of."""
    chosen = side.heads[first].chosen
    return chosen or side.name(first)


def _strongest(pair: _Pair, largest: dict[tuple[int, int], float]) -> str:
    """Name the head in which most weight moved, and the part whose weight that is; or all that tie."""
    is_mean = {at: "mean" in pair.first.name(at) for at in largest}
    shares = {at: share for at, share in largest.items() if not is_mean[at] and not np.isnan(share)}
    if len(shares) < 2:
        return ""
    order = sorted(shares, key=lambda at: -shares[at])
    most = f"{shares[order[0]]:.2f}"
    tied = [at for at in order if f"{shares[at]:.2f}" == most]
    names = [" → ".join(dict.fromkeys((pair.first.name(at), pair.second.name(at)))) for at in tied]
    said = f" Of all heads, {tied_names(names)} {'moves' if len(tied) == 1 else 'move'} most: {most} of "
    if len(tied) > 1:
        return f"{said}a part."
    row = int(np.nan_to_num(pair.every[tied[0]], nan=-1.0).argmax())
    return f"{said}{quoted(pair.first.spans.text.names[pair.rows[row][0]])}."
