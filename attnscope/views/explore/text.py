"""The text, with the cursor's query marked and its sources shaded."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style

from attnscope.views.explore.ink import BOLD, CURSOR, DIM, PLAIN, Line, fit, fitting, joined, steps
from attnscope.views.explore.state import WalkState
from attnscope.views.spans import Span
from attnscope.views.walk.cell import listed_weights
from attnscope.views.walk.place import Action
from attnscope.views.walk.scene import Scene


@dataclass(frozen=True, slots=True)
class _PlacedText:
    """Text that is kept together on a line."""

    text: str
    size: int
    query: int = -1
    key: int = -1
    style: Style = PLAIN


@dataclass
class TextPanel:
    """Draws the text; keeps the place of each token."""

    _places: list[tuple[int, int, int, int, int]] = field(default_factory=list)

    def draw(self, state: WalkState, width: int, height: int) -> list[Line]:
        """Return the lines of the panel."""
        self._places = []
        scene = state.scene
        head = state.head
        if scene is None or height < 2 or width < 4:
            return []
        query = state.query
        # Passages that are laid out: a text may have 100,000.
        around = max(100, width * height // 2)
        # words and spans have several passages
        firsts = scene.made(
            "firsts", lambda: {p.query: n for n, p in reversed([*enumerate(scene.passages)])}
        )
        passage = firsts.get(query, 0)
        start = max(0, passage // around - 1) * around
        key = "text", width, around, start, state.ink
        lines = scene.made(
            key, lambda: _lay_out(state, scene, width, range(start, start + 3 * around))
        )
        lines_of = scene.made((*key, "lines of queries"), lambda: _lines_of(lines))
        here = lines_of.get(query, 0)
        top = max(0, min(here - (height - 1) // 2, len(lines) - height + 1))
        visible = lines[top : top + height - 1]
        # weights of the row, as far as they are known
        shares = np.zeros(len(scene.keys.positions), dtype=np.float32)
        if head is not None and (row := head.row("weights", query)) is not None:
            shares = np.nan_to_num(row)
        elif head is not None and (listed := listed_weights(scene, head, query)):
            shares[list(listed)] = list(listed.values())
        keys = [piece.key for line in visible for piece in line]
        scale = state.weight_scale(head)
        shades = iter(steps(shares[keys][None], scale, state.ink)[0].tolist())
        drawn_lines: list[Line] = [[Segment(" text ", state.title("text")), *_legend(state, width)]]
        for y, line in enumerate(visible, 1):
            at = 0
            pieces = []
            for piece, shade in zip(line, shades, strict=False):
                pieces.append((piece.text, _style(state, piece, shade)))
                if piece.query >= 0 or piece.key >= 0:
                    self._places.append((y, at, at + piece.size, piece.query, piece.key))
                at += piece.size
            drawn_lines.append(joined(pieces))
        return drawn_lines

    def count_lines(self, state: WalkState, width: int) -> int:
        """Return how many lines the start of the text takes."""
        scene = state.scene
        if scene is None or width < 4:
            return 1
        return max(
            1,
            len(
                scene.made(
                    ("lines", width, state.ink), lambda: _lay_out(state, scene, width, range(500))
                )
            ),
        )

    def hit(self, state: WalkState, x: int, y: int) -> Action | None:
        """Return the action of a click in the panel: go to the query, or if there are only keys, to the key."""
        for line, start, end, query, key in self._places:
            if line == y and start <= x < end:
                spot = state.spot
                if query >= 0:
                    return Action("goto", replace(spot, query=query, key=None))
                return Action("goto", replace(spot, key=key))
        return None


def _legend(state: WalkState, width: int) -> Line:
    """Say which words are bold, if there are no colours."""
    scene = state.scene
    ink = state.ink
    if scene is None or ink.colours:
        return []
    scale = state.weight_scale(state.head)
    least = f"{scale.value(1 / len(ink.shades)):.2g}".removeprefix("0")
    query = ink.name(scene.queries.names[state.query])
    forms = (f'bold: what "{query}" reads with {least} or more', f"bold: read with {least} or more")
    legend = fitting([*forms, ""], width - len(" text    1  "))
    return [Segment(f"  {legend}", DIM)] if legend else []


def _lay_out(state: WalkState, scene: Scene, width: int, window: range) -> list[list[_PlacedText]]:
    """Break some passages into lines."""
    lines: list[list[_PlacedText]] = [[]]
    filled = 0
    for passage in scene.passages[window.start : window.stop]:
        token = passage.query >= 0 or passage.key >= 0
        dim = not token and passage.span.origin == "untrusted"
        for text in _pieces(state, passage.span, token):
            size = cell_len(text)
            if text == "\n" or (filled + size > width and filled):
                lines.append([])
                filled = 0
                if text in ("\n", " "):
                    continue
            text, size = (fit(text, width), width) if size > width else (text, size)
            lines[-1].append(
                _PlacedText(text, size, passage.query, passage.key, DIM if dim else PLAIN)
            )
            filled += size
    return lines


def _lines_of(lines: Sequence[Sequence[_PlacedText]]) -> dict[int, int]:
    """Return the first line of every query that is on some lines."""
    placed = [(piece.query, n) for n, line in enumerate(lines) for piece in line]
    return dict(reversed(placed))


def _style(state: WalkState, piece: _PlacedText, step: int) -> Style:
    """Return the style of a piece: the query is marked, its sources are shaded by their step."""
    if piece.query >= 0 and piece.query == state.query:
        return CURSOR
    if piece.key >= 0 and (step > 0 or state.ink.on_black):
        if state.ink.colours:
            return state.ink.cell(step, signed=False)
        if state.ink.shade(step, signed=False).strip():
            return BOLD
        return piece.style
    return piece.style


def _pieces(state: WalkState, span: Span, token: bool) -> list[str]:
    """Split a text into pieces that are kept together on a line."""
    if token:
        name = state.ink.name(span)
        if span.text.strip():
            return [name.replace("␣", " ").strip(" ") or name]
        return [name]
    words = filter(None, re.split("([\n ])", span.text))
    return [
        word if word in ("\n", " ") else state.ink.name(Span(word, origin="untrusted"))
        for word in words
    ]
