"""Falcon (Almazrouei et al., 2023): causal, attention beside the MLP, few key/value heads; old and new decoders."""

from collections.abc import Mapping
from typing import Any

from attnscope.checkpoints.families.reader import ConfigReader
from attnscope.checkpoints.families.rope import rope
from attnscope.checkpoints.families.spec import (
    FOUR_WIDTHS,
    HEADS,
    SIZES,
    Computed,
    Family,
    activation,
    chunks,
    key,
    lm_head,
)

_LAYER = "h.{l}"
_NEW = "new_decoder_architecture"


def _groups(reader: ConfigReader, done: Mapping[str, Any]) -> Any:
    if not reader.flag(_NEW, default=False) and reader.flag("multi_query", default=True):
        return 1
    return reader.get("num_kv_heads", default=done["n_heads"])


def _parallel(reader: ConfigReader, _: Mapping[str, Any]) -> bool:
    parallel = reader.flag("parallel_attn", default=True)
    if reader.flag(_NEW, default=False) and not parallel:
        raise reader.wrong("parallel_attn", False, f"true with {_NEW}")
    return parallel


def _shares_norm(reader: ConfigReader, done: Mapping[str, Any]) -> bool:
    two = 2 if reader.flag(_NEW, default=False) else 1
    return bool(done["parallel"]) and reader.get("num_ln_in_parallel_attn", default=two) != 2


FALCON = Family(
    name="falcon",
    config={
        **SIZES,
        **HEADS,
        "n_kv_heads": Computed(_groups, (_NEW, "multi_query", "num_kv_heads")),
        "d_mlp": key("ffn_hidden_size", default=FOUR_WIDTHS),
        "max_positions": key("max_position_embeddings", default=2048),
        "qkv_bias": key("bias", default=False),
        "out_bias": key("bias", default=False),
        "positions": "rope",
        "rope": rope(),
        "norm_eps": key("layer_norm_epsilon", default=1e-5),
        "parallel": Computed(_parallel, ("parallel_attn",)),
        "shared_norm": Computed(_shares_norm, ("num_ln_in_parallel_attn",)),
        "activation": activation("activation"),
        "mlp_bias": key("bias", default=False),
    },
    modules={
        "embed.tokens": "word_embeddings",
        "blocks.{l}.norm_attention": (f"{_LAYER}.ln_attn", f"{_LAYER}.input_layernorm"),
        **chunks(f"{_LAYER}.self_attention.query_key_value", per_group=True),
        "blocks.{l}.attention.out": f"{_LAYER}.self_attention.dense",
        "blocks.{l}.norm_mlp": (f"{_LAYER}.ln_mlp", f"{_LAYER}.post_attention_layernorm"),
        "blocks.{l}.mlp.up": f"{_LAYER}.mlp.dense_h_to_4h",
        "blocks.{l}.mlp.down": f"{_LAYER}.mlp.dense_4h_to_h",
    },
    prefixes=("", "transformer."),
    # with it, transformers adds the bias once under sdpa and twice under eager
    requires={"alibi": False},
    inert=frozenset(
        {"attention_dropout", "hidden_dropout", "apply_residual_connection_post_layernorm"}
    ),
    leftover=(
        r"h\.\d+\.self_attention\.rotary_emb\.inv_freq",
        r"(ln_f|lm_head|score|classifier|qa_outputs)\..*",
    ),
    head=lm_head("ln_f"),
    upstreamed=True,
)
