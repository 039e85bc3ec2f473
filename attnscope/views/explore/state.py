"""What all panels draw: the place, what the source has there, and what is being computed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from attnscope.base.errors import UsageError, arg
from attnscope.views.axes import Axis
from attnscope.views.explore.ink import Ink
from attnscope.views.explore.owned import OwnedCache
from attnscope.views.numbers import Digits
from attnscope.views.scales import LogScale, Scale, scale_for
from attnscope.views.walk.cell import difference, strongest_key
from attnscope.views.walk.place import Action, Begin, Bounds, Place, Spot, apply, fit
from attnscope.views.walk.scene import DIFFERENCE, Number, Scene, Source, Variant, WalkHead
from attnscope.views.walk.window import Window, window, zooms

_LONG = 512  # positions from which a matrix is first shown as a map
DISPLAYS = ("thumbnails", "roles")


@dataclass
class WalkState:
    """A walk as a screen shows it.

    Attributes:
        source: Where scenes and heads come from.
        ink: What the terminal can show.
        place: Where one is; its key is resolved.
        begin: Where to begin.
        status: What is being computed, with its share; empty if nothing is.
        error: What went wrong last; empty if nothing did.
    """

    source: Source
    ink: Ink = field(default_factory=Ink)
    place: Place = field(default_factory=Place)
    begin: Begin | None = None
    status: str = ""
    error: str = ""
    _made: OwnedCache = field(default_factory=OwnedCache)
    _placed: bool = False
    _last_scene: Scene | None = None
    _last_difference: tuple[WalkHead, OwnedCache] | None = None

    def variant(self, spot: Spot | None = None, *, cuts: bool = False) -> Variant:
        """Return the variant of a spot, without what is cut unless asked for."""
        spot = spot or self.place.spot
        masks = self.source.masks
        mask = masks[min(spot.mask, len(masks) - 1)]
        return Variant(spot.text, mask, self.place.cuts if cuts else ())

    @property
    def scene(self) -> Scene | None:
        """The scene of the place; while it is computed, the one that was shown before."""
        scene = self.source.scene(self.variant())
        if scene is not None:
            self._last_scene = scene
        return self._last_scene

    @property
    def head(self) -> WalkHead | None:
        """What is known of the head of the place."""
        spot = self.place.spot
        return self.source.head(self.variant(), spot.layer, spot.head)

    @property
    def pinned(self) -> WalkHead | None:
        """What is known of the pinned head; None if its text has other positions than the one that is looked at."""
        pin = self.place.pinned
        if pin is None:
            return None
        there, here = self.source.scene(self.variant(pin)), self.source.scene(self.variant())
        if there is None or here is None:
            return None
        of_there = self._made.get(there, "positions", OwnedCache)
        if not of_there.get(here, "same", lambda: _same_positions(there, here)):
            return None
        return self.source.head(self.variant(pin), pin.layer, pin.head)

    @property
    def bounds(self) -> Bounds:
        """How far the walk goes at this place."""
        scene = self.scene
        counts = len(self.source.texts), len(self.source.masks)
        if scene is None:
            return Bounds(*counts)
        head = self.head
        n_queries, n_keys = len(scene.queries.positions), len(scene.keys.positions)
        run = None
        if head is not None and head.map is not None:
            run = max(1, -(-n_queries // max(1, len(head.map.queries) - 1)))
        return Bounds(
            *counts,
            len(scene.layers),
            len(scene.heads),
            n_queries,
            n_keys,
            scene.stages,
            zooms(n_queries, n_keys, run) if run is None or run > 1 else zooms(n_queries, n_keys),
            (*DISPLAYS, *(number.name for number in scene.numbers)),
        )

    def act(self, action: Action) -> bool:
        """Do an action; return whether the place changed."""
        before = self.place
        self.place = apply(self.place, action, self.bounds)
        self.settle()
        return self.place != before

    def settle(self) -> None:
        """Keep the place within what the source has by now, and resolve the key."""
        scene = self.scene
        if scene is None:
            return
        if not self._placed:
            self._placed = True
            self._begin(scene)
        place = fit(self.place, self.bounds)
        if place.spot.key is None:
            strongest = strongest_key(scene, self.head, place.spot.query)
            if strongest is not None:
                place = replace(place, spot=replace(place.spot, key=strongest))
        self.place = place

    @property
    def placed(self) -> bool:
        """Whether there has been a scene, so that the place is one of its."""
        return self._placed

    def replace_source(self, source: Source) -> None:
        """Walk through something else, from the same place as far as it is there."""
        self.source, self._last_scene = source, None
        spot = self.place.spot
        masks = len(source.masks)
        self.place = replace(
            self.place, spot=replace(spot, text=0, mask=min(spot.mask, masks - 1), key=None), pinned=None, history=()
        )
        self.settle()

    def _begin(self, scene: Scene) -> None:
        """Begin where was asked, else at the head that the scene names, at the last row that is no special token."""
        words = [n for n, special in enumerate(scene.queries.special) if not special]
        asked, begin = self.begin or Begin(), scene.first
        layer = _numbered(scene.layers, asked.layer, "layer")
        head = _numbered(scene.heads, asked.head, "head")
        query, key = _on_axis(scene.queries, asked.query), _on_axis(scene.keys, asked.key)
        spot = replace(
            self.place.spot,
            layer=begin[0] if layer is None else layer,
            head=begin[1] if head is None else head,
            query=(words[-1] if words else 0) if query is None else query,
            key=key,
        )
        self.place = replace(self.place, spot=spot)
        bounds = self.bounds
        long = max(bounds.queries, bounds.keys) > _LONG
        self.place = replace(self.place, zoom=bounds.zooms[-1] if long and query is None else 1)

    @property
    def key(self) -> int:
        """Index of the key under the cursor."""
        return self.place.spot.key or 0

    @property
    def stage(self) -> str:
        """The stage that is drawn."""
        return self.place.stage

    @property
    def drawn(self) -> WalkHead | None:
        """The head that the matrix shows; of a comparison, the difference from the pinned one."""
        head, pinned = self.head, self.pinned
        if self.place.pinned is None or head is None:
            return head
        return None if pinned is None else self._difference(head, pinned)

    def _difference(self, head: WalkHead, pinned: WalkHead) -> WalkHead | None:
        def make() -> WalkHead | None:
            found = difference(head, pinned, self.stage)
            return None if found is None else replace(head, stages={DIFFERENCE: found}, map=None, sources=None)

        if self._last_difference is None or self._last_difference[0] is not head:
            self._last_difference = head, OwnedCache()  # of one head alone: differences are as large as matrices
        return self._last_difference[1].get(pinned, self.stage, make)

    @property
    def drawn_stage(self) -> str:
        """The stage of the head that the matrix shows."""
        return self.stage if self.place.pinned is None else DIFFERENCE

    def cells(self, rows: range, columns: range, zoom: int) -> Window:
        """Return the cells of the matrix that are visible."""
        scene, head = self.scene, self.drawn
        assert scene is not None
        if head is None:
            return window(scene, WalkHead(0, 0), self.drawn_stage, rows, columns, zoom)
        return window(scene, head, self.drawn_stage, rows, columns, zoom)

    def written(self, made_of: Callable[[np.ndarray], tuple[Digits, int]]) -> tuple[Digits, int]:
        """Return how the numbers of the matrix are written; `made_of` finds that once for every matrix."""
        head, stage = self.drawn, self.drawn_stage
        if head is None or stage not in head.stages:
            return Digits(2), 6
        return self._made.get(head, ("written", stage), lambda: made_of(head.stages[stage]))

    def scale(self, kind: str) -> Scale | LogScale:
        """Return the scale of the matrix's colours: of maps, it is logarithmic."""
        head, stage = self.drawn, self.drawn_stage
        if head is None:
            return Scale(0.0, 1.0, False)
        return self._made.get(head, (stage, kind == "map"), lambda: self._scale(head, stage, kind))

    def _scale(self, head: WalkHead, stage: str, kind: str) -> Scale | LogScale:
        if kind == "map" and head.map is not None:
            return LogScale.of(head.map.weights)
        if stage in head.stages:
            return scale_for(stage, head.stages[stage])
        if head.sources is not None:
            return scale_for(stage, head.sources.measures["weight"])
        return Scale(0.0, 1.0, False)

    def wants(self) -> list[Spot]:
        """Return the heads that the screen shows cells of: that of the place, and the pinned one."""
        return [self.place.spot, *([self.place.pinned] if self.place.pinned is not None else [])]


