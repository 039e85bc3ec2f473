"""Capture every vector and number that one query of one head passes through.

A `HeadCapture` listens to the modules of one layer while the stack runs, and sees the tile that `attend` makes:
nothing in here computes attention again. What it holds is NumPy float64, each number exactly the one that the model
had.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attnscope.model.layers import Attention, LayerContext
from attnscope.model.positions import learned_rows, rotary_frequencies, sinusoidal
from attnscope.model.stack import Ids, Stack
from attnscope.model.tile import Tile

Numbers = np.ndarray[Any, np.dtype[np.float64]]


class HeadCapture:
    """One query of one head, followed through a layer: a recorder that also listens to the layer's modules.

    Args:
        stack: The model.
        layer: Number of the layer.
        head: Number of the query head.
        query: Position of the query.
        n_keys: How many keys there are.

    Attributes:
        found: Name to numbers. Inputs: `embedded` (D,), `stream` (layers, D) what enters each block up to this one,
            `x` (D,) what queries are made of. Queries and keys: `q`, `k` as projected, `q_norm`, `k_norm` as normed,
            `cos`, `sin` (n, R) of every position, all where there are such; `q_used` (E,), `k_used` (K, E) and `v`
            (K, Ev) as attention took them. The row: `scores`, `scaled`, `masked`, `weights`, `bias` (K,), `output`
            (Ev,), `sink` (2,) the head's logit and what it takes, where there are such. `out` (D, Ev): this head's part
            of the output projection.
        sources: What keys are made of, (K, D), on the model's device.
    """

    def __init__(self, stack: Stack, layer: int, head: int, query: int, n_keys: int) -> None:
        c = stack.config
        self.stack, self.layer, self.head, self.query, self.n_keys = stack, layer, head, query, n_keys
        self.group = head // (c.n_heads // c.n_kv_heads)  # the key/value head that serves this one
        self.heads: Sequence[int] = [head]
        self.rows: Sequence[int] = [query]
        self.found: dict[str, Numbers] = {}
        self.sources: Tensor | None = None

    needs_scores = True  # every stage is shown

    def score_range(self) -> tuple[int, int] | None:
        """Ask for the raw scores of every key, allowed or not."""
        return 0, self.n_keys

    def update(self, tile: Tile) -> None:
        """Take the query's row, and what it was made of."""
        inputs, row = tile.inputs, self.query - tile.q0
        group = int(inputs.group(torch.tensor(self.head)))
        self._store("q_used", inputs.q[0, self.head, self.query])
        self._store("k_used", inputs.k[0, group])
        self._store("v", inputs.v[0, group])
        for stage in ("scores", "scaled", "masked", "weights", "output"):
            self._store(stage, tile.stage(stage)[0, 0, row])
        if inputs.spec.sinks is not None and tile.sink is not None:
            self._store("sink", torch.stack((inputs.spec.sinks[self.head].float(), tile.sink[0, 0, row])))
        if inputs.spec.bias is not None:
            at = torch.arange(self.n_keys, device=inputs.q.device)[None]
            self._store("bias", inputs.spec.bias(torch.full_like(at[:, :1], self.query), at, tile.heads)[..., 0, 0, :])
        if inputs.out_weight is not None:
            width = inputs.v.shape[-1]
            self._store("out", inputs.out_weight[:, self.head * width : (self.head + 1) * width])

    def _store(self, name: str, tensor: Tensor) -> None:
        self.found[name] = _to_float64(tensor)

    def key_input(self, key: int) -> Numbers:
        """Return what one key is made of, (D,)."""
        assert self.sources is not None
        return _to_float64(self.sources[key])

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """Capture what the stack computes while it runs."""
        attention = attention_of(self.stack, self.layer)
        handles = [
            self.stack.embed.norm.register_forward_pre_hook(self._embedded),
            attention.register_forward_pre_hook(self._entered),
            attention.q.register_forward_hook(self._projected("q", self.query, self.head)),
            attention.k.register_forward_hook(self._projected("k", slice(None), self.group)),
            *(block.register_forward_pre_hook(self._stream) for block in list(self.stack.blocks)[: self.layer + 1]),
        ]
        if attention.q_norm is not None and attention.k_norm is not None:
            handles.append(attention.q_norm.register_forward_hook(self._normed("q_norm", self.query, self.head)))
            handles.append(attention.k_norm.register_forward_hook(self._normed("k_norm", slice(None), self.group)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _embedded(self, module: nn.Module, given: tuple[Tensor, ...]) -> None:
        if "embedded" not in self.found:  # under cross-attention the context is embedded second
            self._store("embedded", given[0][0, self.query])

    def _stream(self, module: nn.Module, given: tuple[Any, ...]) -> None:
        row = _to_float64(given[0][0, self.query])[None]
        self.found["stream"] = np.concatenate([self.found["stream"], row]) if "stream" in self.found else row

    def _entered(self, module: nn.Module, given: tuple[Tensor, LayerContext]) -> None:
        x, setting = given
        self._store("x", x[0, self.query])
        self.sources = (x if setting.context is None else setting.context)[0]
        if setting.rotary is not None:
            for name, table in zip(("cos", "sin"), setting.rotary, strict=True):
                self._store(name, table)

    def _projected(self, name: str, rows: int | slice, head: int) -> Callable[[nn.Module, Any, Tensor], None]:
        """Take one head of what a projection makes."""
        width = self.stack.config.d_head

        def listen(module: nn.Module, given: Any, made: Tensor) -> None:
            self._store(name, made[0, rows, head * width : (head + 1) * width])

        return listen

    def _normed(self, name: str, rows: int | slice, head: int) -> Callable[[nn.Module, Any, Tensor], None]:
        """Take one head of what a norm over queries or keys makes."""

        def listen(module: nn.Module, given: Any, made: Tensor) -> None:
            if self.stack.config.qk_norm == "whole":
                width = self.stack.config.d_head
                made = made.reshape(*made.shape[:2], -1, width).transpose(1, 2)
            self._store(name, made[0, head, rows])

        return listen


def attention_of(stack: Stack, layer: int) -> Attention:
    """Return the attention module of a layer."""
    attention = stack.blocks[layer].attention
    assert isinstance(attention, Attention)
    return attention


def embedding_parts(stack: Stack, tokens: Ids, query: int) -> dict[str, Numbers]:
    """List what the embedding of a token is the sum of: `token`, `segment`, `position`, (D,) each, if there.

    Args:
        stack: The model.
        tokens: Ids and segments of one text, (1, T) each.
        query: Position of the token.
    """
    embed, (ids, segments) = stack.embed, tokens
    with torch.inference_mode():
        parts = {"token": embed.tokens(ids[0, query])}
        if embed.config.embedding_scale is not None:
            scale = torch.tensor(embed.config.embedding_scale, dtype=parts["token"].dtype, device=ids.device)
            parts["token"] = parts["token"] * scale
        if embed.segments is not None:
            parts["segment"] = embed.segments(segments[0, query])
        if embed.positions is not None:
            rows = learned_rows(ids, embed.config)
            parts["position"] = embed.positions(rows[0, query])
        if embed.config.positions == "sinusoidal":
            parts["position"] = sinusoidal(query + 1, embed.config.d_model, ids.device)[query].to(parts["token"].dtype)
    return {name: _to_float64(part) for name, part in parts.items()}


def projection(stack: Stack, layer: int, letter: str, head: int) -> tuple[Numbers, Numbers | None]:
    """Return the rows of W_q or W_k, (E, D), and of its bias, (E,), that make one head's queries or keys.

    Args:
        stack: The model.
        layer: Number of the layer.
        letter: `q` or `k`.
        head: Number of the query head, or of the key/value head.
    """
    attention, width = attention_of(stack, layer), stack.config.d_head
    module = attention.q if letter == "q" else attention.k
    rows = slice(head * width, (head + 1) * width)
    with stack.weights.holding(layer):
        return _to_float64(module.weight[rows]), None if module.bias is None else _to_float64(module.bias[rows])


def norm_parameters(stack: Stack, layer: int | None) -> tuple[Numbers, Numbers | None]:
    """Return weight and bias, (D,) each, of the norm before a layer's attention, or of the embedding's norm (None)."""
    module = stack.embed.norm if layer is None else stack.blocks[layer].get_submodule("norm_attention")
    with stack.weights.holding(layer):
        named = {name: _to_float64(parameter) for name, parameter in module.named_parameters()}
    return named["weight"], named.get("bias")


def _to_float64(tensor: Tensor) -> Numbers:
    found: Numbers = tensor.detach().double().cpu().numpy()
    return found


def wavelengths(stack: Stack, layer: int, n: int) -> Numbers | None:
    """Count the tokens, in a text of n, that each rotated pair takes for a whole turn, (R / 2,).

    None where nothing is rotated.
    """
    rope = stack.config.rope_of(layer)
    if rope is None:
        return None
    frequencies, _ = rotary_frequencies(rope, int(stack.config.d_head * rope.fraction), n, torch.device("cpu"))
    found: Numbers = 2 * np.pi / frequencies.double().numpy()
    return found
