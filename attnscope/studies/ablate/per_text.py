"""The effect of every head, or of every span, on one text of many, as a dump keeps it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope.run.cut_plan import Cut
from attnscope.run.plan import RunPlan
from attnscope.run.session import Session
from attnscope.studies.ablate.bench import Bench
from attnscope.studies.ablate.plan import AblationOptions, compared_positions
from attnscope.studies.ablate.spans import AnsweredText
from attnscope.studies.ablate.uncut import run_planned

if TYPE_CHECKING:
    import torch

    from attnscope.engines.protocol import LoadedModel

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class HeadEffects:
    """What each head's cut does to one text, as `ablate --each head` says it.

    Attributes:
        positions: See report.EffectSurvey.
        kl: See report.Effects; one number for every head.
        hidden: The same of final hidden states.
        weight: See report.EffectSurvey.
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
        plan: A pass over the text.
        session: Has the model open.
        loaded: The model with all of its layers, and its device.
        heads: Layer and head of each.
        tokens_at_once: Tokens of the variants that run side by side; one variant runs at least.
    """
    (text,) = plan.text_plans
    asked = AblationOptions(each="head")
    positions, _ = compared_positions(asked, plan.run, plan.source, text)
    bench = Bench(plan.run, asked, plan.source, session, text, positions, [])
    cuts = [Cut("", (place,)) for place in heads]
    longest = max(len(text.tokens), len(text.context or text.encoder_tokens or ()))
    uncut = run_planned(bench, cuts, (plan, (), max(1, tokens_at_once // longest)), loaded)
    weight = np.array([uncut.weight(cut) for cut in cuts], dtype=np.float32)
    (way,) = asked.ways(edges=False)
    found = uncut.effects(way, cuts, "cutting heads", weight)
    return HeadEffects(positions, found.kl, found.hidden, weight)


@dataclass(frozen=True)
class SpanEffects:
    """What one text loses where its answer is cut off from each span, as `ablate --each span` says it.

    Attributes:
        weight: One number for every span, NaN for those that are not cut; see report.EffectSurvey.
        hidden: Change of final hidden states; see report.Effects.
        kl: Divergences; see report.Effects.
        loss: Change of the loss; see report.Effects.
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
    """Cut the answer of one text off from each span, and compare.

    Args:
        plan: A pass over the text.
        session: Has the model open.
        loaded: The model with all of its layers, and its device.
        answered: The text with its answer.
        tokens_at_once: See head_effects.
    """
    numbers, cuts = answered.cuts(plan.source)
    asked = AblationOptions(each="span")
    bench = Bench(plan.run, asked, plan.source, session, answered.text, answered.positions, [], answered.targets)
    at_once = max(1, tokens_at_once // len(answered.text.tokens))
    uncut = run_planned(bench, cuts, (plan, (), at_once), loaded)
    weight = np.array([uncut.weight(cut) for cut in cuts], dtype=np.float32)
    found = uncut.effects(("renormalised", True), cuts, "cutting spans", weight)
    count = len(answered.spans.names)

    def of_spans(values: Array) -> Array:
        every = np.full(count, np.nan, dtype=np.float32)
        every[numbers] = values
        return every

    optional = [None if values is None else of_spans(values) for values in (found.kl, found.loss)]
    return SpanEffects(of_spans(weight), of_spans(found.hidden), *optional)
