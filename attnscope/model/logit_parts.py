"""Direct logit attribution: the contribution of every part of a stack to one direction of the final hidden state.

The final state is the sum of the embedding and the contributions of each layer's attention and MLP. If the scale of the
final norm is frozen at its actual value, each contribution to a logit is a dot product with a direction of the residual
stream. A first pass captures the state between blocks and the scales of norms; a second one multiplies the
contributions of each head.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from attnscope.model.layers import RMSNorm
from attnscope.model.matmul import to_float64
from attnscope.model.module_hooks import listening
from attnscope.model.stack import Stack
from attnscope.model.tile import Recorder, Tile

# a direction behind a norm to one before it, and the bias's share
PullBack = Callable[[Tensor], tuple[Tensor, Tensor]]


def frozen_norm(norm: nn.Module, x: Tensor) -> PullBack:
    """Return a norm with its scale frozen at x, (N, D): for directions u, it gives u′, b with norm(x)·u = x·u′ + b."""
    wide = to_float64(x)
    parameters = {name: to_float64(value.detach()) for name, value in norm.named_parameters()}
    if isinstance(norm, RMSNorm):
        scale = (parameters["weight"] + norm.plus_one) * torch.rsqrt(
            wide.pow(2).mean(-1, keepdim=True) + norm.eps
        )
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
    """What one layer does to the residual stream at one position of every text, in float64."""

    change: Tensor  # its output minus its input, (B, D)
    # output of its output projection, (B, D); None for a layer without attention
    projected: Tensor | None
    bias: Tensor | None  # the output projection's bias, (D,); None if there is none


@dataclass(frozen=True)
class Directions:
    """Directions of targets in the residual stream: before the final norm, and behind every output projection.

    A target of a text is an id, and the id whose logit is subtracted, if any.
    """

    stream: Tensor  # the direction of each text, (B, D)
    constant: Tensor  # contribution of biases to each text's logit, (B,)
    # by layer, the direction behind its output projection, (B, D), and the share of the bias of a norm there, (B,)
    layers: Mapping[int, tuple[Tensor, Tensor]]


class ResidualCapture(Protocol):
    """The residual stream of a model at one position of every text, between all layers."""

    layers: list[LayerParts]

    @property
    def embedding(self) -> Tensor:
        """Input of the first layer, (B, D)."""

    @property
    def softcap(self) -> float | None:
        """C of c·tanh(x/c) on the logits; None for none."""

    def capturing(self) -> AbstractContextManager[Any]:
        """Capture intermediate values while the model runs."""

    def logits(self) -> Tensor:
        """Return the logits of every text, (B, V), before a soft-cap."""

    def directions(self, targets: Sequence[tuple[int, int | None]]) -> Directions:
        """Return the directions of every text's target."""


