"""Where one is in a walk, and what an action does to that: pure functions, without a screen.

Layers, heads, queries and keys are indices into the axes of a scene, not positions of a text.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from attnscope.views.scales import SHAPES, Shape
from attnscope.views.walk.scene import WalkCut

_Word = TypeVar("_Word", bound=str)

# The stage whose columns are dimensions of the value.
OUTPUT = "output"
PANELS = ("heads", "matrix", "row", "text")
# Largest number of steps of the history.
_LONGEST = 500


@dataclass(frozen=True)
class Spot:
    """A cell of a head: what the history remembers, and what is pinned."""

    text: int = 0  # number of the text
    mask: int = 0  # number of the mask, or side
    layer: int = 0  # index of the layer
    head: int = 0  # index of the head
    query: int = 0  # index of the row
    key: int | None = None  # index of the key; None for the strongest source of the row
    dim: int = 0  # dimension of the value, which is the column of the stage `output`


@dataclass(frozen=True)
class Begin:
    """Where to begin, as it was typed; None for the choice of the scene."""

    layer: str | None = None  # number of the layer; below 0 from the last
    head: str | None = None  # number of the head
    query: str | None = None  # position of the row, or its token
    key: str | None = None  # position of the column, or its token
    unit: str = "tokens"  # what positions are: `tokens`, `words` or `spans`
    cuts: tuple[WalkCut, ...] = ()


@dataclass(frozen=True)
class Bounds:
    """How far a walk goes; follows from a scene."""

    texts: int = 1
    masks: int = 1
    layers: int = 1
    heads: int = 1
    queries: int = 1
    keys: int = 1
    stages: Sequence[str] = ("weights",)
    zooms: Sequence[int] = (1,)  # positions in a cell of the matrix, from 1 up
    # what the panel of heads can show: `thumbnails`, `roles`, or the name of a number
    displays: Sequence[str] = ("thumbnails",)
    dims: int = 1  # number of columns of the stage `output`
    units: Sequence[str] = ("tokens",)  # what positions can be
    # the query of every patch of each picture, (rows, columns), if the matrix shows pictures; −1 for none
    patches: Sequence[np.ndarray] = ()


# display of the panel of heads: the weight of the cell under the cursor in every head
LENS = "lens"


@dataclass(frozen=True)
class Place:
    """Where one is."""

    # the cell under the cursor; its key is None for the strongest source of the row
    spot: Spot = Spot()
    stage: str = "weights"
    panel: str = "matrix"
    zoom: int = 1
    digits: bool = (
        False  # cells without room for numbers are as wide as these; in place of a picture, cells
    )
    bare: bool = False  # cells with room for numbers have none
    display: str = "thumbnails"
    pinned: Spot | None = None  # what the matrix is compared with; None for nothing
    pinned_cuts: tuple[WalkCut, ...] = ()
    cuts: tuple[WalkCut, ...] = ()
    unit: str = "tokens"  # what positions are: `tokens`, `words` or `spans`
    history: tuple[Spot, ...] = ()
    # the cells that were followed to this one, the first of them first
    trail: tuple[Spot, ...] = ()
    needle: str = ""
    predictions: bool = False
    predictions_before: bool = False  # they were shown before the first cut, and are without cuts
    shape: Shape = "sqrt"  # how colours follow weights
    sinks: bool = True  # the scale of weights reaches those on sinks


@dataclass(frozen=True)
class Action:
    """Action of a key, a click or a choice."""

    name: str  # name in `keys.ACTIONS`, or `goto`
    # what it needs: a Spot for `goto` and `follow`; the spelling of what is cut; the
    # needle and its next match for a search; how far to move; the number of a text; the next unit, and a function that
    # moves a spot to it
    value: Any = None


def apply(current: Place, action: Action, bounds: Bounds) -> Place:
    """Return the place after an action; the same object if nothing changes."""
    if action.name not in _STEPS:
        return current
    there = _STEPS[action.name](current, action.value, bounds)
    if there.trail is current.trail and _row_of(there.spot) != _row_of(current.spot):
        # The trail led to another row or head.
        there = replace(there, trail=())
    if (there.spot.text, there.unit) != (current.spot.text, current.unit):
        # The bounds are those of other tokens.
        return there
    return fit(there, bounds)


def _row_of(spot: Spot) -> Spot:
    """Return a spot without its column."""
    return replace(spot, key=None, dim=0)


def fit(current: Place, bounds: Bounds) -> Place:
    """Return a place within bounds, such as after the text has changed."""
    zoom = min(bounds.zooms, key=lambda zoom: (abs(zoom - current.zoom), zoom))
    fitting = replace(current, spot=fit_spot(current.spot, bounds), zoom=zoom)
    if current.pinned is not None:
        fitting = replace(fitting, pinned=fit_spot(current.pinned, bounds))
    if current.stage not in bounds.stages:
        fitting = replace(fitting, stage=(bounds.stages or ["weights"])[-1])
    if current.display not in bounds.displays:
        fitting = replace(fitting, display=bounds.displays[0])
    if current.unit not in bounds.units:
        fitting = replace(fitting, unit=bounds.units[0])
    return fitting


def fit_spot(spot: Spot, bounds: Bounds) -> Spot:
    """Return a spot within bounds."""
    return Spot(
        _clamp(spot.text, bounds.texts),
        _clamp(spot.mask, bounds.masks),
        _clamp(spot.layer, bounds.layers),
        _clamp(spot.head, bounds.heads),
        _clamp(spot.query, bounds.queries),
        None if spot.key is None else _clamp(spot.key, bounds.keys),
        _clamp(spot.dim, bounds.dims),
    )


def _clamp(index: int, count: int) -> int:
    return max(0, min(index, count - 1))


def _at(current: Place, **changes: Any) -> Place:
    """Return a place with another spot, which `apply` fits into bounds."""
    return replace(current, spot=replace(current.spot, **changes))


def _move(rows: int, columns: int, current: Place, count: int | None, bounds: Bounds) -> Place:
    """Move the cursor by cells; in the panel of heads, by heads."""
    rows = rows * (count or 1)
    columns = columns * (count or 1)
    spot = current.spot
    if current.panel == "heads":
        return _at(current, layer=spot.layer + rows, head=spot.head + columns)
    if current.panel == "text":
        # The text runs on in one direction.
        rows = rows + columns
        columns = 0
    if current.panel == "matrix" and bounds.patches:
        return _at(current, query=_patch_from(spot.query, rows, columns, bounds), key=None)
    if current.panel == "matrix":
        rows = rows * current.zoom
        columns = columns * current.zoom
        if current.stage == OUTPUT:
            return _at(current, query=spot.query + rows, dim=spot.dim + columns)
    key = spot.key if spot.key is not None or not columns else 0
    return _at(current, query=spot.query + rows, key=None if key is None else key + columns)


def _patch_from(query: int, rows: int, columns: int, bounds: Bounds) -> int:
    """Return the patch so many rows and columns away on its picture.

    Tokens that are no patches, such as CLS and words, follow each other upwards and downwards; the patches come after
    the last of them, and sidewards.
    """
    for grid in bounds.patches:
        for cell in np.argwhere(grid == query):
            row = int(cell[0]) + rows
            column = int(cell[1]) + columns
            if row < 0:
                return 0
            found = int(grid[min(row, grid.shape[0] - 1), max(0, min(column, grid.shape[1] - 1))])
            return query if found < 0 else found
    patches = {int(patch) for grid in bounds.patches for patch in grid.ravel()}
    others = [other for other in range(bounds.queries) if other not in patches]
    beyond = others.index(query) + rows
    if not columns and beyond < len(others):
        return others[max(0, beyond)]
    grid = bounds.patches[0]
    return max(0, int(grid[grid.shape[0] // 2, grid.shape[1] // 2]))


def _visit(current: Place, spot: Spot, _bounds: Bounds) -> Place:
    """Go to a spot, and remember the previous one."""
    if spot == current.spot:
        return current
    return replace(
        current, spot=spot, history=(*current.history, current.spot)[-_LONGEST:], trail=()
    )


def _cycle(items: Sequence[_Word], item: _Word, step: int) -> _Word:
    at = items.index(item) if item in items else 0
    return items[(at + step) % len(items)]


def _head(step: int, current: Place, _value: Any, bounds: Bounds) -> Place:
    # the head after the last one of a layer is the first of the next layer
    head_index = (current.spot.layer * bounds.heads + current.spot.head + step) % (
        bounds.layers * bounds.heads
    )
    layer, head = divmod(head_index, bounds.heads)
    return _at(current, layer=layer, head=head)


def _follow(current: Place, spot: Spot | None, bounds: Bounds) -> Place:
    if current.panel == "heads":
        return replace(current, panel="matrix")
    if spot is None or spot == current.spot:
        return current
    trail = (*current.trail, current.spot)[-_LONGEST:]
    return replace(_visit(current, spot, bounds), trail=trail)


def _back(current: Place, _value: Any, _bounds: Bounds) -> Place:
    """Go back to the place before, along the trail if it was followed from there."""
    if not current.history:
        return current
    *history, spot = current.history
    followed = current.trail[-1:] == (spot,)
    return replace(
        current, spot=spot, history=tuple(history), trail=current.trail[:-1] if followed else ()
    )


def _pin(current: Place, _value: Any, _bounds: Bounds) -> Place:
    if current.pinned is not None:
        return replace(current, pinned=None, pinned_cuts=())
    return replace(current, pinned=current.spot, pinned_cuts=current.cuts)


def _swap(current: Place, _value: Any, _bounds: Bounds) -> Place:
    if current.pinned is None:
        return current
    return replace(
        current,
        spot=current.pinned,
        pinned=current.spot,
        cuts=current.pinned_cuts,
        pinned_cuts=current.cuts,
    )


def _cut(current: Place, cut: WalkCut, _bounds: Bounds) -> Place:
    """Add a cut, and show what it changes; or remove it if it exists."""
    if cut in current.cuts:
        others = tuple(other for other in current.cuts if other != cut)
        if others:
            return replace(current, cuts=others)
        return uncut(current)
    before = current.predictions_before if current.cuts else current.predictions
    return replace(current, cuts=(*current.cuts, cut), predictions=True, predictions_before=before)


def uncut(current: Place) -> Place:
    """Return a place without cuts, and without the predictions that the first of them brought."""
    if not current.cuts:
        return current
    return replace(
        current, cuts=(), predictions=current.predictions_before, predictions_before=False
    )


def _find(current: Place, value: tuple[str, int | None], bounds: Bounds) -> Place:
    needle, match = value
    current = replace(current, needle=needle)
    if match is None:
        return current
    return _visit(current, replace(current.spot, query=match, key=None), bounds)


def _zoom(step: int, current: Place, _value: Any, bounds: Bounds) -> Place:
    at = bounds.zooms.index(current.zoom) if current.zoom in bounds.zooms else 0
    return replace(current, zoom=bounds.zooms[_clamp(at + step, len(bounds.zooms))])


def _go_text(current: Place, text: int | None, bounds: Bounds) -> Place:
    """Go to a text, without pinned place and cuts, which belong to another text."""
    if text is None or text % bounds.texts == current.spot.text:
        return current
    there = _at(uncut(current), text=text % bounds.texts)
    return replace(there, pinned=None, pinned_cuts=(), trail=())


def _unit(
    current: Place, value: "tuple[str, Callable[[Spot], Spot]] | None", _bounds: Bounds
) -> Place:
    """Show words or spans instead of tokens, at the same place."""
    if value is None:
        return current
    unit, moved = value
    pinned = None if current.pinned is None else moved(current.pinned)
    history = tuple(moved(spot) for spot in current.history if spot.text == current.spot.text)
    return replace(
        current, unit=unit, spot=moved(current.spot), pinned=pinned, history=history, trail=()
    )


def _key_end(last: bool, current: Place, _value: Any, bounds: Bounds) -> Place:
    name, count = ("dim", bounds.dims) if current.stage == OUTPUT else ("key", bounds.keys)
    return _at(current, **{name: count - 1 if last else 0})


_STEPS: dict[str, Callable[[Place, Any, Bounds], Place]] = {
    "left": partial(_move, 0, -1),
    "right": partial(_move, 0, 1),
    "up": partial(_move, -1, 0),
    "down": partial(_move, 1, 0),
    "page_up": partial(_move, -1, 0),
    "page_down": partial(_move, 1, 0),
    "first_key": partial(_key_end, False),
    "last_key": partial(_key_end, True),
    "first_query": lambda current, _, _bounds: _at(current, query=0),
    "last_query": lambda current, _, bounds: _at(current, query=bounds.queries - 1),
    "strongest": lambda current, _, _bounds: _at(current, key=None),
    "previous_head": partial(_head, -1),
    "next_head": partial(_head, 1),
    "previous_layer": lambda current, _, _bounds: _at(current, layer=current.spot.layer - 1),
    "next_layer": lambda current, _, _bounds: _at(current, layer=current.spot.layer + 1),
    "previous_text": lambda current, _, bounds: _go_text(current, current.spot.text - 1, bounds),
    "next_text": lambda current, _, bounds: _go_text(current, current.spot.text + 1, bounds),
    "pick_text": _go_text,
    "unit": _unit,
    "heads_panel": lambda current, _, _bounds: replace(current, panel="heads"),
    "matrix_panel": lambda current, _, _bounds: replace(current, panel="matrix"),
    "row_panel": lambda current, _, _bounds: replace(current, panel="row"),
    "text_panel": lambda current, _, _bounds: replace(current, panel="text"),
    "next_panel": lambda current, _, _bounds: replace(
        current, panel=_cycle(PANELS, current.panel, 1)
    ),
    "previous_panel": lambda current, _, _bounds: replace(
        current, panel=_cycle(PANELS, current.panel, -1)
    ),
    "stage": lambda current, _, bounds: replace(
        current, stage=_cycle(bounds.stages, current.stage, 1)
    ),
    "previous_stage": lambda current, _, bounds: replace(
        current, stage=_cycle(bounds.stages, current.stage, -1)
    ),
    "mask": lambda current, _, bounds: _at(current, mask=(current.spot.mask + 1) % bounds.masks),
    "previous_mask": lambda current, _, bounds: _at(
        current, mask=(current.spot.mask - 1) % bounds.masks
    ),
    "digits": lambda current, _, _bounds: replace(current, digits=not current.digits, bare=False),
    "bare": lambda current, _, _bounds: replace(current, bare=not current.bare, digits=False),
    "display": lambda current, value, bounds: replace(
        current, display=value or _cycle(bounds.displays, current.display, 1)
    ),
    "scale": lambda current, _, _bounds: replace(
        current, shape=_cycle([*SHAPES], current.shape, 1)
    ),
    "sinks": lambda current, _, _bounds: replace(current, sinks=not current.sinks),
    "lens": lambda current, _, _bounds: replace(current, display=LENS, panel="heads"),
    "zoom_in": partial(_zoom, -1),
    "zoom_out": partial(_zoom, 1),
    "pin": _pin,
    "swap": _swap,
    "cut": _cut,
    "uncut": lambda current, _, _bounds: uncut(current),
    "predictions": lambda current, _, _bounds: replace(
        current, predictions=not current.predictions
    ),
    "find": _find,
    "follow": _follow,
    "back": _back,
    "goto": _visit,
}
