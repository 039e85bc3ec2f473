"""The text, with the cursor's query marked and its sources shaded."""

from dataclasses import dataclass, field

import numpy as np
from rich.cells import cell_len
from rich.style import Style

from attnscope.views.explore.ink import BOLD, CURSOR, DIM, PLAIN, TITLE, Line, fit, joined, steps
from attnscope.views.explore.owned import OwnedCache
from attnscope.views.explore.state import WalkState
from attnscope.views.scales import Scale
from attnscope.views.spans import Span
from attnscope.views.walk.place import Action, Spot
from attnscope.views.walk.scene import Scene, WalkHead


@dataclass
class TextPanel:
    """Draws the text; remembers where each token is."""

    _places: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    _of_queries: OwnedCache = field(default_factory=OwnedCache)

    def _passage(self, scene: Scene, query: int) -> int:
        """Return the index of the passage that a query is."""
        places = self._of_queries.get(
            scene, "", lambda: {passage.query: n for n, passage in enumerate(scene.passages) if passage.query >= 0}
        )
        return places.get(query, 0)

    def draw(self, state: WalkState, width: int, height: int) -> list[Line]:
        """Return the lines of the panel."""
        self._places = []
        scene, head = state.scene, state.head
        if scene is None or height < 1 or width < 4:
            return []
        query = state.place.spot.query
        shares = _shares(scene, head, query, len(scene.keys.positions))
        found = steps(shares[None], Scale(0.0, 1.0, False))[0]
        lines: list[list[tuple[str, Style]]] = [[(" text ", TITLE), (" ", PLAIN)]]
        filled, here = 7, 0
        around = max(100, width * height // 2)  # passages that are laid out: a text may have 100,000
        start = max(0, self._passage(scene, query) // around - 1) * around
        window = range(start, min(len(scene.passages), start + 3 * around))
        for n in window:
            passage = scene.passages[n]
            style = PLAIN
            key = passage.key
            if passage.query == query:
                style = CURSOR
            elif key >= 0 and found[key] > 0:
                style = state.ink.cell(int(found[key]), signed=False) if state.ink.colours else BOLD
            elif passage.span.origin == "untrusted":
                style = DIM
            for piece in _pieces(state, passage.span, passage.query >= 0 or key >= 0):
                size = cell_len(piece)
                if piece == "\n" or (filled + size > width and filled):
                    lines.append([])
                    filled = 0
                    if piece in ("\n", " "):
                        continue
                piece, size = (fit(piece, width), width) if size > width else (piece, size)
                if passage.query == query:
                    here = len(lines) - 1
                if passage.query >= 0 or key >= 0:
                    self._places.append((len(lines) - 1, filled, filled + size, passage.query, key))
                lines[-1].append((piece, style))
                filled += size
        first = max(0, min(here - height // 2, len(lines) - height))
        self._places = [(line - first, *rest) for line, *rest in self._places]  # type: ignore[misc]
        return [joined(line) for line in lines[first : first + height]]

    def hit(self, state: WalkState, x: int, y: int) -> Action | None:
        """Return what a click at a place of the panel does: to the query, or where only keys are, to the key."""
        for line, start, end, query, key in self._places:
            if line == y and start <= x < end:
                spot = state.place.spot
                if query >= 0:
                    return Action("goto", Spot(spot.text, spot.mask, spot.layer, spot.head, query, None))
                return Action("goto", Spot(spot.text, spot.mask, spot.layer, spot.head, spot.query, key))
        return None


def _shares(scene: Scene, head: WalkHead | None, query: int, count: int) -> np.ndarray:
    """Return the weights of the row on every key, as far as they are known; 0 elsewhere."""
    shares = np.zeros(count, dtype=np.float32)
    row = None if head is None else head.row("weights", query)
    if row is not None:
        return np.nan_to_num(row)
    if head is not None and head.sources is not None:
        weights = head.sources.measures["weight"][query]
        for place, weight in zip(head.sources.places[query].tolist(), weights.tolist(), strict=True):
            key = scene.key_of_source(place) if place >= 0 else None
            if key is not None:
                shares[key] = weight
    return shares


def _pieces(state: WalkState, span: Span, token: bool) -> list[str]:
    """Split some text into what is kept together on a line."""
    if token:
        name = state.ink.name(span)
        return [name.replace("␣", " ").strip(" ") or name] if span.text.strip() else [name]
    pieces = list[str]()
    for line_number, line in enumerate(span.text.split("\n")):
        if line_number:
            pieces.append("\n")
        for n, word in enumerate(line.split(" ")):
            if n:
                pieces.append(" ")
            if word:
                pieces.append(state.ink.name(Span(word, origin="untrusted")))
    return pieces
