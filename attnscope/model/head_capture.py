"""Capture every vector and number that one query of one head passes through.

A `HeadCapture` listens to modules of the model while it runs, and sees the tile that `attend` makes: nothing in here
computes attention again. What it holds is NumPy float64, each number exactly the one that the model had.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attnscope.model.inputs import AttentionSpec, Rotation
from attnscope.model.layers import Attention
from attnscope.model.module_hooks import first_argument, in_this_thread, listening
from attnscope.model.positions import (
    DisentangledBias,
    learned_rows,
    rotary_frequencies,
    rotary_tables,
    sinusoidal,
)
from attnscope.model.stack import Ids, Stack
from attnscope.model.tile import Recorder, Tile

Numbers = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class LayerModules:
    """The modules of a model, native or of transformers, that make the queries and keys of one layer."""

    # the native model, with the parameters of the embedding and of the layer's queries and keys
    stack: Stack
    embedded: nn.Module
    blocks: Sequence[nn.Module]
    q: nn.Module  # the projection to queries; it may give keys and values as well
    k: nn.Module
    q_norm: nn.Module | None  # the norm over queries; None if there is none
    k_norm: nn.Module | None
    # queries, (1, T, H·E), of the output of `q`
    queries: Callable[[Tensor], Tensor] = lambda projected: projected
    # keys, (1, K, G·E), of the output of `k`
    keys: Callable[[Tensor], Tensor] = lambda projected: projected
    # our own block of the layer; None for a layer of another engine
    whole_block: nn.Module | None = None


def modules_of(stack: Stack, layer: int) -> LayerModules:
    """Return the modules of our own stack."""
    attention = attention_of(stack, layer)
    blocks = list(stack.blocks)[: layer + 1]
    modules = attention.q, attention.k, attention.q_norm, attention.k_norm
    return LayerModules(stack, stack.embed.norm, blocks, *modules, whole_block=blocks[-1])


class RowCapture(Recorder):
    """A recorder of one query of one head, from the inputs of attention on.

    Attributes:
        captured: Name to numbers.
            `q_used` (E,), `k_used` (K, E) and `v` (K, Ev) as attention took them; `q` (E,) and `k` (K, E) before a
            rotation that was not a model's.
            The row: `scores`, `scaled`, `masked`, `weights`, `bias` (K,), `output` (Ev,); `sink` (2,), the head's logit
            and weight, if it has a sink; `content_position` and `position_content` (K,), the parts of a disentangled
            bias.
            `gate` (Ev,): the factor on the head's output, if it has one. `out` (D, Ev): this head's part of the output
            projection.
        group: The key/value head that serves this one; None before there are tiles.
    """

    def __init__(self, layer: int, head: int, query: int, n_keys: int) -> None:
        super().__init__([head], [query])
        self.layer = layer
        self.head = head
        self.query = query
        self.n_keys = n_keys
        self.captured: dict[str, Numbers] = {}
        self.group: int | None = None
        self.spec: AttentionSpec | None = None
        self.rotation: Rotation | None = None

    needs_scores = needs_masked = True  # every stage is shown

    @property
    def sees_keys(self) -> bool:
        """Whether the mask allows the query any key."""
        return bool(np.isfinite(self.captured["masked"]).any())

    def score_range(self) -> tuple[int, int] | None:
        """Ask for the raw scores of every key, allowed or not."""
        return 0, self.n_keys

    def update(self, tile: Tile) -> None:
        inputs = tile.inputs
        row = self.query - tile.q0
        group = int(inputs.group(torch.tensor(self.head)))
        self.group = group if self.group is None else self.group
        self.spec = inputs.spec
        self.rotation = inputs.rotation
        if inputs.rotation is not None:
            self._store("q", inputs.rotation.q[0, self.head, self.query])
            self._store("k", inputs.rotation.k[0, group])
        self._store("q_used", inputs.q[0, self.head, self.query])
        self._store("k_used", inputs.k[0, group])
        self._store("v", inputs.v[0, group])
        for stage in ("scores", "scaled", "masked", "weights", "output"):
            self._store(stage, tile.stage(stage)[0, 0, row])
        logits = inputs.spec.sink_logits(tile.heads, slice(self.query, self.query + 1))
        if logits is not None and tile.sink is not None:
            self._store("sink", torch.stack((logits[0, 0, 0], tile.sink[0, 0, row])))
        if inputs.spec.bias is not None:
            keys = torch.arange(self.n_keys, device=inputs.q.device)[None]
            cells = torch.full_like(keys[:, :1], self.query), keys, tile.heads
            self._store("bias", inputs.spec.bias(*cells)[..., 0, 0, :].flatten())
            if isinstance(inputs.spec.bias, DisentangledBias):
                for name, part in inputs.spec.bias.parts(*cells).items():
                    self._store(name, part[0, 0, 0])
        if inputs.gate is not None:
            self._store("gate", inputs.gate[0, self.head, self.query].expand(inputs.v.shape[-1]))
        if inputs.out_weight is not None:
            width = inputs.v.shape[-1]
            self._store("out", inputs.out_weight[:, self.head * width : (self.head + 1) * width])

    def _store(self, name: str, tensor: Tensor) -> None:
        self.captured[name] = _to_float64(tensor)


class HeadCapture(RowCapture):
    """One query of one head, followed through a layer: it also listens to modules of the model.

    Attributes:
        captured: Also, from before attention: `embedded` (D,); `stream` (layers, D), the input of each block up to this
            one; `x` (D,), the input of the query projection; `q`, `k` as projected, and `q_norm`, `k_norm` as normed,
            if there are such norms.
        sources: Hidden states that keys are projected from, (K, D), on the model's device.
    """

    def __init__(
        self, modules: LayerModules, layer: int, head: int, query: int, n_keys: int
    ) -> None:
        super().__init__(layer, head, query, n_keys)
        self._modules = modules
        self._config = modules.stack.config
        self.group = head // (self._config.n_heads // self._config.n_kv_heads)
        self.sources: Tensor | None = None
        self.length = 0  # tokens of the text

    def key_input(self, key: int) -> Numbers:
        """Return the hidden state that a key is projected from, (D,)."""
        assert self.sources is not None
        return _to_float64(self.sources[key])

    def capturing(self) -> AbstractContextManager[None]:
        """Capture intermediate values while the model runs."""
        layer = self._modules
        c = self._config
        group = self.group or 0
        handles = [
            module.register_forward_pre_hook(in_this_thread(hook), with_kwargs=True)
            for module, hook in (
                (layer.embedded, self._embedded),
                *((block, self._stream) for block in layer.blocks),
            )
        ]
        for name, module, norm, pick, heads, rows, head in (
            ("q", layer.q, layer.q_norm, layer.queries, c.n_heads, self.query, self.head),
            ("k", layer.k, layer.k_norm, layer.keys, c.n_kv_heads, slice(None), group),
        ):
            projected = in_this_thread(self._projected(name, pick, heads, rows, head))
            handles.append(module.register_forward_hook(projected))
            if norm is not None:
                handles.append(
                    norm.register_forward_hook(
                        in_this_thread(self._normed(name, heads, rows, head))
                    )
                )
        return listening(handles)

    def capturing_rest(self) -> AbstractContextManager[None]:
        """Capture what follows attention in our own block, while it runs to its output."""
        block = self._modules.whole_block
        assert block is not None
        names = {
            "attention": "attention",
            "norm_attention_out": "attention_normed",
            "norm_mlp_out": "mlp_normed",
        }
        modules = dict(block.named_children())
        handles = [block.register_forward_hook(in_this_thread(self._rows_of("layer_output")))]
        for module, name in names.items():
            if module in modules and not isinstance(modules[module], nn.Identity):
                handles.append(
                    modules[module].register_forward_hook(in_this_thread(self._rows_of(name)))
                )
        if "mlp" in modules:
            handles.append(
                modules["mlp"].register_forward_hook(
                    in_this_thread(self._rows_of("mlp", "mlp_input"))
                )
            )
        return listening(handles)

    def _rows_of(
        self, name: str, of_input: str | None = None
    ) -> Callable[[nn.Module, tuple[Any, ...], Any], None]:
        """Take the query's row of a module's output, and of its input, if the module sees all rows at once."""

        def listen(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            if output is None or output.shape[1] != self.length:
                return
            self._store(name, output[0, self.query])
            if of_input is not None:
                self._store(of_input, inputs[0][0, self.query])

        return listen

    def _embedded(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if "embedded" not in self.captured:
            # Under cross-attention the context is embedded second.
            self._store("embedded", first_argument(module, args, kwargs)[1][0, self.query])

    def _stream(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        stream = first_argument(module, args, kwargs)[1]
        self.length = stream.shape[1]
        row = _to_float64(stream[0, self.query])[None]
        if "stream" in self.captured:
            self.captured["stream"] = np.concatenate([self.captured["stream"], row])
        else:
            self.captured["stream"] = row

    def _projected(
        self, name: str, pick: Callable[[Tensor], Tensor], heads: int, rows: int | slice, head: int
    ) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        """Take one head of a projection's output, and the projection's input."""

        def listen(module: nn.Module, inputs: tuple[Tensor, ...], projected: Tensor) -> None:
            if name == "q":
                self._store("x", inputs[0][0, rows])
            else:
                self.sources = inputs[0][0]
            self._store(
                name, pick(projected)[0].reshape(-1, heads, self._config.d_head)[rows, head]
            )

        return listen

    def _normed(
        self, name: str, heads: int, rows: int | slice, head: int
    ) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        """Take one head of the output of a norm over queries or keys."""

        def listen(module: nn.Module, inputs: tuple[Tensor, ...], normed: Tensor) -> None:
            # (1, T, H·E) or (1, T, H, E); a model that norms (1, H, T, E) has transposed what was projected
            if normed.ndim == 4 and not inputs[0].is_contiguous():
                normed = normed.transpose(1, 2)
            self._store(f"{name}_norm", normed.reshape(-1, heads, self._config.d_head)[rows, head])

        return listen


def attention_of(stack: Stack, layer: int) -> Attention:
    """Return the attention module of a layer."""
    attention = stack.blocks[layer].attention
    assert isinstance(attention, Attention)
    return attention


def embedding_parts(stack: Stack, tokens: Ids, query: int) -> dict[str, Numbers]:
    """List the summands of a token's embedding: `token`, `segment`, `position`, (D,) each, if the model has them."""
    embed = stack.embed
    ids, segments = tokens[:2]
    with torch.inference_mode():
        parts = {"token": embed.tokens(ids[0, query])}
        if embed.config.embedding_scale is not None:
            scale = torch.tensor(
                embed.config.embedding_scale, dtype=parts["token"].dtype, device=ids.device
            )
            parts["token"] = parts["token"] * scale
        if embed.segments is not None:
            parts["segment"] = embed.segments(segments[0, query])
        if embed.positions is not None:
            rows = learned_rows(ids, embed.config)
            parts["position"] = embed.positions(rows[0, query])
        if embed.config.positions == "sinusoidal":
            parts["position"] = sinusoidal(query + 1, embed.config.d_model, ids.device)[query].to(
                parts["token"].dtype
            )
    return {name: _to_float64(part) for name, part in parts.items()}


