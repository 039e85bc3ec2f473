"""T5's encoder (Raffel et al., 2020): bidirectional, unscaled scores, and a learned bias by distance."""

from collections.abc import Mapping
from typing import Any

from attnscope.base.model_config import RelativeBias
from attnscope.checkpoints.families.reader import ConfigReader
from attnscope.checkpoints.families.spec import ACTIVATIONS, Computed, Family, Head, copy_of, key

_PROJECTION = "feed_forward_proj"
_BLOCK = "encoder.block.{l}.layer"
_BUCKETS = "relative_attention_num_buckets"
_FURTHEST = "relative_attention_max_distance"


def _activation(reader: ConfigReader, _: Mapping[str, Any]) -> str:
    name = str(reader.get(_PROJECTION, default="relu"))
    name = "gelu_new" if name == "gated-gelu" else name.removeprefix("gated-")
    if name not in ACTIVATIONS:
        raise reader.wrong(
            _PROJECTION, reader.raw[_PROJECTION], "relu, gated-gelu or another known activation"
        )
    return ACTIVATIONS[name]


T5 = Family(
    name="t5",
    config={
        "vocab_size": key("vocab_size"),
        "d_model": key("d_model"),
        "n_layers": key("num_layers"),
        "n_heads": key("num_heads"),
        "n_kv_heads": copy_of("n_heads"),
        "d_head": key("d_kv"),
        "d_value": copy_of("d_head"),
        "d_mlp": key("d_ff"),
        "mask": "bidirectional",
        "scale": 1.0,
        "relative_bias": Computed(
            lambda reader, _: RelativeBias(reader.get(_BUCKETS, default=32), reader.get(_FURTHEST, default=128)),
            (_BUCKETS, _FURTHEST),
        ),
        "norm": "rmsnorm",
        "norm_eps": key("layer_norm_epsilon", default=1e-6),
        "activation": Computed(_activation, (_PROJECTION,)),
        "gated": Computed(
            lambda reader, _: str(reader.get(_PROJECTION, default="relu")).startswith("gated-"), (_PROJECTION,)
        ),
    },
    modules={
        "embed.tokens": "shared",
        "embed.relative_bias": "encoder.block.0.layer.0.SelfAttention.relative_attention_bias",
        "blocks.{l}.norm_attention": f"{_BLOCK}.0.layer_norm",
        **{f"blocks.{{l}}.attention.{part}": f"{_BLOCK}.0.SelfAttention.{part}" for part in "qkv"},
        "blocks.{l}.attention.out": f"{_BLOCK}.0.SelfAttention.o",
        "blocks.{l}.norm_mlp": f"{_BLOCK}.1.layer_norm",
        "blocks.{l}.mlp.gate": f"{_BLOCK}.1.DenseReluDense.wi_0",
        "blocks.{l}.mlp.up": (f"{_BLOCK}.1.DenseReluDense.wi_1", f"{_BLOCK}.1.DenseReluDense.wi"),
        "blocks.{l}.mlp.down": f"{_BLOCK}.1.DenseReluDense.wo",
    },
    only={"architectures": ["T5EncoderModel"], "is_decoder": False},
    inert=frozenset("classifier_dropout dropout_rate initializer_factor num_decoder_layers "
                    "is_encoder_decoder n_positions dense_act_fn is_gated_act scale_decoder_outputs".split()),
    leftover=(r"encoder\.(final_layer_norm|embed_tokens)\..*",),
    head=Head({"head.norm": "encoder.final_layer_norm"}),
)  # fmt: skip
