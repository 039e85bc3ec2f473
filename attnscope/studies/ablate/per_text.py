"""The effect of every head, or of every span, on one text of a dump."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope.findings.arrays import Array
from attnscope.run.cut_plan import Cut
from attnscope.run.plan import RunPlan
from attnscope.studies.ablate.baseline import Baseline
from attnscope.studies.ablate.plan import AblationRun

if TYPE_CHECKING:
    import torch

    from attnscope.engines.protocol import LoadedModel


@dataclass(frozen=True)
class TextEffects:
    """The effect of each cut on one text, as in `ablate --each`; see `Effects`."""

    weight: Array
    hidden: Array
    kl: Array | None
    loss: Array | None
    target: Array | None


def cut_effects(
    ablation: AblationRun,
    cuts: Sequence[Cut],
    plan: RunPlan,
    loaded: "tuple[LoadedModel, torch.device]",
    tokens_at_once: int,
    other_plans: Sequence[RunPlan] = (),
) -> TextEffects:
    """Make each cut alone; variants with `tokens_at_once` tokens in all run side by side, but at least one variant.

    Args:
        other_plans: Passes over the texts that replacements come from; see `plan_others`.
    """
    text = ablation.text
    longest = max(len(text.tokens), len(text.context or text.encoder_tokens or ()))
    baseline = Baseline(
        ablation, cuts, (plan, other_plans, max(1, tokens_at_once // longest)), loaded
    )
    weights = baseline.weights(cuts)
    way, *_ = ablation.options.ways(edges=ablation.options.each == "span")
    effects = baseline.effects(way, cuts, "cutting", weights)
    return TextEffects(weights, effects.hidden, effects.kl, effects.loss, effects.target)


def span_effects(
    ablation: AblationRun,
    plan: RunPlan,
    loaded: "tuple[LoadedModel, torch.device]",
    tokens_at_once: int,
) -> TextEffects:
    """Cut the answer of one text off from each span; the numbers of a span that is not cut are NaN."""
    numbers, cuts = ablation.span_cuts()
    assert ablation.text.spans is not None
    count = len(ablation.text.spans.names)

    def of_spans(values: Array | None) -> Any:
        if values is None:
            return None
        every = np.full(count, np.nan, dtype=np.float32)
        every[numbers] = values
        return every

    return TextEffects(
        *map(of_spans, vars(cut_effects(ablation, cuts, plan, loaded, tokens_at_once)).values())
    )
