"""Rows of weights as maps on the pictures of a text: one head, or all of them as thumbnails."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from attnscope.findings.arrays import Array
from attnscope.findings.heads import HeadReport
from attnscope.findings.images import CLS, ImageGrid, kinds_of, map_of, row_shares
from attnscope.findings.run import TextReport
from attnscope.studies.explain.arithmetic import entropy
from attnscope.views.parts import PictureMap, Pictures
from attnscope.views.pictures import percent
from attnscope.views.scales import Scale
from attnscope.views.settings import DisplaySettings
from attnscope.views.spans import Span, Spans, ours, token_span

_MOST_ROWS = 6  # rows that are drawn one by one; of more, their mean is drawn
_MOST_WORDS = 24  # the same of rows from which words were generated
# Times an even share of the row from which on a patch has the fullest colour.
_FULL = 16
_WORDS = {CLS: "CLS"}


@dataclass(frozen=True)
class _MapRow:
    """A row of weights, or the mean of several."""

    name: Spans
    weights: Array  # on every source
    sink: float  # on the head's sink
    queries: Sequence[int]  # positions of the tokens that it is the mean of


def present_maps(
    text: TextReport, head: HeadReport, settings: DisplaySettings
) -> Iterator[Pictures]:
    """Present the shown rows of a head as maps on the pictures."""
    scale = picture_scale(text)
    rows = _rows(text, head)
    maps = [_map(text, head, row, grid, scale) for row in rows for grid in text.images]
    yield _scaled(Pictures(maps, _caption(rows)), settings)


def present_all_maps(text: TextReport, settings: DisplaySettings) -> Iterator[Pictures]:
    """Present all heads as thumbnails of their maps, for each picture."""
    scale = picture_scale(text)
    rows = [_mean(text, head, _rows(text, head)) for head in text.heads]
    places = [(int(head.layer), int(head.head)) for head in text.heads]
    for grid in text.images:
        maps = [
            _map(text, head, row, grid, scale, brief=True)
            for head, row in zip(text.heads, rows, strict=True)
        ]
        of_all = " of all" * (not set(rows[0].queries) <= set(grid.tokens.ravel().tolist()))
        names = [
            "entropy in bits",
            *([f"mean distance{of_all} in patches"] * (len(maps[0].facts) > 2)),
        ]
        caption = _caption(rows[:1])
        if len(text.images) > 1:
            caption = (Span(f"{grid.prefix}: "), *caption)
        facts = f"{', '.join(names)}, share of the row outside the picture"
        yield _scaled(Pictures(maps, caption, places, facts), settings)


def _scaled(pictures: Pictures, settings: DisplaySettings) -> Pictures:
    """Return pictures whose maps end at their own largest patch, if that was asked for, and say so."""
    if settings.map_scale == "row":
        return pictures
    maps = []
    for picture in pictures.maps:
        largest = float(np.nan_to_num(picture.weights).max(initial=0.0))
        if pictures.places is not None:
            facts = picture.facts
        else:
            facts = [*picture.facts, f"largest patch {percent(largest)}"]
        scale = Scale(0.0, largest, signed=False, shape="sqrt")
        maps.append(msgspec.structs.replace(picture, scale=scale, facts=facts))
    caption = (
        *pictures.caption[:-1],
        Span("  the colour of a patch is relative to the largest of its map", "caption"),
    )
    return msgspec.structs.replace(pictures, maps=maps, caption=caption, relative=True)


def picture_scale(text: TextReport) -> Scale:
    """Return the scale of a text's maps: it depends on the number of tokens alone, so that heads can be compared."""
    return Scale(0.0, min(1.0, _FULL / len(text.sources)), signed=False, shape="sqrt")


def _rows(text: TextReport, head: HeadReport) -> list[_MapRow]:
    """Return the rows to draw: those that are shown, CLS of all, or the mean of many."""
    if head.pooled is not None:
        assert head.columns is not None
        count = len(text.tokens)
        sink = 0.0
        return [
            _MapRow(ours(f"mean of {count:,} tokens"), head.columns / count, sink, range(count))
        ]
    found = [_row(text, head, n) for n in drawn_rows(text)]
    is_mean = len(found) > (_MOST_WORDS if text.generated else _MOST_ROWS)
    if is_mean:
        return [_mean(text, head, found)]
    return found


def drawn_rows(text: TextReport) -> list[int]:
    """Return which of the shown rows are drawn: the selected ones; without a selection, those that say most.

    These are the rows from which generated words were predicted, else that of CLS, else of the last token of a prompt,
    else those of all patches.
    """
    rows = {query: n for n, query in enumerate(text.queries)}
    if predicting := [rows[word.position] for word in text.generated if word.position in rows]:
        return predicting
    if len(rows) < len(text.tokens):
        return list(rows.values())
    kinds = kinds_of(text.images, text.tokens)
    if CLS in kinds:
        return kinds[CLS][:1]
    if "text" in kinds:
        return [len(text.tokens) - 1]
    return sorted(position for grid in text.images for position in kinds[grid.prefix])


