"""Cohere's Command R and R7B (2024): attention beside a gated MLP, after one norm; neighbours are rotated."""

from collections.abc import Mapping
from typing import Any

from attnscope.checkpoints.families.gemma3 import slides
from attnscope.checkpoints.families.llama import LLAMA
from attnscope.checkpoints.families.reader import ConfigReader
from attnscope.checkpoints.families.rope import rope
from attnscope.checkpoints.families.spec import KV_HEADS, Computed, key, lm_head
from attnscope.checkpoints.families.windows import by_layer

_PATTERN = "sliding_window_pattern"


def _rotated(_: ConfigReader, done: Mapping[str, Any]) -> tuple[bool, ...]:
    """Return the layers whose queries and keys are rotated: those with a window."""
    return tuple(window is not None for window in done["windows"] or (None,) * done["n_layers"])


COHERE = LLAMA.variant(
    "cohere",
    {
        "n_kv_heads": KV_HEADS,
        "rope": rope(base=5e5, interleaved=True),
        "norm": "layernorm",
        "norm_bias": False,
        "norm_eps": key("layer_norm_eps", default=1e-5),
        "parallel": True,
        "shared_norm": True,
        "mlp_bias": False,
    },
    without="norm_mlp",
    only={"use_qk_norm": False},
    inert=frozenset({"attention_dropout", "model_max_length", "pretraining_tp"}),
    head=lm_head("norm", scale=key("logit_scale", default=0.0625)),
)

COHERE2 = COHERE.variant(
    "cohere2",
    {
        "rope": rope(interleaved=True),
        "windows": by_layer(
            lambda reader, layer: slides(reader, layer, 4), _PATTERN, f"_{_PATTERN}"
        ),
        "rope_layers": Computed(_rotated),
    },
    # what the published files say in addition
    requires={
        "layer_switch": 4,
        "order_of_interleaved_layers": "local_attn_first",
        "position_embedding_type": "rope_gptj",
        "rotary_pct": 1,
        "use_parallel_block": True,
        "use_parallel_embedding": True,
        "use_gated_activation": True,
        "use_qk_norm": False,
    },
    only={},
    inert=COHERE.inert | {"use_embedding_sharing"},
)
