"""The walk of a page about a number or role of every head, so that a click on a head opens its matrix."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from attnscope.base.errors import AttnscopeError
from attnscope.findings.arrays import Matrix
from attnscope.findings.head_findings import RoleValues
from attnscope.findings.run import Report
from attnscope.request.run_config import RunConfig
from attnscope.request.selection import PAGE, WALKED, IndexSelection
from attnscope.run.session import Session
from attnscope.studies.explore.saved import SavedText
from attnscope.studies.explore.scenes import head_roles
from attnscope.studies.run.every_head import EveryHead, inspect_with_every_head
from attnscope.studies.run.page import walk_source
from attnscope.views.parts import Facts, Matrices, Table, ViewPart
from attnscope.views.walk.scene import HeadNumber, Scene

if TYPE_CHECKING:
    from attnscope.views.page.walk import Walk

RunWithEveryHead = tuple[Report, EveryHead]


@dataclasses.dataclass(frozen=True)
class HeadsOfPage:
    """What findings say of every head of a model."""

    display: str  # what the panel of heads shows first: `roles`, or the name of a number
    numbers: Sequence[tuple[str, str, Matrix]] = ()  # name, meaning and values, (layers, heads)
    # roles, the main role of every layer and head, and where they were measured; None for no roles
    roles: tuple[Sequence[RoleValues], Sequence[Sequence[str | None]], str] | None = None
    role_texts: Sequence[int] = ()  # number of the text that a head of each role is shown on
    # position of the row to begin at in each text; None for that of a page of the text
    queries: Sequence[int | None] = (None,)
    of_ids: int | None = None  # number of the text that is made of ids, which no command can spell; None for none


def run_texts(run: RunConfig, session: Session, head: tuple[int, int]) -> RunWithEveryHead | None:
    """Run texts with a head exact and every other in summary; None if memory does not hold that."""
    layer, number = head
    selected = replace(run, layer=IndexSelection.of([layer]), head=IndexSelection.of([number]))
    shown = replace(selected, query=None, key=None, words=False, by="weight", stages=WALKED, window=PAGE, predict=None)
    try:
        return inspect_with_every_head(shown, session)
    except AttnscopeError:
        # The findings were measured all the same; their page shows the map without matrices.
        return None


def with_walk(
    parts: Iterable[ViewPart], every_head: RunWithEveryHead | None, heads: HeadsOfPage
) -> "Iterator[ViewPart | Walk]":
    """Put a walk below the header of a screen, in place of its maps of heads."""
    screen = list(parts)
    if every_head is None:
        yield from screen
        return
    from attnscope.views.page.walk import Walk

    content = next((n for n, part in enumerate(screen) if isinstance(part, Matrices | Table)), len(screen))
    header = max((n + 1 for n, part in enumerate(screen[:content]) if isinstance(part, Facts)), default=0)
    source = walk_source(*every_head)
    saved = {
        (index, side): SavedText(partial(_shown, text, heads, index), text.heads)
        for (index, side), text in source.saved.items()
    }
    yield from screen[:header]
    yield Walk(dataclasses.replace(source, saved=saved))
    yield from (part for part in screen[header:] if not isinstance(part, Matrices))


def _shown(text: SavedText, heads: HeadsOfPage, index: int) -> Scene:
    scene = text.scene()
    places = np.ix_(*([n for n in axis if isinstance(n, int)] for axis in (scene.layers, scene.heads)))
    numbers = [HeadNumber(name, meaning, values[places]) for name, meaning, values in heads.numbers]
    names = {number.name for number in numbers}
    others = [number for number in scene.numbers if number.name not in names]
    roles = scene.roles
    if heads.roles is not None:
        roles = head_roles(*heads.roles, (scene.layers, scene.heads))
        roles = dataclasses.replace(roles, texts=heads.role_texts)
    query = heads.queries[index]
    return dataclasses.replace(
        scene,
        numbers=[*numbers, *others],
        roles=roles,
        display=heads.display,
        start=scene.start if query is None else scene.queries.places.get(query, scene.start),
        command=None if index == heads.of_ids else scene.command,
    )
