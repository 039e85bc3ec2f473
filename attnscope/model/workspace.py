"""Memory that tiles take turns in."""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor


class Workspace:
    """Scratch buffers reused by tiles of all layers: fresh pages cost more than the computation in them."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}
        self._others: dict[int, Workspace] = {}

    def of_thread(self, number: int) -> "Workspace":
        """Return the workspace of a thread that computes tiles; the first thread uses this one."""
        return self if number == 0 else self._others.setdefault(number, Workspace())

    def buffer(self, name: str, shape: Sequence[int], device: torch.device) -> Tensor:
        """Return an uninitialized float32 tensor, valid until a buffer of the same name is requested again."""
        size, memory = prod(shape), self._buffers.get(name)
        if memory is None or memory.numel() < size or memory.device != device:
            memory = None
            self._buffers.pop(name, None)  # before its successor is made, not after
            memory = self._buffers[name] = torch.empty(size, device=device)
        return memory[:size].view(*shape)
