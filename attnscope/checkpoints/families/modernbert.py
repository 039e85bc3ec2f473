"""ModernBERT (Warner et al., 2024): bidirectional, pre-norm, rotary, gated; two of three layers have a window."""

from collections.abc import Mapping
from typing import Any

from attnscope.checkpoints.families.reader import ConfigReader
from attnscope.checkpoints.families.rope import typed_rope
from attnscope.checkpoints.families.spec import (
    HALVES,
    HEADS,
    SIZES,
    Computed,
    Family,
    Head,
    Outside,
    activation,
    chunks,
    copy_of,
    key,
)
from attnscope.checkpoints.families.windows import by_layer

_LAYER = "layers.{l}"
_EVERY = "global_attn_every_n_layers"
_WIDTH = "local_attention"
_WINDOWS = by_layer(
    lambda reader, layer: layer % reader.whole(_EVERY, default=3) > 0,
    _EVERY,
)


def _windows(reader: ConfigReader, done: Mapping[str, Any]) -> Any:
    """Read windows that hold half of `local_attention` to each side."""
    side = reader.whole(_WIDTH, least=2) // 2 + 1
    return _WINDOWS.rule(ConfigReader({**reader.raw, "sliding_window": side}, reader.where), done)


MODERNBERT = Family(
    name="modernbert",
    config={
        **SIZES,
        **HEADS,
        "mask": "bidirectional",
        "windows": Computed(_windows, (_WIDTH, _EVERY, "layer_types")),
        "qkv_bias": key("attention_bias", default=False),
        "out_bias": copy_of("qkv_bias"),
        "positions": "rope",
        "rope": typed_rope("full_attention", 1.6e5, rope_theta="global_rope_theta", rope_scaling="rope_scaling"),
        "rope_local": typed_rope("sliding_attention", 1e4, rope_theta="local_rope_theta", rope_scaling="rope_scaling"),
        "embedding_norm": True,
        "norm_eps": key("norm_eps", default=1e-5),
        "norm_bias": key("norm_bias", default=False),
        "first_norm": False,
        "activation": activation("hidden_activation"),
        "gated": True,
        "mlp_bias": key("mlp_bias", default=False),
    },
    modules={
        "embed.tokens": "embeddings.tok_embeddings",
        "embed.norm": "embeddings.norm",
        "blocks.{l}.norm_attention": f"{_LAYER}.attn_norm",
        **chunks(f"{_LAYER}.attn.Wqkv"),
        "blocks.{l}.attention.out": f"{_LAYER}.attn.Wo",
        "blocks.{l}.norm_mlp": f"{_LAYER}.mlp_norm",
        **chunks(f"{_LAYER}.mlp.Wi", "mlp", HALVES),
        "blocks.{l}.mlp.down": f"{_LAYER}.mlp.Wo",
    },
    prefixes=("", "model."),
    requires={"position_embedding_type": "absolute", "decoder_bias": True},
    inert=frozenset("attention_dropout classifier_dropout classifier_pooling cls_token_id deterministic_flash_attn "
                    "embedding_dropout initializer_cutoff_factor layer_norm_eps mlp_dropout reference_compile "
                    "repad_logits_with_grad sparse_pred_ignore_index sparse_prediction".split()),
    leftover=(r"(final_norm|head|decoder|classifier)\..*",),
    head=Head(
        {
            "head": Outside("decoder"),
            "head.norm": "final_norm",
            "head.transform": Outside("head.dense"),
            "head.transform_norm": Outside("head.norm"),
            "head.decoder": Outside("decoder"),
        },
        {
            "transform": activation("classifier_activation"),
            "transform_bias": key("classifier_bias", default=False),
        },
    ),
)  # fmt: skip
