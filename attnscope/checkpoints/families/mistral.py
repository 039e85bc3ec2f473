"""Mistral (Jiang et al., 2023): Llama in which a query sees the last `sliding_window` keys only."""

from attnscope.checkpoints.families.llama import LLAMA
from attnscope.checkpoints.families.spec import Computed, key
from attnscope.checkpoints.families.windows import everywhere

MISTRAL = LLAMA.variant(
    "mistral",
    {
        "n_kv_heads": key("num_key_value_heads"),
        "windows": Computed(everywhere, ("sliding_window",)),
        "qkv_bias": False,
        "mlp_bias": False,
    },
)
