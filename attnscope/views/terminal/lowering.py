"""Print parts of any kind."""

from collections.abc import Callable
from typing import Any

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


def put_part(screen: Screen, part: ViewPart) -> None:
    """Print one part of findings."""
    LOWERINGS[type(part)](screen, part)


def _put_gap(screen: Screen, _gap: Gap) -> None:
    screen.say("")


def _put_paragraph(screen: Screen, paragraph: Paragraph) -> None:
    text = screen.text(paragraph.spans)
    if paragraph.indent:
        screen.put_indented(text, paragraph.indent)
    else:
        screen.put(text)


def _put_flow(screen: Screen, items: Flow) -> None:
    text = flow(map(screen.text, items.items), screen.width - INDENTS[items.indent], items.between)
    if items.indent:
        screen.put_indented(text, items.indent)
    else:
        screen.put(text)


def _put_whole_names(screen: Screen, names: WholeNames) -> None:
    axis = labels(screen, names.axis)
    say_shortened(screen, {}, axis.shortened(axis.name_cells(screen.width)), names.axis.kind)


LOWERINGS: dict[type, Callable[[Screen, Any], None]] = {
    Gap: _put_gap,
    Paragraph: _put_paragraph,
    Flow: _put_flow,
    Facts: put_facts,
    Matrices: put_matrices,
    HeatPanels: put_heat,
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
