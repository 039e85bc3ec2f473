"""Find out by running what stands between the output of attention and the residual stream."""

from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from attnscope.engines.transformers.taken_outputs import by_head, close
from attnscope.model.module_hooks import in_this_thread


@dataclass(frozen=True)
class _ExpectedOutput:
    """What the output projection of a call of attention is expected to take, (B, H, Q, Ev), and its weight."""

    call: int
    output: Tensor
    weight: Tensor  # (D, H·Ev)


class OutputPaths:
    """Compares every call of attention with what its output projection takes and gives.

    It takes weights·v, or the product of that and a gate, unless the module changes it otherwise: by a norm (BitNet) or
    by another call (Diff Llama). It gives that times its weight, plus a bias: Σ_j α_ij (g_i ⊙ v_j) W_O = the output.
    """

    def __init__(self) -> None:
        self.handles: list[RemovableHandle] = []
        # calls whose projection takes something else, and those whose projection does something else, by their order
        self.changed: set[int] = set()
        self.not_linear: set[int] = set()
        self._expected: dict[nn.Module, _ExpectedOutput] = {}

    def expect(
        self, call: int, projection: nn.Module | None, output: Tensor, weight: Tensor | None
    ) -> None:
        """Compare the output of a call behind its gate, (B, H, Q, Ev), with the next input of its projection."""
        if projection is None or weight is None:
            return
        if projection not in self._expected:
            self.handles.append(projection.register_forward_hook(in_this_thread(self._compare)))
        # a model may change it in place (Nyströmformer adds a convolution of the values)
        self._expected[projection] = _ExpectedOutput(call, output.clone(), weight)

    def _compare(self, module: nn.Module, args: tuple[Any, ...], projected: Any) -> None:
        expected = self._expected[module]
        # Longformer pads texts to full windows
        given = None
        if args and isinstance(args[0], Tensor):
            given = args[0][:, : expected.output.shape[2]]
        taken = by_head(given, expected.output)
        if taken is None or not close(taken, expected.output.to(taken.dtype)):
            self.changed.add(expected.call)
            return
        bias = getattr(module, "bias", None)
        again = F.linear(args[0], expected.weight, bias)
        if (
            not isinstance(projected, Tensor)
            or projected.shape != again.shape
            or not close(projected, again)
        ):
            self.not_linear.add(expected.call)
