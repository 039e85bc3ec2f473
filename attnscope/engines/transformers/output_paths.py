"""Find out by running what stands between the output of attention and the output projection."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from attnscope.model.module_hooks import in_this_thread


class OutputPaths:
    """Compares weights·v of every call of attention with what its output projection takes.

    They are equal unless the module changes it in between: by a gate (Qwen3-Next), a norm (BitNet) or another factor.
    """

    def __init__(self) -> None:
        self.handles: list[RemovableHandle] = []
        # calls whose projection took something else than weights·v, by their order
        self.changed: set[int] = set()
        self._expected: dict[nn.Module, tuple[int, Tensor]] = {}

    def expect(self, call: int, projection: nn.Module | None, output: Tensor) -> None:
        """Compare the output of a call, (B, H, Q, Ev), with the next input of its projection."""
        if projection is None:
            return
        if projection not in self._expected:
            self.handles.append(projection.register_forward_pre_hook(in_this_thread(self._compare)))
        self._expected[projection] = call, output.transpose(1, 2).flatten(2)

    def _compare(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        call, output = self._expected[module]
        if not args or not isinstance(args[0], Tensor) or not _equal(args[0], output):
            self.changed.add(call)


def _equal(taken: Tensor, output: Tensor) -> bool:
    """Tell whether a projection takes the output of attention, in whatever shape and type."""
    if taken.numel() != output.numel() or taken.shape[-1] != output.shape[-1]:
        return False
    return torch.equal(taken.reshape(output.shape), output.to(taken.dtype))
