"""Gemma 2 (Riviere et al., 2024): soft-capped scores, a scale of its own, every other layer windowed, more norms."""

from collections.abc import Mapping
from typing import Any

from attnscope.checkpoints.families.llama import LLAMA
from attnscope.checkpoints.families.reader import ConfigReader
from attnscope.checkpoints.families.spec import Computed, activation, key, lm_head
from attnscope.checkpoints.families.windows import by_layer


def _softcap(name: str) -> Computed:
    """Read a cap; null, in the file or as the reference's default, means none."""

    def read(reader: ConfigReader, _: Mapping[str, Any]) -> float | None:
        values = {**reader.defaults, **reader.raw}
        if name in values and values[name] is None:
            return None
        return float(reader.number(name))

    return Computed(read, (name,))


GEMMA2 = LLAMA.variant(
    "gemma2",
    {
        "n_kv_heads": key("num_key_value_heads"),
        "d_head": key("head_dim"),
        "windows": by_layer(lambda _, layer: layer % 2 == 0),
        "scale": Computed(
            lambda reader, _: reader.number("query_pre_attn_scalar") ** -0.5,
            ("query_pre_attn_scalar",),
        ),
        "softcap": _softcap("attn_logit_softcapping"),
        "embedding_scale": Computed(lambda _, done: done["d_model"] ** 0.5),
        "norm_plus_one": True,
        "norm_order": "sandwich",
        "activation": activation("hidden_activation", "gelu_pytorch_tanh"),
        "mlp_bias": False,
    },
    modules={
        "blocks.{l}.norm_attention_out": "layers.{l}.post_attention_layernorm",
        "blocks.{l}.norm_mlp": "layers.{l}.pre_feedforward_layernorm",
        "blocks.{l}.norm_mlp_out": "layers.{l}.post_feedforward_layernorm",
    },
    requires={"use_bidirectional_attention": False},
    inert=frozenset({"attention_dropout", "hidden_act", "sliding_window_size"}),
    head=lm_head("norm", softcap=_softcap("final_logit_softcapping")),
)
