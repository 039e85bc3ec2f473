"""Keys and values of tokens that a stack has seen, so that a text grows without being computed again."""

import torch
from torch import Tensor


class KeyValueCache:
    """Keys and values of every layer, for `length` tokens."""

    def __init__(self) -> None:
        self.length = 0
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def extend(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add the keys, (B, G, new, E), and values, (B, G, new, Ev), of new tokens to a layer; return those of all."""
        if layer in self._layers:
            before = self._layers[layer]
            k, v = torch.cat((before[0], k), dim=2), torch.cat((before[1], v), dim=2)
        self._layers[layer] = k, v
        return k, v
