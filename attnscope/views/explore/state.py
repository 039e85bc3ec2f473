"""State that all panels draw: the place, the source's data there, and running computations."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np
from rich.style import Style

from attnscope.base.errors import UsageError, arg
from attnscope.findings.arrays import Matrix
from attnscope.views.axes import Axis, dim_axis
from attnscope.views.explore.ink import LABEL, TITLE, Ink
from attnscope.views.scales import WEIGHTS, LogScale, Scale, scale_for
from attnscope.views.walk.cell import (
    difference,
    largest_elsewhere,
    strongest_key,
    strongest_sources,
    strongest_writer,
    weight_of_cell,
)
from attnscope.views.walk.place import (
    LENS,
    OUTPUT,
    Action,
    Begin,
    Bounds,
    Place,
    Spot,
    apply,
    fit,
    uncut,
)
from attnscope.views.walk.scene import (
    DIFFERENCE,
    MOVED,
    ROW_EFFECT,
    Number,
    Scene,
    Source,
    Variant,
    WalkHead,
)
from attnscope.views.walk.window import Window, window, zooms

# Heads of a lens that are listed, at most, and keys that go to the first of them: other digits are those of panels.
_STRONGEST = 9
HEAD_DIGITS = "56789"
# Positions from which a matrix is first shown as a map.
_LONG = 512
DISPLAYS = ("thumbnails", LENS, "roles")


@dataclass
class WalkState:
    """A walk as a screen shows it."""

    source: Source
    ink: Ink = field(default_factory=Ink)
    place: Place = field(default_factory=Place)  # the current place; its key is resolved
    begin: Begin | None = None
    status: str = ""  # the running computation, with its progress; empty if none
    error: str = ""  # the latest error; empty if none
    arrived: int = 0
    placed: bool = False  # there has been a scene, so that the place is one of its
    _shown: tuple[Variant, Scene] | None = None
    # the latest difference: two heads and their stage, and the head that is drawn
    _last_difference: tuple[tuple[WalkHead, WalkHead, str], WalkHead | None] | None = None

    # the heads that lenses read, and what they are known by
    _last_heads: tuple[object, list[WalkHead | None]] = (None, [])
    # the latest cell and heads of the lens, and their weights
    _last_lens: tuple[object, Matrix] = (None, np.empty((0, 0), np.float32))

    def __post_init__(self) -> None:
        if self.begin is not None:
            self.place = replace(self.place, cuts=self.begin.cuts)

    def variant(self, *, pinned: bool = False) -> Variant:
        """Return the variant of the place, or of the pinned place."""
        current_place = self.place
        masks = self.source.masks
        spot = (
            current_place.pinned
            if pinned and current_place.pinned is not None
            else current_place.spot
        )
        mask = masks[min(spot.mask, len(masks) - 1)]
        return Variant(
            spot.text,
            mask,
            current_place.pinned_cuts if pinned else current_place.cuts,
            current_place.unit,
        )

    @property
    def scene(self) -> Scene | None:
        """The scene of the place; while it is computed, the one that was shown before.

        It changes only in `settle`, although a thread may compute another scene at any time.
        """
        if self._shown is None:
            self._refresh()
        return None if self._shown is None else self._shown[1]

    def _refresh(self) -> None:
        variant = self.variant()
        scene = self.source.scene(variant)
        if scene is not None:
            self._shown = variant, scene

    @property
    def head(self) -> WalkHead | None:
        """The known numbers of the place's head; None while the scene belongs to another variant."""
        return self.head_at(self.spot.layer, self.spot.head)

    def head_at(self, layer: int, head: int) -> WalkHead | None:
        """Return the known numbers of a head of the scene; None while the scene belongs to another variant."""
        variant = self.variant()
        if self.scene is None or self._shown is None or self._shown[0] != variant:
            return None
        return self.source.head(variant, layer, head)

    @property
    def pinned(self) -> WalkHead | None:
        """The known numbers of the pinned head; None if its text has other positions than the current one."""
        pin = self.place.pinned
        if pin is None:
            return None
        variant = self.variant(pinned=True)
        there = self.source.scene(variant)
        here = self.source.scene(self.variant())
        if there is None or here is None:
            return None
        pairs = ((there.queries, here.queries), (there.keys, here.keys))
        same = there is here or there.made(
            ("positions", here),
            lambda: all(a.names == b.names and [*a.positions] == [*b.positions] for a, b in pairs),
        )
        if not same:
            return None
        return self.source.head(variant, pin.layer, pin.head)

    @property
    def pictured(self) -> bool:
        """Whether the matrix is replaced by the pictures of the text: for weights, as colours, of one head."""
        return self.has_picture and not self.place.digits

    @property
    def has_picture(self) -> bool:
        """Whether the matrix can be replaced by the pictures of the text."""
        has_pictures = (
            self.scene is not None and bool(self.scene.pictures) and self.scene.unit == "tokens"
        )
        return has_pictures and self.place.stage == "weights" and self.place.pinned is None

    @property
    def bounds(self) -> Bounds:
        """Bounds of the walk at this place."""
        scene = self.scene
        counts = self.source.total, len(self.source.masks)
        if scene is None:
            return Bounds(*counts)
        n_queries = len(scene.queries.positions)
        n_keys = len(scene.keys.positions)
        pooled = None if self.head is None else self.head.map
        has_effects = scene.effects is not None and scene.effects.values is not None
        run = 2
        if pooled is not None:
            run = max(2, -(-n_queries // max(1, len(pooled.queries) - 1)))
        return Bounds(
            *counts,
            len(scene.layers),
            len(scene.heads),
            n_queries,
            n_keys,
            scene.stages,
            zooms(n_queries, n_keys, run),
            (
                *DISPLAYS,
                *(head_number.name for head_number in scene.numbers),
                *[ROW_EFFECT] * has_effects,
            ),
            max(1, scene.width),
            scene.units,
            scene.made("patches", lambda: patches_of(scene)) if self.pictured else (),
        )

    def act(self, action: Action) -> bool:
        """Do an action; return whether the place changed."""
        before = self.place
        if action.name in ("unit", "follow") and action.value is None:
            if action.name == "unit":
                action = replace(action, value=self._next_unit())
            else:
                action = replace(action, value=self._followed())
        self.place = apply(self.place, action, self.bounds)
        self.settle()
        return self.place != before

    def _next_unit(self) -> tuple[str, Callable[[Spot], Spot]] | None:
        """Return the next unit, and a function that moves a spot to it; None if there is only one."""
        scene = self.scene
        if scene is None or len(scene.units) < 2:
            return None
        unit = scene.units[(scene.units.index(scene.unit) + 1) % len(scene.units)]
        other = self.source.scene(replace(self.variant(), unit=unit))
        if other is None:
            return None
        return (unit, lambda spot: regrouped(spot, scene, other))

    def _followed(self) -> Spot | None:
        """Return the cell that the one under the cursor leads to: its key's row, in the layer below.

        The head is the one that writes most there, see strongest_writer, else the same head; None if nothing is below.
        """
        scene = self.scene
        spot = self.spot
        if scene is None or spot.key is None:
            return None
        query = scene.query_of_key(spot.key)
        if query is None:
            self.error = "this key is no row here"
            return None
        if not spot.layer:
            self.error = "nothing is below the first layer: it reads embeddings"
            return None
        layer = spot.layer - 1
        heads = self._heads_of([layer], are_cut_out=True)
        writer = strongest_writer(scene, heads, query)
        known = [head for head in heads if head is not None]
        if writer is None and any(h.sources or h.row("weights", query) is not None for h in known):
            name = self.ink.name(scene.queries.names[query])
            self.error = f'nothing to follow: below, "{name}" reads sinks and itself alone'
            return None
        head, key = writer or (spot.head, None)
        return replace(spot, layer=layer, head=head, query=query, key=key)

    def settle(self) -> None:
        """Fit the place to the source's current data, and resolve the key."""
        self._refresh()
        scene = self.scene
        if scene is None:
            return
        if not self.placed:
            self.placed = True
            self._begin(scene)
        fitting_place = self.place = fit(self.place, self.bounds)
        self._refresh()
        if fitting_place.spot.key is None:
            strongest = strongest_key(scene, self.head, fitting_place.spot.query)
            self.place = replace(fitting_place, spot=replace(fitting_place.spot, key=strongest))

    def replace_source(self, source: Source) -> None:
        """Walk through something else, from the same place as far as it is there."""
        self.source = source
        self._shown = None
        spot = replace(self.spot, text=0, mask=min(self.spot.mask, len(source.masks) - 1), key=None)
        self.place = replace(
            uncut(self.place), spot=spot, pinned=None, pinned_cuts=(), history=(), trail=()
        )
        self.settle()

    def _begin(self, scene: Scene) -> None:
        """Begin at the requested place, else at the first head, in the row of `start`, else of the last word."""
        requested = self.begin or Begin()
        begin = scene.first
        names_no_place = requested == Begin(unit=requested.unit, cuts=requested.cuts)
        if names_no_place and scene.start is not None and scene.start_key is not None:
            cell = scene.queries.positions[scene.start], scene.keys.positions[scene.start_key]
            requested = replace(requested, query=str(cell[0]), key=str(cell[1]))
        if requested.unit not in scene.units:
            hint = "words are shown of texts whose matrices are known, up to 1,024 tokens"
            raise UsageError(
                f"{requested.unit} are not known here", where=arg(requested.unit), hint=hint
            )
        if requested.unit != "tokens":
            self.place = replace(self.place, unit=requested.unit)
            self._refresh()
            scene = self.scene or scene
        head_shown = self.source.head(self.variant(), *begin)
        if (
            scene.numbers
            and not self.source.computes
            and head_shown
            and head_shown.picture() is None
        ):
            # Brief dumps have no thumbnails.
            self.place = replace(self.place, display=scene.numbers[0].name)
        if scene.number(MOVED) is not None:
            self.place = replace(self.place, display=MOVED)
        elif (
            requested.query is not None
            and requested.key is not None
            and not self.source.compared
            and len(scene.layers) * len(scene.heads) > 1
        ):
            # a question about a cell: which heads have it
            self.place = replace(self.place, display=LENS)
        words = [n for n, special in enumerate(scene.queries.special) if not special]
        if requested.layer is None:
            layer = begin[0]
        else:
            layer = _numbered(scene.layers, requested.layer, "layer")
        if requested.head is None:
            head = begin[1]
        else:
            head = _numbered(scene.heads, requested.head, "head")
        query = _on_axis(scene.queries, requested.query, scene.tokens_of)
        key = _on_axis(scene.keys, requested.key, scene.tokens_of_key)
        last = words[-1] if words else 0
        start = scene.start if scene.start_key is None else None  # a cell is that of the first head
        row = next(row for row in (query, start, last) if row is not None)
        self.place = replace(
            self.place, spot=replace(self.spot, layer=layer, head=head, query=row, key=key)
        )
        if self.source.compared:
            self._begin_compared(first=self.spot, given=requested.head is not None)
        bounds = self.bounds
        if query is None and max(bounds.queries, bounds.keys) > _LONG:
            self.place = replace(self.place, zoom=bounds.zooms[-1])

    def _begin_compared(self, first: Spot, *, given: bool) -> None:
        """Show how the second side of a comparison differs from the first, if they have the same tokens.

        `given`: The head was named; otherwise that of each side is the scene's.
        """
        before = self.place
        there = self.source.scene(replace(self.variant(), mask=self.source.masks[1]))
        if there is None:
            return
        layer, head = (first.layer, first.head) if given else there.first
        self.place = replace(
            before, spot=replace(first, mask=1, layer=layer, head=head), pinned=first
        )
        self._refresh()
        if self.drawn is None:
            self.place = before
            self._refresh()

    def title(self, panel: str) -> Style:
        """Return the style of a panel's title, which shows where the keys go."""
        return TITLE if self.place.panel == panel else LABEL

    @property
    def forbidden(self) -> str:
        """Why the cell under the cursor is not allowed, if it is not."""
        cut = any(cut.edge for cut in self.place.cuts)
        spot = self.spot
        head = None
        if cut:
            head = self.source.head(replace(self.variant(), cuts=()), spot.layer, spot.head)
        row = None if head is None else head.row("masked", spot.query)
        if not cut or (row is not None and np.isneginf(row[self.key])):
            return "not allowed by the mask"
        if row is not None:
            return "cut"
        return "cut, or not allowed by the mask"

    @property
    def marks(self) -> Mapping[tuple[int, int], frozenset[str]]:
        """Say of each layer and head that is `cut` or `pinned` what of these it is."""
        pinned = self.place.pinned
        if pinned is None:
            marks = {}
        else:
            marks = {(pinned.layer, pinned.head): frozenset(["pinned"])}
        scene = self.scene
        cut = {cut.written for cut in self.place.cuts}
        if scene is None or not cut:
            return marks
        for (n, layer), (m, head) in product(enumerate(scene.layers), enumerate(scene.heads)):
            if f"L{layer}H{head}" in cut:
                marks[n, m] = marks.get((n, m), frozenset()) | {"cut"}
        return marks

    @property
    def head_cut(self) -> bool:
        """Whether the place's head is cut, so that nothing takes in what it reads."""
        spot = self.spot
        return "cut" in self.marks.get((spot.layer, spot.head), ())

    @property
    def spot(self) -> Spot:
        """The cell under the cursor."""
        return self.place.spot

    @property
    def query(self) -> int:
        """Index of the query under the cursor."""
        return self.place.spot.query

    @property
    def key(self) -> int:
        """Index of the key under the cursor."""
        return self.spot.key or 0

    @property
    def columns(self) -> Axis:
        """The columns of the matrix: keys, or for the stage `output` dimensions of the value."""
        scene = self.scene
        assert scene is not None
        if self.place.stage == OUTPUT:
            return dim_axis(scene.width)
        return scene.keys

    @property
    def column(self) -> int:
        """Index of the column under the cursor."""
        if self.place.stage == OUTPUT:
            return self.spot.dim
        return self.key

    @property
    def drawn(self) -> WalkHead | None:
        """The head that the matrix shows; of a comparison, the difference from the pinned one."""
        head = self.head
        pinned = self.pinned
        if self.place.pinned is None or head is None:
            return head
        if pinned is None:
            return None
        return self._difference(head, pinned)

    def _difference(self, head: WalkHead, pinned: WalkHead) -> WalkHead | None:
        key = head, pinned, self.place.stage
        if self._last_difference is None or self._last_difference[0] != key:
            # A difference is as large as a matrix, so that only one is kept.
            changes = difference(*key)
            if changes is not None and self.place.stage == "weights" and not self._rounded:
                # as in a matrix of weights
                both = (head.stages["weights"] == 0) & (pinned.stages["weights"] == 0)
                changes = np.where(both, np.float32(-np.inf), changes)
            difference_head = None
            if changes is not None:
                difference_head = replace(
                    head, stages={DIFFERENCE: changes}, map=None, sources=None
                )
            self._last_difference = key, difference_head
        return self._last_difference[1]

    @property
    def _rounded(self) -> bool:
        """Whether weights are rounded, so that a zero is not always forbidden."""
        return self.scene is not None and self.scene.rounded is not None

    @property
    def drawn_stage(self) -> str:
        """The stage of the head that the matrix shows."""
        if self.place.pinned is None:
            return self.place.stage
        return DIFFERENCE

    def cells(self, rows: range, columns: range, zoom: int) -> Window:
        """Return the cells of the matrix that are visible."""
        assert self.scene is not None
        stage_and_keys = self.drawn_stage, len(self.columns.positions)
        return window(self.scene, self.drawn or WalkHead(0, 0), stage_and_keys, rows, columns, zoom)

    def scale(self, window_kind: str) -> Scale | LogScale:
        """Return the scale of the matrix's colours: of maps, it is logarithmic."""
        head = self.drawn
        stage = self.drawn_stage
        if head is None:
            return WEIGHTS
        if stage == "weights" and window_kind != "map":
            return self.weight_scale(head)
        if stage == DIFFERENCE and self.place.stage == "weights":
            return replace(scale_for(stage, head.stages[stage]), shape=self.place.shape)
        return head.made(
            ("scale", stage, window_kind == "map"), lambda: self._scale(head, stage, window_kind)
        )

    def weight_scale(self, head: WalkHead | None) -> Scale:
        """Return the scale of weights: up to 1, or without sinks up to the largest weight of a head elsewhere."""
        current_place = self.place
        scene = self.scene
        high = 1.0
        if not current_place.sinks and head is not None and scene is not None:
            high = head.made("elsewhere", lambda: largest_elsewhere(scene, head))
        return replace(WEIGHTS, high=high, shape=current_place.shape)

    def _heads_of(
        self, layers: Sequence[int], *, are_cut_out: bool = False
    ) -> list[WalkHead | None]:
        """Return the known numbers of all heads of some layers, layer by layer; `are_cut_out`: None for a cut head."""
        scene = self.scene
        assert scene is not None
        marks = self.marks if are_cut_out else {}
        return [
            None if "cut" in marks.get(at, ()) else self.head_at(*at)
            for at in product(layers, range(len(scene.heads)))
        ]

    def _every_head(self) -> tuple[Scene, list[WalkHead | None], tuple[int, int]]:
        """Return the scene, its heads, layer by layer, and how many layers and heads there are."""
        scene = self.scene
        assert scene is not None
        shape = len(scene.layers), len(scene.heads)
        key = self._shown, self.variant(), self.arrived
        if self._last_heads[0] != key:
            self._last_heads = key, self._heads_of(range(shape[0]))
        return scene, self._last_heads[1], shape

    def lens(self) -> Matrix:
        """Return the weight of the cell under the cursor in every head, (layers, heads); NaN if it is not known."""
        scene, heads, shape = self._every_head()
        cell = self.query, self.key
        key = *self._last_heads[:1], cell
        if self._last_lens[0] != key:
            weights = [weight_of_cell(scene, head, *cell) for head in heads]
            self._last_lens = key, np.array(weights, dtype=np.float32).reshape(shape)
        return self._last_lens[1]

    def row_lens(self) -> tuple[Matrix, np.ndarray, bool]:
        """Return the weight of the row's strongest source in every head, (layers, heads), its key, and `are_sinks_out`.

        They are out unless the row reads nothing but sinks and itself in any head.
        """
        scene, heads, shape = self._every_head()
        weights, keys, are_sinks_out = strongest_sources(scene, heads, self.query)
        return weights.reshape(shape), keys.reshape(shape), are_sinks_out

    def strongest_heads(self) -> list[tuple[int, int, float]]:
        """Return the heads with the largest weights of the cell, each with the weight, as many as are listed."""
        return self.strongest_readers(self.lens())

    @property
    def stronger_head(self) -> tuple[int, int] | None:
        """The head that the lens answers with, if it reads the cell more than the place's; None otherwise."""
        if self.place.display != LENS or self.scene is None:
            return None
        weights = self.lens()
        spot = self.spot
        strongest = iter(self.strongest_readers(weights))
        (*best, most) = next(strongest, (spot.layer, spot.head, 0.0))
        is_more = most > np.nan_to_num(weights[spot.layer, spot.head])
        return (best[0], best[1]) if is_more else None

    def strongest_readers(self, weights: Matrix) -> list[tuple[int, int, float]]:
        """Return the heads with the largest weights of a lens, but none that is cut: what it reads has no effect."""
        cut = [at for at, marks in self.marks.items() if "cut" in marks]
        read = weights.copy()
        for at in cut:
            read[at] = 0
        return strongest_of(read)

    def _scale(self, head: WalkHead, stage: str, window_kind: str) -> Scale | LogScale:
        if window_kind == "map" and head.map is not None:
            return LogScale.of(head.map.weights)
        if stage in head.stages:
            difference = stage == DIFFERENCE and self.place.stage != "weights"
            return scale_for(self.place.stage if difference else stage, head.stages[stage])
        if head.sources is not None:
            return scale_for(stage, head.sources.measures["weight"])
        return WEIGHTS

    def wants(self) -> list[tuple[Variant, Spot]]:
        """Return the heads that the screen shows cells of: that of the place, and the pinned one."""
        pinned = self.place.pinned
        of_pin = [] if pinned is None else [(self.variant(pinned=True), pinned)]
        return [(self.variant(), self.spot), *of_pin]


def strongest_of(weights: Matrix) -> list[tuple[int, int, float]]:
    """Return the layers and heads of the largest weights, each with the weight, as many as are listed."""
    order = np.argsort(-np.nan_to_num(weights), axis=None, kind="stable")[:_STRONGEST]
    heads = [(*divmod(int(index), weights.shape[1]), float(weights.flat[index])) for index in order]
    return [(layer, head, weight) for layer, head, weight in heads if weight > 0]


def patches_of(scene: Scene) -> Sequence[np.ndarray]:
    """Return the query of every patch of each picture, (rows, columns); −1 for a patch that is no row."""
    places = scene.queries.places
    return [
        np.array([[places.get(int(source), -1) for source in row] for row in picture.sources])
        for picture in scene.pictures
    ]


def regrouped(spot: Spot, before: Scene, after: Scene) -> Spot:
    """Return the spot of the same tokens in the scene of other units."""
    position = before.tokens_of(spot.query)[0]
    query = next(
        (n for n in range(len(after.queries.positions)) if position in after.tokens_of(n)), 0
    )
    return replace(spot, query=query, key=None)


def _numbered(numbers: Sequence[Number], wanted: str, what: str) -> int:
    """Return the index of a layer or head; below 0 from the last."""
    indices = {str(label): n for n, label in enumerate(numbers)}
    from_last = {str(n - len(numbers)): n for n in range(len(numbers))}
    if wanted in from_last | indices:
        return (from_last | indices)[wanted]
    raise UsageError(
        f"there is no {what} {wanted}",
        where=arg(what),
        hint=f"there are {', '.join([*indices][:40])}",
    )


def _on_axis(
    axis: Axis, wanted: str | None, tokens_of: Callable[[int], Sequence[int]]
) -> int | None:
    """Return the index of a position or token of an axis; of a word or span, by any of its tokens."""
    if wanted is None:
        return None
    name = "query" if axis.kind == "query" else "key"
    labels = [f"{axis.number(n)} {span.text}" for n, span in enumerate(axis.names)]
    if wanted.strip() in labels:
        return labels.index(wanted.strip())
    position_text = wanted.partition(":")[0]
    if position_text.lstrip("-").isdigit():
        position = int(position_text) + (axis.total if position_text.startswith("-") else 0)
        holding = [n for n in range(len(axis.positions)) if position in tokens_of(n)]
        if holding:
            return holding[0]
    folded = wanted.strip("\"'").casefold()
    exact = [n for n, span in enumerate(axis.names) if span.text.strip().casefold() == folded]
    within = [
        n
        for n, span in enumerate(axis.names)
        if span.text.strip() and span.text.strip().casefold() in folded
    ]
    if not exact and not within:
        raise UsageError(
            f"'{wanted}' is not in the text", where=arg(name), hint="name a token or a position"
        )
    if exact:
        return exact[0]
    return max(within, key=lambda n: len(axis.names[n].text))
