"""What a page of a text has beside what was asked for: every head in summary, and the roles of heads on the text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from attnscope.findings.head_findings import RoleValues
from attnscope.findings.head_roles import HEAD_ROLES
from attnscope.findings.run import Report
from attnscope.request.run_config import RunConfig
from attnscope.request.selection import PAGE
from attnscope.run.plan import plan_texts
from attnscope.run.session import Session, inspect_every_head
from attnscope.studies.explore.scenes import head_roles
from attnscope.studies.heads.run import role_values
from attnscope.studies.screens.header import counted
from attnscope.views.walk.scene import Scene

if TYPE_CHECKING:
    from attnscope.engines.protocol import Engine
    from attnscope.model.batch import Batch
    from attnscope.model.tile import Recorder
    from attnscope.studies.ablate.head_effects import HeadEffects
    from attnscope.studies.heads.measure import TextPass

# largest number of weights of all heads that roles are measured on, which takes a second or two
_CELLS = 400_000_000


@dataclass(frozen=True)
class TextRoles:
    """Roles of all heads, measured on one text."""

    roles: list[RoleValues]
    main: list[list[str | None]]  # main role of every layer and head; None for none
    words: int  # number of rows on which they are measured


@dataclass(frozen=True)
class EveryHead:
    """Every head of the model."""

    summary: Report
    roles: Sequence[TextRoles | None]  # roles on every text; None for a text without them
    # what cutting each head changes in every text, or why that was not measured; None if it was not wanted
    effects: "Sequence[HeadEffects] | str | None" = None
    # positions of the query and key that are asked about; None for none
    cell: tuple[int, int] | None = None

    def effects_of(self, index: int) -> "HeadEffects | str | None":
        """Return the effects on a text, or why they were not measured."""
        effects = self.effects
        if effects is None or isinstance(effects, str):
            return effects
        return effects[index]


def inspect_with_every_head(run: RunConfig, session: Session) -> tuple[Report, EveryHead]:
    """Do what `inspect` does, and summarise every head of the model in the same pass.

    A question about a cell, with `query` and `key`, chooses the head and the cell that a page begins at; it has the other
    rows and columns of a short text, too.
    """
    measured = RoleRecorders()
    cell = _cell_in_short_text(run, session)
    if cell is not None:
        run = msgspec.structs.replace(
            run, query=None, key=None, auto_query=run.query, auto_key=run.key
        )
    report, summary = inspect_every_head(run, session, extra_recorders=measured.recorders)
    return report, EveryHead(summary, measured.of_texts(len(report.texts)), cell=cell)


def _cell_in_short_text(run: RunConfig, session: Session) -> tuple[int, int] | None:
    """Return the first query and key that a run names in a text whose matrices a page shows whole; else None."""
    if run.query is None or run.key is None or len(run.texts) != 1 or run.media_kind is not None:
        return None
    source, opened = session.open(run)
    (text,) = plan_texts(opened, source)
    if len(text.tokens) > PAGE or text.context is not None or run.generate:
        return None
    return text.queries[0], text.keys[0]


def with_measured_effects(
    every_head: EveryHead, run: RunConfig, session: Session, wanted: bool | None
) -> EveryHead:
    """Cut each head of the run alone, and add what that changes; None for only if it takes seconds."""
    from attnscope.studies.ablate.head_effects import measure_head_effects

    if wanted is False:
        return replace(every_head, effects="--no-effects left it out")
    return replace(every_head, effects=measure_head_effects(run, session, forced=bool(wanted)))


class RoleRecorders:
    """Record the roles of all heads on the texts of a run."""

    def __init__(self) -> None:
        self._pass: TextPass | None = None
        self._sizes = 0, 0  # number of layers and of heads
        self._longest = 0  # tokens of the longest text

    def recorders(self, batch: "Batch", engine: "Engine") -> "Mapping[int, Sequence[Recorder]]":
        """Return recorders of the roles; none for cross-attention or a very long text."""
        sizes = engine.sizes
        count = len(batch.tokens.lengths)
        longest = max(batch.tokens.lengths)
        if batch.context is not None or sizes[0] * sizes[1] * count * longest**2 > _CELLS:
            return {}
        from attnscope.studies.heads.measure import TextPass

        self._pass = TextPass(batch, range(count), engine)
        self._sizes = sizes
        self._longest = longest
        return self._pass.recorders

    def of_texts(self, count: int) -> list[TextRoles | None]:
        """Return the roles on every text."""
        of_texts: list[TextRoles | None] = [None] * count
        if self._pass is None:
            return of_texts
        from attnscope.studies.heads.measure import Sums

        sums = Sums(self._sizes, count, 0, self._longest, blocks=count)
        self._pass.add_to(sums)
        roles = [role for role in HEAD_ROLES if role.measured == "texts"]
        for n in range(count):
            of_text = {name: array[n : n + 1] for name, array in sums.arrays.items()}
            if words := int(of_text["rows"].max(initial=0)):
                of_texts[n] = TextRoles(*role_values(of_text, roles), words)
        return of_texts


def with_roles(scene: Scene, roles: TextRoles | None) -> Scene:
    """Return a scene with the roles of its heads; unchanged if they were not measured."""
    if roles is None:
        return scene
    measured = (
        f"Measured on {counted(roles.words, 'word')} of this text, all but its first two tokens and special ones. "
        "attnscope heads has other values: it measures roles on texts of its own, unless it is given one, and "
        "induction and copying on random tokens."
    )
    sizes = scene.layers, scene.heads
    return replace(scene, roles=head_roles(roles.roles, roles.main, measured, sizes))
