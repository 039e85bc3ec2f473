"""The effect of every head, or of every span, on one text of a dump."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope.run.cut_plan import Cut
from attnscope.run.plan import RunPlan
from attnscope.run.session import Session
from attnscope.studies.ablate.ablation_run import AblationRun
from attnscope.studies.ablate.baseline import run_planned
from attnscope.studies.ablate.plan import AblationOptions, compared_positions
from attnscope.studies.ablate.spans import AnsweredText

if TYPE_CHECKING:
    import torch

    from attnscope.engines.protocol import LoadedModel

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class HeadEffects:
    """The effect of each head's cut on one text, as in `ablate --each head`.

    Attributes:
        kl: Divergence for each head, in bits; see `Effects`.
    """

    positions: list[int]
    kl: Array | None
    hidden: Array
    weight: Array


def head_effects(
    plan: RunPlan,
    session: Session,
    loaded: "tuple[LoadedModel, torch.device]",
    heads: Sequence[tuple[int, int]],
    tokens_at_once: int,
) -> HeadEffects:
    """Cut each head of one text alone, and compare.

    Args:
        session: Has the model open.
        loaded: The model with all of its layers, and its device.
        heads: Layer and head of each.
        tokens_at_once: Number of tokens of variants that run side by side; at least one variant runs.
    """
    (text,) = plan.text_plans
    options = AblationOptions(each="head")
    positions, _ = compared_positions(options, plan.run, plan.source, text)
    ablation = AblationRun(plan.run, options, plan.source, session, text, positions, [])
    cuts = [Cut("", (place,)) for place in heads]
    longest = max(len(text.tokens), len(text.context or text.encoder_tokens or ()))
    baseline = run_planned(ablation, cuts, (plan, (), max(1, tokens_at_once // longest)), loaded)
    weight = np.array([baseline.weight(cut) for cut in cuts], dtype=np.float32)
    (way,) = options.ways(edges=False)
    effects = baseline.effects(way, cuts, "cutting heads", weight)
    return HeadEffects(positions, effects.kl, effects.hidden, weight)


@dataclass(frozen=True)
class SpanEffects:
    """The effect on one text of cutting its answer off from each span, as in `ablate --each span`.

    Attributes:
        weight: One number for each span, NaN for a span that is not cut.
    """

    weight: Array
    hidden: Array
    kl: Array | None
    loss: Array | None


def span_effects(
    plan: RunPlan,
    session: Session,
    loaded: "tuple[LoadedModel, torch.device]",
    answered: AnsweredText,
    tokens_at_once: int,
) -> SpanEffects:
    """Cut the answer of one text off from each span, and compare; see `head_effects`.

    Args:
        session: Has the model open.
        loaded: The model with all of its layers, and its device.
    """
    numbers, cuts = answered.cuts(plan.source)
    options = AblationOptions(each="span")
    ablation = AblationRun(
        plan.run, options, plan.source, session, answered.text, answered.positions, [], answered.targets
    )
    at_once = max(1, tokens_at_once // len(answered.text.tokens))
    baseline = run_planned(ablation, cuts, (plan, (), at_once), loaded)
    weight = np.array([baseline.weight(cut) for cut in cuts], dtype=np.float32)
    effects = baseline.effects(("renormalised", True), cuts, "cutting spans", weight)
    count = len(answered.spans.names)

    def of_spans(values: Array) -> Array:
        every = np.full(count, np.nan, dtype=np.float32)
        every[numbers] = values
        return every

    optional = [None if values is None else of_spans(values) for values in (effects.kl, effects.loss)]
    return SpanEffects(of_spans(weight), of_spans(effects.hidden), *optional)
