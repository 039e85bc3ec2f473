"""Measure the difference of two tensors per head, and judge it."""

from collections.abc import Sequence

import torch
from torch import Tensor

from attnscope.findings.check import Check, Differences
from attnscope.model.matmul import to_float64


def differences_of(computed: Tensor, reference: Tensor) -> Tensor:
    """Return how far apart numbers are; infinite where one of two is not finite, and the other differs."""
    equal = (computed == reference) | (computed.isnan() & reference.isnan())
    finite = computed.isfinite() & reference.isfinite()
    return (computed - reference).abs().masked_fill(~finite, torch.inf).masked_fill(equal, 0.0)


def largest_difference(computed: Tensor, reference: Tensor, *, absolute: bool = False) -> Tensor:
    """Return the largest difference of every head, (H,), of tensors (B, H, …).

    Weights are between 0 and 1 and are compared as they are. Scores and outputs have no such bound: their difference is
    divided by the largest magnitude of the layer where that is above 1. Where one is −inf or NaN and the other is not,
    the difference is infinite.
    """
    computed = to_float64(computed)
    reference = to_float64(reference)
    gap = differences_of(computed, reference)
    finite = computed.isfinite() & reference.isfinite()
    size = 1.0
    if not absolute and finite.any():
        size = max(1.0, float(reference[finite].abs().max()))
    return gap.transpose(0, 1).flatten(1).amax(1) / size  # (H,)


Limit = float | Sequence[float]  # one for all tensors, or one for each


def make_check(
    name: str,
    deviations: Sequence[Tensor],
    limits: Limit,
    layers: Sequence[int],
    note: str | None = None,
) -> Check:
    """Judge the deviations of heads, (H,) for each layer; report the one nearest to its limit, or furthest beyond it.

    Several passes over `layers` (numbers of the model's layers) may follow each other.
    """
    limit_of = _each(limits, deviations)
    worst = [float(deviation.max()) for deviation in deviations]
    at = max(range(len(worst)), key=lambda i: worst[i] / max(limit_of[i], 1e-300))
    value = worst[at]
    limit = limit_of[at]
    where = None
    if value > 0:
        where = f"L{layers[at % len(layers)]}H{int(deviations[at].argmax())}"
    measured = value if value < float("inf") else None
    return Check(name, "pass" if value <= limit else "fail", measured, limit, where, note)


def skipped_check(name: str, why: str) -> Check:
    """Return a check that does not apply."""
    return Check(name, "skipped", note=why)


def _each(limits: Limit, deviations: Sequence[Tensor]) -> list[float]:
    if isinstance(limits, float):
        return [limits] * len(deviations)
    return [*limits]


def differences(
    reference: str, stage: str, deviations: Sequence[Tensor], limits: Limit, layers: Sequence[int]
) -> Differences:
    """Return what `make_check` judges, by layer and head."""
    by_head = [
        [float(x) if x < float("inf") else None for x in deviation] for deviation in deviations
    ]
    return Differences(reference, stage, _each(limits, deviations), by_head, list(layers))


def worst_check(texts: Sequence[Sequence[Check]]) -> list[Check]:
    """Return each check from the text in which it is nearest to its limit, or furthest beyond it."""
    by_name: dict[str, list[Check]] = {}
    for check in (check for checks in texts for check in checks):
        by_name.setdefault(check.name, []).append(check)
    return [max(checks, key=_nearness) for checks in by_name.values()]


def _nearness(check: Check) -> float:
    """Return the measured share of the limit; below 0 for a skipped check."""
    if check.verdict == "skipped":
        return -1.0
    if check.measured is None or check.limit is None:
        return float("inf")
    return check.measured / max(check.limit, 1e-300)


def worst_differences(texts: Sequence[Sequence[Differences]]) -> list[Differences]:
    """Return the differences of each layer from the text in which they are nearest to their limit."""
    by_stage: dict[tuple[str, str], list[Differences]] = {}
    for difference in (gaps for text in texts for gaps in text):
        by_stage.setdefault((difference.reference, difference.stage), []).append(difference)
    worst = []
    for (reference, stage), of_texts in by_stage.items():
        layers = zip(
            *(zip(text.limits, text.by_head, strict=True) for text in of_texts), strict=True
        )
        limits, by_head = zip(*(max(of_layer, key=_share) for of_layer in layers), strict=True)
        worst.append(Differences(reference, stage, list(limits), list(by_head), of_texts[0].layers))
    return worst


def _share(layer: tuple[float, list[float | None]]) -> float:
    """Return the largest difference of a layer's heads as a share of its limit."""
    limit, by_head = layer
    return max(
        float("inf") if difference is None else difference / max(limit, 1e-300)
        for difference in by_head
    )
