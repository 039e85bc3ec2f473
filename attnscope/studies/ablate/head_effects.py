"""What cutting each head of a model changes at every token of a text, for a page."""

from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace as dataclass_replace

import numpy as np
from msgspec.structs import replace

from attnscope.base.errors import AttnscopeError, spell_options
from attnscope.checkpoints.source import ModelSource
from attnscope.findings.arrays import Array
from attnscope.findings.predictions import PredictionKind
from attnscope.findings.run import TextReport
from attnscope.request.masks.terms import Own
from attnscope.request.options import on_command_line
from attnscope.request.run_config import RunConfig
from attnscope.request.selection import ALL
from attnscope.run.plan import mask_terms, plan_texts
from attnscope.run.prediction_plan import prediction_kind
from attnscope.run.session import Session
from attnscope.run.text_plan import TextPlan
from attnscope.studies.ablate.baseline import PositionEffects, run_uncut
from attnscope.studies.ablate.plan import AblationOptions, AblationRun, compared_positions
from attnscope.studies.ablate.screen import change_text
from attnscope.views.walk.scene import EFFECT_OF_HEAD, HeadNumber, Scene, SceneEffects

# Largest products of heads, tokens and parameters that are measured: about 10 seconds on two cores.
_COST = 6e11
# The same where one asks about a cell, with `--query` and `--key`: about a minute.
_COST_OF_CELL = 4e12


@dataclass(frozen=True)
class HeadEffects:
    """What cutting each head of a text changes."""

    at: PositionEffects  # at every token
    heads: Sequence[tuple[int, int]]  # layer and head of every cut
    # positions whose mean ranks heads, as of `ablate --each head`: those of predictions; empty for all final states
    positions: Sequence[int]
    tokens: Sequence[str]  # most probable token of every position; empty without predictions
    kind: PredictionKind | None  # of predictions, such as `next`; None without predictions


def measure_head_effects(
    run: RunConfig, session: Session, *, forced: bool
) -> list[HeadEffects] | str:
    """Cut each head of every text alone; in place of effects, return why they are not measured.

    Args:
        run: It has run in this session.
        forced: Measure them however long it takes.
    """
    if (reason := _unsuitable(run)) is not None:
        return reason
    source, run = session.open(run)
    if not source.runs:
        return "attention is given, without a model"
    every = replace(
        run, layer=ALL, head=ALL, query=None, key=None, words=False, window=None, pool=None
    )
    texts = plan_texts(every, source)
    c = source.config
    tokens = sum(len(text.tokens) for text in texts)
    parameters = session.parameters(run)
    cost = c.n_layers * c.n_heads * tokens * parameters
    is_asked = run.query is not None and run.key is not None
    if not forced and cost > (_COST_OF_CELL if is_asked else _COST):
        return (
            f"{c.n_layers * c.n_heads:,} heads × {tokens:,} tokens × {parameters:,} parameters take longer than a page "
            "waits for"
        )
    try:
        return [_of_text(every, source, session, text) for text in texts]
    except AttnscopeError as error:
        if forced:
            raise
        return spell_options(error.parts.message, on_command_line)


def effects_of_text(run: RunConfig, session: Session) -> HeadEffects:
    """Cut each head of the only text of a run alone."""
    source, run = session.open(run)
    source.require_model("ablation")
    run = replace(run, layer=ALL, head=ALL, window=None, pool=None)
    (text,) = plan_texts(run, source)
    return _of_text(run, source, session, text)


def _unsuitable(run: RunConfig) -> str | None:
    """Return why heads of a run cannot be cut one by one; None if they can be."""
    if run.cuts:
        return "the run is one with cuts"
    if run.generate:
        return "the text is continued by the model"
    if run.media_kind == "audio":
        return "the text is a sound"
    if run.what_if == "same-scores" and run.mask != (Own(),):
        return "the mask is applied to the scores of another"
    return None


def _of_text(run: RunConfig, source: ModelSource, session: Session, text: TextPlan) -> HeadEffects:
    options = AblationOptions(each="head")
    ranking, _ = compared_positions(options, run, source, text)
    # without a prediction that heads are ranked by, final states of all tokens are compared
    every = list(range(len(text.tokens))) if ranking else []
    ablation = AblationRun(run, options, source, session, text, every, [])
    cuts = ablation.units()
    baseline = run_uncut(ablation, cuts, len(cuts))
    effects = baseline.effects_by_position(cuts, "cutting each head")
    spelled = source.tokenizer.spelled
    tokens = [spelled(token_id)[1] for token_id in effects.token_ids]
    kind = prediction_kind(run, source, mask_terms(run))
    return HeadEffects(effects, [cut.heads[0] for cut in cuts], ranking, tokens, kind)


def with_effects_of(scene: Scene, text: TextReport, effects: HeadEffects | str | None) -> Scene:
    """Return a scene with the effects of its heads, or why there are none; unchanged for None."""
    if effects is None:
        return scene
    if isinstance(effects, str):
        return dataclass_replace(scene, no_effects=effects)
    at = effects.at
    ranking = list(effects.positions or range(len(text.tokens)))
    values = _by_head(scene, effects, at.hidden if at.kl is None else at.kl)
    meaning = change_text(text.tokens, effects.positions, hidden=at.kl is None)
    number = HeadNumber(
        EFFECT_OF_HEAD,
        f"{meaning[:1].upper()}{meaning[1:]}.",
        values[..., ranking].mean(-1),
        "hidden" if at.kl is None else "kl",
    )
    preposition = "after" if effects.kind == "next" else "at"
    of_tokens = SceneEffects(None, ranking, preposition=preposition)
    if at.before is not None and at.after is not None:
        of_tokens = dataclass_replace(
            of_tokens,
            tokens=[effects.tokens[position] for position in ranking],
            before=at.before[ranking],
            after=_by_head(scene, effects, at.after[:, ranking]),
        )
    return dataclass_replace(scene, numbers=[number, *scene.numbers], effects=of_tokens)


def _by_head(scene: Scene, effects: HeadEffects, values: Array) -> Array:
    """Return numbers of cuts, (cuts, tokens), by the layers and heads of a scene, (layers, heads, tokens)."""
    grid = np.full((len(scene.layers), len(scene.heads), values.shape[1]), np.nan, np.float32)
    for (layer, head), row in zip(effects.heads, values, strict=True):
        grid[scene.layers.index(layer), scene.heads.index(head)] = row
    return grid
