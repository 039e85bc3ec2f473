"""Layers × heads: a thumbnail, the colour of a role, or one number for every head."""

from dataclasses import dataclass, replace

import numpy as np
from rich.segment import Segment
from rich.style import Style

from attnscope.views.explore.ink import BOLD, CURSOR, DIM, NONE, PLAIN, Line, fit, joined, steps, wrapped
from attnscope.views.explore.matrix import cut, scroll
from attnscope.views.explore.state import WalkState
from attnscope.views.numbers import digits_for
from attnscope.views.scales import Scale
from attnscope.views.walk.owned import OwnedCache
from attnscope.views.walk.place import Action
from attnscope.views.walk.scene import HeadNumber, Scene, WalkHead, thumbnail

# Largest number of cells and lines of a thumbnail.
_WIDEST, _TALLEST = 12, 6
# Lines below the heads.
_LEGEND = 4
_WEIGHTS = Scale(0.0, 1.0, False)


@dataclass
class HeadsPanel:
    """Draws the heads; keeps its scroll position and its thumbnails."""

    top: int = 0
    left: int = 0

    def __post_init__(self) -> None:
        self._thumbnails = OwnedCache()
        self._numbers = OwnedCache()
        self._drawn: tuple[Scene | None, object, list[Line]] | None = None
        self._last: tuple[range, range, int, int, int] | None = None

    def draw(self, state: WalkState, width: int, height: int) -> list[Line]:
        """Return the lines of the panel; cached while the same heads are known and shown."""
        place = state.place
        at = place.spot.layer, place.spot.head, place.panel == "heads"
        shown = place.display, at, state.variant(), width, height, state.arrived
        if self._drawn is None or self._drawn[0] is not state.scene or self._drawn[1] != (shown, id(state.source)):
            self._drawn = state.scene, (shown, id(state.source)), self._draw(state, width, height)
        return self._drawn[2]

    def _draw(self, state: WalkState, width: int, height: int) -> list[Line]:
        self._last = None
        scene = state.scene
        if scene is None or height < 3 or width < 8:
            return []
        ink, place = state.ink, state.place
        label = max(len(_layer(layer)) for layer in scene.layers) + 2
        n_layers, n_heads = len(scene.layers), len(scene.heads)
        above, below = 2, _LEGEND
        room, lines = width - label, height - above - below
        wide, tall = self._cell_size(state, scene, room, lines)
        self.left = scroll(self.left, place.spot.head, max(1, room // wide), n_heads, beside=0)
        self.top = scroll(self.top, place.spot.layer, max(1, lines // tall), n_layers, beside=0)
        heads = range(self.left, min(n_heads, self.left + max(1, room // wide)))
        layers = range(self.top, min(n_layers, self.top + max(1, lines // tall)))
        self._last = layers, heads, label, wide, tall
        title = place.display if place.display != "thumbnails" else "weights"
        head: Line = [
            Segment(f" {ink.plain(title)} ", state.title("heads")),
            Segment(ink.plain(f" {n_layers} × {n_heads}"), DIM),
        ]
        numbers = [Segment(" " * label)]
        # Numbers of two digits need twice the room.
        step = 1 if wide > 2 or n_heads <= 10 else 2
        for n in heads[::step]:
            chosen = n <= place.spot.head < n + step
            shown = place.spot.head if chosen else n
            numbers.append(Segment(fit(_head(scene.heads[shown], wide), step * wide), BOLD if chosen else DIM))
        drawn = [cut(head, width), cut(numbers, width)]
        for layer in layers:
            drawn += self._layer_lines(state, scene, layer, heads, label, wide, tall)
        drawn += [[]] * (height - below - len(drawn))
        return [*drawn, *self._legend(state, scene, width)]

    def hit(self, state: WalkState, x: int, y: int) -> Action | None:
        """Return the action of a click in the panel."""
        if self._last is None:
            return None
        layers, heads, label, wide, tall = self._last
        layer, head = layers.start + (y - 2) // tall, heads.start + (x - label) // wide
        if y < 2 or x < label or layer not in layers or head not in heads:
            return None
        spot = state.place.spot
        return Action("goto", replace(spot, layer=layer, head=head, key=None))

    def _cell_size(self, state: WalkState, scene: Scene, room: int, lines: int) -> tuple[int, int]:
        """Return columns and lines of a head, a blank between heads included."""
        n_layers, n_heads = len(scene.layers), len(scene.heads)
        least = 2 if state.place.display in ("thumbnails", "roles") else 5
        wide = max(least, min(_WIDEST, room // n_heads))
        tall = max(1, min(_TALLEST, lines // n_layers, max(2, wide // 2)))
        return wide, tall if state.place.display == "thumbnails" else min(tall, 2)

    def _layer_lines(
        self, state: WalkState, scene: Scene, layer: int, heads: range, label: int, wide: int, tall: int
    ) -> list[Line]:
        place = state.place
        here = layer == place.spot.layer
        mark = (">" if state.ink.ascii else "▸") if here else " "
        names = [mark + fit(_layer(scene.layers[layer]), label - 1), *[" " * label] * (tall - 1)]
        lines: list[Line] = [[Segment(name, BOLD if here else DIM)] for name in names]
        for head in heads:
            chosen = here and head == place.spot.head
            for n, cell in enumerate(self._cell(state, scene, layer, head, wide, tall, chosen=chosen)):
                lines[n] += cell
        return lines

    def _cell(
        self, state: WalkState, scene: Scene, layer: int, head: int, wide: int, tall: int, *, chosen: bool
    ) -> list[Line]:
        display, ink = state.place.display, state.ink
        inner = wide - 1
        end = Segment(("<" if ink.ascii else "◂") if chosen else " ", BOLD)
        if display == "thumbnails":
            known = state.source.head(state.variant(), layer, head)
            return [
                [*line, end if n == 0 else Segment(" ")]
                for n, line in enumerate(self._thumbnail(state, known, inner, tall))
            ]
        if display == "roles":
            text, style = _role(state, scene, layer, head, inner)
        else:
            number = _of_display(scene, display)
            cells = [] if number is None else self._numbers.get(number, inner, lambda: _numbers(state, number, inner))
            text, style = cells[layer][head] if cells else ("", DIM)
        if chosen:
            style = CURSOR
        first: Line = [Segment(fit(text, inner, right=display != "roles"), style), end]
        return [first, *[[Segment(" " * inner, PLAIN), Segment(" ")] for _ in range(tall - 1)]]

    def _thumbnail(self, state: WalkState, head: WalkHead | None, wide: int, tall: int) -> list[Line]:
        ink = state.ink
        per_line = 2 if ink.colours and not ink.ascii else 1
        if head is None:
            return [[Segment(("." if ink.ascii else "·") * wide, DIM)] for _ in range(tall)]

        return self._thumbnails.get(head, (wide, tall, per_line), lambda: _picture(state, head, wide, tall, per_line))

    def _legend(self, state: WalkState, scene: Scene, width: int) -> list[Line]:
        """Describe the number of the head under the cursor, in two lines."""
        ink, spot, display = state.ink, state.place.spot, state.place.display
        name = f"{_layer(scene.layers[spot.layer])}{_head(scene.heads[spot.head], 9)}"
        if display == "roles":
            return _role_legend(state, scene, name, width)
        number = _of_display(scene, display)
        if number is not None:
            value = float(number.values[spot.layer, spot.head])
            value_text = f"{name}: {display} {'?' if np.isnan(value) else digits_for(number.values, 2).text(value)}"
            meaning = wrapped(ink.plain(number.meaning), width)[:2]
            return [[Segment(fit(ink.plain(value_text), width))], *([Segment(line, DIM)] for line in meaning)]
        head = state.head
        chosen = wrapped(ink.plain(f"{name} {head.chosen if head else ''}"), width)[:3]
        return [[Segment(line, DIM)] for line in chosen]


def _role_legend(state: WalkState, scene: Scene, name: str, width: int) -> list[Line]:
    """Say the role of the head under the cursor, and what the letters stand for."""
    ink, spot, roles = state.ink, state.place.spot, scene.roles
    if roles is None:
        hint = "r measures roles" if state.source.computes else "roles are not known here"
        return [[Segment(fit(ink.plain(hint), width), DIM)]]
    index = int(roles.main[spot.layer, spot.head])
    role = "no clear role" if index < 0 else f"{roles.names[index]} {roles.strength[spot.layer, spot.head]:.2f}"
    letters = [f"{roles.letters[n]} {roles.names[n]}" for n in sorted(set(roles.main.ravel().tolist()) - {-1})]
    lines = wrapped(ink.plain(", ".join(letters)), width)[: _LEGEND - 1]
    return [[Segment(fit(ink.plain(f"{name}: {role}"), width))], *([Segment(line, DIM)] for line in lines)]


def _picture(state: WalkState, head: WalkHead, wide: int, tall: int, per_line: int) -> list[Line]:
    """Return the lines of a thumbnail, with one or two cells above each other on a line."""
    ink = state.ink
    cells = thumbnail(head, tall * per_line, wide)
    shades = np.full((1, 1), NONE) if cells is None else steps(np.where(cells < 0, np.nan, cells), _WEIGHTS)
    lines: list[Line] = []
    for n in range(0, tall * per_line, per_line):
        rows = [shades[m].tolist() if m < len(shades) else [NONE] * shades.shape[1] for m in (n, n + 1)]
        pad = [NONE] * (wide - shades.shape[1])
        above, below = rows[0] + pad, rows[1] + pad
        if per_line == 2:
            lines.append(joined(ink.half(a, b, signed=False) for a, b in zip(above, below, strict=True)))
        elif ink.colours:
            lines.append(joined((" ", ink.cell(a, signed=False)) for a in above))
        else:
            lines.append(joined((ink.shade(a, signed=False)[0], PLAIN) for a in above))
    return lines


def _layer(layer: int | str) -> str:
    return str(layer) if layer == "mean" else f"L{layer}"


def _head(head: int | str, width: int) -> str:
    return str(head)[:width] if head == "mean" else f"H{head}" if width > 3 else str(head)


def _of_display(scene: Scene, display: str) -> HeadNumber | None:
    return next((number for number in scene.numbers if number.name == display), None)


def _numbers(state: WalkState, number: HeadNumber, width: int) -> list[list[tuple[str, Style]]]:
    """Return how the number of every head is written, and its colour."""
    finite = number.values[np.isfinite(number.values)]
    scale = Scale(float(min(0.0, finite.min())), float(finite.max()), False) if finite.size else Scale(0.0, 1.0, False)
    digits = digits_for(number.values, 2)
    shades, written = steps(number.values, scale), []
    for values, row in zip(number.values.tolist(), shades.tolist(), strict=True):
        texts = ["" if np.isnan(value) else state.ink.plain(digits.text(value)) for value in values]
        styles = [state.ink.cell(step, signed=False) if step >= 0 else DIM for step in row]
        written.append([(fit(text, width, right=True), style) for text, style in zip(texts, styles, strict=True)])
    return written


def _role(state: WalkState, scene: Scene, layer: int, head: int, width: int) -> tuple[str, Style]:
    if scene.roles is None:
        return ("." if state.ink.ascii else "·"), DIM
    index = int(scene.roles.main[layer, head])
    if index < 0:
        return ("." if state.ink.ascii else "·"), DIM
    strength = float(scene.roles.strength[layer, head])
    return fit(scene.roles.letters[index], width), state.ink.role(scene.roles.colours[index], strength)
