"""Llama (Touvron et al., 2023): causal, pre-RMSNorm, rotary positions, grouped queries, gated MLP."""

from attnscope.checkpoints.families.rope import rope
from attnscope.checkpoints.families.spec import (
    HEAD_WIDTH,
    SIZES,
    Family,
    activation,
    copy_of,
    key,
    lm_head,
)

_LAYER = "layers.{l}"
# of families that are made of Llama
QK_NORMS = {
    f"blocks.{{l}}.attention.{name}_norm": f"{_LAYER}.self_attn.{name}_norm" for name in "qk"
}

LLAMA = Family(
    name="llama",
    config={
        **SIZES,
        "n_kv_heads": key("num_key_value_heads", default=copy_of("n_heads")),
        "d_head": key("head_dim", default=HEAD_WIDTH),
        "d_value": copy_of("d_head"),
        "qkv_bias": key("attention_bias", default=False),
        "out_bias": copy_of("qkv_bias"),
        "positions": "rope",
        "rope": rope(),
        "norm": "rmsnorm",
        "norm_eps": key("rms_norm_eps", default=1e-6),
        "activation": activation("hidden_act", "silu"),
        "gated": True,
        "mlp_bias": key("mlp_bias", default=False),
    },
    modules={
        "embed.tokens": "embed_tokens",
        "blocks.{l}.norm_attention": f"{_LAYER}.input_layernorm",
        "blocks.{l}.attention.q": f"{_LAYER}.self_attn.q_proj",
        "blocks.{l}.attention.k": f"{_LAYER}.self_attn.k_proj",
        "blocks.{l}.attention.v": f"{_LAYER}.self_attn.v_proj",
        "blocks.{l}.attention.out": f"{_LAYER}.self_attn.o_proj",
        "blocks.{l}.norm_mlp": f"{_LAYER}.post_attention_layernorm",
        "blocks.{l}.mlp.gate": f"{_LAYER}.mlp.gate_proj",
        "blocks.{l}.mlp.up": f"{_LAYER}.mlp.up_proj",
        "blocks.{l}.mlp.down": f"{_LAYER}.mlp.down_proj",
    },
    prefixes=("", "model.", "transformer."),
    requires={"rope_interleaved": False},
    inert=frozenset(
        {"attention_dropout", "pretraining_tp", "is_llama_config", "max_sequence_length"}
    ),
    leftover=(
        r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq",
        r"(norm|lm_head|score|classifier|qa_outputs)\..*",
    ),
    head=lm_head("norm"),
)
