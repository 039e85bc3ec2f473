"""A page of effects: the map of all heads beside the matrix of the one that is clicked."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from attnscope.findings.ablation import EffectSurvey
from attnscope.studies.ablate.screen import effect_meaning, present_effects
from attnscope.studies.run.head_walk import HeadsOfPage, RunWithEveryHead, run_texts, with_walk
from attnscope.studies.study import Display, Request
from attnscope.views.parts import ViewPart
from attnscope.views.settings import DisplaySettings

if TYPE_CHECKING:
    from attnscope.views.page.walk import Walk


def run_with_heads(request: Request, survey: EffectSurvey) -> RunWithEveryHead | None:
    """Run the text, beginning at the head with the largest effect; None for spans, which are no heads."""
    if survey.unit == "span":
        return None
    strongest = survey.order()[0]
    assert request.session is not None
    return run_texts(request.run, request.session, (survey.layers[strongest], max(0, survey.heads[strongest])))


def present_effects_page(
    survey: EffectSurvey, settings: DisplaySettings, display: Display
) -> "Iterator[ViewPart | Walk]":
    """Turn the effects of every head, layer, edge or span into the parts of a page."""
    heads = HeadsOfPage("thumbnails")
    if survey.unit in ("head", "layer"):
        (effects,) = survey.effects
        values = np.tile(survey.grid(effects.effect), (1, 1 if survey.unit == "head" else survey.provenance.n_heads))
        name = f"effect of {survey.unit}"
        meaning = "".join(span.text for span in effect_meaning(survey, effects, settings))
        query = survey.positions[0] if survey.positions else None
        heads = HeadsOfPage(name, [(name, f"{meaning[:1].upper()}{meaning[1:]}.", values)], queries=[query])
    elif survey.unit == "edge":
        heads = HeadsOfPage("thumbnails", queries=[survey.queries[survey.order()[0]]])
    yield from with_walk(present_effects(survey, settings, display), display.every_head, heads)
