"""Pages of roles and numbers of heads: the map of all heads beside the matrix of the one that is clicked."""

from collections.abc import Iterator
from dataclasses import replace
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np
from msgspec import structs

from attnscope.base.errors import AttnscopeError
from attnscope.base.layer_kinds import MIXING
from attnscope.checkpoints.source import tokenize
from attnscope.findings.head_findings import HeadRoles, HeadScores, RoleValues
from attnscope.findings.rollout import ATTENTION
from attnscope.findings.run import Report
from attnscope.request.given_ids import GivenIds
from attnscope.request.run_config import TextInput
from attnscope.request.selection import PRINTED, IndexSelection, parse_indices
from attnscope.studies.heads.example_screen import ROLES_ALONE
from attnscope.studies.heads.probes import draw_probes, special_frame
from attnscope.studies.heads.screen import present_measured, present_survey
from attnscope.studies.heads.texts import TEXTS
from attnscope.studies.mixing.screen import head_panels
from attnscope.studies.rollout.run import report
from attnscope.studies.run.head_walk import HeadsOfPage, RunWithEveryHead, run_texts, with_walk
from attnscope.studies.screens.header import counted
from attnscope.studies.study import Request
from attnscope.views.parts import GAP, Matrices, Scatter, ViewPart
from attnscope.views.settings import DisplaySettings
from attnscope.views.walk.scene import HeadNumber

if TYPE_CHECKING:
    from attnscope.checkpoints.source import ModelSource
    from attnscope.views.page.walk import Walk

_OF_TEXTS = ("texts", "weights")  # where roles are measured that a text shows as it is


def run_shown_texts(
    request: Request, found: HeadRoles | HeadScores
) -> RunWithEveryHead | list[Report] | None:
    """Run what a page shows of the heads: if some have no softmax, the matrices of both kinds in the first text.

    Else run the first text and, for roles that are measured on random tokens, the first of these that repeats.

    The head that is exact is the strongest: of the content role, which `auto` chooses, if it is measured.
    """
    if found.shares:
        return _run_both_kinds(request, found)
    values = found.values if isinstance(found, HeadScores) else _choosing(found).values
    if np.isnan(values).all():
        return None
    layer, head = divmod(int(np.nanargmax(np.abs(values))), values.shape[1])
    session = request.session
    assert session is not None
    run = request.run
    texts = run.texts[:1] or (TextInput(TEXTS[0]),)
    if not isinstance(found, HeadScores) and _repeats(found):
        source, opened = session.open(structs.replace(run, texts=texts))
        repeated = repeated_tokens(source, opened.texts[0], found.probes.seed)
        texts = (repeated, *texts) if _random_first(found) else (*texts, repeated)
    return run_texts(structs.replace(run, texts=texts), session, (layer, head))


def _choosing(survey: HeadRoles) -> RoleValues:
    """Return the role whose strongest head a page begins at."""
    return next((role for role in survey.roles if role.name == "content"), survey.roles[0])


def _run_both_kinds(request: Request, found: HeadRoles | HeadScores) -> list[Report]:
    """Run the first text, unless its matrices are too large to print; channels are shown as their mean."""
    assert request.session is not None
    texts = request.run.texts[:1] or (TextInput(TEXTS[0]),)
    run = structs.replace(
        request.run,
        texts=texts,
        query=None,
        key=None,
        words=False,
        by="weight",
        stages=("weights",),
        predict=None,
    )
    attending = [layer for layer in found.provenance.attending if layer not in found.shares]
    kinds = [
        (MIXING, found.shares, "mean" if found.channels else "all"),
        (ATTENTION, attending, "all"),
    ]
    reports = []
    for measure, layers, heads in kinds:
        if layers:
            of_kind = structs.replace(
                run,
                measure=measure,
                layer=IndexSelection.of(layers),
                head=parse_indices(heads, "head"),
                window=None,
            )
            try:
                reports.append(report(of_kind, request.session))
            # such as too little memory: the map of heads is shown all the same
            except AttnscopeError:
                return []
    return [report for report in reports if len(report.texts[0].tokens) <= PRINTED]


def _both_kinds(reports: "list[Report]", settings: DisplaySettings) -> Iterator[ViewPart]:
    """Present the matrix of every head, which a click on its cell scrolls to: signed in layers without softmax."""
    if not reports:
        return
    yield GAP
    panels = [panel for report in reports for panel in head_panels(report.texts[0], settings)]
    yield Matrices([panel for _, panel in sorted(panels, key=itemgetter(0))], heat=True)


def _repeats(survey: HeadRoles) -> bool:
    """Tell whether a page shows random tokens that are written twice."""
    return survey.probes.repeated > 0 and any(
        role.measured not in _OF_TEXTS for role in survey.roles
    )


def _random_first(survey: HeadRoles) -> bool:
    """Tell whether a page begins at random tokens: a role measured on these is shown as a number."""
    return len(survey.roles) <= ROLES_ALONE and survey.roles[0].measured not in _OF_TEXTS


def repeated_tokens(source: "ModelSource", text: TextInput, seed: int) -> TextInput:
    """Return the first random tokens that roles were measured on, written twice."""
    tokens, _ = tokenize(
        source, text.text, text.pair, text.where, truncate=True, special=text.adds_special
    )
    probe = draw_probes(source, special_frame(source, tokens), 1, seed).probes[0].tokens
    ids = GivenIds(
        tuple(token.id for token in probe),
        tuple(token.type_id for token in probe),
        None,
        apart=True,
    )
    return TextInput("", where="random tokens", given=ids)


def present_survey_page(
    survey: HeadRoles, settings: DisplaySettings
) -> "Iterator[ViewPart | Scatter | Walk]":
    """Turn the roles of all heads into the parts of a page."""
    if survey.shares:
        yield from present_survey(survey, settings)
        yield from _both_kinds(settings.every_head or [], settings)
        return
    repeats = _repeats(survey)
    of_ids = int(not _random_first(survey)) if repeats else None
    random = "" if of_ids is None else f" and on random tokens: text {of_ids} is the first of them"
    in_second_copy = len(survey.probes.before) + survey.probes.repeated * 3 // 2
    heads = HeadsOfPage(
        "roles",
        roles=(
            survey.roles,
            survey.main,
            f"Measured on {counted(survey.probes.texts, 'text')}{random}.",
        ),
        chosen_by=_choosing(survey),
        role_texts=[int(repeats and role.measured not in _OF_TEXTS) for role in survey.roles],
        queries=(in_second_copy, None) if _random_first(survey) else (None, in_second_copy),
        of_ids=of_ids,
    )
    if len(survey.roles) <= ROLES_ALONE:
        numbers = [
            HeadNumber(role.title, f"{role.meaning} ({role.source})", role.values)
            for role in survey.roles
        ]
        heads = replace(heads, display=survey.roles[0].title, numbers=numbers, role_texts=())
    yield from with_walk(present_survey(survey, settings), settings.every_head, heads)


def present_measured_page(
    measured: HeadScores, settings: DisplaySettings
) -> "Iterator[ViewPart | Scatter | Walk]":
    """Turn one number for every head into the parts of a page."""
    if measured.shares:
        yield from present_measured(measured, settings)
        yield from _both_kinds(settings.every_head or [], settings)
        return
    name = measured.measure if measured.contrast is None else "difference"
    numbers = [HeadNumber(name, measured.meaning, measured.values)]
    text = measured.texts[0]
    heads = HeadsOfPage(name, numbers)
    if text.keys and text.queries:
        heads = replace(heads, queries=text.queries[:1], key=text.keys[0])
    yield from with_walk(present_measured(measured, settings), settings.every_head, heads)
