"""A page of a comparison: what differs, and a walk through the heads of all sides."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from textwrap import shorten
from typing import Any

import numpy as np
from msgspec.structs import replace

from attnscope.base.system.escape import escape_control
from attnscope.findings.compare import Change, Comparison, HeadChange
from attnscope.findings.heads import HeadRef
from attnscope.findings.tokens import Token
from attnscope.studies.compare.row_changes import differing_word
from attnscope.studies.compare.screen import (
    both_axis,
    nothing_moved,
    present_comparison,
    shown_columns,
    with_short_labels,
)
from attnscope.studies.compare.span_walk import with_compared_spans
from attnscope.studies.explore.saved import SavedSource, SavedText, cell_moved, comparison_source
from attnscope.studies.explore.scenes import head_axes
from attnscope.studies.run.every_head import RoleRecorders, TextRoles, with_roles
from attnscope.studies.run.span_walk import quoted
from attnscope.views.axes import source_kind
from attnscope.views.parts import FirstFitting, Matrices, ViewPart, WeightMap
from attnscope.views.settings import DisplaySettings
from attnscope.views.spans import token_span
from attnscope.views.walk.effects import tied_names
from attnscope.views.walk.scene import MOVED, Alignment, Scene

_LONGEST = 22  # characters that name a long text
_NAMED = 3  # heads that the answer names


def present_page(comparison: Comparison, settings: DisplaySettings) -> Iterator[Any]:
    """Turn a comparison into the parts of a page; a walk replaces its matrices.

    What moved in the chosen head, the walk says. Tables are of an only head whose whole rows the page does not hold.
    `settings.every_head` holds RoleRecorders of every side.
    """
    if not all(text.heads for side in comparison.sides for text in side.report.texts):
        yield from present_comparison(comparison, settings)
        return
    best = [change.most_moved(1)[0] for change in comparison.changes]
    changes = [
        replace(change, heads=[head for head in change.heads if _has_tables(change, head)])
        for change in comparison.changes
    ]
    from attnscope.views.page.walk import Walk

    selects = [name for name in ("layer", "head", "query") if name != comparison.axis]
    labelled = _with_names(comparison)
    source = _walk(labelled, best[0].first, settings.every_head or ())
    walk: Any = Walk(with_compared_spans(source, labelled), settings.made_by, selects)
    parts = present_comparison(replace(comparison, changes=changes), settings, walk=walk)
    walked = False
    for part in _in_full(parts):
        walked = walked or part is walk
        if not (walked and isinstance(part, Matrices | WeightMap)):
            yield part


def _with_names(comparison: Comparison) -> Comparison:
    """Return a comparison whose sides have the names that its page uses: of long texts, the words where they differ."""
    texts = [side.report.texts[0].text for side in comparison.sides]
    begin = differing_word(texts)
    names = [
        f"{'… ' * (begin > 0)}{shorten(text[begin:], _LONGEST, placeholder=' …')}" for text in texts
    ]
    is_numbered = comparison.axis == "text" and comparison.sides[0].label != texts[0]
    if not is_numbered or len(set(names)) < len(names):
        return with_short_labels(comparison)
    sides = [replace(side, label=name) for side, name in zip(comparison.sides, names, strict=True)]
    return replace(comparison, sides=sides)


def _has_tables(change: Change, head: HeadChange) -> bool:
    return len(change.heads) == 1 and (head.mass is not None or head.partial is not None)


def _in_full(parts: Iterable[ViewPart]) -> Iterator[ViewPart]:
    for part in parts:
        if isinstance(part, FirstFitting):
            yield from _in_full(part.forms[0])
        else:
            yield part


def _walk(
    comparison: Comparison, first_head: HeadRef, roles: Sequence[RoleRecorders]
) -> SavedSource:
    """Return the walk, with the share of weight that moved in every head."""
    source = comparison_source(comparison)
    layers, heads = head_axes(comparison.sides[0].report.texts[0].heads.units)
    place = layers.index(first_head.layer), heads.index(first_head.head)
    measured = [recorders.of_texts(len(source.texts)) for recorders in roles]
    begun = {}
    for (n, side), saved in source.saved.items():
        of_text = measured[side][n] if measured else None
        cell = cell_moved(comparison, side, n, first_head)
        say = partial(_answer, comparison, comparison.changes[max(0, side - 1)], n, first_head)
        alignment = _alignment(comparison, side, n)
        row = None if cell is None else cell[0]
        unmoved = nothing_moved(comparison.changes[max(0, side - 1)])
        make = partial(_begun, saved, place, of_text, alignment, row, unmoved, say)
        begun[n, side] = SavedText(make, saved.heads)
    return dataclasses.replace(source, saved=begun)


def _alignment(comparison: Comparison, side: int, text: int) -> Alignment | None:
    """Return the tokens of the first side and of another one side by side; None if they are the same."""
    changes = (
        head for change in comparison.changes if change.side == side for head in change.heads
    )
    head = next((head for head in changes if head.text == text and head.mass is None), None)
    first_text, second_text = (comparison.sides[n].report.texts[text] for n in (0, side))
    tokens = ((first_text.tokens, second_text.tokens), (first_text.sources, second_text.sources))
    if head is None or all(
        [a.piece for a in left] == [b.piece for b in right] for left, right in tokens
    ):
        return None
    columns = shown_columns([first_text, second_text], head)
    rows = [(first_text.queries.index(i), second_text.queries.index(j)) for i, j in head.queries]
    keys = [
        (
            -1 if i is None else first_text.keys.index(i),
            -1 if j is None else second_text.keys.index(j),
        )
        for i, j in columns
    ]
    return Alignment(
        rows,
        keys,
        both_axis("query", *tokens[0], head.queries),
        both_axis(source_kind(first_text), *tokens[1], columns),
    )


def _begun(
    saved: SavedText,
    first_head: tuple[int, int],
    roles: TextRoles | None,
    alignment: Alignment | None,
    row: int | None,
    unmoved: str,
    answer: Callable[[], str],
) -> Scene:
    """Return a scene that begins at the head and row in which most weight moved, at the strongest key."""
    scene = saved.scene()
    start = scene.start if row is None else row
    scene = dataclasses.replace(
        scene,
        first=first_head,
        alignment=alignment,
        start=start,
        start_key=None,
        answer=answer(),
    )
    if unmoved:  # on a scale of its own, the largest number would look like much
        numbers = [number for number in scene.numbers if number.name != MOVED]
        said = f"What moved: {unmoved}."
        scene = dataclasses.replace(scene, numbers=numbers, display="thumbnails", answer=said)
    return with_roles(scene, roles)


def _answer(comparison: Comparison, change: Change, text: int, first_head: HeadRef) -> str:
    """Say what moved in the row in which most did, and in which heads most moved."""
    heads = [head for head in change.heads if head.text == text]
    shown = [_row_moved(comparison, change, head) for head in heads if head.first == first_head]
    known = [head for head in heads if not np.isnan(head.share_moved)]
    order = sorted(known, key=lambda head: -head.share_moved)
    if len(order) > 1:
        names = [" → ".join(dict.fromkeys((str(head.first), str(head.second)))) for head in order]
        shares = [f"{head.share_moved:.2f}" for head in order]
        tied = shares.count(shares[0])
        said = f"Of all heads, most weight moved in {tied_names(names[:tied])}: {shares[0]}"
        if tied == 1:
            others = zip(names[1:_NAMED], shares[1:], strict=False)
            said += ", then in " + ", ".join(f"{name} {share}" for name, share in others)
        shown.append(f"{said}.")
    return " ".join(filter(None, shown))


def _row_moved(comparison: Comparison, change: Change, head: HeadChange) -> str:
    """Say how much of a row's weight moved, from where to where; nothing of a map, or if that is not known."""
    if head.cell_moved is None:
        return ""
    row, _ = head.cell_moved
    sides = comparison.sides[0], comparison.sides[change.side]
    texts = [side.report.texts[head.text] for side in sides]
    labels = [escape_control(side.label) for side in sides]
    if comparison.axis == "text":
        labels = [quoted(side.label) for side in sides]
    queries = zip(texts, head.queries[row], strict=True)
    query = "/".join(dict.fromkeys(_word(text.tokens, position) for text, position in queries))
    said = f"From {' to '.join(labels)}, {query} moves {head.largest_change:.2f} of its weight"
    if head.first == head.second:
        said += f" in {head.first}"
    keys = (
        (texts[1], head.gained[row], f"gains {head.gain[row]:.2f}"),
        (texts[0], head.lost[row], f"loses {head.loss[row]:.2f}"),
    )
    changes = [f"{_word(text.sources, key)} {change}" for text, key, change in keys if key >= 0]
    return f"{said}{': ' * bool(changes)}{', '.join(changes)}."


def _word(tokens: Sequence[Token], position: int) -> str:
    return quoted(token_span(tokens, position).text)
