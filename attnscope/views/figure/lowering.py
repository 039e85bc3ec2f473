"""Draw parts of any kind."""

from collections.abc import Callable
from typing import Any

from attnscope.views.figure.canvas import GAP, Canvas
from attnscope.views.figure.matrices import (
    put_head_numbers,
    put_map,
    put_matrices,
    put_panels,
    put_roles,
    put_thumbnails,
)
from attnscope.views.figure.tables import (
    put_attended,
    put_facts,
    put_flow,
    put_grid,
    put_listed,
    put_moved_sources,
    put_moves,
    put_paragraph,
    put_ranking,
    put_strongest,
    put_vector,
)
from attnscope.views.presentation.parts import (
    Facts,
    Flow,
    Gap,
    Grid,
    HeadNumbers,
    HeatPanels,
    Listed,
    Matrices,
    MostAttended,
    MovedSources,
    Moves,
    Paragraph,
    Ranking,
    RolePicture,
    StrongestHeads,
    Thumbnails,
    VectorLine,
    ViewPart,
    WeightMap,
    WholeNames,
)


def put_part(canvas: Canvas, part: ViewPart) -> None:
    """Draw one part of findings."""
    LOWERINGS[type(part)](canvas, part)


def _put_gap(canvas: Canvas, _gap: Gap) -> None:
    canvas.y += GAP


def _put_whole_names(_canvas: Canvas, _names: WholeNames) -> None:
    """Draw nothing: the tables of a figure do not shorten names."""


LOWERINGS: dict[type, Callable[[Canvas, Any], None]] = {
    Gap: _put_gap,
    Paragraph: put_paragraph,
    Flow: put_flow,
    Facts: put_facts,
    Matrices: put_matrices,
    HeatPanels: put_panels,
    Ranking: put_ranking,
    WeightMap: put_map,
    MostAttended: put_attended,
    Thumbnails: put_thumbnails,
    VectorLine: put_vector,
    Grid: put_grid,
    WholeNames: _put_whole_names,
    MovedSources: put_moved_sources,
    Moves: put_moves,
    RolePicture: put_roles,
    StrongestHeads: put_strongest,
    HeadNumbers: put_head_numbers,
    Listed: put_listed,
}
