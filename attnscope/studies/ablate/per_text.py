"""The effect of every head on one text of many, as a dump keeps it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope.run.plan import RunPlan
from attnscope.run.session import Session
from attnscope.studies.ablate.plan import AblationOptions, Cut, compared_positions
from attnscope.studies.ablate.run import Bench

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
        hidden: Likewise.
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
    uncut = bench.run_planned(cuts, (plan, None), loaded, max(1, tokens_at_once // longest))
    weight = np.array([uncut.weight(cut) for cut in cuts], dtype=np.float32)
    variants = [uncut.variant([cut], renormalised=True) for cut in cuts]
    found = uncut.effects(asked.replacement, variants, "cutting heads", weight)
    return HeadEffects(positions, found.kl, found.hidden, weight)
