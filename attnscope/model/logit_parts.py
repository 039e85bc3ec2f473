"""Direct logit attribution: the contribution of every part of a stack to one direction of the final hidden state.

The final state is the sum of the embedding and the contributions of each layer's attention and MLP. If the scale of the
final norm is frozen at its actual value, each contribution to a logit is a dot product with a direction of the residual
stream. A first pass captures the state between blocks and the scales of norms; a second one multiplies the
contributions of each head.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.model.layers import RMSNorm
from attnscope.model.module_hooks import listening
from attnscope.model.precision import to_float64
from attnscope.model.stack import Stack
from attnscope.model.tile import Recorder, Tile

PullBack = Callable[[Tensor], tuple[Tensor, Tensor]]  # a direction behind a norm to one before it, and the bias's share


def frozen_norm(norm: nn.Module, x: Tensor) -> PullBack:
    """Return a norm with its scale frozen at x, (N, D): for directions u, it gives u′, b with norm(x)·u = x·u′ + b."""
    wide = to_float64(x)
    parameters = {name: to_float64(value.detach()) for name, value in norm.named_parameters()}
    if isinstance(norm, RMSNorm):
        scale = (parameters["weight"] + norm.plus_one) * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + norm.eps)
        return lambda u: (u * scale, u.new_zeros(len(u)))
    if not isinstance(norm, nn.LayerNorm):
        return lambda u: (u, u.new_zeros(len(u)))
    spread = torch.rsqrt(wide.var(-1, keepdim=True, unbiased=False) + norm.eps)

    def pull_back(u: Tensor) -> tuple[Tensor, Tensor]:
        weighted = u * parameters["weight"] * spread
        bias = parameters.get("bias", u.new_zeros(u.shape[-1]))  # MPT's norms have none
        return weighted - weighted.mean(-1, keepdim=True), u @ bias

    return pull_back


@dataclass
class LayerParts:
    """Contribution of one layer to the residual stream at one position of every text."""

    bias: Tensor | None  # the output projection's bias, (D,), float64; None if there is none
    mlp: Tensor  # contribution of the MLP, (B, D), float64
    pull_back: PullBack  # the norm between the output projection and the residual stream


class StreamCapture:
    """The residual stream at one position of every text, between all blocks; `last` is the last one's output, (B, D).

    The stack is residual, and normed in front of or behind its parts, not after the sum.
    """

    def __init__(self, stack: Stack, positions: Sequence[int]) -> None:
        self._stack = stack
        self._positions = list(positions)
        self.layers: list[LayerParts] = []
        self._entering: list[Tensor] = []
        self._attended: list[tuple[Tensor, PullBack]] = []
        self.last = torch.empty(0)

    @property
    def embedding(self) -> Tensor:
        """Input of the first block, (B, D)."""
        return self._entering[0]

    def _rows(self, x: Tensor) -> Tensor:
        return x[range(len(self._positions)), self._positions].clone()

    def capturing(self) -> AbstractContextManager[None]:
        """Capture intermediate values while the stack runs."""
        handles = []
        for block in self._stack.blocks:
            handles += [block.register_forward_pre_hook(self._enter), block.register_forward_hook(self._leave)]
            handles.append(block.get_submodule("norm_attention_out").register_forward_hook(self._attend))
        return listening(handles)

    def _enter(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self._entering.append(self._rows(inputs[0]))

    def _attend(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        self._attended.append((self._rows(output), frozen_norm(module, self._rows(inputs[0]))))

    def _leave(self, module: Any, inputs: Any, output: Tensor) -> None:
        self.last = self._rows(output)
        attended, pull_back = self._attended[-1]
        changed = to_float64(self.last) - to_float64(self._entering[-1]) - to_float64(attended)
        out = module.get_submodule("attention").get_submodule("out") if module.config.out_bias else None
        bias = None if out is None else to_float64(out.bias.detach()).clone()
        self.layers.append(LayerParts(bias, changed, pull_back))


class HeadLogits(Recorder):
    """Contribution of every source to each text's direction, (B, D), through every head: `added`, (B, heads, keys)."""

    def __init__(self, heads: int, positions: Sequence[int], direction: Tensor, n_keys: int) -> None:
        super().__init__(range(heads), sorted(set(positions)))
        self._positions = list(positions)
        self._direction = direction
        self.added = torch.zeros(len(self._positions), heads, n_keys, dtype=torch.float64, device=direction.device)

    def update(self, tile: Tile) -> None:
        """Take the weights of each text's query, times the contributions of the keys' values."""
        inputs = tile.inputs
        heads = tile.heads
        width = inputs.v.shape[-1]
        for text, position in enumerate(self._positions):
            if not tile.q0 <= position < tile.q1 or tile.k0 == tile.k1:
                continue
            laid = self._direction[text]
            if inputs.out_weight is not None:
                laid = to_float64(inputs.out_weight).mT @ laid  # (H·Ev,)
            values = to_float64(inputs.v[text, inputs.group(heads), tile.k0 : tile.k1])  # (h, k, Ev)
            contribution = (values @ laid.view(-1, width)[tile.index][..., None])[..., 0]  # (h, k)
            weights = to_float64(tile.weights[text, :, position - tile.q0])
            self.added[text, tile.index, tile.k0 : tile.k1] = weights * contribution


