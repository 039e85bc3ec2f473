"""The transformer block, and the layers that it is made of: linear, norms, attention, MLPs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnscope.base.model_config import ModelConfig
from attnscope.model.hooks import AttentionHooks
from attnscope.model.inputs import AttentionInputs, AttentionSpec
from attnscope.model.matmul import layer_uses_onednn, linear
from attnscope.model.positions import DisentangledBias, rotate

# positions that an MLP processes at a time, so that intermediate results stay in cache
_ROWS = 1024
ACTIVATION_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": F.relu,
    "silu": F.silu,
}
# oneDNN's names for them
_FUSED = {"gelu": ("gelu", "none"), "gelu_tanh": ("gelu", "tanh"), "relu": ("relu", "")}


class KeyValueCache:
    """Keys and values of every layer, for `length` tokens, so that a text grows without being computed again."""

    def __init__(self) -> None:
        self.length = 0
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def extend(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add the keys, (B, G, new, E), and values, (B, G, new, Ev), of new tokens to a layer; return those of all."""
        if layer in self._layers:
            before = self._layers[layer]
            k = torch.cat((before[0], k), dim=2)
            v = torch.cat((before[1], v), dim=2)
        self._layers[layer] = k, v
        return k, v


class _Unfilled(nn.Module):
    """A layer that leaves its weights as they are made: the checkpoint, or a seed, fills them."""

    def reset_parameters(self) -> None:
        """Do nothing."""


class Embedding(_Unfilled, nn.Embedding):
    """nn.Embedding, unfilled."""


class LayerNorm(_Unfilled, nn.LayerNorm):
    """nn.LayerNorm, unfilled."""


class Linear(_Unfilled, nn.Linear):
    """nn.Linear, unfilled, as fast as torch can."""

    def forward(self, input: Tensor, activation: str | None = None) -> Tensor:
        """Apply the layer as nn.Linear does, then a non-linearity, in oneDNN if it supports that."""
        # saves a pass over a wide tensor
        after = None
        if layer_uses_onednn(input, self.weight):
            after = _FUSED.get(activation or "")
        product = linear(input, self.weight, self.bias, after)
        if activation is None or after:
            return product
        return ACTIVATION_FUNCTIONS[activation](product)


class MLP(nn.Module):
    """down(act(up(x))), or if gated down(act(gate(x)) · up(x)) (Shazeer, 2020)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.activation = config.activation
        self.limit = config.glu_limit
        self.plus_one = config.glu_plus_one
        self.up = Linear(config.d_model, config.d_mlp, config.mlp_bias)
        self.gate = None
        if config.gated:
            self.gate = Linear(config.d_model, config.d_mlp, config.mlp_bias)
        self.down = Linear(config.d_mlp, config.d_model, config.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map (…, D) to (…, D)."""
        if self.gate is None:
            hidden = self.up(x, self.activation)  # (…, F)
        elif self.limit is None and not self.plus_one:
            hidden = self.gate(x, self.activation) * self.up(x)
        else:
            gate = self.gate(x)
            up = self.up(x)
            if self.limit is not None:
                gate = gate.clamp(max=self.limit)
                up = up.clamp(-self.limit, self.limit)
            hidden = ACTIVATION_FUNCTIONS[self.activation](gate) * (up + 1 if self.plus_one else up)
        return self.down(hidden)  # type: ignore[no-any-return]


class Experts(nn.Module):
    """Σ share · expert(x) over the experts with the highest logits for a token (Shazeer et al., 2017).

    Shares are the softmax of the chosen experts' logits, as in Mixtral (Jiang et al., 2024, section 2.1) and gpt-oss,
    or of all experts' logits (OLMoE: Muennighoff et al., 2024, equation 2).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.per_token = config.experts_per_token
        self.of_chosen = config.experts_share
        self.router = Linear(config.d_model, config.n_experts, config.router_bias)
        self.experts = nn.ModuleList(MLP(config) for _ in range(config.n_experts))

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, T, D) to (B, T, D)."""
        tokens = x.flatten(0, -2)  # (N, D)
        logits = self.router(tokens)  # (N, experts)
        best, expert_ids = logits.topk(self.per_token, dim=-1)  # (N, k) each
        shares: Tensor
        if self.of_chosen:
            shares = best.float().softmax(-1)
        else:
            shares = logits.float().softmax(-1).gather(-1, expert_ids)
        shares = shares.to(x.dtype)
        output = torch.zeros_like(tokens)
        for expert_id in expert_ids.unique().tolist():
            # whose it is, and which of their choices
            at, rank = (expert_ids == expert_id).nonzero(as_tuple=True)
            output.index_add_(0, at, self.experts[expert_id](tokens[at]) * shares[at, rank, None])
        return output.view_as(x)


