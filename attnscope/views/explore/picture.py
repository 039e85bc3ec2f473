"""A row of weights as a map on the pictures of the text, with the patch under the cursor as its query."""

from dataclasses import dataclass, field, replace

import numpy as np
from rich.segment import Segment

from attnscope.findings.arrays import Floats
from attnscope.views.explore.ink import BOLD, DIM, Line, cut, joined
from attnscope.views.explore.state import WalkState
from attnscope.views.parts import PictureMap
from attnscope.views.pictures import percent
from attnscope.views.terminal.pictures import Size, has_pictures, legend_pieces, map_rows, size_of
from attnscope.views.walk.place import Action
from attnscope.views.walk.scene import Scene, ScenePicture

_BELOW = 4  # lines of the shares, of the picture's numbers, and of the legend
_BETWEEN = 2  # columns between two pictures


@dataclass
class PictureView:
    """Draws the pictures of a scene in place of a matrix; keeps where each is."""

    # of every picture that is drawn: the picture, its left edge, and its size in pixels
    _drawn: list[tuple[ScenePicture, int, Size]] = field(default_factory=list)

    def draw(self, state: WalkState, scene: Scene, width: int, height: int) -> list[Line]:
        """Return the lines of the pictures, as many side by side as fit."""
        self._drawn = []
        head = state.head
        query = state.query
        row = None if head is None else head.row("weights", query)
        name = "" if head is None else head.name
        title: Line = [
            Segment(f" {state.ink.plain(name)} ", state.title("matrix")),
            Segment(" weights", BOLD),
            Segment(f"  of {state.ink.name(scene.queries.names[query])} on the picture", DIM),
        ]
        if row is None or scene.picture_scale is None:
            return [
                cut(title, width),
                [],
                [Segment(f"  {state.ink.plain(state.status or 'not there')}", DIM)],
            ]
        lines: list[Line] = []
        left = 0
        for picture in scene.pictures:
            room = width - left
            size = size_of(picture.sources.shape, room, max(2, height - 1 - _BELOW))
            if left and (room < picture.sources.shape[1] or size.height < 2):
                break
            drawn_pictures = [
                joined(pieces)
                for pieces in map_rows(_map(scene, picture, row, query), size, state.ink)
            ]
            for n in range(max(len(lines), len(drawn_pictures))):
                if n == len(lines):
                    lines.append([Segment(" " * left)])
                lines[n] = [
                    *lines[n],
                    *(drawn_pictures[n] if n < len(drawn_pictures) else []),
                    Segment(" " * _BETWEEN),
                ]
            self._drawn.append((picture, left, size))
            if has_pictures(state.ink):
                across = size.width
            else:
                across = 2 * picture.sources.shape[1] + 2
            left += across + _BETWEEN
        shares = [
            f"{kind_name} {percent(float(row[list(sources)].sum()))}"
            for kind_name, sources in scene.kinds
        ]
        under = (
            f"{state.ink.name(scene.queries.names[query])} gives itself {_own(scene, row, query)}"
        )
        below: list[Line] = [
            [Segment(" " + state.ink.plain(" · ".join(shares)), BOLD)],
            [Segment(f" {under}", DIM)],
            [Segment(" "), *joined(legend_pieces(scene.picture_scale, state.ink))],
        ]
        return [cut(line, width) for line in (title, *lines, *below)]

    def hit(self, state: WalkState, x: int, y: int) -> Action | None:
        """Return the action of a click: the patch becomes the query."""
        scene = state.scene
        for picture, left, size in self._drawn:
            rows, columns = picture.sources.shape
            across = size.width if has_pictures(state.ink) else 2 * columns
            down = -(-size.height // 2) if has_pictures(state.ink) else rows
            column = x - left - (not has_pictures(state.ink))
            row = y - 1 - (not has_pictures(state.ink))
            if scene is not None and 0 <= column < across and 0 <= row < down:
                source = int(picture.sources[row * rows // down, column * columns // across])
                query = scene.queries.places.get(source) if source >= 0 else None
                if query is not None:
                    return Action("goto", replace(state.spot, query=query, key=None))
        return None


def _map(scene: Scene, picture: ScenePicture, row: Floats, query: int) -> PictureMap:
    assert scene.picture_scale is not None
    weights = np.where(picture.sources < 0, np.nan, row[picture.sources]).astype(np.float32)
    here = np.argwhere(picture.sources == scene.queries.positions[query])
    at = (int(here[0][0]), int(here[0][1])) if len(here) else None
    return PictureMap((), picture.pixels, weights, scene.picture_scale, (), query=at)


def _own(scene: Scene, row: Floats, query: int) -> str:
    own = scene.keys.places.get(scene.queries.positions[query])
    if own is not None:
        return percent(float(row[own]))
    return "nothing"