def _same_positions(one: Scene, other: Scene) -> bool:
    """Tell whether the rows and columns of two scenes are the same tokens."""
    if one is other:
        return True
    pairs = ((one.queries, other.queries), (one.keys, other.keys))
    return all(a.names == b.names and list(a.positions) == list(b.positions) for a, b in pairs)


def _numbered(numbers: Sequence[Number], asked: str | None, what: str) -> int | None:
    """Return the index of a layer or head.

    Raises:
        UsageError: It is not there.
    """
    if asked is None:
        return None
    known = [str(number) for number in numbers]
    if asked in known:
        return known.index(asked)
    if asked.startswith("-") and asked[1:].isdigit() and 0 < int(asked[1:]) <= len(known):
        return len(known) - int(asked[1:])
    raise UsageError(f"there is no {what} {asked}", where=arg(what), hint=f"there are {', '.join(known[:40])}")


def _on_axis(axis: Axis, asked: str | None) -> int | None:
    """Return the index of a position or token of an axis.

    Raises:
        UsageError: It is not there.
    """
    if asked is None:
        return None
    name = "query" if axis.kind == "query" else "key"
    if asked.lstrip("-").isdigit():
        position = int(asked) + (axis.total if asked.startswith("-") else 0)
        if position in axis.positions:
            return list(axis.positions).index(position)
    wanted = asked.strip("\"'").casefold()
    exact = [n for n, span in enumerate(axis.names) if span.text.strip().casefold() == wanted]
    within = [n for n, span in enumerate(axis.names) if span.text.strip() and span.text.strip().casefold() in wanted]
    if not exact and not within:
        raise UsageError(f"'{asked}' is not in the text", where=arg(name), hint="name a token or a position")
    return exact[0] if exact else max(within, key=lambda n: len(axis.names[n].text))