class RMSNorm(nn.Module):
    """x / √(mean x² + ε) · weight, computed in float32 (Zhang and Sennrich, 2019); · (1 + weight) for Gemma."""

    def __init__(
        self, width: int, eps: float, *, plus_one: bool = False, wide: bool = False
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.eps = eps
        self.plus_one = plus_one
        self.wide = wide

    def forward(self, x: Tensor) -> Tensor:
        """Normalize the last dimension."""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        if self.plus_one or self.wide:
            return (wide * (self.weight.float() + self.plus_one)).to(x.dtype)
        return self.weight * wide.to(x.dtype)


def make_norm(config: ModelConfig, width: int | None = None) -> nn.Module:
    """Return a norm of the configured kind, over the model's width by default."""
    width = width or config.d_model
    if config.norm == "layernorm":
        return LayerNorm(width, config.norm_eps, bias=config.norm_bias)
    if config.norm == "none":
        return nn.Identity()
    return RMSNorm(width, config.norm_eps, plus_one=config.norm_plus_one, wide=config.norm_wide)


@dataclass(frozen=True)
class LayerContext:
    """Arguments of a block in addition to its input."""

    spec: AttentionSpec
    # cos and sin, (T, R) or (B, 1, T, R) each; None if nothing is rotated
    rotary: tuple[Tensor, Tensor] | None
    # hidden states of keys and values in cross-attention, (B, K, D); None in self-attention
    context: Tensor | None
    hooks: AttentionHooks
    # keys and values of the tokens before the block's input; None if there are none
    cache: KeyValueCache | None = None
    rows: Sequence[int] | None = None  # positions whose output is needed, ascending; None for all
    # vectors of distances, (2·span, D); None without disentangled scores
    distances: Tensor | None = None


class Attention(nn.Module):
    """Projections to queries, keys and values, attention itself (through the hooks), and the output projection."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.config = config
        d = config.d_model
        h = config.n_heads
        g = config.n_kv_heads
        bias = config.qkv_bias
        self.q = Linear(d, h * config.d_head, bias)
        self.k = Linear(d, g * config.d_head, bias)
        self.v = Linear(d, g * config.d_value, bias)
        self.whole = config.qk_norm == "whole"
        self.q_norm = None
        self.k_norm = None
        if config.qk_norm:
            self.q_norm = make_norm(config, config.d_head * (h if self.whole else 1))
            self.k_norm = make_norm(config, config.d_head * (g if self.whole else 1))
        self.out = None
        if config.out_projection:
            self.out = Linear(h * config.d_value, d, config.out_bias)
        self.sinks = nn.Parameter(torch.empty(h)) if config.sinks else None
        table = config.disentangled
        self.distance_k = self.distance_q = None
        if table is not None and not table.shared:
            self.distance_k = Linear(d, h * config.d_head) if table.content_position else None
            self.distance_q = Linear(d, h * config.d_head) if table.position_content else None

    def forward(self, x: Tensor, setting: LayerContext) -> Tensor | None:
        """Map (B, Q, D) to (B, rows, D), or (B, rows, H·Ev) without `out`; None after the last recorded layer."""
        out_weight = None if self.out is None else self.out.weight
        if self.sinks is None:
            spec = setting.spec
        else:
            spec = replace(setting.spec, sinks=self.sinks)
        q, k, v = self._project_qkv(x, setting)
        if setting.cache is not None:
            k, v = setting.cache.extend(self.layer, k, v)
        if setting.distances is not None:
            start = 0 if setting.cache is None else k.shape[2] - q.shape[2]
            spec = replace(
                spec,
                bias=self._disentangled(q, k, setting.distances, start),
                bias_name="disentangled",
            )
        heads = setting.hooks.attend(AttentionInputs(self.layer, q, k, v, spec, out_weight))
        if heads is None:
            return None
        attended = heads if setting.rows is None else heads[:, :, setting.rows]
        out = self.out

        def project(rows: slice) -> Tensor:
            joined = attended[:, :, rows].transpose(1, 2).flatten(2)  # (B, rows, H·Ev)
            return joined if out is None else out(joined)

        return map_rows(project, attended.shape[0], attended.shape[2])

    def _disentangled(
        self, q: Tensor, k: Tensor, distances: Tensor, start: int
    ) -> DisentangledBias:
        """Return the scores of queries and keys with distances, (2·span, D)."""
        c = self.config
        table = self.config.disentangled
        assert table is not None

        def project(module: Linear | None) -> Tensor:
            # not by calling the module, whose hooks expect tokens
            assert module is not None
            projected = linear(distances, module.weight, module.bias)
            return projected.view(-1, c.n_heads, c.d_head).transpose(0, 1)  # (H, 2·span, E)

        keys = self.k if table.shared else self.distance_k
        queries = self.q if table.shared else self.distance_q
        distance_k = project(keys) if table.content_position else None
        distance_q = project(queries) if table.position_content else None
        return DisentangledBias(table, c.attention_scale, q, k, distance_k, distance_q, start)

    def _project_qkv(self, x: Tensor, setting: LayerContext) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, (B, H, Q, E), (B, G, K, E) and (B, G, K, Ev)."""
        c = self.config
        source = x if setting.context is None else setting.context  # (B, K, D)
        # (B, Q, H·E), (B, K, G·E)
        q = self.q(x)
        k = self.k(source)
        if self.whole and self.q_norm is not None and self.k_norm is not None:
            q = self.q_norm(q)
            k = self.k_norm(k)
        q = q.unflatten(-1, (c.n_heads, c.d_head)).transpose(1, 2)
        k = k.unflatten(-1, (c.n_kv_heads, c.d_head)).transpose(1, 2)
        v = self.v(source).unflatten(-1, (c.n_kv_heads, c.d_value)).transpose(1, 2)
        if not self.whole and self.q_norm is not None and self.k_norm is not None:
            q = self.q_norm(q)
            k = self.k_norm(k)
        if setting.rotary is not None:
            # One after the other, so that at most one of them is in memory twice.
            q = rotate(q, *setting.rotary, interleaved=c.rope.interleaved)
            k = rotate(k, *setting.rotary, interleaved=c.rope.interleaved)
        return q, k, v


class TransformerBlock(nn.Module):
    """Attention and MLP with their norms and residuals, in the configured order."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.config = config
        self.attention = Attention(config, layer)
        self.mlp = (Experts(config) if config.n_experts else MLP(config)) if config.d_mlp else None
        before = config.norm_order != "output"
        after = config.norm_order in ("output", "sandwich")
        if before and (layer or config.first_norm):
            self.norm_attention = make_norm(config)
        else:
            self.norm_attention = nn.Identity()
        self.norm_attention_out = make_norm(config) if after else nn.Identity()
        own_norm = before and not config.shared_norm
        self.norm_mlp: nn.Module | None = None
        if self.mlp is not None:
            self.norm_mlp = make_norm(config) if own_norm else nn.Identity()
        self.norm_mlp_out = make_norm(config) if after and self.mlp is not None else nn.Identity()

    def forward(self, x: Tensor, setting: LayerContext) -> Tensor | None:
        """Map (B, T, D) to (B, rows, D); None after the last recorded layer."""
        post = self.config.norm_order == "post"
        attended = self.attention(x if post else self.norm_attention(x), setting)
        if attended is None:
            return None
        attended = self._scaled(self.norm_attention_out(attended))
        x = x if setting.rows is None else x[:, setting.rows]
        middle = x + attended if self.config.residual else attended
        if post:
            middle = self.norm_attention(middle)
        if self.mlp is None or self.norm_mlp is None:
            return middle
        mlp = self.mlp
        norm = self.norm_attention if self.config.shared_norm else self.norm_mlp
        source = x if self.config.parallel else middle

        def change(rows: slice) -> Tensor:
            changed = self._scaled(
                self.norm_mlp_out(mlp(source[:, rows] if post else norm(source[:, rows])))
            )
            result = middle[:, rows] + changed if self.config.residual else changed
            return norm(result) if post else result

        return map_rows(change, middle.shape[0], middle.shape[1])

    def _scaled(self, added: Tensor) -> Tensor:
        scale = self.config.residual_scale
        return added if scale is None else added * scale


def map_rows(work: Callable[[slice], Tensor], batch: int, n: int) -> Tensor:
    """Apply `work` to n positions, (B, n, D), some at a time to bound its memory."""
    step = max(1, _ROWS // batch)
    if n <= step:
        return work(slice(0, n))
    first_part = work(slice(0, step))  # (B, step, D)
    output = first_part.new_empty(batch, n, first_part.shape[-1])
    output[:, :step] = first_part
    for start in range(step, n, step):
        output[:, start : start + step] = work(slice(start, start + step))
    return output
