"""ModelConfig: a transformer stack as strict data. Never imports torch."""

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from attnscope.base.errors import AttnscopeError
from attnscope.base.layer_kinds import LayerPaths, attends

# what float32 holds, and so do products of two of them
Positive = Annotated[float, msgspec.Meta(ge=1e-30, le=1e30)]


class RopeScaling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How rotary frequencies are stretched for texts longer than those trained on."""

    # `linear` (Chen et al., 2023), `llama3` (Llama 3.1 release), `yarn` (Peng et al., 2023) or `longrope` (Ding et al.,
    # 2024)
    kind: Literal["linear", "llama3", "yarn", "longrope"]
    factor: Positive  # ratio of the new length to the old
    # the length trained on (`llama3`, `yarn`, `longrope`)
    original_max_positions: Annotated[int, msgspec.Meta(ge=1, le=1 << 62)] | None = None
    # `llama3`: wavelengths above original/low are divided by `factor`
    low_freq_factor: Positive = 1.0
    high_freq_factor: Positive = 4.0  # `llama3`: wavelengths below original/high are kept
    # `yarn`: rotations over the original length above which a frequency is kept
    beta_fast: Positive = 32.0
    beta_slow: Positive = 1.0  # `yarn`: rotations below which it is divided by `factor`
    # `yarn`, `longrope`: factor on cos and sin; None for 0.1·ln(factor) + 1, or for √(1 + ln(factor) /
    # ln(original_max_positions))
    attention_factor: Positive | None = None
    truncate: bool = True  # `yarn`: round the bounds of the ramp to whole dimensions
    # `longrope`: divisor of each frequency in texts of up to the length trained on
    short_factors: tuple[Positive, ...] = ()
    long_factors: tuple[Positive, ...] = ()  # `longrope`: the same in longer texts


class Rope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rotary positions (Su et al., 2021)."""

    theta: Positive = 10000.0  # base of the frequencies theta^(−2i/width)
    # share of each head's width that is rotated
    fraction: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    scaling: RopeScaling | None = None  # stretching for long texts; None for none
    # the numbers of a rotated pair are neighbours (Cohere, GLM), not half a width apart
    interleaved: bool = False


def rotated_pairs(width: int, *, interleaved: bool) -> tuple[slice, slice]:
    """Return where the first and the second numbers of the rotated pairs are in a head."""
    half = width // 2
    if interleaved:
        return slice(0, width, 2), slice(1, width, 2)
    return slice(half), slice(half, width)


Size = Annotated[int, msgspec.Meta(ge=1, le=1 << 62)]  # what torch can count to