@dataclass
class LogitParts:
    """Contributions of parts to the logit of one text's target."""

    embedding: float
    constant: float  # contribution of the biases of the final norm and of the head
    # contribution of the bias of each layer's output projection (and of the norm after it)
    attention_biases: list[float] = field(default_factory=list)
    mlps: list[float] = field(default_factory=list)
    edges: Tensor = field(default_factory=lambda: torch.empty(0))  # contribution of each source by head, (L, H, K)


class Directions:
    """Directions of targets in the residual stream, before the final norm and before every layer's norms.

    A target of a text is an id, and the id whose logit is subtracted, if any.

    Attributes:
        stream: The direction of each text, (B, D).
        constant: Contribution of biases to each text's logit, (B,).
        layers: By layer, the direction in front of the norm behind its output projection, and that norm's bias's share.
    """

    def __init__(self, stack: Stack, capture: StreamCapture, targets: Sequence[tuple[int, int | None]]) -> None:
        head = stack.head
        assert head is not None
        with torch.inference_mode(), stack.weights.holding(None), stack.weights.holding("head"):
            matrix = stack.embed.tokens.weight if head.decoder is None else head.decoder.weight
            rows = torch.stack([_difference(matrix, *pair) for pair in targets])  # (B, D)
            self.stream, self.constant = frozen_norm(head.norm, capture.last)(rows)
            if head.bias is not None:
                self.constant = self.constant + torch.stack([_difference(head.bias, *pair) for pair in targets])
            self.layers = [layer.pull_back(self.stream) for layer in capture.layers]


def _difference(rows: Tensor, target: int, against: int | None) -> Tensor:
    row = to_float64(rows[target])
    return row if against is None else row - to_float64(rows[against])


def logit_parts(capture: StreamCapture, directions: Directions, recorders: Sequence[HeadLogits]) -> list[LogitParts]:
    """Return the contribution of each part, for every text."""
    texts = []
    with torch.inference_mode():
        for text, stream in enumerate(directions.stream):
            edges = torch.stack([recorder.added[text] for recorder in recorders])  # (L, H, K)
            parts = LogitParts(float(to_float64(capture.embedding[text]) @ stream), float(directions.constant[text]))
            parts.edges = edges
            for layer, (direction, share) in zip(capture.layers, directions.layers, strict=True):
                bias = 0.0 if layer.bias is None else float(direction[text] @ layer.bias)
                parts.attention_biases.append(bias + float(share[text]))
                parts.mlps.append(float(layer.mlp[text] @ stream))
            texts.append(parts)
    return texts