def _row(text: TextReport, head: HeadReport, index: int) -> _MapRow:
    sink = 0.0 if head.rows.sink is None else float(head.rows.sink[index])
    query = text.queries[index]
    weights = head.stages["weights"][index].astype(np.float64)
    name: Spans = (token_span(text.tokens, query),)
    if text.generated:
        # The row of a token is what the next one was predicted from.
        name = (Span("for "), token_span(text.tokens, query + 1))
    return _MapRow(name, weights, sink, [query])


def _mean(text: TextReport, head: HeadReport, rows: Sequence[_MapRow]) -> _MapRow:
    """Return the mean of rows, without those of queries that may attend to nothing."""
    if len(rows) == 1:
        return rows[0]
    queries = [query for row in rows for query in row.queries]
    counted = [row for row in rows if row.queries[0] not in head.fully_masked] or rows
    on_patches = {int(token) for grid in text.images for token in grid.tokens.ravel()}
    what = "rows"
    if all(query in on_patches for query in queries):
        what = "patches"
    sink = float(np.mean([row.sink for row in counted]))
    weights = np.mean([row.weights for row in counted], axis=0)
    return _MapRow(ours(f"mean of {len(rows):,} {what}"), weights, sink, queries)


def _map(
    text: TextReport,
    head: HeadReport,
    row: _MapRow,
    grid: ImageGrid,
    scale: Scale,
    *,
    brief: bool = False,
) -> PictureMap:
    of_patches = map_of(row.weights, grid)
    shares = _shares(text, row, grid)
    distance = _distance(text, head, row, grid)
    bits = entropy(np.append(row.weights, row.sink))
    if brief:
        outside = f"{100 * max(0.0, 1 - shares[0][1]):.0f}%"
        facts = [f"{bits:.1f}", *([] if distance is None else [f"{distance:.1f}"]), outside]
    else:
        away = []
        if distance is not None and set(row.queries) <= set(grid.tokens.ravel().tolist()):
            away = [f"mean distance {distance:.1f} patches"]
        elif distance is not None:
            away = [f"mean distance of all patches {distance:.1f}"]
        facts = [f"entropy {bits:.2f} bits", *away]
        if grid is not text.images[0]:  # they stand beside the first picture of the row
            shares = []
            facts = away
    place = (
        np.argwhere(grid.tokens == row.queries[0]) if len(row.queries) == 1 else np.zeros((0, 2))
    )
    name = Span(str(head.ref), "bold"), Span(" "), *row.name
    if len(text.images) > 1:
        name = (Span(f"{grid.prefix} "), *name)
    weights = np.where(grid.tokens < 0, np.nan, of_patches).astype(np.float32)
    query = (int(place[0][0]), int(place[0][1])) if len(place) else None
    return PictureMap(name, grid.pixels, weights, scale, shares, facts, query)


def _shares(text: TextReport, row: _MapRow, grid: ImageGrid) -> list[tuple[str, float]]:
    """Return the share of every kind of token, that of this picture's patches first."""
    shares = {
        token_kind: float(share)
        for token_kind, share in row_shares(row.weights, text.images, text.sources).items()
    }
    own = shares.pop(grid.prefix)
    other_kinds = [(kind_name(text, token_kind), share) for token_kind, share in shares.items()]
    return [
        (kind_name(text, grid.prefix), own),
        *other_kinds,
        *([("sink", row.sink)] if row.sink else []),
    ]


def kind_name(text: TextReport, kind: str) -> str:
    """Return the name of a kind of token (see `row_shares`) on a screen."""
    if [grid.prefix for grid in text.images] == [kind]:
        return "patches"
    return _WORDS.get(kind, kind)


def _distance(text: TextReport, head: HeadReport, row: _MapRow, grid: ImageGrid) -> float | None:
    """Return how many patches away a query reads within its picture, on average; None if no query is a patch.

    Of CLS, it is the mean over all patches, if their rows are shown.
    """
    places = {int(token): patch for patch, token in np.ndenumerate(grid.tokens) if token >= 0}
    queries = [query for query in row.queries if query in places]
    if not queries and len(text.queries) == len(text.tokens):
        queries = [query for query in text.queries if query in places]
    if not queries or head.pooled is not None:
        return None
    index = {query: n for n, query in enumerate(text.queries)}
    rows, columns = np.indices(grid.shape)
    means = []
    for query in queries:
        weights = map_of(head.stages["weights"][index[query]].astype(np.float64), grid)
        distances = np.hypot(rows - places[query][0], columns - places[query][1])
        if weights.sum() > 0:
            means.append(float((weights * distances).sum() / weights.sum()))
    return float(np.mean(means)) if means else None


def _caption(rows: Sequence[_MapRow]) -> Spans:
    whose = rows[0].name if len(rows) == 1 else ours(f"{len(rows)} rows")
    return (
        Span("weights", "bold"),
        Span(" of "),
        *whose,
        Span("  the colour of a patch is its share of the whole row", "caption"),
    )