class RelativeBias(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A learned number for each head and bucket of distances, added to the scaled scores (T5: Raffel et al., 2020)."""

    # half of them for keys after the query
    buckets: Annotated[int, msgspec.Meta(ge=4, le=1 << 20)] = 32
    # distance from which on all share a bucket
    max_distance: Annotated[int, msgspec.Meta(ge=4, le=1 << 40)] = 128


class Disentangled(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Scores of content with distances, added to those of content with content (DeBERTa: He et al., 2021)."""

    # distances from −span to span − 1 have a vector each, which all layers share; farther ones are clamped
    span: Size
    # distances beyond half of the span are put into `span` logarithmically growing buckets up to this; None for none
    max_distance: Annotated[int, msgspec.Meta(ge=2, le=1 << 40)] | None = None
    content_position: bool = True  # the query with a key made of the distance
    position_content: bool = True  # a query made of the distance with the key
    # distances are projected by the layer's own projections of queries and keys
    shared: bool = False
    norm: bool = False  # distances are normed first


Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
# number of different windows up to which all are listed; otherwise only the smallest and largest are
_NAMED = 8
Activation = Literal["gelu", "gelu_tanh", "relu", "silu", "quick_gelu"]


class OutputHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the last block's hidden states become logits over the vocabulary."""

    norm: bool = True  # hidden states are normed first (the final norm of a pre-norm stack)
    # non-linearity of a dense layer followed by a norm (BERT); None if there is no such layer
    transform: Activation | None = None
    transform_bias: bool = True  # that layer has a bias
    tied: bool = True  # the output matrix is the token embedding, not a separate one
    bias: bool = False
    scale: Positive | None = None  # factor on the logits (Cohere, Granite); None for 1
    softcap: Positive | None = None  # c of c·tanh(x/c) on the logits; None for none
    predicts: bool = True  # the head gives logits; False if the weights hold only the final norm


class ModelConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A transformer stack as data; families and TOML files are both converted to it."""

    vocab_size: Size
    d_model: Size
    n_layers: Size
    n_heads: Size
    n_kv_heads: Size  # key/value heads; each serves n_heads / n_kv_heads query heads
    d_head: Size
    d_value: Size
    d_mlp: Count = 0  # hidden width of the MLP; 0 where there is none
    # largest number of tokens that the model takes; None if there is no limit
    max_positions: Size | None = None
    mask: str = "causal"  # mask expression of every layer, such as `causal`
    # per layer, N of an additional `window:N`, or None; empty if no layer has one
    windows: tuple[Size | None, ...] = ()
    scale: float | None = None  # factor on q·k; None for 1/√d_head
    # c of c·tanh(x/c) on the scaled scores; None for none
    softcap: Annotated[float, msgspec.Meta(gt=0)] | None = None
    qkv_bias: bool = False
    out_bias: bool = False
    # a logit per head takes part in the softmax and belongs to no key (gpt-oss)
    sinks: bool = False
    # queries and keys are normed before positions are applied, per head or all heads as a `whole`
    qk_norm: bool | Literal["whole"] = False
    out_projection: bool = True
    # keys and values come from a second text (`--context`), embedded once, in every layer
    cross_attention: bool = False
    positions: Literal["none", "learned", "sinusoidal", "rope", "alibi"] = "none"
    position_offset: Count = 0  # first row of the learned position table that is used
    # id of a token that takes this row of the position table and is not counted (RoBERTa); None for none
    padding_id: Count | None = None
    rope: Rope = Rope()  # rotary parameters, if positions is `rope`
    # rotary parameters of the layers with a window, if they differ; otherwise None
    rope_local: Rope | None = None
    # whether each layer uses positions, if positions is `rope`; empty if all do
    rope_layers: tuple[bool, ...] = ()
    # a learned bias by distance, shared by all layers; None for none
    relative_bias: RelativeBias | None = None
    # scores of content with distances (DeBERTa); None for none
    disentangled: Disentangled | None = None
    n_segments: Count = 0  # rows of the segment embedding; 0 where there is none
    embedding_norm: bool = False
    embedding_scale: float | None = None  # factor on the token embedding; None for 1
    # kind of norm; `none` leaves it out everywhere
    norm: Literal["layernorm", "rmsnorm", "none"] = "layernorm"
    norm_eps: Annotated[float, msgspec.Meta(ge=0)] = 1e-5
    norm_bias: bool = True  # a LayerNorm has a bias
    norm_plus_one: bool = False  # RMSNorm multiplies by 1 + weight (Gemma)
    # RMSNorm multiplies by its weight before it rounds to the model's type (OLMo 2, gpt-oss)
    norm_wide: bool = False
    # `pre` norms what goes into attention and MLP, `post` norms after the residual sum, `output` what comes out before
    # it, `sandwich` what goes in and what comes out
    norm_order: Literal["pre", "post", "output", "sandwich"] = "pre"
    # what enters attention in layer 0 is normed as in the others (not in ModernBERT)
    first_norm: bool = True
    residual: bool = True
    # factor on what attention and MLP add (Granite); None for 1
    residual_scale: Positive | None = None
    parallel: bool = False  # attention and MLP read the same input (GPT-NeoX)
    # attention and MLP read it after one norm, not after a norm each (Falcon)
    shared_norm: bool = False
    activation: Activation = "gelu"
    gated: bool = False  # the MLP multiplies two branches (GLU)
    # bound of those branches: of the activated one from above, of the other on both sides; None for no bound
    glu_limit: Annotated[float, msgspec.Meta(gt=0, le=1e38)] | None = None
    glu_plus_one: bool = False  # 1 is added to the branch that is not activated (gpt-oss)
    mlp_bias: bool = False
    # number of MLPs in a layer, of which a router chooses some for each token; 0 for a single MLP
    n_experts: Count = 0
    experts_per_token: Count = 0  # number of experts that the router chooses for each token
    experts_share: bool = True  # the weights of the chosen experts sum to 1 (not in OLMoE)
    router_bias: bool = False
    # the final norm and the output head; None if the weights hold neither
    head: OutputHead | None = None
    # the kinds of each layer's paths (layer_kinds.LAYER_KINDS); empty if every layer is one path of attention
    layer_kinds: tuple[LayerPaths, ...] = ()

    @property
    def attention_scale(self) -> float:
        """Factor from scores to scaled."""
        return self.d_head**-0.5 if self.scale is None else self.scale

    @property
    def rotary_width(self) -> int:
        """Number of rotated dimensions of each head, if positions is `rope`."""
        return int(self.d_head * self.rope.fraction)

    @property
    def layer_map(self) -> tuple[LayerPaths, ...]:
        """The kinds of the paths of every layer."""
        if self.layer_kinds:
            return self.layer_kinds
        windows = self.windows or (None,) * self.n_layers
        return tuple(("softmax",) if window is None else ("window",) for window in windows)

    @property
    def attention_layers(self) -> Sequence[int]:
        """The layers with attention over tokens, ascending."""
        if not self.layer_kinds:
            return range(self.n_layers)
        return [layer for layer, paths in enumerate(self.layer_kinds) if attends(paths)]

    def norms_input(self, layer: int) -> bool:
        """Tell whether a norm stands between the residual stream and the queries of a layer."""
        return (
            self.norm != "none"
            and self.norm_order in ("pre", "sandwich")
            and (layer > 0 or self.first_norm)
        )

    def rope_of(self, layer: int) -> Rope | None:
        """Return the rotary parameters of one layer; None if it rotates nothing."""
        if self.positions != "rope" or (self.rope_layers and not self.rope_layers[layer]):
            return None
        if self.rope_local and self.windows and self.windows[layer]:
            return self.rope_local
        return self.rope

    @property
    def score_mod(self) -> str | None:
        """Name of the Python function that changes scores; None for none."""
        return None

    def mask_of(self, layer: int) -> str:
        """Return the mask expression of one layer."""
        return within_window(self.mask, self.windows[layer] if self.windows else None)

    def count_windows(self, n_layers: int) -> Counter[int | None]:
        """Count the first `n_layers` layers by their window, in constant time if none has one."""
        if self.windows:
            return Counter(self.windows[:n_layers])
        return Counter({None: n_layers})

    def masks_of(self, n_layers: int) -> frozenset[str]:
        """List the different mask expressions of the first `n_layers` layers."""
        return frozenset(
            within_window(self.mask, window) for window in self.count_windows(n_layers)
        )

    def describe_mask(self) -> str:
        """Return every layer's mask: one expression, or how many layers also have a window."""
        layers = self.count_windows(self.n_layers)
        if len(layers) == 1:
            return within_window(self.mask, next(iter(layers)))
        sizes = sorted(size for size in layers if size is not None)
        if len(sizes) <= _NAMED:
            size_text = "/".join(map(str, sizes))
        else:
            size_text = f"{sizes[0]}…{sizes[-1]}"
        return f"{self.mask}, with window:{size_text} in {self.n_layers - layers[None]} of {self.n_layers} layers"


def within_window(mask: str, window: int | None) -> str:
    """Return a mask expression narrowed to a window of that size; None for no window.

    `+` binds more tightly than `|`, so that alternatives are put in parentheses.
    """
    if window is None:
        return mask
    if mask == "bidirectional":
        return f"window:{window}"
    if "|" in mask:
        return f"({mask})+window:{window}"
    return f"{mask}+window:{window}"


def check_sizes(config: ModelConfig, where: str) -> None:
    """Refuse sizes that contradict each other."""
    if config.n_heads % config.n_kv_heads:
        message = f"n_heads is {config.n_heads}, but n_kv_heads is {config.n_kv_heads}"
        raise AttnscopeError(message, where=where, hint="n_heads must be a multiple of n_kv_heads")
    if config.shared_norm and not (config.parallel and config.norm_order == "pre"):
        message = "shared_norm is true, but attention and MLP do not read the same input"
        raise AttnscopeError(
            message, where=where, hint='set parallel = true and norm_order = "pre"'
        )
    biases = {
        "alibi": config.positions == "alibi",
        "relative_bias": config.relative_bias,
        "disentangled": config.disentangled,
    }
    set_names = [name for name, bias in biases.items() if bias]
    if len(set_names) > 1:
        raise AttnscopeError(
            f"{' and '.join(set_names)} are set", where=where, hint="choose one of these biases"
        )
    if config.positions == "rope" and config.rotary_width % 2:
        message = f"rotary width {config.rotary_width} is odd"
        raise AttnscopeError(message, where=where, hint="d_head × rope.fraction must be even")
    for rope in (config.rope, config.rope_local):
        check_scaling(rope, config.d_head, where)
    if config.windows and len(config.windows) != config.n_layers:
        message = f"{len(config.windows)} windows for {config.n_layers} layers"
        raise AttnscopeError(message, where=where, hint="give one window per layer")
    if config.rope_layers and len(config.rope_layers) != config.n_layers:
        message = f"rope_layers has {len(config.rope_layers)} values for {config.n_layers} layers"
        raise AttnscopeError(message, where=where, hint="give one value per layer")
    if (
        bool(config.n_experts) != bool(config.experts_per_token)
        or config.experts_per_token > config.n_experts
    ):
        message = (
            f"n_experts is {config.n_experts}, but experts_per_token is {config.experts_per_token}"
        )
        hint = "n_experts must be at least experts_per_token; set both, or neither"
        raise AttnscopeError(message, where=where, hint=hint)
    if config.n_experts and not config.d_mlp:
        message = f"n_experts is {config.n_experts}, but d_mlp is not set"
        raise AttnscopeError(
            message, where=where, hint="set d_mlp, the hidden width of each expert"
        )


def check_scaling(rope: Rope | None, d_head: int, where: str) -> None:
    """Refuse stretched rotary positions whose formula divides by zero or lacks a number."""
    scaling = None if rope is None else rope.scaling
    if rope is None or scaling is None or scaling.kind == "linear":
        return
    if scaling.original_max_positions is None:
        message = f"rotary scaling '{scaling.kind}' has no original_max_positions"
        raise AttnscopeError(
            message, where=where, hint="set it to the length the model was trained on"
        )
    if scaling.kind == "longrope":
        pairs = int(d_head * rope.fraction) // 2
        for name, factors in (
            ("short_factors", scaling.short_factors),
            ("long_factors", scaling.long_factors),
        ):
            if len(factors) != pairs:
                message = f"rotary scaling 'longrope' has {len(factors)} {name}"
                raise AttnscopeError(
                    message, where=where, hint=f"expected {pairs}, one for each rotated pair"
                )
        if scaling.original_max_positions == 1:
            message = (
                "LongRoPE cannot scale rotary positions of a model that was trained on one token"
            )
            raise AttnscopeError(
                message, where=where, hint="set original_max_positions to the length trained on"
            )
    if scaling.kind == "yarn" and rope.theta == 1:
        hint = "use a value such as 10000"
        raise AttnscopeError(
            "YaRN cannot scale rotary positions with theta 1", where=where, hint=hint
        )
    if scaling.kind == "llama3" and scaling.low_freq_factor >= scaling.high_freq_factor:
        message = f"low_freq_factor {scaling.low_freq_factor:g} is not below high_freq_factor {scaling.high_freq_factor:g}"
        raise AttnscopeError(message, where=where, hint="use values such as 1 and 4")
