"""A page of effects: the map of all heads beside the matrix of the one that is clicked."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from attnscope.findings.ablation import EffectSurvey
from attnscope.studies.ablate.screen import (
    effect_text,
    present_effects,
    weight_against_effect,
)
from attnscope.studies.run.head_walk import HeadsOfPage, RunWithEveryHead, run_texts, with_walk
from attnscope.studies.study import Request
from attnscope.views.parts import Scatter, Table, ViewPart, paragraph
from attnscope.views.settings import DisplaySettings
from attnscope.views.spans import ours
from attnscope.views.walk.scene import HeadNumber

if TYPE_CHECKING:
    from attnscope.views.page.walk import Walk


def run_with_heads(request: Request, survey: EffectSurvey) -> RunWithEveryHead | None:
    """Run the text, beginning at the head with the largest effect; None for spans, which are no heads."""
    if survey.unit == "span":
        return None
    strongest = survey.order()[0]
    assert request.session is not None
    # what the model predicts where its predictions are compared
    predicts = survey.effects[0].kl is not None and request.values.get("at") is None
    return run_texts(
        request.run,
        request.session,
        (survey.layers[strongest], max(0, survey.heads[strongest])),
        predict=predicts,
    )


def present_effects_page(
    survey: EffectSurvey, settings: DisplaySettings
) -> "Iterator[ViewPart | Scatter | Walk]":
    """Turn the effects of every head, layer, edge or span into the parts of a page."""
    heads = HeadsOfPage("thumbnails")
    if survey.unit in ("head", "layer"):
        (effects,) = survey.effects
        values = np.tile(
            survey.grid(effects.effect),
            (1, 1 if survey.unit == "head" else survey.provenance.n_heads),
        )
        name = f"effect of {survey.unit}"
        meaning = effect_text(survey, effects, settings)
        query = survey.positions[0] if survey.positions else None
        number = HeadNumber(name, f"{meaning[:1].upper()}{meaning[1:]}.", values, effects.ranked_by)
        heads = HeadsOfPage(name, [number], queries=[query])
    elif survey.unit == "edge":
        heads = HeadsOfPage("thumbnails", queries=[survey.queries[survey.order()[0]]])
    for part in with_walk(present_effects(survey, settings), settings.every_head, heads):
        if isinstance(part, Table) and survey.unit == "head" and settings.every_head is not None:
            yield weight_against_effect(survey, heads.display)
        yield part
        if isinstance(part, Table) and (hidden := len(survey.layers) - len(part.labels)) > 0:
            # a page takes no options, but its map has every head
            where = ": point at a head of the map" if survey.unit in ("head", "layer") else ""
            yield paragraph(ours(f"{hidden:,} more with smaller effects{where}"))