def projection(stack: Stack, layer: int, letter: str, head: int) -> tuple[Numbers, Numbers | None]:
    """Return the rows of W_q, W_k or W_v (`letter`), (E, D), and of its bias, (E,), of one query or key/value head."""
    attention = attention_of(stack, layer)
    width = stack.config.d_value if letter == "v" else stack.config.d_head
    module = {"q": attention.q, "k": attention.k, "v": attention.v}[letter]
    rows = slice(head * width, (head + 1) * width)
    with stack.weights.holding(layer):
        return _to_float64(module.weight[rows]), None if module.bias is None else _to_float64(
            module.bias[rows]
        )


def norm_parameters(
    stack: Stack, layer: int | None, name: str = "norm_attention"
) -> tuple[Numbers, Numbers | None]:
    """Return weight and bias, (D,) each, of a layer's norm, or of the embedding's norm (None)."""
    if layer is None:
        module = stack.embed.norm
    else:
        module = stack.blocks[layer].get_submodule(name)
    with stack.weights.holding(layer):
        parameters = {name: _to_float64(parameter) for name, parameter in module.named_parameters()}
    return parameters["weight"], parameters.get("bias")


def _to_float64(tensor: Tensor) -> Numbers:
    numbers: Numbers = tensor.detach().cpu().double().numpy()
    return numbers


@dataclass(frozen=True)
class RotaryNumbers:
    """How a layer rotates the queries and keys of a text."""

    wavelengths: Numbers  # tokens that each rotated pair takes for a turn, (R / 2,)
    factor: float  # on rotated dimensions: the attention factor of YaRN and LongRoPE, otherwise 1
    cos: Numbers  # of every position and dimension, (T, R), in the model's type, as is sin
    sin: Numbers


def rotary_numbers(stack: Stack, layer: int, n: int) -> RotaryNumbers | None:
    """Return the rotation in a text of n tokens; None if nothing is rotated."""
    rope = stack.config.rope_of(layer)
    if rope is None:
        return None
    like = stack.embed.tokens.weight
    width = int(stack.config.d_head * rope.fraction)
    frequencies, factor = rotary_frequencies(rope, width, n, torch.device("cpu"))
    cos, sin = rotary_tables(rope, width, [n], n, like.device, like.dtype)
    return RotaryNumbers(
        2 * np.pi / _to_float64(frequencies), factor, _to_float64(cos), _to_float64(sin)
    )
