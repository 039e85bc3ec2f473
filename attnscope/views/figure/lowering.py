"""Draw parts of any kind."""

from collections.abc import Callable
from typing import Any

from attnscope.views import parts
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


def put_part(canvas: Canvas, part: parts.ViewPart) -> None:
    """Draw one part of findings."""
    LOWERINGS[type(part)](canvas, part)


def _put_gap(canvas: Canvas, _gap: parts.Gap) -> None:
    canvas.y += GAP


def _put_most_detailed(canvas: Canvas, findings: parts.FirstFitting) -> None:
    """Draw the first form: a figure has no end of the screen."""
    for part in findings.forms[0]:
        put_part(canvas, part)


def _put_whole_names(_canvas: Canvas, _names: parts.WholeNames) -> None:
    """Draw nothing: the tables of a figure do not shorten names."""


LOWERINGS: dict[type, Callable[[Canvas, Any], None]] = {
    parts.Gap: _put_gap,
    parts.Paragraph: put_paragraph,
    parts.Flow: put_flow,
    parts.Facts: put_facts,
    parts.Matrices: put_matrices,
    parts.HeatPanels: put_panels,
    parts.Ranking: put_ranking,
    parts.WeightMap: put_map,
    parts.MostAttended: put_attended,
    parts.Thumbnails: put_thumbnails,
    parts.VectorLine: put_vector,
    parts.Grid: put_grid,
    parts.WholeNames: _put_whole_names,
    parts.MovedSources: put_moved_sources,
    parts.Moves: put_moves,
    parts.RolePicture: put_roles,
    parts.StrongestHeads: put_strongest,
    parts.HeadNumbers: put_head_numbers,
    parts.Listed: put_listed,
    parts.FirstFitting: _put_most_detailed,
}
