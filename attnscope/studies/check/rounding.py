"""What rounding does to every stage of every layer, measured on the model itself.

Two correct computations of the same numbers differ by rounding, and the effect of a rounding in the first layer depends
on the model: softmax amplifies it in proportion to the scores. A bound for all models would be too wide to detect
anything. The model therefore runs again with the output of every module randomly rounded once more (Monte Carlo
arithmetic: Parker, 1997); the resulting change of a stage shows the effect that rounding can have on it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.findings.run import STAGES
from attnscope.studies.check.measures import largest_difference
from attnscope.studies.check.observe import LayerStages

FLOOR = 1e-5  # smallest limit: the parity that is promised in float32
_RUNS = 3
_FACTOR = 2.0  # correct models of all families differed by at most the largest of three runs; half of them by a third

Limits = list[dict[str, float]]


def limits(
    alone: Sequence[LayerStages], again: Callable[[], list[LayerStages]], model: nn.Module, dtype: torch.dtype
) -> Limits:
    """Return the tolerance of each stage, in the measure of `largest_difference`: one number per layer.

    Args:
        alone: The stages of a text.
        again: Runs the model over the same text.
        model: The model.
        dtype: What it runs in: a correct number is up to half a step of this type away from its rounding.
    """
    found = [dict.fromkeys(STAGES, FLOOR) for _ in alone]
    for seed in range(_RUNS):
        with rounded_again(model, torch.finfo(dtype).eps / 2, seed):
            moved = again()
        for layer, (one, other) in enumerate(zip(alone, moved, strict=True)):
            for stage in STAGES:
                gap = float(
                    largest_difference(other.stages[stage], one.stages[stage], absolute=stage == "weights").max()
                )
                if gap < float("inf"):  # numbers that are not finite are tested by another check
                    found[layer][stage] = max(found[layer][stage], _FACTOR * gap)
    return found


@contextmanager
def rounded_again(model: nn.Module, unit: float, seed: int) -> Iterator[None]:
    """Multiply every number that an innermost module gives by 1 + δ, δ evenly between −unit and unit."""
    generator = torch.Generator().manual_seed(seed)

    def change(_: nn.Module, __: Any, made: Any) -> Any:
        if not isinstance(made, Tensor) or not made.is_floating_point():
            return made
        noise = torch.rand(made.shape, generator=generator).to(made.device) * 2 - 1
        return (made.float() * (1 + unit * noise)).to(made.dtype)

    with ExitStack() as stack:
        for module in model.modules():
            if next(module.children(), None) is None:
                stack.callback(module.register_forward_hook(change).remove)
        yield
