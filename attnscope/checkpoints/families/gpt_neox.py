"""GPT-NeoX (Black et al., 2022), as in Pythia: part of each head rotated, attention and MLP in parallel."""

from attnscope.checkpoints.families.rope import rope
from attnscope.checkpoints.families.spec import (
    HEADS,
    SIZES,
    Family,
    Head,
    Outside,
    activation,
    chunks,
    copy_of,
    key,
)

_LAYER = "layers.{l}"

GPT_NEOX = Family(
    name="gpt_neox",
    config={
        **SIZES,
        **HEADS,
        "qkv_bias": key("attention_bias", default=True),
        "out_bias": copy_of("qkv_bias"),
        "positions": "rope",
        "rope": rope(
            theta="rotary_emb_base",
            fraction="rotary_pct",
            full=0.25,
            unread=("rope_theta", "partial_rotary_factor"),
        ),
        "norm_eps": key("layer_norm_eps", default=1e-5),
        "parallel": key("use_parallel_residual", default=True),
        "activation": activation("hidden_act"),
        "mlp_bias": True,
    },
    modules={
        "embed.tokens": "embed_in",
        "blocks.{l}.norm_attention": f"{_LAYER}.input_layernorm",
        **chunks(f"{_LAYER}.attention.query_key_value", per_group=True),
        "blocks.{l}.attention.out": f"{_LAYER}.attention.dense",
        "blocks.{l}.norm_mlp": f"{_LAYER}.post_attention_layernorm",
        "blocks.{l}.mlp.up": f"{_LAYER}.mlp.dense_h_to_4h",
        "blocks.{l}.mlp.down": f"{_LAYER}.mlp.dense_4h_to_h",
    },
    prefixes=("", "gpt_neox."),
    inert=frozenset(
        "attention_dropout hidden_dropout classifier_dropout attention_probs_dropout_prob hidden_dropout_prob".split()
    ),
    leftover=(
        r"layers\.\d+\.attention\.((masked_)?bias|rotary_emb\.inv_freq)",
        r"(final_layer_norm|embed_out|lm_head|score|classifier|qa_outputs)\..*",
    ),
    head=Head(
        {
            "head.norm": "final_layer_norm",
            "head.decoder": (Outside("embed_out"), Outside("lm_head")),
        }
    ),
)
