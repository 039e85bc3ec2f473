"""Print parts of any kind."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rich.console import RenderableType
from rich.segment import Segment

from attnscope.views import parts
from attnscope.views.terminal.attended import put_attended, put_moved_sources
from attnscope.views.terminal.contributors import put_ranking
from attnscope.views.terminal.facts import put_facts
from attnscope.views.terminal.grid import put_grid, put_vector
from attnscope.views.terminal.heads import put_head_numbers, put_listed, put_roles, put_strongest
from attnscope.views.terminal.heat import put_heat
from attnscope.views.terminal.labels import labels, say_shortened
from attnscope.views.terminal.map import put_map
from attnscope.views.terminal.moves import put_moves
from attnscope.views.terminal.screen import INDENTS, Screen, flow
from attnscope.views.terminal.tables import put_matrices
from attnscope.views.terminal.thumbnails import put_thumbnails

SCREENFUL = 38  # lines that leave twelve for what stands around them


def put_part(screen: Screen, part: parts.ViewPart) -> None:
    """Print one part of findings."""
    LOWERINGS[type(part)](screen, part)


def _put_gap(screen: Screen, _gap: parts.Gap) -> None:
    screen.say("")


def _put_paragraph(screen: Screen, paragraph: parts.Paragraph) -> None:
    text = screen.text(paragraph.spans)
    if paragraph.indent:
        screen.put_indented(text, paragraph.indent)
    else:
        screen.put(text)


def _put_flow(screen: Screen, items: parts.Flow) -> None:
    text = flow(map(screen.text, items.items), screen.width - INDENTS[items.indent], items.between)
    if items.indent:
        screen.put_indented(text, items.indent)
    else:
        screen.put(text)


def _put_whole_names(screen: Screen, names: parts.WholeNames) -> None:
    axis = labels(screen, names.axis)
    say_shortened(screen, {}, axis.shortened(axis.name_cells(screen.width)), names.axis.kind)


@dataclass(frozen=True)
class _Page(Screen):
    """A screen that keeps its lines, as long as they are not too many."""

    most: int = SCREENFUL
    kept: list[list[Segment]] = field(default_factory=list)

    def put(self, renderable: RenderableType, width: int = 0) -> None:
        """Keep what would be printed.

        Raises:
            _FullError: There are too many lines.
        """
        self.kept.extend(self.lines(renderable, width))
        if len(self.kept) > self.most:
            raise _FullError


class _FullError(Exception):
    """More lines than a screen has."""


def _put_first_fitting(screen: Screen, findings: parts.FirstFitting) -> None:
    limits = [(form, SCREENFUL) for form in findings.forms]
    last = findings.picture or findings.forms[-1]
    limits[-1:] = [] if findings.picture is None else [(findings.forms[-1], findings.lines)]
    for form, most in limits:
        page = _Page(screen.console, most)
        try:
            for part in form:
                put_part(page, part)
        except _FullError:
            continue
        screen.put_lines(page.kept)
        return
    for part in last:
        put_part(screen, part)


LOWERINGS: dict[type, Callable[[Screen, Any], None]] = {
    parts.Gap: _put_gap,
    parts.Paragraph: _put_paragraph,
    parts.Flow: _put_flow,
    parts.Facts: put_facts,
    parts.Matrices: put_matrices,
    parts.HeatPanels: put_heat,
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
    parts.FirstFitting: _put_first_fitting,
}
