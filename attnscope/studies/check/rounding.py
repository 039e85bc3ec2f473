"""What rounding does to every stage of every layer, measured on the model and the text themselves.

Two correct computations of the same numbers differ by rounding, and the effect of a rounding in the first layer depends
on the model and the text: softmax amplifies it in proportion to the scores, and a massive activation rounds whatever is
added to it. A bound for all models would be too wide to detect anything. The model therefore runs again with the output
of every module randomly rounded once more (Monte Carlo arithmetic: Parker, 1997); the resulting change of a stage shows
the effect that rounding can have on it.

A number is rounded by up to half a step of its type, and a sum of K products in float32, whatever their order, by about
√K·‖x∘w‖ half steps of float32 (Higham and Mary, 2019): much more than its own half step where large products cancel.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.findings.heads import STAGES
from attnscope.model.module_hooks import in_this_thread
from attnscope.studies.check.measures import largest_difference
from attnscope.studies.check.observe import LayerStages

FLOOR = 1e-5  # smallest limit: the parity that is promised in float32
_RUNS = 3
# Correct models differ by at most the largest of three runs; in float32, single sentences by up to 2.4 times it.
_FACTOR = 2.0
_FACTOR_FLOAT32 = 4.0

Limits = list[dict[str, float]]


def limits(
    alone: Sequence[LayerStages],
    again: Callable[[], list[LayerStages]],
    model: nn.Module,
    dtype: torch.dtype,
) -> Limits:
    """Return the tolerance of each stage for every layer, in the measure of `largest_difference`.

    `again` runs the model over the same text again; a correct number is up to half a step of `dtype` away from its
    rounding.
    """
    bounds = [dict.fromkeys(STAGES, FLOOR) for _ in alone]
    factor = _FACTOR_FLOAT32 if dtype == torch.float32 else _FACTOR
    sums: list[Tensor | None] = []
    for seed in range(_RUNS):
        with rounded_again(model, dtype, seed, sums):
            moved = again()
        for layer, (stages_alone, stages_moved) in enumerate(zip(alone, moved, strict=True)):
            for stage in STAGES:
                of_stage = stages_moved.stages[stage], stages_alone.stages[stage]
                gap = float(largest_difference(*of_stage, absolute=stage == "weights").max())
                if gap < float("inf"):  # numbers that are not finite are tested by another check
                    bounds[layer][stage] = max(bounds[layer][stage], factor * gap)
    return bounds


@contextmanager
def rounded_again(
    model: nn.Module, dtype: torch.dtype, seed: int, sums: list[Tensor | None]
) -> Iterator[None]:
    """Change every output of innermost modules by up to its rounding, uniformly.

    `sums` is the rounding of the sums behind each output, in the order of calls: the first run fills it, later runs use
    it. It is None for an output that is no sum, or whose sums are exact.
    """
    generator = torch.Generator().manual_seed(seed)
    unit = torch.finfo(dtype).eps / 2
    calls = iter(list(sums))
    is_first_run = not sums

    def change(module: nn.Module, inputs: Any, output: Any) -> Any:
        if not isinstance(output, Tensor) or not output.is_floating_point():
            return output
        if is_first_run:
            sums.append(
                sum_rounding(module, inputs[0]) if dtype == torch.float32 and inputs else None
            )
        of_sum = sums[-1] if is_first_run else next(calls)
        noise = torch.rand(output.shape, generator=generator).to(output.device) * 2 - 1
        wide = output.float()
        reach = unit * wide.abs()
        return (wide + noise * (reach if of_sum is None else reach + of_sum)).to(output.dtype)

    with ExitStack() as stack:
        for module in model.modules():
            if next(module.children(), None) is None:
                stack.callback(module.register_forward_hook(in_this_thread(change)).remove)
        yield


def sum_rounding(module: nn.Module, x: Any) -> Tensor | None:
    """Return how far rounding moves the sums of a linear layer in float32, (…, N): √K·‖x∘w‖ half steps.

    A module without a matrix, or with one that only looks rows up, sums nothing.
    """
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2 or not isinstance(x, Tensor):
        return None
    if not (weight.is_floating_point() and x.is_floating_point()):
        return None
    # transformers' Conv1D is stored as (K, N)
    matrix = weight if isinstance(module, nn.Linear) else weight.mT
    if matrix.shape[1] != x.shape[-1]:
        return None
    size = (x.float().square() @ matrix.float().square().mT).sqrt()
    return size * (sqrt(x.shape[-1]) * torch.finfo(torch.float32).eps / 2)