class StreamCapture:
    """The residual stream of our own stack; see ResidualCapture.

    The stack is residual, and normed in front of or behind its parts, not after the sum.
    """

    def __init__(self, stack: Stack, positions: Sequence[int]) -> None:
        self._stack = stack
        self._positions = list(positions)
        self.layers: list[LayerParts] = []
        self._entering: list[Tensor] = []
        self._projected: list[Tensor] = []
        # of the norm between each output projection and the residual stream
        self._pull_backs: list[PullBack] = []
        self._last = torch.empty(0)

    @property
    def embedding(self) -> Tensor:
        """Input of the first block, (B, D)."""
        return self._entering[0]

    @property
    def softcap(self) -> float | None:
        """The soft-cap of the output head."""
        if self._stack.config.head is None:
            return None
        return self._stack.config.head.softcap

    def _rows(self, x: Tensor) -> Tensor:
        return x[range(len(self._positions)), self._positions].clone()

    def capturing(self) -> AbstractContextManager[None]:
        """Capture intermediate values while the stack runs."""
        handles = []
        for block in self._stack.blocks:
            handles += [
                block.register_forward_pre_hook(self._enter),
                block.register_forward_hook(self._leave),
            ]
            handles.append(
                block.get_submodule("norm_attention_out").register_forward_hook(self._attend)
            )
        return listening(handles)

    def _enter(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self._entering.append(self._rows(inputs[0]))

    def _attend(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        projected = self._rows(inputs[0])
        self._projected.append(projected)
        self._pull_backs.append(frozen_norm(module, projected))

    def _leave(self, module: Any, inputs: Any, output: Tensor) -> None:
        self._last = self._rows(output)
        change = to_float64(self._last) - to_float64(self._entering[-1])
        out = None
        if module.config.out_bias:
            out = module.get_submodule("attention").get_submodule("out")
        bias = None if out is None else to_float64(out.bias.detach()).clone()
        self.layers.append(LayerParts(change, to_float64(self._projected[-1]), bias))

    def logits(self) -> Tensor:
        """Return the logits of every text, (B, V), before a soft-cap."""
        return self._stack.logits(self._last, capped=False)

    def directions(self, targets: Sequence[tuple[int, int | None]]) -> Directions:
        """Return the directions of every text's target."""
        stack = self._stack
        head = stack.head
        assert head is not None
        with torch.inference_mode(), stack.weights.holding(None), stack.weights.holding("head"):
            if head.decoder is None:
                matrix = stack.embed.tokens.weight
            else:
                matrix = head.decoder.weight
            rows = torch.stack([difference(matrix, *pair) for pair in targets])  # (B, D)
            scale = head.final.scale or 1.0
            stream, constant = frozen_norm(head.norm, self._last)(rows * scale)
            if head.bias is not None:
                constant = (
                    constant
                    + torch.stack([difference(head.bias, *pair) for pair in targets]) * scale
                )
            added = stream * (stack.config.residual_scale or 1.0)
            layers = {layer: pull_back(added) for layer, pull_back in enumerate(self._pull_backs)}
        return Directions(stream, constant, layers)


def difference(rows: Tensor, target: int, against: int | None) -> Tensor:
    """Return the row of a target, minus that of the other token, if there is one, in float64."""
    row = to_float64(rows[target])
    if against is None:
        return row
    return row - to_float64(rows[against])


class HeadLogits(Recorder):
    """Contribution of every source to each text's direction, (B, D), through every head: `added`, (B, heads, keys)."""

    def __init__(
        self, heads: int, positions: Sequence[int], direction: Tensor, n_keys: int
    ) -> None:
        super().__init__(range(heads), sorted(set(positions)))
        self._positions = list(positions)
        self._direction = direction
        self.added = torch.zeros(
            len(self._positions), heads, n_keys, dtype=torch.float64, device=direction.device
        )

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
            # (h, k, Ev)
            values = to_float64(inputs.v[text, inputs.group(heads), tile.k0 : tile.k1])
            by_head = laid.view(-1, width)
            if inputs.gate is not None:
                by_head = by_head * to_float64(inputs.gate[text, :, position])
            contribution = (values @ by_head[tile.index][..., None])[..., 0]  # (h, k)
            weights = to_float64(tile.weights[text, :, position - tile.q0])
            self.added[text, tile.index, tile.k0 : tile.k1] = weights * contribution


@dataclass
class LogitParts:
    """Contributions of parts to the logit of one text's target."""

    embedding: float
    constant: float  # contribution of the biases of the final norm and of the head
    # contribution of the bias of each layer's output projection (and of the norm after it)
    attention_biases: list[float] = field(default_factory=list)
    mlps: list[float] = field(default_factory=list)  # of the rest of each layer
    # contribution of each source by head, (L, H, K)
    edges: Tensor = field(default_factory=lambda: torch.empty(0))


def logit_parts(
    capture: ResidualCapture, directions: Directions, recorders: Mapping[int, HeadLogits]
) -> list[LogitParts]:
    """Return the contribution of each part, for every text; `recorders` are those of the layers with attention."""
    texts = []
    with torch.inference_mode():
        for text, stream in enumerate(directions.stream):
            parts = LogitParts(
                float(to_float64(capture.embedding[text]) @ stream),
                float(directions.constant[text]),
            )
            none = torch.zeros_like(next(iter(recorders.values())).added[text])  # (H, K)
            edges = [
                recorders[layer].added[text] if layer in recorders else none
                for layer in range(len(capture.layers))
            ]
            parts.edges = torch.stack(edges)  # (L, H, K)
            for index, layer in enumerate(capture.layers):
                attended = 0.0
                bias = 0.0
                if layer.projected is not None:
                    direction, share = directions.layers[index]
                    attended = float(direction[text] @ layer.projected[text]) + float(share[text])
                    bias = float(share[text]) + (
                        0.0 if layer.bias is None else float(direction[text] @ layer.bias)
                    )
                parts.attention_biases.append(bias)
                parts.mlps.append(float(layer.change[text] @ stream) - attended)
            texts.append(parts)
    return texts
