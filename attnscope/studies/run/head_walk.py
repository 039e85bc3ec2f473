"""The walk of a page about a number or role of every head, so that a click on a head opens its matrix."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from attnscope.base.errors import AttnscopeError
from attnscope.findings.head_findings import RoleValues
from attnscope.findings.head_roles import NEAR
from attnscope.findings.run import Report
from attnscope.request.run_config import RunConfig
from attnscope.request.selection import PAGE, WALKED, IndexSelection
from attnscope.run.session import Session
from attnscope.studies.explore.saved import SavedSource, SavedText
from attnscope.studies.explore.scenes import head_roles
from attnscope.studies.run.every_head import EveryHead, inspect_with_every_head
from attnscope.studies.run.page import walk_source
from attnscope.views.parts import Facts, Matrices, Scatter, Table, ViewPart
from attnscope.views.walk.cell import listed_weights
from attnscope.views.walk.scene import HeadNumber, Scene, SceneRoles, WalkHead

if TYPE_CHECKING:
    from attnscope.views.page.walk import Walk

RunWithEveryHead = tuple[Report, EveryHead]


@dataclasses.dataclass(frozen=True)
class HeadsOfPage:
    """What findings say of every head of a model."""

    display: str  # what the panel of heads shows first: `roles`, or the name of a number
    numbers: Sequence[HeadNumber] = ()  # for every layer and head of the model
    # roles, the main role of every layer and head, and where they were measured; None for no roles
    roles: tuple[Sequence[RoleValues], Sequence[Sequence[str | None]], str] | None = None
    chosen_by: RoleValues | None = None  # the role whose strongest head the page begins at
    role_texts: Sequence[int] = ()  # number of the text that a head of each role is shown on
    # position of the row to begin at in each text; None for that of a page of the text
    queries: Sequence[int | None] = (None,)
    key: int | None = None  # position of the key to begin at; None for the strongest of the row
    # number of the text that is made of ids, which no command can spell; None for none
    of_ids: int | None = None


def run_texts(
    run: RunConfig, session: Session, head: tuple[int, int], *, predict: bool | None = None
) -> RunWithEveryHead | None:
    """Run texts with a head exact and every other in summary; None if memory does not hold that."""
    layer, head_index = head
    selected = replace(run, layer=IndexSelection.of([layer]), head=IndexSelection.of([head_index]))
    recorded = replace(
        selected,
        query=None,
        key=None,
        words=False,
        by="weight",
        stages=WALKED,
        window=PAGE,
        predict=predict,
    )
    try:
        return inspect_with_every_head(recorded, session)
    except AttnscopeError:
        # The findings were measured all the same; their page shows the map without matrices.
        return None


def with_walk(
    parts: Iterable[ViewPart | Scatter], every_head: RunWithEveryHead | None, heads: HeadsOfPage
) -> "Iterator[ViewPart | Scatter | Walk]":
    """Put a walk below the header of a screen, in place of its maps of heads."""
    screen = list(parts)
    if every_head is None:
        yield from screen
        return
    from attnscope.views.page.walk import Walk

    content = next(
        (n for n, part in enumerate(screen) if isinstance(part, Matrices | Table)), len(screen)
    )
    header = max(
        (n + 1 for n, part in enumerate(screen[:content]) if isinstance(part, Facts)), default=0
    )
    source = walk_source(*every_head)
    roles = cache(partial(_roles, source, heads))
    saved = {
        (index, side): SavedText(partial(_shown, text, heads, index, roles), text.heads)
        for (index, side), text in source.saved.items()
    }
    yield from screen[:header]
    yield Walk(dataclasses.replace(source, saved=saved))
    yield from (part for part in screen[header:] if not isinstance(part, Matrices))


def _shown(
    text: SavedText, heads: HeadsOfPage, index: int, roles: Callable[[], SceneRoles | None]
) -> Scene:
    scene = text.scene()
    places = np.ix_(
        *([n for n in axis if isinstance(n, int)] for axis in (scene.layers, scene.heads))
    )
    numbers = [
        dataclasses.replace(number, values=number.values[places]) for number in heads.numbers
    ]
    names = {number.name for number in numbers}
    others = [number for number in scene.numbers if number.name not in names]
    query = heads.queries[index]
    if query is None:
        start = scene.start
    else:
        start = scene.queries.places.get(query, scene.start)
    start_key = scene.start_key
    if heads.key is not None:
        start_key = scene.keys.places.get(heads.key)
    shown_roles = roles() or scene.roles
    if heads.display == "roles" and shown_roles is not None and shown_roles.rows is not None:
        row = int(shown_roles.rows[scene.first])
        if row >= 0 and shown_roles.texts[shown_roles.main[scene.first]] == index:
            start = row
    command = None
    if index != heads.of_ids:
        command = scene.command
    return dataclasses.replace(
        scene,
        numbers=[*numbers, *others],
        roles=shown_roles,
        display=heads.display,
        start=start,
        start_key=start_key,
        command=command,
    )


def _roles(source: SavedSource, heads: HeadsOfPage) -> SceneRoles | None:
    """Return the roles of all heads, each with the row that shows it best in the text that it is shown on."""
    if heads.roles is None:
        return None
    scene = source.saved[0, 0].scene()
    roles = head_roles(*heads.roles, (scene.layers, scene.heads))
    rows = np.full(roles.main.shape, -1)
    if heads.role_texts:
        for cell, role in np.ndenumerate(roles.main):
            role_text = source.saved.get((heads.role_texts[role], 0)) if role >= 0 else None
            head = None if role_text is None else role_text.head((cell[0], cell[1]))
            if role_text is not None and head is not None:
                rows[cell] = clearest_row(role_text.scene(), head, roles.names[role])
    chosen_by = None
    if (role := heads.chosen_by) is not None:
        layer, column = scene.first
        value = role.values[int(scene.layers[layer]), int(scene.heads[column])]
        chosen_by = role.name, role.title, float(value)
    return dataclasses.replace(roles, texts=heads.role_texts, rows=rows, chosen_by=chosen_by)


# Whether a role reads the key at a position from the query at another, in tokens that are the same if they are equal.
_READS: Mapping[str, Callable[[Sequence[str], int, int], bool]] = {
    "previous": lambda _, query, key: key == query - 1,
    "next": lambda _, query, key: key == query + 1,
    "self": lambda _, query, key: key == query,
    "duplicate": lambda tokens, query, key: key < query and tokens[key] == tokens[query],
    "induction": lambda tokens, query, key: 0 < key <= query and tokens[key - 1] == tokens[query],
    "first": lambda _, query, key: key == 0 < query,
    "punctuation": lambda tokens, _, key: not any(letter.isalnum() for letter in tokens[key]),
    "local": lambda _, query, key: 2 <= abs(key - query) <= NEAR,
}


def clearest_row(scene: Scene, head: WalkHead, role: str) -> int:
    """Return the query whose row shows a role best: that gives most weight to what the role reads; −1 for none.

    A role that names no keys, such as content, is seen where a word gives most weight to another word.
    """
    sums = []
    for query, special in enumerate(scene.queries.special):
        listed = {} if special else listed_weights(scene, head, query)
        sums.append(
            sum(weight for key, weight in listed.items() if _reads(scene, role, query, key))
        )
    return int(np.argmax(sums)) if any(sums) else -1


def _reads(scene: Scene, role: str, query: int, key: int) -> bool:
    """Tell whether a key is one that a role reads from a query."""
    position = scene.queries.positions[query]
    read = scene.keys.positions[key]
    if role in _READS and read >= 0:
        return _READS[role]([span.text for span in scene.sources.names], position, read)
    if role in ("first", "special"):
        if role == "first":
            return read < 0
        return scene.keys.special[key] and read > 0
    return not scene.keys.sinks[key] and read != position
