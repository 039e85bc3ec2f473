"""The pattern of one head that a figure shows beside the map of all: which head, and its weights as parts."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from attnscope.findings.head_findings import HeadRoles, HeadScores, RoleValues
from attnscope.findings.head_roles import ROLES
from attnscope.findings.run import Report
from attnscope.studies.screens.stages import stage_matrices
from attnscope.views.numbers import formatted
from attnscope.views.parts import GAP, Matrices, ViewPart, paragraph
from attnscope.views.settings import DisplaySettings
from attnscope.views.spans import Span

ROLES_ALONE = 3  # largest number of roles that are shown with their values
_RANDOM = "repeated", "tripled", "needle"  # where roles are measured that random tokens show


class ShownHead(NamedTuple):
    """A head whose pattern is shown."""

    layer: int
    head: int
    role: (
        RoleValues | None
    )  # the role that it is the strongest of; None for one number of every head

    @property
    def on_random(self) -> bool:
        """Whether random tokens that are written twice show its role."""
        return self.role is not None and self.role.measured in _RANDOM


def shown_head(found: HeadRoles | HeadScores) -> ShownHead | None:
    """Return the head with the largest number, or the strongest of the role that comes first; None without any.

    Of one to three roles, the first that is named comes first; of more, the one that decides the main role of a head,
    which is the one of the lowest rank, then the one with the largest value.
    """
    if isinstance(found, HeadScores):
        best = _largest(np.abs(found.values))
        return None if best is None else ShownHead(*best, None)
    if len(found.roles) <= ROLES_ALONE:
        best = _largest(found.roles[0].values)
        return None if best is None else ShownHead(*best, found.roles[0])
    candidates = []
    main = np.array(found.main, dtype=object)
    for role in found.roles:
        best = _largest(np.where(main == role.name, role.values, np.nan))
        if best is not None:
            rank = ROLES[role.name].rank if role.name in ROLES else None
            candidates.append((rank or 0, -float(role.values[best]), ShownHead(*best, role)))
    return min(candidates, key=lambda one: one[:2])[2] if candidates else None


def _largest(values: np.ndarray) -> tuple[int, int] | None:
    if np.isnan(values).all():
        return None
    layer, head = divmod(int(np.nanargmax(values)), values.shape[1])
    return layer, head


def present_example(
    found: HeadRoles | HeadScores, example: Report | None, settings: DisplaySettings
) -> Iterator[ViewPart]:
    """Turn the weights of the head that is shown into parts, if they were computed."""
    shown = shown_head(found)
    if example is None or shown is None:
        return
    text = example.texts[0]
    name = f"L{shown.layer}H{shown.head}"
    if shown.role is None:
        why = "the strongest head"
    else:
        value = formatted(float(shown.role.values[shown.layer, shown.head]), "z.2f")
        why = f"the strongest head of {shown.role.title}: {value}"
    if shown.on_random:
        where = "random tokens, whose second copy reads the first"
    elif len(text.queries) < len(text.tokens):
        where = f"tokens {text.queries[0]}–{text.queries[-1]} of the first text"
    else:
        where = "the first text"
    yield GAP
    yield paragraph((Span(f"example {name}", "bold"), Span(f"  {why}; {where}")))
    yield Matrices(stage_matrices(text, text.heads[0], settings), heat=True, example=True)
