"""Refuse scores and outputs that are not finite."""

from math import isfinite

import torch
from torch import Tensor

from attnscope.base.errors import NotFinite, arg


class FiniteChecks:
    """Checks of one layer: at once without a device or on a CPU, else by sums read together, as each read waits."""

    def __init__(self, layer: int, device: torch.device | None = None) -> None:
        self._layer, self._at_once = layer, device is None or device.type == "cpu"
        self._sums: list[Tensor] = []

    def add(self, numbers: Tensor, name: str, heads: Tensor) -> None:
        """Check numbers of heads (h,), (B, h, q, …), or leave that to `passed`; the error names the first bad head."""
        # One cheap pass; only a bad sum is worth a closer look.
        total = numbers.sum()
        if not self._at_once:
            self._sums.append(total)
            return
        if isfinite(float(total)):
            return
        bad = (~torch.isfinite(numbers)).sum(dim=(0, 2, 3))  # (h,)
        if bad.any():
            i = int(bad.argmax())
            hint = f"the model overflows in this dtype; use {arg('dtype', 'float32')}"
            message = f"{int(bad[i])} {name} are not finite"
            raise NotFinite(message, where=f"L{self._layer}H{int(heads[i])}", hint=hint)

    def passed(self) -> bool:
        """Tell whether every sum that was left for later is finite."""
        return not self._sums or bool(torch.stack(self._sums).isfinite().all())
